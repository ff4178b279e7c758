"""Where runs were measured: their layouts, the region that these span on GPUs of a generation, and what lies outside.

Outside, costs are first principles with rates that other layouts gave; a plan chosen there rests on no measurement.
`measured_layouts.csv` has the layouts; `benchmarks/training.py --write` writes it.
"""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from planner.costs.operators.experts import EVEN
from planner.costs.rates.evidence import UNMEASURED
from planner.costs.training.config import AHEAD, FRAMEWORKS, TrainingConfig
from planner.models.architecture import MoeFfn

NAMES = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "micro_batch": "micro-batch"}
"""Degrees of a layout, as fields of `TrainingConfig`, and what notes call them."""


class Layout(NamedTuple):
    """What a measured run says of its region, and what the distance between two runs is counted from."""

    kind: str
    code: str
    generation: str
    precision: str
    zero_stage: int
    tp: int
    pp: int
    cp: int
    ep: int
    micro_batch: int
    schedule: str = "1f1b"  # of its pipeline; no distance is counted from it

    @property
    def degrees(self) -> tuple[int, ...]:
        """What is counted in doublings."""
        return self.tp, self.pp, self.cp, self.ep, self.micro_batch


NAMED, NUMBERS = Layout._fields[:4], Layout._fields[4:-1]
NEAR = 2  # times a measured degree, or part of it
COUNTED = 5  # the first place of `Layout` that is counted in doublings


@dataclass(frozen=True, slots=True)
class Region:
    """What so many measured layouts of a kind of model span.

    Degrees, to a doubling beyond, are those on GPUs of a generation. Schedules are those there, and those that were
    measured on several generations, of any kind of model: what one idles follows from its passes, on any GPU. ZeRO
    stages are those that one family of codes ran there, without a pipeline and with one: how ranks share states, and
    what they exchange with every micro-batch, is the code's, and each stage does it in another way beside a pipeline
    than without.
    """

    layouts: int
    ranges: Mapping[str, tuple[int, int]]  # least and most of each degree
    schedules: frozenset[str]  # of pipelines
    stages: Mapping[bool, tuple[int, ...]]  # ZeRO stages, by whether there is a pipeline

    def text(self, degree: str) -> str:
        """Such as `4 to 64`."""
        return " to ".join(map(str, dict.fromkeys(self.ranges[degree])))

    def holds(self, degree: str, value: int) -> bool:
        """Whether a degree of this lies between measured ones, or a doubling beyond: the unit of distances."""
        least, most = self.ranges[degree]
        return least <= NEAR * value and value <= NEAR * most


def kind_of(config: TrainingConfig) -> str:
    """Runs that are alike in what their layouts can be: `dense`, `experts` or `lora`."""
    if config.task == "lora":
        return "lora"
    sparse = any(isinstance(layer.ffn, MoeFfn) for layer, _ in config.arch.layer_groups())
    return "experts" if sparse else "dense"


def layout_of(config: TrainingConfig) -> Layout:
    """The layout of a run."""
    degrees = (config.tp, config.pp, config.cp, config.ep, config.micro_batch)
    code, generation = config.framework.name, config.machine.generation
    schedule = config.schedule if config.pp > 1 else "1f1b"
    return Layout(kind_of(config), code, generation, config.precision, config.zero_stage, *degrees, schedule)


@cache
def measured_layouts() -> tuple[Layout, ...]:
    """The layouts of the runs that the shipped rates are fitted to."""
    text = resources.files("planner.costs.training").joinpath("measured_layouts.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(_read(row) for row in rows)


def _read(row: Mapping[str, str]) -> Layout:
    kind, code, generation, precision = (row[name] for name in NAMED)
    zero_stage, tp, pp, cp, ep, micro_batch = (int(row[name]) for name in NUMBERS)
    return Layout(kind, code, generation, precision, zero_stage, tp, pp, cp, ep, micro_batch, row["schedule"])


def written(layouts: Iterable[Layout]) -> Iterator[str]:
    """The lines of a table of these layouts, each once."""
    yield ",".join(Layout._fields)
    for layout in sorted(set(layouts)):
        yield ",".join(map(str, layout))


@cache
def region_of(kind: str, family: str, generation: str) -> Region:
    """The region of a kind of model on GPUs of a generation, under codes of a family.

    A generation without a run of the kind has the degrees of all others; a family without a run on it has its ZeRO
    stages elsewhere, and a family without any run those of the others.
    """
    alike = [layout for layout in measured_layouts() if layout.kind == kind]
    near = [layout for layout in alike if layout.generation == generation] or alike
    own = [layout for layout in near if FRAMEWORKS[layout.code].family == family]
    own = own or [layout for layout in alike if FRAMEWORKS[layout.code].family == family] or near
    degrees = {name: [int(getattr(layout, name)) for layout in near] for name in NAMES}
    return Region(
        layouts=len(near),
        ranges={name: (min(values), max(values)) for name, values in degrees.items()},
        schedules=frozenset(layout.schedule for layout in near) | _on_several_generations(),
        stages={
            piped: _with_sharded_optimizer(layout.zero_stage for layout in own if (layout.pp > 1) == piped)
            for piped in (False, True)
        },
    )


@cache
def _on_several_generations() -> frozenset[str]:
    """Schedules that were measured on GPUs of more than one generation."""
    seen = {(layout.schedule, layout.generation) for layout in measured_layouts()}
    counts = Counter(schedule for schedule, _ in seen)
    return frozenset(schedule for schedule, generations in counts.items() if generations > 1)


def _with_sharded_optimizer(measured: Iterable[int]) -> tuple[int, ...]:
    """These ZeRO stages, and 1 where 0 is one.

    The optimizer's states alone are shared out then, for which ranks exchange as many bytes as for whole copies, once a
    step (Rajbhandari et al., arXiv:1910.02054, section 7); gradients and weights are exchanged by stages 2 and 3 with
    every micro-batch.
    """
    stages = set(measured)
    return tuple(sorted(stages | ({1} if 0 in stages else set())))


def own_region(config: TrainingConfig) -> Region:
    """The region that a plan is compared with."""
    return region_of(kind_of(config), config.framework.family, config.machine.generation)


def outside(config: TrainingConfig) -> Iterator[str]:
    """What of a plan no measured run of its region comes near, such as `ep 1 (4 to 64)`."""
    region, piped = own_region(config), config.pp > 1
    for degree, name in NAMES.items():
        own = int(getattr(config, degree))
        if not region.holds(degree, own):
            yield f"{name} {own} ({region.text(degree)})"
    if config.zero_stage not in region.stages[piped]:
        place = "with" if piped else "without"
        yield f"ZeRO stage {config.zero_stage} {place} a pipeline ({_listed(region.stages[piped])})"
    if piped and config.schedule not in region.schedules:
        yield f"schedule {config.schedule} ({_listed(region.schedules)})"


def _listed(values: Collection[int] | Collection[str]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"


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


def region_note(config: TrainingConfig) -> str | None:
    """What a plan says of itself where it lies outside what was measured; None inside."""
    far, unlike = list(outside(config)), list(unmeasured(config))
    if not far and not unlike:
        return None
    if not far:
        return f"{UNMEASURED}: first principles alone price {', '.join(unlike)}"
    what = {"experts": "mixtures of experts", "lora": "LoRA", "dense": "dense models"}[kind_of(config)]
    also = f"; first principles alone price {', '.join(unlike)}" if unlike else ""
    near = f"the {own_region(config).layouts} measured layouts of {what} nearest to {config.machine.generation}"
    return f"{UNMEASURED}: beyond {near} are {', '.join(far)}{also}"
