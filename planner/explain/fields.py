"""Fields of a plan that `planner explain` can be asked for, by dotted name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.documents.units import figure, format_si
from planner.errors import PlannerError, did_you_mean
from planner.plan.schema import Decision, Envelope, Role

PARTS = frozenset({"job", "stage"})
"""Keys by which records of a decision name what they are about."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field by its name, its value in words, and what facts about it are about: all of `every`, any of `some`."""

    name: str
    value: str
    every: tuple[str, ...]
    some: tuple[str, ...] = ()
    path: str = ""  # in the decision, where it stands there


def find_field(name: str, envelope: Envelope, decision: Decision) -> Field:
    """The field called `name`; raises PlannerError with the nearest names for an unknown one."""
    known = {field.name: field for field in _fields(envelope, decision)}
    if name not in known:
        listing = "fields are such as `objective`, `ttft`, or `ROLE.replicas`; `planner show` shows the plan"
        raise PlannerError(f"no field `{name}` in this plan", hint=did_you_mean(name, list(known), otherwise=listing))
    return known[name]


def field_names(envelope: Envelope, decision: Decision) -> list[str]:
    """Every name that `explain` takes for this plan."""
    return [field.name for field in _fields(envelope, decision)]


def _fields(envelope: Envelope, decision: Decision) -> Iterator[Field]:
    """All fields, from the end of the list those that win where two have one name."""
    certificate = envelope.certificate
    metric = certificate.objective.metric
    for name, value in decision.model_dump(mode="json", exclude={"roles"}).items():
        yield Field(name, _shown(name, value), (), (name,), name)
        yield from _below(name, value, name)
    yield from _figures(envelope)
    yield Field(
        "objective", figure(metric, certificate.objective.value), (), ("objective", "gpus", "price", "requests_per_s")
    )
    yield Field("bound", figure(metric, certificate.bound), (), ("objective",))
    yield Field("evidence", ", ".join(envelope.evidence.sources) or "none", (), ("evidence", "step"))
    yield from _parts(decision.model_dump(mode="json", exclude={"roles"}))
    for pool in dict.fromkeys(block.pool for block in decision.placement):
        yield Field(pool, "a pool of the cluster", (pool,))
    for role in decision.roles:
        yield from _role_fields(role, stepped=role.name in (envelope.evidence.steps or {}))


def _figures(envelope: Envelope) -> Iterator[Field]:
    """Predictions under their full and short names: `chat.ttft.p95`, `chat.ttft`, `ttft`, `ttft_s`."""
    fields: dict[str, list[tuple[str, tuple[str, ...], tuple[str, ...]]]] = {}
    for prediction in envelope.predictions:
        short = prediction.metric.removesuffix("_s") if prediction.metric.endswith(("ft_s", "ot_s", "cy_s")) else ""
        of = f"`{prediction.of}`" if prediction.of else "the plan"
        text = f"{figure(prediction.metric, prediction.value)} ({prediction.statistic}, {of})"
        about = (prediction.of,) if prediction.of else ()
        row = (text, about, (short or prediction.metric,))
        for metric in filter(None, (short, prediction.metric)):
            names = [metric, f"{metric}.{prediction.statistic}"]
            names += [f"{prediction.of}.{name}" for name in names] if prediction.of else []
            for name in names:
                fields.setdefault(name, []).append(row)
    for name, rows in fields.items():
        every = rows[0][1] if len({row[1] for row in rows}) == 1 else ()
        text = ", ".join(dict.fromkeys(row[0] for row in rows))
        yield Field(name, text, every, tuple(dict.fromkeys(topic for row in rows for topic in row[2])))


def _below(name: str, value: Any, about: str) -> Iterator[Field]:  # noqa: ANN401 - parsed JSON
    """Fields of a record, and those of the records of a list as one each: `weight_sync.method`, `phases.name`."""
    if isinstance(value, list):
        keys = dict.fromkeys(key for entry in value if isinstance(entry, dict) for key in entry)
        rows = {key: [entry.get(key) for entry in value if isinstance(entry, dict)] for key in keys}
    else:
        rows = {key: [inner] for key, inner in value.items()} if isinstance(value, dict) else {}
    for key, values in rows.items():
        path = f"{name}.{key}"
        told = list(dict.fromkeys(_shown(key, inner) for inner in values))
        yield Field(path, told[0] if len(told) == 1 else f"{told[0]} and {len(told) - 1} others", (), (about,), path)
        for inner in values[:1]:
            yield from _below(path, inner, about)


def _parts(decision: dict[str, Any]) -> Iterator[Field]:
    """What records of the decision are about, by its own name, with what the first of them says: `chat` of a day."""
    parts: dict[str, Field] = {}
    for records in decision.values():
        for record in records if isinstance(records, list) else ():
            for key in PARTS & record.keys() if isinstance(record, dict) else ():
                told = (f"{inner} {_shown(inner, value)}" for inner, value in record.items() if inner != key and value)
                parts.setdefault(record[key], Field(record[key], ", ".join(told), (record[key],)))
    yield from parts.values()


def _role_fields(role: Role, *, stepped: bool) -> Iterator[Field]:
    name, degrees = role.name, role.parallelism
    shape = degrees.text or "1 GPU"
    yield Field(name, f"{role.replicas} x {shape} on `{role.pool}`", (name,), (), "roles")
    yield Field(f"{name}.replicas", str(role.replicas), (), (name, role.pool), "roles.replicas")
    yield Field(f"{name}.pool", role.pool, (), (name, role.pool), "roles.pool")
    yield Field(f"{name}.function", role.function, (), (name,), "roles.function")
    yield Field(f"{name}.model", str(role.model), (), (name,), "roles.model")
    if role.engine is not None:
        yield Field(f"{name}.engine", role.engine.name, (), (name,), "roles.engine")
    every = ("parallelism", "step", "memory", "replicas")
    yield Field(f"{name}.parallelism", shape, (name,), every, "roles.parallelism")
    for axis, size in degrees.model_dump().items():
        yield Field(
            f"{name}.{axis}", str(size), (name,), ("parallelism", "step", "memory", axis), f"roles.parallelism.{axis}"
        )
    for limit, value in role.limits.items():
        for written in (f"{name}.limits.{limit}", f"{name}.{limit}"):
            yield Field(written, str(value), (name,), ("memory", "step", "replicas", limit), "roles.limits")
    if stepped:
        yield Field(f"{name}.step", "the step that dominates the role", (name,), ("step",))
    if role.memory is not None:
        yield Field(f"{name}.memory", format_si(role.memory.used_bytes, "B"), (name,), ("memory",), "roles.memory")
        for part, size in role.memory.model_dump().items():
            path = f"roles.memory.{part}"
            yield Field(f"{name}.memory.{part}", format_si(size, "B"), (name,), ("memory",), path)


def _shown(name: str, value: Any) -> str:  # noqa: ANN401 - parsed JSON
    text = figure(name, value) if isinstance(value, float) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
