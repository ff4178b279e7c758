"""Named parameters of the cost model: roofline efficiencies of the hardware, overheads of engines, rates of training.

Each value stands in a calibration file with what it rests on, a section for each part. `none` is the ideal machine:
every efficiency 1, no overhead of any engine.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from planner.costs.rates.engine_overheads import EngineOverheads, section_in, section_of
from planner.costs.rates.forms import Forms, forms_of
from planner.costs.rates.run_beliefs import mapping, runs_of
from planner.costs.rates.spread import FEATURES, SIDES, ErrorSpread, GroupBias
from planner.documents.files import digest
from planner.documents.read import Document, load_document, parse_document
from planner.engines.settings import captured_tokens
from planner.errors import PlannerError, did_you_mean


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Achieved share of a data-sheet rate, per kind of kernel, and the time below which no kernel goes."""

    gemm_flop: float = 1.0
    gemm_flop_quantised: float = 1.0  # 8-bit inputs
    gemm_flop_4bit: float = 1.0
    gemm_bandwidth: float = 1.0
    gemm_bandwidth_4bit: float = 1.0
    gemm_start_s: float = 0.0  # one launch, beyond what computing and moving take
    attention_flop: float = 1.0
    latent_flop: float = 1.0  # of latent attention
    attention_bandwidth: float = 1.0
    attention_start_s: float = 0.0
    latent_start_s: float = 0.0  # attention in the latent space, and each product absorbed into it
    experts_flop: float = 1.0
    experts_flop_block: float = 1.0  # 8-bit inputs with one scale a block of 128
    experts_flop_block_blackwell: float = 1.0  # the same on Blackwell, whose tensor cores scale blocks of 32
    experts_flop_grouped: float = 1.0  # and before it of tokens that came by all-to-all, laid out expert by expert
    experts_flop_4bit: float = 1.0
    experts_flop_dequantised: float = 1.0  # 4-bit weights that meet 16-bit inputs
    experts_width: float = 0.0  # columns of an expert's shard at which its products run at half their rate
    experts_rows: float = 0.0  # rows of the largest tile that are padding on average: half of it
    experts_bandwidth: float = 1.0
    experts_start_s: float = 0.0  # each of a layer's grouped products
    elementwise_bandwidth: float = 1.0
    elementwise_start_s: float = 0.0
    quantise_fp8_s: float = 0.0  # more per product whose inputs are quantised with one scale a tensor or a row,
    quantise_block_s: float = 0.0  # with one a block of 128,
    quantise_4bit_s: float = 0.0  # or with one for 16 or 32 values
    experts_quantise_s: float = 0.0  # more per grouped product whose inputs are quantised
    dequantise_step_s: float = 0.0  # each step in depth of a tile that Triton's kernels dequantise
    routing_concentration: float = math.inf  # spread of the experts' popularity; infinite: all equally popular
    collective_bandwidth: float = 1.0  # of the links inside a scale-up domain
    direct_bandwidth: float = 1.0  # the same of an all-reduce in one kernel, which starts sooner than one in stages
    fabric_bandwidth: float = 1.0  # of the network beyond the scale-up domain
    collective_start_s: float = 0.0  # one collective inside a scale-up domain
    collective_hop_s: float = 0.0  # more per doubling of the group
    exchange_start_s: float = 0.0  # more for each all-to-all of tokens that are packed first
    wide_exchange_start_s: float = 0.0  # more for each in a domain wider than a board, where ranks write directly
    earlier_starts: float = 1.0  # starts of an engine's kernels on GPUs before Blackwell, as a multiple (KERNEL_STARTS)

    def with_starts(self, engine: "EngineOverheads", *, overlap: bool = True) -> "Efficiencies":
        """The same with every launch of a compute kernel as long as the engine's.

        `overlap`: kernels start while those before them end (`Accelerator.overlaps_starts`).
        """
        earlier = 1.0 if overlap else self.earlier_starts
        scales = {name: engine.start_of(name) * earlier for name in KERNEL_STARTS}
        return replace(self, **{name: getattr(self, name) * scale for name, scale in scales.items()})


def is_share(name: str) -> bool:
    """Whether an efficiency is a part of a data sheet's rate; the others are times, multiples, sizes and a spread."""
    return not name.endswith(("_s", "_starts", "_width", "_rows", "_concentration"))


LIKE = {"experts_flop_block_blackwell": "experts_flop_block", "experts_flop_grouped": "experts_flop_block"}
"""Efficiencies that a file may leave out where it states another: kernels that it does not tell apart."""
KERNEL_STARTS = (
    "gemm_start_s",
    "attention_start_s",
    "latent_start_s",
    "experts_start_s",
    "elementwise_start_s",
    "quantise_fp8_s",
    "quantise_block_s",
    "quantise_4bit_s",
    "experts_quantise_s",
)
"""What an engine that fuses less, or leaves gaps between kernels, pays more of."""


