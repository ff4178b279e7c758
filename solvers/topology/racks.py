"""Stages x replicas of a training job on racks with free nodes, so that the busiest uplink is done soonest.

Sets        s in S stages, d in D replicas: cells, one node each;  b in B racks
Parameters  f_b free nodes, r_b [bytes/s] of the uplink;  g_s [bytes] of gradients that a rack sends for a stage partly
            inside it, a_s [bytes] of activations on the edge from stage s to s + 1 of a replica that leaves a rack
Variables   n_sb cells of stage s on rack b
Objective   min max_b (sum_s g_s [0 < n_sb < D] + sum_s a_s |n_sb - n_{s+1,b}|) / r_b
(C1) sum_b n_sb = D              for every stage
(C2) sum_s n_sb <= f_b           for every rack
Why counts  which replicas they are can be left to the end: stages form a chain, so the replicas of each stage can be
            numbered after those of the stage before, and of the n_sb and n_{s+1,b} cells of rack b the smaller number
            carry on in the same rack, for all racks at once. No numbering leaves fewer edges than |n_sb - n_{s+1,b}|.
Method      rank orders (stage by stage and replica by replica, racks in some orders) come first. Where its tables are
            small, dynamic programming over racks and cells placed by stage, over the counts of a rack that are better
            than those, is exact; larger ones are annealed, and chosen anew from patterns (`rack_patterns`).
Bound       h(k), the least bytes that any k cells send, by dynamic programming over stages. At a time T rack b has
            room for max {k <= f_b: h(k) <= T r_b} cells; the least T at which that is room for all S D is a bound.
            Where the patterns of a rack are few enough, their relaxation is a better one.

Shapes: S stages, D replicas, B racks, K = k + 1 numbers of cells.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.solvers.result import SolveResult, Status
from planner.solvers.topology.racks_problem import DUST, Racks, SharedGradients

SOLVER = "counts by dynamic programming, annealing, and patterns of racks"
MOST_ORDERS = 720  # of racks that rank orders are tried in
STEPS_PER_CELL_AND_RACK, MOST_ANNEAL_STEPS = 2_000, 3_000_000
ANNEAL_STARTS = 6
MOST_STATES = 4e6  # entries of all tables
MOST_STEPS = 3e9  # entries x patterns, if all were worth their while
MOST_TOLD_APART = 500_000  # entries of the tables of bounds by whole stages
MOST_QUICK_STEPS, QUICK_ANNEAL_STEPS = 1e7, 200_000


@dataclass(frozen=True, slots=True)
class RackPlan:
    """The rack of every cell, [S][D], and how long every uplink is busy."""

    rack_SD: tuple[tuple[int, ...], ...]
    uplinks_s: tuple[float, ...]


def place_on_racks(problem: Racks, *, seed: int = 0, quick: bool = False) -> SolveResult[RackPlan]:
    """The placement whose busiest uplink is done soonest; objective and bound in seconds.

    `quick`: annealing and the bound by room alone where tables would take more than about a second. OPTIMAL where the
    bound is met, or the tables of all choices are small enough to be filled; FEASIBLE otherwise.
    """
    started_s = time.perf_counter()
    bound = capacity_bound_s(problem)
    count_BS = min(rank_orders(problem), key=lambda counts: float(problem.uplinks_s(counts).max()))
    if _provable(problem, MOST_QUICK_STEPS if quick else MOST_STEPS):
        better = _better(problem, float(problem.uplinks_s(count_BS).max()))
        count_BS = count_BS if better is None else better
        bound = float(problem.uplinks_s(count_BS).max())
    else:
        count_BS = _annealed(problem, count_BS, bound, seed, quick=quick)
        if not quick:
            count_BS, bound = _by_patterns(problem, count_BS, bound)
    plan = decode(problem, count_BS)
    objective = max(plan.uplinks_s)
    proven = objective <= bound * (1.0 + DUST)
    return SolveResult(
        Status.OPTIMAL if proven else Status.FEASIBLE,
        "finished" if proven else "node_limit",
        plan,
        objective,
        min(bound, objective),
        time.perf_counter() - started_s,
        SOLVER,
    )


def rank_orders(problem: Racks) -> Iterator[Ints]:
    """Counts [B, S] of ranks dealt to racks in order: replicas of a stage side by side, and stages of a replica."""
    racks = range(len(problem.free_B))
    few = math.factorial(len(racks)) <= MOST_ORDERS if len(racks) < 20 else False
    by_size = sorted(racks, key=lambda b: -problem.free_B[b])
    orders: Sequence[Sequence[int]] = list(itertools.permutations(racks)) if few else [racks, by_size, by_size[::-1]]
    stage = np.arange(problem.stages)
    for ranks in (np.repeat(stage, problem.replicas), np.tile(stage, problem.replicas)):
        for order in orders:
            rack = np.repeat(order, [problem.free_B[b] for b in order])[: problem.cells]
            count_BS = np.zeros((len(racks), problem.stages), np.int64)
            np.add.at(count_BS, (rack, ranks), 1)
            yield count_BS


def capacity_bound_s(problem: Racks, shared: SharedGradients | None = None) -> float:
    """The least time at which all racks together have room for all cells, whichever way `shared` are shared out."""
    from planner.solvers.compiled.topology.rack_bounds import least_time_s

    most = max(problem.free_B)
    least_K = least_bytes(problem, most) if shared is None else least_bytes_of_any(problem, most, shared)
    rates = np.array(problem.uplink_bytes_per_s_B)
    return float(least_time_s(least_K, np.array(problem.free_B), rates, problem.cells, DUST))


def least_bytes(problem: Racks, most: int) -> Floats:
    """h(k): the least bytes that k cells of one rack send, k = 0 .. `most`; infinite for more than all cells.

    least(s, n, k) = g_s [0 < n < D] + min over n' of least(s - 1, n', k - n) + a_{s-1} |n - n'|, O(S D most).
    """
    return np.asarray(_least_by_whole(problem, most, 0)[0])


def least_bytes_of_any(problem: Racks, most: int, shared: SharedGradients) -> Floats:
    """h(k) where stages share out gradients in any way: those of the problem are the least of each.

    Stages of which a rack has all cells or none, W of them, leave at least all - W most_of_stage to the others.
    """
    silent = replace(problem, gradient_bytes_S=(0.0,) * problem.stages)
    least_WK = _least_by_whole(silent, most, _most_whole(problem, most))
    least_S = np.cumsum([0.0, *sorted(problem.gradient_bytes_S)])
    for whole in range(len(least_WK)):
        last = whole == len(least_WK) - 1  # so many or more
        own = 0.0 if last else float(least_S[problem.stages - whole])
        others = problem.stages if last else whole
        least_WK[whole] += max(own, shared.all_bytes - others * shared.most_of_stage)
    return np.asarray(least_WK.min(axis=0))


def _most_whole(problem: Racks, most: int) -> int:
    """Stages that a rack has whole or not at all, up to which they are told apart."""
    entries = problem.stages * (min(problem.replicas, most) + 1) ** 2 * (most + 1)
    return int(min(problem.stages, max(1, MOST_TOLD_APART // entries)))


def _least_by_whole(problem: Racks, most: int, told_apart: int) -> Floats:
    """The least bytes [W, k] that k cells send by stages that the rack has whole or not at all, the last W or more."""
    from planner.solvers.compiled.topology.rack_bounds import least_by_whole

    gradient_S, activation_S = np.array(problem.gradient_bytes_S), np.array(problem.activation_bytes_S)
    return np.asarray(least_by_whole(problem.replicas, most, gradient_S, activation_S, told_apart))


def decode(problem: Racks, count_BS: Ints) -> RackPlan:
    """Cells by rack: of each rack as many as can carry on in the replicas that the stage before has there."""
    rows: list[list[int]] = []
    for stage in range(problem.stages):
        left = count_BS[:, stage].tolist()
        row = [-1] * problem.replicas
        for replica, rack in enumerate(rows[-1] if rows else []):
            if left[rack]:
                row[replica] = rack
                left[rack] -= 1
        rest = iter([rack for rack, count in enumerate(left) for _ in range(count)])
        rows.append([rack if rack >= 0 else next(rest) for rack in row])
    return RackPlan(tuple(map(tuple, rows)), tuple(problem.uplinks_s(count_BS).tolist()))


def _annealed(problem: Racks, count_BS: Ints, bound_s: float, seed: int, *, quick: bool) -> Ints:
    from planner.solvers.compiled.topology.racks import anneal

    best = count_BS
    steps = min(
        QUICK_ANNEAL_STEPS if quick else MOST_ANNEAL_STEPS,
        STEPS_PER_CELL_AND_RACK * problem.cells * len(problem.free_B),
    )
    for start in range(1 if quick else ANNEAL_STARTS):
        least = float(problem.uplinks_s(best).max())
        if least <= bound_s * (1.0 + DUST) or len(problem.free_B) < 2:
            return best
        counts = anneal(
            best.copy(),
            np.array(problem.free_B) - best.sum(axis=1),
            np.array(problem.uplink_bytes_per_s_B),
            problem.replicas,
            np.array(problem.gradient_bytes_S),
            np.array([*problem.activation_bytes_S, 0.0]),
            steps,
            seed + start,
        )
        if float(problem.uplinks_s(counts).max()) < least:
            best = counts
    return best


def _by_patterns(problem: Racks, count_BS: Ints, bound_s: float) -> tuple[Ints, float]:
    """Counts no worse than the given ones, and a bound no lower, where the patterns of racks are few enough."""
    from planner.solvers.topology.rack_patterns import choose_patterns, patterns_within, relaxed_bound_s

    incumbent_s = float(problem.uplinks_s(count_BS).max())
    patterns = None if incumbent_s <= bound_s * (1.0 + DUST) else patterns_within(problem, incumbent_s)
    if patterns is None:
        return count_BS, bound_s
    chosen_BS, bound_s = choose_patterns(patterns, incumbent_s, relaxed_bound_s(patterns, incumbent_s, bound_s))
    return (count_BS if chosen_BS is None else chosen_BS), bound_s


def _better(problem: Racks, incumbent_s: float) -> Ints | None:
    """The best counts [B, S] of those better than the incumbent, exactly; None where there are none.

    soonest(b, m) = min over patterns p of rack b of max(soonest(b - 1, m - p), seconds of p), m cells placed of every
    stage: a table of (D + 1)^S, moved by every pattern that is better than the incumbent.
    """
    shape = (problem.replicas + 1,) * problem.stages
    tables = [np.full(shape, np.inf)]
    tables[0][(0,) * problem.stages] = 0.0
    patterns_B = _patterns(problem, incumbent_s)
    for patterns in patterns_B:
        table = np.full(shape, np.inf)
        for counts, seconds in patterns:
            placed = table[tuple(slice(n, None) for n in counts)]
            before = tables[-1][tuple(slice(0, problem.replicas + 1 - n) for n in counts)]
            np.minimum(placed, np.maximum(before, seconds), out=placed)
        tables.append(table)
    left = np.full(problem.stages, problem.replicas)
    least = float(tables[-1][tuple(left)])
    if math.isinf(least):
        return None
    chosen = []
    for patterns, table in zip(reversed(patterns_B), reversed(tables[:-1]), strict=True):
        chosen.append(
            next(
                counts
                for counts, seconds in patterns
                if seconds <= least and (left >= counts).all() and table[tuple(left - counts)] <= least
            )
        )
        left = left - chosen[-1]
    return np.array(chosen[::-1])


def _patterns(problem: Racks, below_s: float) -> list[list[tuple[tuple[int, ...], float]]]:
    """Of every rack the counts by stage that it has room for and that keep its uplink busy for less than that."""
    rows = []
    for free, rate in zip(problem.free_B, problem.uplink_bytes_per_s_B, strict=True):
        extended: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for stage, gradient in enumerate(problem.gradient_bytes_S):
            edge = problem.activation_bytes_S[stage - 1] if stage else 0.0
            extended = [
                ((*counts, n), sent)
                for counts, before in extended
                for n in range(min(problem.replicas, free - sum(counts)) + 1)
                if (sent := before + gradient * (0 < n < problem.replicas) + edge * abs(n - (counts or (n,))[-1]))
                < below_s * rate * (1.0 - DUST)
            ]
        rows.append([(counts, sent / rate) for counts, sent in extended])
    return rows


def _provable(problem: Racks, most_steps: float) -> bool:
    """Whether the tables of every choice are small enough, however many patterns are worth their while."""
    states = float(problem.replicas + 1) ** problem.stages
    ways = sum(math.comb(min(free, problem.cells) + problem.stages, problem.stages) for free in problem.free_B)
    return states * len(problem.free_B) <= MOST_STATES and states * ways <= most_steps
