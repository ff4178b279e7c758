"""Which blocks a pool of instances holds, and on how many of them each: the most hits with even loads.

The problem of TokenLake's segment pool (arXiv:2508.17219) for a fixed set: a prompt hits as far as its blocks are held.
Sets        b in B blocks, i in N instances
Parameters  l_b accesses, S_i slots, e: how far the most loaded instance may lie above the mean
Variables   y_bi in {0, 1} a copy of b on i, x_bi in [0, y_bi] the share of its load that the copy carries
Maximise    H = sum_b l_b sum_i x_bi
(C1) sum_i x_bi in {0, 1}                     a block is held or not
(C2) sum_b y_bi <= S_i
(C3) sum_b l_b x_bi <= (1 + e) H / |N|        no instance carries more than 1 + e times the mean
(C4) a block is held only where those before it in a prompt are
(C3) asks for ceil(l_b / ((1 + e) H / |N|)) copies of b or more: the blocks of most accesses with room for them are
a relaxation, whose optimum is a bound, solved for H to a fixed point; a few copies more, placed heaviest first on the
least loaded instance that has a slot, and made even (`even_loads`), keep (C3).
R request, A access, B block, N instance.
"""

import heapq
import time
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.even_loads import Alone, even_shares
from planner.solvers.result import SolveResult, Status