@dataclass(frozen=True, slots=True)
class TableTrust:
    """Weight of an imported table against the roofline, in the logarithm of time; our own tables count in full.

    Tables of other versions and of kernels alone in a loop predict deployments no better than the roofline with fitted
    starts; the weights are those of the least error on deployments (docs/accuracy.md).
    """

    gemm: float = 1.0
    attention: float = 1.0
    experts: float = 1.0
    collective: float = 1.0


FULL_TRUST = TableTrust()


@dataclass(frozen=True, slots=True)
class TrainingSection:
    """Section `training`: rates by name (`planner.costs.training.rates` looks them up), and how sure they are."""

    rates: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)  # standard error of the logarithm of each fitted one
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # logs of an 80 % interval, by class of run
    spread_by_distance: float = 0.0  # by how much these widen at one unit from what was measured
    shapes: str = ""  # SHIPPED: factors of measured shapes that come with planner, which belong to its own rates
    source: str = ""
    date: str = ""
    data: str = ""

    def document(self) -> dict[str, Any]:
        """The section as plain data."""
        written = {name: getattr(self, name) for name in ("source", "date", "data")}
        spread = {name: list(ends) for name, ends in self.spread.items()}
        return {
            **written, "rates": dict(self.rates), "errors": dict(self.errors), "spread": spread,
            "spread_by_distance": self.spread_by_distance, "shapes": self.shapes,
        }  # fmt: skip


