"""Predicts disaggregated and asynchronous RL steps from one measured colocated step with phase times.

Both pools are parts of the GPUs measured: x_g and x_t of them. Half as many GPUs do not need twice as long: the longest
sample decodes as fast on one replica as beside hundreds, and a training step has parts that every rank repeats
(gathering parameters, imbalance of lengths). So a phase of P seconds on all GPUs takes on the share x

    P(x) = P (u + (1 - u) / x)        u the part that more GPUs do not shorten

One step off-policy, the trainer does what it did colocated: step = max(G(x_g), L(x_t) + U(x_t)) + rest, where `rest` is
what the measured step holds beyond its phases (rewards, synchronisation).

Fully asynchronous, the trainer keeps its memory to itself and takes probabilities from the generators, so that an
update costs the share `own_memory`; each of its calls a step adds `call` of that (balance and start-up of each call).
With staleness s > 0 unfinished samples carry on, and s of a batch waits when a step starts: training waits for the
first finished samples, a share `first` of a rollout, less the time that those in store keep it busy:

    U' = own_memory U(x_t) (1 + call calls);    step = max(U' + max(0, first G(x_g) - s U'), (1 - u) G / x_g) + sync

where the last is what generators take that never wait for their longest sample, the least for so many samples. With
s = 0 every step drains its rollout: step = max(G(x_g), U') + sync.

Calibrated on the rows of measured steps that are not suspect, all at once, never by row: `benchmarks/rl_measured.py`
prints the fit (`--fit`) and the errors with each setup left out of it.
"""

from dataclasses import dataclass
from typing import Literal

from planner.documents.read import Document
from planner.errors import PlannerError
from planner.rl.document_part import DocumentPart

Asynchrony = Literal["one_step", "fully"]
BYTES_PER_PARAMETER = 2.0
ERROR = 0.046
"""Median error of a predicted step, set-ups left out (`benchmarks/rl_measured.py`): a gain within it is none, for older
weights are paid for it."""
LEAST_NAMED = 0.5  # of a step in its phases: measured ones name 92 % and more


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """A measured colocated step on `gpus` GPUs; seconds."""

    gpus: int
    step_s: float
    generation_s: float
    training_s: float
    logprob_s: float = 0.0

    def __post_init__(self) -> None:
        phases = self.generation_s + self.training_s + self.logprob_s
        if min(self.step_s, self.generation_s, self.training_s) <= 0 or self.logprob_s < 0:
            raise PlannerError("a measured step has positive times", where="measured", hint="give seconds")
        if phases > self.step_s * 1.001:
            raise PlannerError(
                f"phases of {phases:.6g} s in a step of {self.step_s:.6g} s",
                where="measured",
                hint=f"give the phases of a colocated step, {self.step_s:.6g} s together at most",
            )
        if phases < LEAST_NAMED * self.step_s:
            raise PlannerError(
                f"phases of {phases:.6g} s in a step of {self.step_s:.6g} s: {self.step_s - phases:.6g} s have no name",
                where="measured",
                hint="give all phases of one step: generation, training, and log-probabilities where they are apart",
            )

    @property
    def rest_s(self) -> float:
        return max(self.step_s - self.generation_s - self.training_s - self.logprob_s, 0.0)


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """Pools of their own; `calls` of the trainer for one step's samples; staleness in steps."""

    generation_gpus: int
    training_gpus: int
    asynchrony: Asynchrony
    staleness: float = 0.0
    calls: float = 1.0


@dataclass(frozen=True, slots=True)
class Response:
    """How phases respond to a split; see the module. `sync_bytes_per_s` carries weights to the generators."""

    training_unshortened: float = 0.53
    generation_unshortened: float = 0.822
    own_memory: float = 0.595
    call: float = 0.069
    first: float = 0.259
    sync_bytes_per_s: float = 3.58e9


CALIBRATED = Response()


def predict_step_s(measured: PhaseTimes, split: PoolSplit, parameters: float, response: Response = CALIBRATED) -> float:
    """The step with generation and training apart, seconds; `parameters` of the model whose weights are sent."""
    for gpus, what in ((split.generation_gpus, "generate"), (split.training_gpus, "train")):
        if not 0 < gpus <= measured.gpus:
            raise PlannerError(
                f"{gpus} of {measured.gpus} GPUs {what}", where="split", hint=f"use 1 to {measured.gpus - 1}"
            )
    generation_s = measured.generation_s * _stretch(
        response.generation_unshortened, split.generation_gpus / measured.gpus
    )
    stretch = _stretch(response.training_unshortened, split.training_gpus / measured.gpus)
    if split.asynchrony == "one_step":
        return max(generation_s, (measured.training_s + measured.logprob_s) * stretch) + measured.rest_s
    update_s = measured.training_s * stretch * response.own_memory * (1 + response.call * split.calls)
    sync_s = parameters * BYTES_PER_PARAMETER / response.sync_bytes_per_s
    if split.staleness == 0:
        return max(generation_s, update_s) + sync_s
    wait_s = max(0.0, response.first * generation_s - split.staleness * update_s)
    steady_s = measured.generation_s * (1 - response.generation_unshortened) * measured.gpus / split.generation_gpus
    return max(update_s + wait_s, steady_s) + sync_s


def is_worth(colocated_s: float, predicted_s: float, error: float = ERROR) -> bool:
    """Whether a predicted step is shorter than the measured one by more than predictions err."""
    return predicted_s * (1.0 + error) < colocated_s


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured colocated step of a model, on nodes of so many GPUs; `calls` of the trainer when asynchronous."""

    times: PhaseTimes
    parameters: float
    gpus_per_node: int
    calls: float

    @classmethod
    def read(cls, document: Document) -> "Measurement":
        """Raises PlannerError for fields that are missing or no times."""
        part = DocumentPart(document, document.data)
        if not isinstance(document.data, dict):
            raise part.refuse("must be a mapping", "write `gpus: 16` and the times of the step")
        times = PhaseTimes(
            part.count("gpus"),
            part.number("step_s", positive=True),
            part.number("generation_s", positive=True),
            part.number("training_s", positive=True),
            part.number("logprob_s", 0.0),
        )
        node = part.count("gpus_per_node", 8)
        return cls(times, part.number("parameters", positive=True), node, part.number("calls", 1.0, positive=True))

    def splits(self, asynchrony: Asynchrony, staleness: float) -> list[tuple[PoolSplit, float]]:
        """Every split into whole nodes (into GPUs within one node) with its predicted step, seconds."""
        whole = self.times.gpus
        unit = self.gpus_per_node if whole > self.gpus_per_node and whole % self.gpus_per_node == 0 else 1
        splits = []
        for generating in range(unit, whole, unit):
            split = PoolSplit(generating, whole - generating, asynchrony, staleness, self.calls)
            splits.append((split, predict_step_s(self.times, split, self.parameters)))
        return splits


def _stretch(unshortened: float, share: float) -> float:
    """How much longer a phase takes on a share of its GPUs."""
    return unshortened + (1 - unshortened) / share
