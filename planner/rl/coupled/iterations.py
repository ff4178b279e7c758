"""What goes into a coupled simulation, and what is seen in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TrainSeconds = Callable[[int, Sequence[int]], float]
"""Of a batch and its samples in the order in which they were done."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """What one side waits for of the other.

    Version v of the weights is what v iterations were trained into. Batch i may be handed out once version
    i - `staleness` has arrived. The trainer takes up batch i once all its samples are done and batch i - 1 is trained,
    and then sends the new version: that holds it up for `stop_s`, generators too where `stops`, and the version has
    arrived `delay_s` later, for which nobody waits. In `lockstep` both sides begin together, and wait for each other.
    """

    staleness: int
    lockstep: bool = False
    stops: bool = False
    stop_s: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Samples of a batch as (prompt, output), and those of each group of replicas as they are handed out."""

    lengths: Sequence[tuple[int, int]]
    queues: Sequence[Sequence[int]]


@dataclass(slots=True)
class Iterations:
    """Of batches in turn, seconds from the start: when the last sample is done, and when the batch is trained and the
    new weights are sent."""

    generated_s: list[float] = field(default_factory=list)
    trained_s: list[float] = field(default_factory=list)

    def mean_s(self, first: int, count: int) -> float:
        """Mean of `count` iterations behind the `first` ones."""
        return (self.trained_s[first + count - 1] - self.trained_s[first - 1]) / count
