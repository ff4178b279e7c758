"""Stages x replicas on racks with free nodes: the data of the problem, and what a choice of counts sends.

`solvers.topology.racks` states the problem and solves it.

Shapes: S stages, B racks.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError

WHERE = "racks"
DUST = 1e-9


@dataclass(frozen=True, slots=True)
class Racks:
    """The problem; raises PlannerError for too few free nodes and for uplinks without a rate."""

    replicas: int
    free_B: tuple[int, ...]
    uplink_bytes_per_s_B: tuple[float, ...]
    gradient_bytes_S: tuple[float, ...]
    activation_bytes_S: tuple[float, ...]  # one fewer than stages

    def __post_init__(self) -> None:
        if self.replicas < 1 or len(self.activation_bytes_S) != len(self.gradient_bytes_S) - 1:
            what = (
                f"{self.replicas} replicas of {len(self.gradient_bytes_S)} stages with "
                f"{len(self.activation_bytes_S)} edges between them"
            )
            raise PlannerError(what, where=WHERE, hint="give a replica or more, and one edge fewer than stages")
        for rack, (free, rate) in enumerate(zip(self.free_B, self.uplink_bytes_per_s_B, strict=True)):
            if free < 0 or not (rate > 0 and math.isfinite(rate)):
                what = f"rack {rack} has {free} free nodes on an uplink of {rate:g} bytes/s"
                raise PlannerError(what, where=WHERE, hint="give nodes of 0 or more and a rate above 0")
        for size in (*self.gradient_bytes_S, *self.activation_bytes_S):
            if not (size >= 0.0 and math.isfinite(size)):
                raise PlannerError(f"{size:g} bytes are sent", where=WHERE, hint="give 0 or more")
        if sum(self.free_B) < self.cells:
            what = f"{self.cells} nodes are needed, and {sum(self.free_B)} are free"
            raise PlannerError(what, where=WHERE, hint=f"free {self.cells - sum(self.free_B)} more nodes")

    @property
    def stages(self) -> int:
        return len(self.gradient_bytes_S)

    @property
    def cells(self) -> int:
        return self.stages * self.replicas

    def uplinks_s(self, count_BS: Ints) -> Floats:
        """Seconds [..., B] that the uplink of every rack is busy under the counts [..., B, S]."""
        partly = (count_BS > 0) & (count_BS < self.replicas)
        out_B = partly @ np.array(self.gradient_bytes_S)
        out_B = out_B + np.abs(np.diff(count_BS, axis=-1)) @ np.array(self.activation_bytes_S)
        return np.asarray(out_B / np.array(self.uplink_bytes_per_s_B))


@dataclass(frozen=True, slots=True)
class SharedGradients:
    """Bytes of gradients of all stages together, shared out in any way that leaves a stage no more than so many."""

    all_bytes: float
    most_of_stage: float
