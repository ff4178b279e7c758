"""Reads the serving stack off llm-d reports: model, engine, accelerator, tensor and data parallelism.

Facts are by the columns of the table of measured deployments. Where instances of a role differ, or the report holds
defaults in place of what ran (`count: 0`), their degrees are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import engine_named

_DEGREES = ("tp", "pp", "dp", "ep")


@dataclass(frozen=True, slots=True)
class Stack:
    """The servers of a run; facts that the report does not hold are absent."""

    model: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Instances:
    """Equal servers of one role (`prefill`, `decode`, or anything else for both): degrees are None where not told."""

    role: str
    count: int
    accelerator: str | None
    degrees: Mapping[str, int] | None


def stack_of_hosts(scenario: Fields) -> Stack:
    """Of a report of version 0.1: lists of hosts, accelerators and engines that go together."""
    hosts = scenario.part("host")
    roles = hosts.data.get("type")
    accelerators = hosts.parts("accelerator")
    if not isinstance(roles, list) or len(roles) != len(accelerators):
        roles = ["replica"] * len(accelerators)
    servers = [
        _Instances(str(role), 1, accelerator.text("model"), _degrees(accelerator.part("parallelism")))
        for role, accelerator in zip(roles, accelerators, strict=True)
    ]
    engines = scenario.part("platform").parts("engine")
    first = engines[0] if engines else scenario.part("platform")
    version = first.text("version")
    return Stack(scenario.part("model").text("name"), engine_named(first.text("name")), version, _facts(servers))


def stack_of_components(scenario: Fields) -> Stack:
    """Of a report of version 0.2: the components of the kind `inference_engine`."""
    parts = [component.part("standardized") for component in scenario.parts("stack")]
    engines = [part for part in parts if part.text("kind") == "inference_engine"]
    if not engines:
        return Stack()
    servers = []
    for component in engines:
        accelerator = component.part("accelerator")
        told = accelerator.number("count") and accelerator.has("parallelism")
        degrees = _degrees(accelerator.part("parallelism")) if told else None
        replicas = int(component.number("replicas") or 1)
        servers.append(_Instances(component.text("role") or "", replicas, accelerator.text("model"), degrees))
    engine = engine_named(engines[0].text("tool"))
    version = engines[0].text("tool_version") if engine is not None else None
    return Stack(engines[0].part("model").text("name"), engine, version, _facts(servers))


def _degrees(parallelism: Fields) -> dict[str, int] | None:
    if not parallelism.data:
        return None
    return {name: max(int(parallelism.number(name) or 1), 1) for name in _DEGREES}


def _facts(servers: Sequence[_Instances]) -> dict[str, str]:
    """Columns of the table; none of the degrees where one role is not told."""
    accelerators = {server.accelerator for server in servers}
    name = next(iter(accelerators)) if len(accelerators) == 1 else None
    facts = {"system": name} if name else {}
    prefill = [server for server in servers if server.role == "prefill"]
    decode = [server for server in servers if server.role != "prefill"]
    if not prefill:
        return facts | _role("", decode)
    apart = {"prefill_": _role("prefill_", prefill), "decode_": _role("decode_", decode)}
    if not all(apart.values()):
        return facts
    return facts | {"mode": "disagg"} | apart["prefill_"] | apart["decode_"]


def _role(prefix: str, servers: Sequence[_Instances]) -> dict[str, str]:
    told = [server.degrees for server in servers]
    if not told or told[0] is None or any(degrees != told[0] for degrees in told):
        return {}
    degrees = dict(told[0])
    degrees["moe_ep"] = degrees.pop("ep")
    facts = {f"{prefix}{name}": str(value) for name, value in degrees.items()}
    return facts | {f"{prefix}workers": str(sum(server.count for server in servers))}
