"""Sequences of unlike lengths on aligned blocks of ranks: the context-parallel degree and the block of each.

Source: Megatron-LM's dynamic context parallelism, ByteScale (arXiv:2502.21231), FlexSP (arXiv:2412.01523).
Sets        i in sequences; c in degrees, each of which divides the next and the ranks R; b in R / c blocks of c ranks
Parameters  t_ic [s] of sequence i on c ranks, infinite where it does not fit them
Variables   c_i, b_i
Minimise    T, the most loaded rank; run widest first, nobody waits
(C1) sum of t_ic over the sequences whose block holds rank r <= T, for every rank r
Bound       the least T at which sequences, each at its cheapest c t_ic among those with t_ic <= T, take R T together
Method      annealing of the degrees, each placed widest and longest first on the least loaded block; then of blocks and
            degrees together; CP-SAT from there where the choices are few enough.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "degrees of sequences", "annealing"
SHARES = (0.5, 1.0, 0.7, 0.85)  # of the bound that a sequence may take at the start
PLACED = 1_000_000  # sequences placed in one annealing of degrees
MOVED = (200_000,) * 16 + (1_000_000,) * 8  # moves of each start
HOT, COLD = 5.0, 0.01
MOST_CHOICES = 20_000  # of sequences, degrees and blocks that CP-SAT is given


@dataclass(frozen=True, slots=True)
class DegreeProblem:
    """Seconds of each sequence at each degree; `degrees` ascend."""

    degrees: tuple[int, ...]
    seconds_NC: Floats
    ranks: int

    def __post_init__(self) -> None:
        if not self.degrees or self.seconds_NC.shape[1:] != (len(self.degrees),):
            raise PlannerError("sequences are no table of degrees", where=WHERE, hint="give one time a degree")
        for degree, wider in zip(self.degrees, (*self.degrees[1:], self.ranks), strict=True):
            if degree < 1 or wider % degree or (wider == degree and degree != self.ranks):
                raise PlannerError(
                    f"{wider} ranks are no whole blocks of {degree}",
                    where=WHERE,
                    hint=f"the nearest that works is {max(degree, wider // max(degree, 1) * degree)}",
                )
        unfit = np.flatnonzero(~np.isfinite(self.seconds_NC).any(axis=1))
        if len(unfit):
            raise PlannerError(f"sequence {unfit[0]} fits no degree", where=WHERE, hint="give more ranks, or cut it")


Choice = tuple[int, int]
"""Degree of a sequence, and its block."""
Choices = tuple[Choice, ...]


def best_degrees(
    problem: DegreeProblem,
    *,
    time_limit_s: float = 40.0,
    tolerance: float = 2e-3,
    starts: int = len(MOVED),
    seed: int = 0,
) -> SolveResult[Choices]:
    """Degrees and blocks with the least loaded fullest rank, with the bound; done at a gap of `tolerance`."""
    from planner.solvers.backends.cpsat_degrees import improve

    started = time.perf_counter()
    if not len(problem.seconds_NC):
        return SolveResult(Status.OPTIMAL, "finished", (), 0.0, 0.0, time.perf_counter() - started, SOLVER)
    bound, solver, stop = bound_s(problem), SOLVER, "finished"
    choices = _annealed(problem, bound, seed, tolerance, starts)
    top = fullest_s(problem, choices)
    if top > bound * (1.0 + tolerance) and _num_choices(problem) <= MOST_CHOICES:
        left_s = time_limit_s - (time.perf_counter() - started)
        better = improve(problem, choices, partial(fullest_s, problem), bound, time_limit_s=left_s, seed=seed)
        choices, bound, stop, solver = better.choices, better.bound, better.stop_reason, f"{SOLVER}, {better.solver}"
        top = fullest_s(problem, choices)
    bound = min(bound, top)
    status = Status.OPTIMAL if bound >= top * (1.0 - 1e-6) else Status.FEASIBLE
    return SolveResult(status, stop, choices, top, bound, time.perf_counter() - started, solver)


def loads_s(problem: DegreeProblem, choices: Sequence[Choice]) -> Floats:
    """Seconds of each rank."""
    load_R = np.zeros(problem.ranks)
    for seconds_C, (degree, block) in zip(problem.seconds_NC, choices, strict=True):
        load_R[block * degree : (block + 1) * degree] += seconds_C[problem.degrees.index(degree)]
    return load_R


def fullest_s(problem: DegreeProblem, choices: Sequence[Choice]) -> float:
    """Seconds of the most loaded rank."""
    return float(loads_s(problem, choices).max())


def _num_choices(problem: DegreeProblem) -> int:
    blocks_C = np.array([problem.ranks // degree for degree in problem.degrees])
    return int((np.isfinite(problem.seconds_NC) * blocks_C).sum())


def bound_s(problem: DegreeProblem) -> float:
    """Seconds that no choice is below, to one part in 1e12."""
    area_NC = problem.seconds_NC * np.array(problem.degrees)

    def enough(T: float) -> bool:
        least_N = np.where(problem.seconds_NC <= T, area_NC, np.inf).min(axis=1)
        return bool(np.isfinite(least_N).all() and least_N.sum() <= problem.ranks * T)

    low, high = 0.0, float(np.where(np.isfinite(area_NC), area_NC, 0.0).max(axis=1).sum()) + 1e-9
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def _annealed(problem: DegreeProblem, bound: float, seed: int, tolerance: float, starts: int) -> Choices:
    """The best of some starts."""
    from planner.solvers.compiled.samples.blocks import anneal_blocks, anneal_degrees

    longest = np.argsort(-problem.seconds_NC[:, -1], kind="stable")
    seconds_NC = np.ascontiguousarray(problem.seconds_NC[longest])
    width_C = np.array(problem.degrees, np.int64)
    best, best_s = None, math.inf
    steps = max(300, min(5_000, PLACED // len(longest)))
    for start, most in enumerate(MOVED[:starts]):
        moves = min(most, most // 20 * len(longest))
        choice_N = _cheapest(problem, seconds_NC, SHARES[start % len(SHARES)] * bound)
        block_N = np.zeros(len(longest), np.int64)
        own = seconds_NC, width_C, problem.ranks, choice_N, block_N
        placed = anneal_degrees(*own, bound, steps, seed + start, 0.1, 1e-4), choice_N.copy(), block_N.copy()
        moved = anneal_blocks(*own, 1.02 * bound, moves, seed + start, HOT, COLD), choice_N, block_N
        for top, choices_N, blocks_N in (placed, moved):
            if top < best_s:
                best, best_s = (choices_N, blocks_N), float(top)
        if best_s <= bound * (1.0 + tolerance):
            break
    assert best is not None
    choices: list[Choice] = [(0, 0)] * len(longest)
    for at, n in enumerate(longest):
        choices[int(n)] = problem.degrees[int(best[0][at])], int(best[1][at])
    return tuple(choices)


def _cheapest(problem: DegreeProblem, seconds_NC: Floats, most_s: float) -> Ints:
    """The degree of least rank-seconds at which a sequence takes `most_s` at most; else the fastest."""
    area_NC = seconds_NC * np.array(problem.degrees)
    allowed = (seconds_NC <= most_s) | (seconds_NC <= seconds_NC.min(axis=1, keepdims=True))
    cheapest: Ints = np.argmin(np.where(allowed, area_NC, np.inf), axis=1).astype(np.int64)
    return cheapest
