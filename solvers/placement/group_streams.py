"""Groups of devices with the models on them, and streams of requests to these."""

from dataclasses import dataclass

from planner.arrays import Floats, Indices, Ints


@dataclass(frozen=True, slots=True)
class Group:
    """One group: an index into the shapes, and the models that live on it, in ascending order."""

    shape: int
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Requests in the order of their arrival: time [s] and model of each [J]; tokens where engines batch them.

    Those before `first` warm the groups up, and are not judged.
    """

    time_s: Floats
    model: Indices
    prompt: Ints | None = None
    answer: Ints | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def judged(self) -> int:
        """Requests that count."""
        return len(self) - self.first