WHERE = "pool"
SOLVER = "blocks of most accesses, copied to even loads"
FINER = 0.97  # times the load of a copy that (C3) allows, for ever more copies
STEPS = 200
EVERYWHERE = (1, 2, 4)  # blocks of most accesses on all instances
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class PoolProblem:
    """Accesses and slots; raises PlannerError for figures that cannot be."""

    requests: BlockRequests
    slots_N: Ints
    over_mean: float  # e of (C3)

    def __post_init__(self) -> None:
        if not len(self.slots_N) or self.slots_N.min() < 1 or self.over_mean < 0.0:
            what = f"instances of {self.slots_N.tolist()[:5]} slots, at most {1.0 + self.over_mean:g} times the mean"
            raise PlannerError(what, where=WHERE, hint="give every instance a slot, and a limit of 1 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The instances that hold a block, and the share of its load that each carries."""

    at: Ints
    share: Floats

    @classmethod
    def even(cls, at: Ints) -> "Copies":
        """Copies that carry as much each."""
        return cls(at, np.full(len(at), 1.0 / len(at)))


Placement: TypeAlias = dict[int, Copies]
"""The copies of each block that is held."""


def pool_loads(requests: BlockRequests, placement: Placement, instances: int) -> tuple[Floats, int]:
    """Hits by instance and in all: a prompt hits as far as its blocks are held."""
    held_B = np.zeros(requests.num_blocks, np.bool_)
    held_B[list(placement)] = True
    hits_B = np.bincount(requests.block_A[requests.leading_A(held_B[requests.block_A])], minlength=requests.num_blocks)
    load_N = np.zeros(instances)
    for block, copies in placement.items():
        load_N[copies.at] += hits_B[block] * copies.share
    return load_N, int(hits_B.sum())


def most_hits(problem: PoolProblem) -> SolveResult[Placement]:
    """Copies that keep (C1) to (C4), with the bound on the hits of all; no block is held where none is even."""
    started_s = time.perf_counter()
    bound = hits_bound(problem)
    copies, hits = _fewest_copies(problem, bound)
    status = Status.OPTIMAL if hits >= bound - ROUNDING else Status.FEASIBLE
    spent_s = time.perf_counter() - started_s
    return SolveResult(status, "finished", copies, float(hits), bound, spent_s, SOLVER)


def _fewest_copies(problem: PoolProblem, bound: float) -> tuple[Placement, int]:
    """The even placement whose copies carry the most each, as far as bisection tells, and its hits.

    Or that of a few blocks on all instances, where that has more: loads of one copy each are seldom exactly even.
    """
    limit, instances = 1.0 + problem.over_mean, len(problem.slots_N)
    most_each = limit * bound / instances

    def even(step: int) -> tuple[Placement, int] | None:
        return _made_even(problem, _placed(problem, FINER**step * most_each))

    uneven, step, kept = -1, 0, even(0)
    while kept is None and step < STEPS:
        uneven, step = step, 2 * step + 1
        kept = even(step)
    while kept is not None and step - uneven > 1:
        middle = (uneven + step) // 2
        better = even(middle)
        kept, step, uneven = (kept, step, middle) if better is None else (better, middle, uneven)
    answers: list[tuple[Placement, int]] = [({}, 0)] if kept is None else [kept]
    if answers[0][1] < bound - ROUNDING:
        spread = (_made_even(problem, _placed(problem, most_each, everywhere)) for everywhere in EVERYWHERE)
        answers += [next(filter(None, spread), ({}, 0))]
    return max(answers, key=lambda answer: answer[1])


def _made_even(problem: PoolProblem, placed: Placement) -> tuple[Placement, int] | None:
    """The placement that keeps (C3), as it is or levelled, and its hits; None where neither does."""
    limit, instances = 1.0 + problem.over_mean, len(problem.slots_N)
    for levelled in (False, True):
        placement = _levelled(problem, placed) if levelled else placed
        load_N, hits = pool_loads(problem.requests, placement, instances)
        if hits and load_N.max() <= limit * load_N.mean() * (1.0 + ROUNDING):
            return placement, hits
    return None


def hits_bound(problem: PoolProblem) -> float:
    """No set of blocks has more hits: blocks of most accesses per slot, with the copies that (C3) asks for."""
    accesses_B = np.sort(problem.requests.accesses_B())[::-1].astype(np.float64)
    slots, instances = int(problem.slots_N.sum()), len(problem.slots_N)
    bound = float(accesses_B[:slots].sum())
    while True:
        each = (1.0 + problem.over_mean) * bound / instances
        needed_B = np.maximum(np.ceil(accesses_B / max(each, ROUNDING) - ROUNDING), 1.0)
        less = _fractional(accesses_B[needed_B <= instances], needed_B[needed_B <= instances], slots)
        if less >= bound * (1.0 - ROUNDING):
            return min(less, bound)
        bound = less


def _fractional(value_B: Floats, slots_B: Floats, room: int) -> float:
    """The optimum of the knapsack whose items may be cut."""
    order = np.argsort(-value_B / slots_B, kind="stable")
    value_B, slots_B = value_B[order], slots_B[order]
    filled_B = np.clip((room - (np.cumsum(slots_B) - slots_B)) / slots_B, 0.0, 1.0)
    return float((value_B * filled_B).sum())


def _levelled(problem: PoolProblem, placement: Placement) -> Placement:
    """The same blocks in as many copies each, as even as exchanges and shares make them."""
    accesses_B = problem.requests.accesses_B().astype(np.float64)
    load_N, room_N = np.zeros(len(problem.slots_N)), problem.slots_N.copy()
    for block, copies in placement.items():
        load_N[copies.at] += accesses_B[block] * copies.share
        room_N[copies.at] -= 1
    alone, copied = Alone(load_N, room_N), {b: copies for b, copies in placement.items() if len(copies.at) > 1}
    for block, copies in placement.items():
        if block not in copied:
            alone.hold(block, float(accesses_B[block]), int(copies.at[0]))
    alone.even()
    for block, copies in copied.items():
        load_N[copies.at] -= accesses_B[block] * copies.share
    shares = even_shares(load_N, {b: copies.at for b, copies in copied.items()}, {b: accesses_B[b] for b in copied})
    levelled = {block: Copies(copied[block].at, share) for block, share in shares.items()}
    return levelled | {block: Copies.even(np.array([at])) for block, at in alone.homes().items()}


def _placed(problem: PoolProblem, most_each: float, everywhere: int = 0) -> Placement:
    """The blocks of most accesses in copies of at most so much load, heaviest first on the least loaded instance.

    The first of them are `everywhere`.
    """
    accesses_B = problem.requests.accesses_B()
    room, instances = int(problem.slots_N.sum()), len(problem.slots_N)
    chosen: list[tuple[float, int, int]] = []  # load of a copy, block, copies
    for block in np.argsort(-accesses_B, kind="stable").tolist():  # blocks before others of their prompt come first
        if not room or not accesses_B[block]:
            break
        copies = max(int(np.ceil(accesses_B[block] / most_each - ROUNDING)), 1)
        copies = min(instances if len(chosen) < everywhere else copies, instances, room)
        chosen.append((accesses_B[block] / copies, block, copies))
        room -= copies
    left_N = problem.slots_N.tolist()
    placed: Placement = {}
    free = [(0.0, i) for i in range(instances)]
    for load, block, copies in sorted(chosen, key=lambda row: (-row[0], row[1])):
        at = [heapq.heappop(free) for _ in range(min(copies, len(free)))]
        for carried, i in at:
            left_N[i] -= 1
            if left_N[i]:
                heapq.heappush(free, (carried + load, i))
        if at:
            placed[block] = Copies.even(np.array(sorted(i for _, i in at)))
    return placed
