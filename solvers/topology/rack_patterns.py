"""Racks by patterns: what each holds of every stage, chosen for all racks together, with a bound from their relaxation.

Sets        p in P patterns (counts n_ps of cells by stage, k_p cells, w_p bytes sent);  t in T types of racks, q_t each
Variables   x_tp in {0, 1, ..} racks of type t that hold pattern p;  allowed at a time T where k_p <= f_t, w_p <= T r_t
(C1) sum_p x_tp = q_t                        for every type
(C2) sum_t sum_p n_ps x_tp = D               for every stage
Bound       at a time T, of all cells at most max sum_tp k_p x_tp stand under (C1), (C2) with <= and x continuous. For
            prices pi_s of stages that is at most D sum_s pi_s + sum_t q_t max_p sum_s (1 - pi_s) n_ps (Lagrange), which
            every check of T recomputes from its prices; where it is below S D no placement keeps T. Columns are
            generated. T is one of the values w_p / r_t, so bisection over them ends at a bound.
Choice      the columns with the least reduced cost at prices from just below that bound are put to CP-SAT, at times
            from it on up.
Source      column generation for cutting stock, Gilmore and Gomory, Operations Research 1961

Shapes: P patterns, S stages, T types of racks, C columns (pairs of type and pattern), M times.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.solvers.result import Status
from planner.solvers.topology.racks_problem import DUST, Racks

MOST_PATTERNS = 150_000
COLUMNS_PER_TYPE = 8  # added in a round of generation
MOST_ROUNDS = 60
MOST_COLUMNS, EFFORT_S = 1_200, 2.0  # of a trial: columns, and deterministic seconds of CP-SAT
BELOW = (
    1.0 - 1e-6,
    0.99,
    0.98,
    0.97,
    0.96,
    0.94,
    0.92,
    0.9,
    0.85,
)  # of the bound: where prices are asked for, since above it there are none
MOST_UNKNOWN = 8
STEPS = (1.0, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12)  # of times above the bound
SHORT = 1e-6  # cells by which a relaxation has to fall short


@dataclass(slots=True)
class RackPatterns:
    """All patterns that keep some rack's uplink busy for at most `within_s`, and the columns generated so far."""

    problem: Racks
    count_PS: Ints
    size_P: Ints
    sent_P: Floats
    types: tuple[tuple[int, float], ...]  # free nodes and rate
    number_T: tuple[int, ...]
    columns: set[tuple[int, int]] = field(default_factory=set)  # (type, pattern)

    def allowed(self, time_s: float) -> list[Bools]:
        """Of every type, the patterns that it holds and sends in time."""
        return [
            np.asarray((self.size_P <= free) & (self.sent_P <= time_s * rate * (1.0 + DUST)))
            for free, rate in self.types
        ]

    def times_s(self, most_s: float) -> Floats:
        """What an uplink can be busy for, up to `most_s`, ascending."""
        times = np.unique(np.concatenate([self.sent_P / rate for rate in {rate for _, rate in self.types}]))
        return np.asarray(times[times <= most_s * (1.0 + DUST)])

    def keeps(self, time_s: float, *, priced: bool = False) -> tuple[bool, Floats]:
        """Whether the relaxation places all cells in time, and prices of the stages [S]: its own, if asked for."""
        from planner.solvers.backends.scipy_lp import maximise

        allowed, problem = self.allowed(time_s), self.problem
        limit = np.array([problem.replicas] * problem.stages + list(self.number_T), float)
        for _ in range(MOST_ROUNDS):
            chosen = sorted((t, p) for t, p in self.columns if allowed[t][p])
            type_C, pattern_C = np.array(chosen, np.int64).reshape(-1, 2).T
            use_RC = np.zeros((len(limit), len(chosen)))
            use_RC[: problem.stages] = self.count_PS[pattern_C].T
            use_RC[problem.stages + type_C, np.arange(len(chosen))] = 1.0
            price_R = np.zeros(len(limit))
            if chosen:
                relaxed = maximise(self.size_P[pattern_C].astype(float), use_RC, limit)
                price_R = relaxed.price_R
                if relaxed.value >= problem.cells - SHORT:
                    return True, price_R[: problem.stages]
            price_S = price_R[: problem.stages]
            worth_P = self.count_PS @ (1.0 - price_S)
            best_T = np.array([max(0.0, float(worth_P[mask].max(initial=0.0))) for mask in allowed])
            proven = problem.replicas * price_S.sum() + best_T @ np.array(self.number_T) < problem.cells - SHORT
            if proven and not priced:
                break
            before = len(self.columns)
            self._generate(allowed, worth_P, price_R[problem.stages :])
            if len(self.columns) == before:
                break
        return not proven, price_S

    def _generate(self, allowed: list[Bools], worth_P: Floats, price_T: Floats) -> None:
        for t, mask in enumerate(allowed):
            rows = np.flatnonzero(mask & (worth_P > price_T[t] + SHORT))
            rows = rows[np.argsort(-worth_P[rows], kind="stable")[:COLUMNS_PER_TYPE]]
            self.columns.update((t, int(p)) for p in rows)


