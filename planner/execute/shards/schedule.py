"""Pipeline schedules of forward and backward passes (1F1B, interleaved), and their makespan with waits.

The orders are those of `planner.solvers.pass_orders`. Where there are fewer micro-batches than ranks all
forward passes come before all backward passes, as torch runs them then (GPipe, Huang et al., arXiv:1811.06965).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.solvers.pass_orders import BACKWARD, fill_rounds

EXECUTED = ("1f1b", "interleaved")


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch through one stage, forwards or backwards."""

    stage: int
    micro_batch: int
    backward: bool = False


def passes_of(pp: int, vpp: int, micro_batches: int) -> list[list[Pass]]:
    """The passes of every pipeline rank in order; rank r holds stages r, r + pp, ... ."""
    if vpp == 1 and micro_batches < pp:
        order = [(backward, batch) for backward in (False, True) for batch in range(micro_batches)]
        return [[Pass(rank, batch, backward) for backward, batch in order] for rank in range(pp)]
    orders = []
    for rank in range(pp):
        rows = [[0, 0, 0] for _ in range(2 * vpp * micro_batches)]
        fill_rounds(pp, vpp, micro_batches, rank, rows)
        orders.append([Pass(stage, batch, kind == BACKWARD) for kind, stage, batch in rows])
    return orders


def forward_passes(stages_of_rank: Sequence[Sequence[int]], micro_batches: int = 1) -> list[list[Pass]]:
    """Micro-batches one after the other through all stages, forwards alone."""
    return [
        [Pass(stage, batch) for batch in range(micro_batches) for stage in sorted(stages)] for stages in stages_of_rank
    ]


def makespan_s(passes: Sequence[Sequence[Pass]], seconds_of: Callable[[Pass], float], handover_s: float) -> float:
    """When the last pass ends, if every rank starts the next of its passes as soon as what it needs has come.

    A pass needs the one of the stage before it (behind it, backwards), and `handover_s` where another rank did that.
    Raises ValueError for orders in which ranks wait for each other.
    """
    rank_of = {step.stage: rank for rank, order in enumerate(passes) for step in order}
    last_stage = max(rank_of)
    done: dict[Pass, float] = {}
    free = [0.0] * len(passes)
    places = [0] * len(passes)
    while any(place < len(order) for place, order in zip(places, passes, strict=True)):
        moved = False
        for rank, order in enumerate(passes):
            while places[rank] < len(order):
                step = order[places[rank]]
                ready = _ready_s(step, last_stage, rank_of, done, handover_s)
                if ready is None:
                    break
                free[rank] = max(free[rank], ready) + seconds_of(step)
                done[step] = free[rank]
                places[rank] += 1
                moved = True
        if not moved:
            raise ValueError("the passes wait for each other")
    return max(free)


def _ready_s(
    step: Pass, last_stage: int, rank_of: Mapping[int, int], done: Mapping[Pass, float], handover_s: float
) -> float | None:
    """When what a pass needs is there; None while it is not known."""
    if step.stage == (last_stage if step.backward else 0):
        return 0.0
    before = replace(step, stage=step.stage + 1 if step.backward else step.stage - 1)
    if before not in done:
        return None
    return done[before] + (handover_s if rank_of[before.stage] != rank_of[step.stage] else 0.0)
