"""A training plan with its step time and memory, and whether it fits.

Shape suffixes: S stage, R rank of the pipeline.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.training.config import TrainingConfig
from planner.costs.training.memory import RankBytes
from planner.costs.training.step import straggling
from planner.kinds.train.evaluation.choice import PlanChoice, PoolShare, SideRun, Strategy
from planner.kinds.train.evaluation.layout import (
    Counts,
)
from planner.kinds.train.figures import ROUNDING


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A plan with its step time and what it is made of; seconds.

    Across several pools `choice` is the whole job as priced on the first of them; R counts the ranks of the one
    pipeline, or those of the pipelines of each pool one after the other.
    """

    choice: PlanChoice
    counts_S: Counts
    pipeline_s: float
    exchange_s: float  # what shows of the exchange between data-parallel ranks
    optimizer_s: float
    pass_R3: Floats  # of one micro-batch on each rank
    busy_R: Floats
    peak_R: Floats  # micro-batches in flight
    memory: RankBytes
    strategies: tuple[Strategy, ...] = ()  # of each layer, where they have their own; `choice` is then the first one's
    across: tuple[PoolShare, ...] = ()  # the pools, where there are several
    mean_s: float | None = None  # the mean step over the lengths of inputs, where the goal is that
    uplinks_s: float = 0.0  # that the step waits for uplinks of racks
    sides: tuple[SideRun, ...] = ()  # towers, then generators, where they have GPUs of their own

    @property
    def num_gpus(self) -> int:
        """Of the whole plan."""
        return self.choice.num_gpus + sum(side.num_gpus for side in self.sides)

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.with_samples_s(self.alone_s)

    def with_samples_s(self, step_s: float) -> float:
        """A step of so long with the samples of the next on their way, those of the slowest pool's ranks."""
        return max(part.choice.with_samples_s(step_s) for part in self.parts)

    def with_span_s(self, span_s: float) -> float:
        """The step whose passes take so long in place of `pipeline_s`."""
        return self.with_samples_s(self.alone_s - self.pipeline_s + span_s)

    @property
    def alone_s(self) -> float:
        """The step where samples are there before they are needed."""
        moved_s = self.exchange_s + self.uplinks_s
        return self.pipeline_s + self.straggling_s + moved_s + self.optimizer_s + self.host_s

    @property
    def samples_s(self) -> float:
        """What the samples of the slowest pool's ranks add."""
        return self.step_s - self.alone_s

    @property
    def straggling_s(self) -> float:
        """What all wait for the slowest GPU, where GPUs are not as fast as each other."""
        spread = self.choice.table.job.options.step_spread
        return (straggling(spread, self.num_gpus) - 1.0) * self.pipeline_s

    @property
    def host_s(self) -> float:
        """What a step takes whatever it computes, and in which the slowest pool's GPUs wait for their hosts."""
        rates = self.choice.table.job.rates
        return rates.get("step_s") + max(part.choice.idle_s for part in self.parts)

    @property
    def config(self) -> TrainingConfig:
        """The plan as the costs know it, where all of its layers and ranks have the strategy of `choice`."""
        return replace(self.choice.config, layers_of_stage=self.counts_S)

    @property
    def objective(self) -> float:
        """What a search minimises: seconds, or seconds times GPUs where the goal counts time by GPU."""
        seconds = self.step_s if self.mean_s is None else self.mean_s + self.uplinks_s
        return seconds * self.num_gpus if self.choice.table.job.per_gpu else seconds

    @property
    def parts(self) -> tuple[PoolShare, ...]:
        """The pools, each with its ranks."""
        return self.across or (PoolShare(self.choice, range(len(self.busy_R))),)

    @property
    def capacity_R(self) -> Floats:
        """Bytes of each rank that a plan may be chosen to fill."""
        return np.concatenate([np.full(len(part.rows), part.choice.table.job.capacity_bytes) for part in self.parts])

    @property
    def host_capacity_R(self) -> Floats:
        """Bytes of host memory that each rank may fill; infinite where it is not known."""
        return np.concatenate([np.full(len(part.rows), part.choice.table.job.host_bytes) for part in self.parts])

    @property
    def device_R(self) -> Floats:
        """Bytes that each rank's GPU has."""
        jobs = [part.choice.table.job for part in self.parts]
        sizes = [np.full(len(part.rows), job.machine.memory_bytes) for part, job in zip(self.parts, jobs, strict=True)]
        return np.concatenate(sizes)


def fits(evaluation: Evaluation) -> bool:
    """Whether every rank leaves the room that is to stay free, on its device and on its host."""
    return fits_devices(evaluation) and fits_hosts(evaluation)


def fits_devices(evaluation: Evaluation) -> bool:
    """Whether every rank leaves the room of its device that is to stay free."""
    return bool((evaluation.memory.total_R <= evaluation.capacity_R * (1.0 + ROUNDING)).all())


def fits_hosts(evaluation: Evaluation) -> bool:
    """Whether every rank's host has room for what lies there."""
    return bool((evaluation.memory.host_R <= evaluation.host_capacity_R * (1.0 + ROUNDING)).all())
