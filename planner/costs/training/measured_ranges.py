"""Where runs were measured: the range of every degree among the runs behind the rates, and what of a plan lies outside.

Outside, costs are first principles with rates that other layouts gave; a plan chosen there rests on no measurement.
`measured_ranges.csv` is written by `benchmarks/training_ranges.py` from the table that the rates are fitted to.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.costs.operators.experts import EVEN
from planner.costs.training.config import AHEAD, TrainingConfig
from planner.models.architecture import MoeFfn

NAMES = {
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "zero_stage": "ZeRO stage",
    "micro_batch": "micro-batch",
}
"""Degrees of a layout, as fields of `TrainingConfig`, and what notes call them."""


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """The least and the most of a degree among so many measured runs of a kind."""

    least: int
    most: int
    runs: int

    @property
    def text(self) -> str:
        """Such as `4 to 64`."""
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def kind_of(config: TrainingConfig) -> str:
    """Runs that are alike in what their layouts can be: `dense`, `experts` or `lora`."""
    if config.task == "lora":
        return "lora"
    sparse = any(isinstance(layer.ffn, MoeFfn) for layer, _ in config.arch.layer_groups())
    return "experts" if sparse else "dense"


@cache
def measured_ranges() -> dict[tuple[str, str], MeasuredRange]:
    """By kind of run and degree."""
    text = resources.files("planner.costs.training").joinpath("measured_ranges.csv").read_text(encoding="utf-8")
    return {
        (row["kind"], row["degree"]): MeasuredRange(int(row["least"]), int(row["most"]), int(row["runs"]))
        for row in csv.DictReader(text.splitlines())
    }


def outside(config: TrainingConfig) -> Iterator[str]:
    """The degrees of a plan that no measured run of its kind comes near, such as `ep 1 (4 to 64)`."""
    kind = kind_of(config)
    for degree, name in NAMES.items():
        measured, own = measured_ranges().get((kind, degree)), int(getattr(config, degree))
        if measured is not None and not measured.least <= own <= measured.most:
            yield f"{name} {own} ({measured.text})"


def unmeasured(config: TrainingConfig) -> Iterator[str]:
    """What no measured run has: optimizers, loads of experts, packed documents, offloads, switches that add up."""
    if config.optimizer == "muon":
        yield "the optimizer muon"
    if config.expert_load != EVEN:
        yield "uneven or dropped tokens of experts"
    if config.document_tokens:
        yield "packed documents"
    if config.offload:
        yield f"{' and '.join(sorted(config.offload))} on the host"
    if config.in_network:
        yield "reductions in the network"
    if config.step_spread:
        yield "GPUs that lag"
    if config.loading != AHEAD:
        yield "samples on their way"


def range_note(config: TrainingConfig) -> str | None:
    """What a plan says of itself where it lies outside what was measured; None inside."""
    far, unlike = list(outside(config)), list(unmeasured(config))
    if not far and not unlike:
        return None
    if not far:
        return f"no measurement near: first principles alone price {', '.join(unlike)}"
    runs = max(each.runs for (kind, _), each in measured_ranges().items() if kind == kind_of(config))
    what = {"experts": "mixtures of experts", "lora": "LoRA", "dense": "dense models"}[kind_of(config)]
    also = f"; first principles alone price {', '.join(unlike)}" if unlike else ""
    return f"no measurement near: beyond the {runs} measured runs of {what} are {', '.join(far)}{also}"
