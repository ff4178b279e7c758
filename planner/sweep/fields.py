"""Short names for problem fields that sweeps often vary, expanded to dotted overrides."""

import json
from collections.abc import Callable, Mapping

from pydantic import JsonValue

from planner.errors import PlannerError

Assignments = list[tuple[str, JsonValue]]


def assignments(field: str, value: JsonValue, data: object, where: str) -> Assignments:
    """(path, value) of every override that sets `field` of the problem `data`; paths are written as they are.

    Raises PlannerError for a short name that could mean several pools or models.
    """
    if field not in SHORT_NAMES:
        return [(field, value)]
    return SHORT_NAMES[field](value, data, where)


def override(path: str, value: JsonValue) -> str:
    """The text of one override, as `--set` takes it."""
    return f"{path}={json.dumps(value, ensure_ascii=False)}"


def _pool(key: str, *instead_of: str) -> Callable[[JsonValue, object, str], Assignments]:
    def assign(value: JsonValue, data: object, where: str) -> Assignments:
        pools = _entries(data, "cluster", "pools")
        if len(pools) > 1:
            raise PlannerError(
                f"`{key}` could mean {len(pools)} pools",
                where=where,
                hint=f"write the whole path, such as `cluster.pools.0.{key}`",
            )
        cleared: Assignments = [(f"cluster.pools.0.{other}", None) for other in instead_of if _has(pools, other)]
        return [*cleared, (f"cluster.pools.0.{key}", value)]

    return assign


def _workloads(path: str, *instead_of: str) -> Callable[[JsonValue, object, str], Assignments]:
    def assign(value: JsonValue, data: object, where: str) -> Assignments:
        return [*((other, None) for other in instead_of), (path, value)]

    return assign


def _model(key: str, *instead_of: str) -> Callable[[JsonValue, object, str], Assignments]:
    def assign(value: JsonValue, data: object, where: str) -> Assignments:
        models = data.get("models") if isinstance(data, dict) else None
        names = list(models) if isinstance(models, dict) else []
        if len(names) != 1:
            raise PlannerError(
                f"the problem has {len(names)} models",
                where=where,
                hint=f"write the whole path, such as `models.{names[0] if names else 'NAME'}.{key}`",
            )
        return [*((f"models.{names[0]}.{other}", None) for other in instead_of), (f"models.{names[0]}.{key}", value)]

    return assign


def _mode(value: JsonValue, data: object, where: str) -> Assignments:
    return [("options.modes", value if isinstance(value, list) else [value])]


def _lost_nodes(value: JsonValue, data: object, where: str) -> Assignments:
    """A number of nodes loses the first ones, a list those that it names."""
    lost: JsonValue = value
    if isinstance(value, int) and not isinstance(value, bool):
        lost = list(range(max(0, min(value, 100_000))))
    return _pool("out_of_service")(lost, data, where)


SHORT_NAMES: Mapping[str, Callable[[JsonValue, object, str], Assignments]] = {
    "gpu": _pool("gpu"),
    "gpus": _pool("gpus", "nodes"),
    "nodes": _pool("nodes", "gpus"),
    "price": _pool("price"),
    "lost_nodes": _lost_nodes,
    "rate": _workloads("load.rate", "load.concurrency"),
    "concurrency": _workloads("load.concurrency", "load.rate_per_s"),
    "ttft": _workloads("slo.ttft"),
    "tpot": _workloads("slo.tpot"),
    "itl": _workloads("slo.itl"),
    "latency": _workloads("slo.latency"),
    "input_tokens": _workloads("input_tokens"),
    "output_tokens": _workloads("output_tokens"),
    "model": _model("name", "config"),
    "weights": _model("weights"),
    "kv_cache": _model("kv_cache"),
    "mode": _mode,
}


def _entries(data: object, *keys: str) -> list[object]:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, list) else []


def _has(entries: list[object], key: str) -> bool:
    return bool(entries) and isinstance(entries[0], dict) and key in entries[0]
