"""Branch and bound over plans whose towers and generators have GPUs of their own.

Nodes are those of plans of the language model on fewer GPUs than there are. A plan of it is joined with the best shares
of the rest (`solvers.modalities.split`, all of them tried). No step is below that of its language model alone, nor
below all work of the networks over the GPUs that are left: DistTrain's slowest of all takes at least their mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.one_pool import OnePool, OnePoolSearch
from planner.kinds.train.search.search import JobCandidate
from planner.kinds.train.space.space import Space
from planner.kinds.train.space.tables import CostTable, RecomputeMode
from planner.kinds.train.split.sides import Sides, joined, sides_of


@dataclass(frozen=True)
class ApartCandidate(OnePool):
    """A plan of the language model with its networks beside it."""

    sides: Sides

    def floor_s(self, mode: RecomputeMode | None, full_layers: int) -> float:
        return max(super().floor_s(mode, full_layers), self.least_s)

    @property
    def least_s(self) -> float:
        """Seconds of the networks on the GPUs that are left."""
        job = self.whole.table.job
        return job.options.global_batch * self.sides.work_s / (job.num_gpus - self.whole.num_gpus)

    def priced(self, worthy: float = float("inf")) -> Evaluation | None:
        alone = super().priced(worthy)
        return alone if alone is None or not fits(alone) else joined(alone, self.sides)


class ApartSearch(OnePoolSearch):
    """Plans on one pool whose networks have GPUs of their own."""

    def set_up(self) -> Space:
        self.sides_of_batch: dict[int, Sides] = {}
        space, job = super().set_up(), self.job
        left_N = job.num_gpus - space.tp * space.cp * space.pp * space.dp
        kept_N = np.zeros(len(space), np.bool_)
        kept_N[self.queue] = True
        work_N, least_N = np.zeros(len(space)), np.ones(len(space), np.int64)
        for node in self.queue.tolist():
            sides = self._sides(self.tables(space.shape(node))[0])
            work_N[node], least_N[node] = sides.work_s, sides.least_gpus
        kept_N &= left_N >= least_N
        side_N = job.options.global_batch * work_N / np.maximum(left_N, 1)
        self.set_nodes(np.maximum(self.bound_N, side_N), kept_N)
        return space

    def candidates(self, node: int) -> Iterator[JobCandidate]:
        for candidate in super().candidates(node):
            assert isinstance(candidate, OnePool)
            sides = self._sides(candidate.whole.table)
            yield ApartCandidate(candidate.parts, candidate.floor, sides)

    def _sides(self, table: CostTable) -> Sides:
        micro_batch = table.shape.micro_batch
        if micro_batch not in self.sides_of_batch:
            self.sides_of_batch[micro_batch] = sides_of(table)
        return self.sides_of_batch[micro_batch]


def require_apart(job: TrainJob) -> None:
    """Raises PlannerError for what networks on GPUs of their own do not go with."""
    options, where = job.options, job.resolved.where
    wanted = 1 + len(job.networks.names)
    problems = (
        (
            job.num_gpus < wanted,
            ("limits", "gpus"),
            f"{job.num_gpus} GPUs for a language model and {wanted - 1} networks apart",
            f"give {wanted} or more",
        ),
        (job.per_gpu, ("objective",), "networks apart with a goal by GPU", "write `minimize: step_time`"),
        (bool(options.batch_ramp), ("options", "batch_ramp"), "networks apart with a batch that grows", "leave it out"),
        (options.reliability is not None, ("options", "reliability"), "networks apart with failures", "leave it out"),
        (
            job.pool.wiring.uplink_bytes_per_s is not None,
            ("cluster", "pools", 0, "topology"),
            "networks apart on racks with uplinks",
            "leave the uplinks out",
        ),
    )
    for applies, place, what, hint in problems:
        if applies:
            raise PlannerError(what, where=where(place), hint=f"{hint}, or write `search: {{modules: colocated}}`")