SHIPPED = "shipped"
COSTS = ("roofline", "engines", "tables", "intervals", "runs")  # the sections that serving is priced by
_IDEAL_SHARES, _IDEAL_TIMES = (
    ("flop.", "move.", "link.", "fabric.", "sustained."),
    ("start.", "host_launch_s.", "host_jitter", "step_s"),
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, and the digest that identifies those of serving."""

    name: str
    efficiencies: Efficiencies
    engines: dict[str, EngineOverheads]
    digest: str
    source: str
    tables: TableTrust = field(default_factory=TableTrust)
    spreads: dict[str, ErrorSpread] = field(default_factory=dict)  # of "ttft" and "tpot"
    training: TrainingSection | None = None
    runs: Mapping[str, GroupBias] = field(default_factory=dict)  # what a user's own tell of groups
    groups: frozenset[str] = frozenset()  # of runs that the fit has seen (`group_of_runs`); empty: nothing is known
    forms: Forms = field(default_factory=dict)  # of instances of these runs and one's own; empty: nothing is known

    def spreads_of(self, groups: Iterable[str]) -> dict[str, ErrorSpread]:
        """How far predictions of runs of these groups err: further where one of them was not seen."""
        strange = set(groups) - self.groups if self.groups else set[str]()
        if not strange:
            return self.spreads
        apart = {name: spread.elsewhere() for name, spread in self.spreads.items()}
        if strange.issubset(self.runs) and "tpot" in self.spreads:
            left = max(self.runs[group].deviation for group in strange)
            return apart | {"tpot": self.spreads["tpot"].known(left)}
        return apart

    def slowdown(self, group: str) -> float:
        """Of the steps of a group, beyond its parameters, as own runs tell; 1 without any."""
        return math.exp(self.runs[group].mean) if group in self.runs else 1.0

    def engine(self, name: str, version: str | None = None, model: str = "") -> EngineOverheads:
        """The overheads of an engine in the named version, else its newest; `default` stands for those without any.

        Of models that the engine knows by name, with the graphs that it captures of them.
        """
        overheads, captured = section_in(self.engines, section_of(name, version)), captured_tokens(name, model)
        return replace(overheads, captured_tokens=captured) if overheads.captured_tokens and captured else overheads


@cache
def load_calibration(name: str = "default") -> Calibration:
    """`default` (shipped), `none` (ideal machine), or the calibration file at that path."""
    if name == "none":
        ideal = _ideal(_shipped_training())
        return Calibration("none", Efficiencies(), {}, digest({"calibration": "none"}), ideal.source, training=ideal)
    if name == "default":
        text = resources.files("planner.costs.rates").joinpath("calibration.yaml").read_text(encoding="utf-8")
        return _parse(parse_document(text, "planner/costs/rates/calibration.yaml"), "default")
    return _parse(load_document(name), Path(name).name)


def _parse(document: Document, name: str) -> Calibration:
    data = document.data
    if not isinstance(data, dict) or data.get("schema") != "planner.calibration/1":
        raise PlannerError(
            "is no calibration file", where=document.source, hint="its first key is `schema: planner.calibration/1`"
        )
    roofline = mapping(data.get("roofline", {}), document, ("roofline",))
    like = {name: roofline[other] for name, other in LIKE.items() if other in roofline}
    efficiencies = _section(Efficiencies, like | roofline, document, ("roofline",))
    engines = {
        engine: _section(EngineOverheads, values, document, ("engines", engine))
        for engine, values in mapping(data.get("engines", {}), document, ("engines",)).items()
    }
    tables = _section(TableTrust, data.get("tables", {}), document, ("tables",))
    spreads, groups = _spreads(data.get("intervals", {}), document)
    identity = {key: value for key, value in data.items() if key in COSTS}
    training = _training(data["training"], document, name) if "training" in data else None
    source = str(data.get("source", ""))
    runs = runs_of(data.get("runs", {}), document)
    forms = forms_of(data.get("forms", {}), document)
    return Calibration(
        name, efficiencies, engines, digest(identity), source, tables, spreads, training, runs, groups, forms
    )


def _shipped_training() -> TrainingSection:
    section = load_calibration("default").training
    assert section is not None
    return section


def _ideal(known: TrainingSection) -> TrainingSection:
    """Kernels and links at the data sheet's rates that start at once; what overlap hides, and sizes, stay."""

    def rate(name: str, value: float) -> float:
        return 1.0 if name.startswith(_IDEAL_SHARES) else 0.0 if name.startswith(_IDEAL_TIMES) else value

    return TrainingSection({name: rate(name, value) for name, value in known.rates.items()}, source="data-sheet rates")


def _training(values: object, document: Document, name: str) -> TrainingSection:
    """Section `training`; a file that states some rates only has the others as shipped."""
    given = mapping(values, document, ("training",))
    rates = mapping(given.get("rates", {}), document, ("training", "rates"))
    known = {} if name == "default" else dict(_shipped_training().rates)
    for key, value in rates.items():
        where = document.where(("training", "rates", key))
        if known and key not in known and key.rpartition(".")[0] not in known:
            hint = did_you_mean(
                str(key), sorted(known), otherwise="take a name from planner/costs/rates/calibration.yaml"
            )
            raise PlannerError(f"unknown rate `{key}` of training", where=where, hint=hint)
        least = "a number above 0" if key.startswith(_IDEAL_SHARES) else "a number of at least 0"
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if not number or (value == 0 and key.startswith(_IDEAL_SHARES)):
            hint = f"write {least} or leave `{key}` out"
            raise PlannerError(f"`{key}` must be {least}, found {value!r}", where=where, hint=hint)
    shapes = str(given.get("shapes", ""))
    if shapes not in ("", SHIPPED):
        hint = f"write `{SHIPPED}`, or leave `shapes` out"
        raise PlannerError(f"no table of shapes `{shapes}`", where=document.where(("training", "shapes")), hint=hint)
    return TrainingSection(
        {**known, **{key: float(value) for key, value in rates.items()}},
        {key: float(value) for key, value in given.get("errors", {}).items()},
        {key: (float(low), float(high)) for key, (low, high) in given.get("spread", {}).items()},
        float(given.get("spread_by_distance", 0.0)),
        shapes,
        *(str(given.get(key, "")) for key in ("source", "date", "data")),
    )


def _spreads(values: object, document: Document) -> tuple[dict[str, ErrorSpread], frozenset[str]]:
    """Section `intervals`: of ttft and tpot coefficients of the bounds and what lies between groups; groups seen."""
    spreads: dict[str, ErrorSpread] = {}
    sections = mapping(values, document, ("intervals",))
    groups = sections.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        where, hint = document.where(("intervals", "groups")), "give the groups that were fitted to, or leave them out"
        raise PlannerError("`groups` is no list of names", where=where, hint=hint)
    for name, sides in sections.items():
        if name == "groups":
            continue
        path = ("intervals", str(name))
        bounds = mapping(sides, document, path)
        right = set(bounds) <= set(SIDES) and all(
            isinstance(row := bounds.get(side), list)
            and len(row) == len(FEATURES)
            and all(isinstance(v, (int, float)) and math.isfinite(v) for v in row)
            for side in ("low", "high")
        )
        between = bounds.get("between", [0.0, 0.0])
        right = right and isinstance(between, list) and len(between) == 2
        right = right and all(isinstance(v, (int, float)) and 0 <= v < math.inf for v in between)
        if name not in ("ttft", "tpot") or not right:
            raise PlannerError(
                f"`{name}` is no interval",
                where=document.where(path),
                hint=f"give `low` and `high` of ttft and tpot as {len(FEATURES)} numbers ({', '.join(FEATURES)}), "
                "and `between` as two of at least 0",
            )
        low, high = (tuple(map(float, bounds[side])) for side in ("low", "high"))
        spreads[str(name)] = ErrorSpread(low, high, (float(between[0]), float(between[1])))
    return spreads, frozenset(groups)


def _section(kind: type[Any], values: object, document: Document, path: tuple[str, ...]) -> Any:  # noqa: ANN401
    known = {field.name for field in fields(kind)}
    given = mapping(values, document, path)
    for key, value in given.items():
        where = document.where((*path, key))
        if key not in known:
            raise PlannerError(
                f"unknown parameter `{key}`",
                where=where,
                hint=did_you_mean(str(key), sorted(known), otherwise=f"known are {', '.join(sorted(known))}"),
            )
        share = kind is Efficiencies and (is_share(key) or key == "routing_concentration")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if not number or (share and value == 0):
            wanted = "a number above 0" if share else "a number of at least 0"
            raise PlannerError(
                f"`{key}` must be {wanted}, found {value!r}", where=where, hint=f"write {wanted} or leave `{key}` out"
            )
    return kind(**{key: float(value) for key, value in given.items()})
