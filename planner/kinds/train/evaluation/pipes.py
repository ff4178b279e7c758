"""What the layout needs of a pipeline schedule: stages loaded together, and micro-batches in flight on each."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.memory import ROUNDS_TO_FILL
from planner.solvers.schedules.pipeline import orders, peak_resident


@dataclass(frozen=True, slots=True, eq=False)
class Pipe:
    """Stages in units that are loaded together: those of a rank, or of a pair of ranks that hold the same stages."""

    num_stages: int
    stages_of_rank: tuple[tuple[int, ...], ...]
    stage_RC: Ints  # the same, every rank holding C of them
    units: tuple[tuple[int, ...], ...]
    unit_of_rank: tuple[int, ...]
    depth_U: Floats  # micro-batches whose activations are in flight, of all layers of a unit, at the fullest
    peak_R: Floats  # the same by rank
    last: int  # the unit of the loss; unit 0 embeds


def pipe_of(schedule: str, pp: int, vpp: int, num_micro_batches: int) -> Pipe:
    """The pipeline of a schedule; kept."""
    return _kept(schedule, pp, vpp, min(num_micro_batches, ROUNDS_TO_FILL * pp))


@lru_cache(maxsize=8192)
def _kept(schedule: str, pp: int, vpp: int, num_micro_batches: int) -> Pipe:
    order = orders(schedule, pp, vpp, num_micro_batches)
    stages_of_rank = order.stages_of_rank
    units = tuple(dict.fromkeys(stages_of_rank))
    unit_of_rank = tuple(units.index(stages) for stages in stages_of_rank)
    ones = np.ones(order.num_stages)
    peak_R = peak_resident(order, ones, ones) / np.array([len(stages) for stages in stages_of_rank])
    depth_U = np.array([max(peak_R[r] for r, u in enumerate(unit_of_rank) if u == unit) for unit in range(len(units))])
    last = next(unit for unit, stages in enumerate(units) if order.num_stages - 1 in stages)
    return Pipe(
        order.num_stages, stages_of_rank, np.array(stages_of_rank, np.int64), units, unit_of_rank, depth_U, peak_R, last
    )
