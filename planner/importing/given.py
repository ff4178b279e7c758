"""Fields that the user gives where an artifact leaves them open."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import PlannerError, did_you_mean
from planner.importing.records import Reading

_TEXTS = frozenset({"model", "gpu_type", "kv_dtype", "precision"})


def with_fields(reading: Reading, given: Mapping[str, str]) -> Reading:
    """The reading with the fields of `given` filled in. Raises PlannerError for fields that it has not, or has set."""
    fields: dict[str, Any] = dict(reading.fields)
    if "roles" in fields:
        fields["roles"] = [dict(role) for role in fields["roles"]]
    for path, text in given.items():
        _fill(fields, path, text)
    unresolved = tuple(name for name in reading.unresolved if name not in given)
    return replace(reading, fields=fields, unresolved=unresolved)


def _fill(fields: dict[str, Any], path: str, text: str) -> None:
    role, dot, key = path.rpartition(".")
    roles = fields.get("roles", ())
    holders = [own for own in roles if own["role"] == role] if dot else [fields]
    known = [name for name in fields if name not in ("roles", "kind", "engine")]
    known += [f"{own['role']}.{name}" for own in roles for name in own if name != "role"]
    if path not in known:
        raise PlannerError(
            f"no field `{path}`",
            where="--set",
            hint=did_you_mean(path, known, otherwise=f"fields are {', '.join(known[:8])}"),
        )
    if key == "replicas" and all(holder[key] == 1 for holder in holders) and not text.strip("0123456789"):
        _started_often(fields, holders, max(int(text or 1), 1))
        return
    for holder in holders:
        if holder[key] is not None:
            raise PlannerError(
                f"`{path}` is {holder[key]} in the artifact", where="--set", hint="change it there, or leave it out"
            )
        holder[key] = text if key in _TEXTS else _number(path, text)


def _started_often(fields: dict[str, Any], holders: list[dict[str, Any]], times: int) -> None:
    """A command makes one replica; who starts it more often says so, and the GPUs are those of all."""
    for holder in holders:
        if fields["gpus"] is not None and holder["gpus_per_replica"] is not None:
            fields["gpus"] += (times - 1) * holder["gpus_per_replica"]
        holder["replicas"] = times


def _number(path: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise PlannerError(
            f"`{path}` must be a number, found `{text}`", where="--set", hint=f"write `--set {path}=8`"
        ) from None
    return int(number) if number.is_integer() else number
