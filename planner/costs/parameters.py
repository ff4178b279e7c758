"""The named parameters of the cost model: hardware efficiencies of the roofline, and what engines add to kernels.

Each value stands in a calibration file with what it rests on. `none` is the ideal machine: every efficiency 1, no
overhead of any engine.
"""

import math
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from planner.documents import Document, load_document, parse_document
from planner.errors import PlannerError, did_you_mean
from planner.files import digest


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Achieved share of a data-sheet rate, per kind of kernel, and the time below which no kernel goes."""

    gemm_flop: float = 1.0
    gemm_flop_quantised: float = 1.0  # 8- and 4-bit inputs
    gemm_bandwidth: float = 1.0
    attention_flop: float = 1.0
    attention_bandwidth: float = 1.0
    experts_flop: float = 1.0
    experts_bandwidth: float = 1.0
    elementwise_bandwidth: float = 1.0
    kernel_floor_s: float = 0.0
    collective_bandwidth: float = 1.0  # of the links inside a scale-up domain
    fabric_bandwidth: float = 1.0  # of the network beyond the scale-up domain
    collective_start_s: float = 0.0  # one collective inside a scale-up domain
    collective_hop_s: float = 0.0  # more per doubling of the group


@dataclass(frozen=True, slots=True)
class EngineOverheads:
    """What an engine adds on the host, not hidden behind the device."""

    step_s: float = 0.0  # each step
    sequence_s: float = 0.0  # each sequence in the step
    prefill_s: float = 0.0  # each step that prefills (no CUDA graph)
    request_s: float = 0.0  # each request before its first token: tokenising, scheduling, HTTP
    first_token_steps: float = 0.5  # decode steps that pass before a request's prefill starts; joining the next: half
    together: float = 0.0  # share of a closed loop's clients whose prefill a request finds in front of it
    workspace_bytes: float = 0.0  # context, graphs and communication buffers on each device


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, and the digest that identifies them."""

    name: str
    efficiencies: Efficiencies
    engines: dict[str, EngineOverheads]
    digest: str
    source: str

    def engine(self, name: str) -> EngineOverheads:
        """The overheads of an engine; `default` stands for engines without a section."""
        return self.engines.get(name, self.engines.get("default", EngineOverheads()))


@cache
def load_calibration(name: str = "default") -> Calibration:
    """`default` (shipped), `none` (ideal machine), or the calibration file at that path."""
    if name == "none":
        return Calibration("none", Efficiencies(), {}, digest({"calibration": "none"}), "data-sheet rates")
    if name == "default":
        text = (resources.files("planner") / "costs" / "calibration.yaml").read_text()
        return _parse(parse_document(text, "planner/costs/calibration.yaml"), "default")
    return _parse(load_document(name), Path(name).name)


def _parse(document: Document, name: str) -> Calibration:
    data = document.data
    if not isinstance(data, dict) or data.get("schema") != "planner.calibration/1":
        raise PlannerError(
            "is no calibration file", where=document.source, hint="its first key is `schema: planner.calibration/1`"
        )
    efficiencies = _section(Efficiencies, data.get("roofline", {}), document, ("roofline",))
    engines = {
        engine: _section(EngineOverheads, values, document, ("engines", engine))
        for engine, values in _mapping(data.get("engines", {}), document, ("engines",)).items()
    }
    identity = {key: value for key, value in data.items() if key in ("roofline", "engines")}
    return Calibration(name, efficiencies, engines, digest(identity), str(data.get("source", "")))


def _mapping(values: object, document: Document, path: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise PlannerError(
            f"`{path[-1]}` must be a mapping, found {values!r}", where=document.where(path), hint="write `name: value`"
        )
    return values


def _section(kind: type[Any], values: object, document: Document, path: tuple[str, ...]) -> Any:  # noqa: ANN401
    known = {field.name for field in fields(kind)}
    given = _mapping(values, document, path)
    for key, value in given.items():
        where = document.where((*path, key))
        if key not in known:
            hint = did_you_mean(str(key), sorted(known), otherwise=f"known are {', '.join(sorted(known))}")
            raise PlannerError(f"unknown parameter `{key}`", where=where, hint=hint)
        share = kind is Efficiencies and not key.endswith("_s")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
        if not number or (share and value == 0):
            wanted = "a number above 0" if share else "a number of at least 0"
            raise PlannerError(
                f"`{key}` must be {wanted}, found {value!r}", where=where, hint=f"write {wanted} or leave `{key}` out"
            )
    return kind(**{key: float(value) for key, value in given.items()})
