"""Groups of devices with the models on them, streams of requests to these, and how many may be late."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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

    def of(self, model: int) -> "Stream":
        """The requests of one model alone."""
        own = np.flatnonzero(self.model == model)
        prompt, answer = (None if tokens is None else tokens[own] for tokens in (self.prompt, self.answer))
        return Stream(self.time_s[own], self.model[own], prompt, answer, int(np.searchsorted(own, self.first)))


@dataclass(frozen=True, slots=True, eq=False)
class Allowance:
    """Late requests that each model may have, and the weight of one beyond these beside 1 of every late one. [M]"""

    late_M: Ints
    weight_M: Ints

    @classmethod
    def of(cls, required_M: Floats, streams: Sequence[Stream]) -> "Allowance":
        """Where such a share of each model's requests is to be on time.

        Any request beyond the allowed ones weighs more than all late ones, and the same share of each model as much.
        """
        count_M = sum(np.bincount(stream.model[stream.first :], minlength=len(required_M)) for stream in streams)
        asked_M = np.maximum(count_M, 1)
        total = int(asked_M.sum())
        late_M = np.floor((1.0 - required_M) * asked_M + ROUNDING).astype(np.int64)
        return cls(late_M, total * -(-total // asked_M))

    def weighed(self, late_M: Ints) -> int:
        """Late requests of all models, and the weights of those beyond the allowed ones."""
        return int(late_M.sum() + (self.weight_M * np.maximum(late_M - self.late_M, 0)).sum())

    def untouched(self) -> "Allowance":
        """Another of the same, for a simulation that takes late requests off it."""
        return Allowance(self.late_M.copy(), self.weight_M)

    @classmethod
    def free(cls, models: int) -> "Allowance":
        """Where no share of any model is asked for."""
        return cls(np.full(models, np.iinfo(np.int64).max), np.zeros(models, dtype=np.int64))


ROUNDING = 1e-9  # of requests: what floating point may take of a whole one