def patterns_within(problem: Racks, within_s: float) -> RackPatterns | None:
    """The patterns of the problem, stage by stage; None where there are more than can be looked at."""
    most = max(problem.free_B)
    budget = within_s * max(problem.uplink_bytes_per_s_B) * (1.0 + DUST)
    n = np.arange(min(problem.replicas, most) + 1)
    partly = (n > 0) & (n < problem.replicas)
    count_PS, size_P, sent_P = n[:, None][:, :0][:1], np.zeros(1, np.int64), np.zeros(1)
    for stage, gradient in enumerate(problem.gradient_bytes_S):
        edge = problem.activation_bytes_S[stage - 1] if stage else 0.0
        before_P = count_PS[:, -1] if stage else np.zeros(1, np.int64)
        size_PN = size_P[:, None] + n[None, :]
        sent_PN = sent_P[:, None] + edge * np.abs(before_P[:, None] - n[None, :]) + gradient * partly[None, :]
        kept = (size_PN <= most) & (sent_PN <= budget)
        row, number = np.nonzero(kept)
        if len(row) > MOST_PATTERNS:
            return None
        count_PS = np.concatenate([count_PS[row], n[number][:, None]], axis=1)
        size_P, sent_P = size_PN[kept], sent_PN[kept]
    types = Counter(zip(problem.free_B, problem.uplink_bytes_per_s_B, strict=True))
    return RackPatterns(problem, count_PS, size_P, sent_P, tuple(types), tuple(types.values()))


def relaxed_bound_s(patterns: RackPatterns, incumbent_s: float, least_s: float) -> float:
    """The least time at which the relaxation places all cells, no less than `least_s`."""
    times_M = patterns.times_s(incumbent_s)
    low, high = int(np.searchsorted(times_M, least_s * (1.0 - DUST))), len(times_M) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if patterns.keeps(float(times_M[middle]))[0] else (middle + 1, high)
    return float(times_M[low])


def choose_patterns(patterns: RackPatterns, incumbent_s: float, bound_s: float) -> tuple[Ints | None, float]:
    """Counts [B, S] with a less busy uplink than the incumbent's, or None; and the bound, where it could be raised.

    Times are STEPS above the bound, from the least on; MOST_UNKNOWN trials may end without an answer.
    """
    prices = [patterns.keeps(bound_s * share, priced=True)[1] for share in BELOW]
    prices.insert(0, np.asarray(np.mean(prices, axis=0)))  # vertices alone are blind to many a stage
    least_s, unknown = bound_s, 0
    for step, price_S in itertools.product(STEPS, prices):
        time_s = max(bound_s * step, least_s)
        if time_s >= incumbent_s * (1.0 - DUST) or unknown > MOST_UNKNOWN:
            break
        status, count_BS, whole = _chosen(patterns, time_s, price_S)
        if count_BS is not None:
            return count_BS, least_s
        unknown += status is Status.UNKNOWN
        if whole and status is Status.INFEASIBLE:
            times_M = patterns.times_s(incumbent_s)
            later = times_M[times_M > time_s * (1.0 + DUST)]
            least_s = float(later[0]) if len(later) else incumbent_s
    return None, least_s


def _chosen(patterns: RackPatterns, time_s: float, price_S: Floats) -> tuple[Status, Ints | None, bool]:
    """CP-SAT over the columns with least reduced cost: its status, counts [B, S], and whether they are all columns."""
    from planner.solvers.backends.cpsat_cover import choose_rows

    problem = patterns.problem
    pairs = [(np.full(int(mask.sum()), t), np.flatnonzero(mask)) for t, mask in enumerate(patterns.allowed(time_s))]
    type_C, pattern_C = (np.concatenate(column) for column in zip(*pairs, strict=True))
    worth_C = (patterns.count_PS @ (1.0 - price_S))[pattern_C]
    best_T = np.array([worth_C[type_C == t].max(initial=0.0) for t in range(len(patterns.types))])
    kept = np.argsort(best_T[type_C] - worth_C, kind="stable")[:MOST_COLUMNS]
    type_C, pattern_C, whole = type_C[kept], pattern_C[kept], len(kept) == len(type_C)
    target = np.full(problem.stages, problem.replicas)
    counts = patterns.count_PS[pattern_C]
    status, times_C, _ = choose_rows(counts, type_C, patterns.number_T, target, deterministic_s=EFFORT_S)
    if status is not Status.OPTIMAL:
        return status, None, whole
    count_BS = np.zeros((len(problem.free_B), problem.stages), np.int64)
    kinds = list(zip(problem.free_B, problem.uplink_bytes_per_s_B, strict=True))
    for t, kind in enumerate(patterns.types):
        racks = [b for b, of in enumerate(kinds) if of == kind]
        rows = np.repeat(counts[type_C == t], times_C[type_C == t], axis=0)
        count_BS[racks] = rows
    return status, count_BS, whole
