"""Roles of a serving deployment put together, and ways through a script that disagree laid over each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.importing.engines import Given, hands_over, model_of, options_of, role_of
from planner.importing.flags import flag_findings, setting_findings
from planner.importing.images import EngineRelease
from planner.importing.launches import Launch, Started
from planner.importing.options import Options
from planner.importing.records import PREFIX_TIERS, RELEASE, ROLE_ORDER, Reading
from planner.importing.shell.worlds import World
from planner.importing.tiers import prefix_tiers_of
from planner.importing.values import Values

SERVING = tuple(SERVING_ENGINES)


def reading_of_roles(
    engine: str | None,
    model: str | None,
    roles: Sequence[Mapping[str, Any]],
    unresolved: Sequence[str] = (),
    *,
    gpus: int | None = None,
    gpu_type: str | None = None,
    findings: Sequence[str] = (),
    guesses: Sequence[str] = (),
    releases: Sequence[EngineRelease | None] = (),
) -> Reading:
    """A serving deployment; `gpus` are those that the artifact gives, else those of all replicas.

    `releases` are those of the engine that its launches name: where they agree, it is that of the deployment.
    """
    ordered = sorted(merged_replicas(_sided(roles)), key=lambda role: ROLE_ORDER.index(role["role"]))
    parts = [
        None
        if role["replicas"] is None or role["gpus_per_replica"] is None
        else role["replicas"] * role["gpus_per_replica"]
        for role in ordered
    ]
    total = sum(part for part in parts if part is not None) if None not in parts else None
    fields = {
        "kind": "serve",
        "engine": engine,
        "model": model,
        "gpus": gpus if gpus is not None else total,
        "gpu_type": gpu_type,
        "roles": ordered,
    }
    named = {release.version for release in releases if release is not None}
    agreed_on = releases[0] if len(named) == 1 and None not in releases else None
    beside = {} if agreed_on is None else {RELEASE: agreed_on}
    return Reading(fields, tuple(dict.fromkeys(unresolved)), tuple(findings), tuple(guesses), beside)


def _sided(roles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The roles, those beside prefill as decode where none is called so: engines name one side alone."""
    sides = {role["role"] for role in roles}
    alone = "prefill" in sides and "decode" not in sides
    return [{**role, "role": "decode"} if alone and role["role"] == "colocated" else dict(role) for role in roles]


def merged_replicas(roles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Roles that are equal but for their replicas as one."""
    merged: list[dict[str, Any]] = []
    for role in roles:
        same = next((m for m in merged if {**m, "replicas": 0} == {**role, "replicas": 0}), None)
        if same is not None and same["replicas"] is not None and role["replicas"] is not None:
            same["replicas"] += role["replicas"]
        else:
            merged.append(dict(role))
    return merged


def role_of_launch(launch: Launch, given: Given, values: Values, named_role: str | None = None) -> dict[str, Any]:
    """The role that a launch has; `named_role` counts where its flags hand caches over and name no side."""
    options = options_of(launch)
    role = role_of(launch.engine, options, given, values)
    if role["role"] == "colocated" and named_role in ROLE_ORDER and hands_over(options):
        role["role"] = named_role
    return with_tiers(role, launch, options, values)


def with_tiers(role: dict[str, Any], launch: Launch, options: Options, values: Values) -> dict[str, Any]:
    """The role with the memory for prefixes that its launch sets up, where it does."""
    tiers = prefix_tiers_of(launch, options, role["gpus_per_replica"], values)
    return role if tiers is None else {**role, PREFIX_TIERS: tiers}


def is_later_rank(options: Options) -> bool:
    """Whether the words start another node of a replica that is counted already."""
    rank = options.get("node_rank")
    if options.get("headless") is True or str(options.get("data_parallel_start_rank", "0")).strip("0").isdigit():
        return True
    return isinstance(rank, str) and rank.isdigit() and int(rank) > 0


Around = Callable[[Launch, Options], Given]
"""What stands around a launch, from it and from its settings."""


def reading_of_ways(ways: Sequence[Started], around: Around, *, gpu_type: str | None = None) -> Reading:
    """What all ways through a script agree on; a field on which they differ waits for their conditions."""
    return agreed([(_reading_of_way(way, around, gpu_type), way.world) for way in ways])


def _reading_of_way(way: Started, around: Around, gpu_type: str | None) -> Reading:
    values = Values()
    roles, models, findings = [], [], list[str]()
    pairs = [(launch, options_of(launch)) for launch in way.launches if launch.engine in SERVING]
    for launch, options in pairs:
        if is_later_rank(options):
            continue
        roles.append(role_of_launch(launch, around(launch, options), values))
        models.append(model_of(launch.engine, options, values))
        findings += flag_findings(launch.engine, options)
        findings += setting_findings(launch.engine, options, roles[-1], values)
    model = models[0] if models and all(name == models[0] for name in models) else None
    return reading_of_roles(
        pairs[0][0].engine, model, roles, values.unresolved, gpu_type=gpu_type, findings=findings,
        releases=[launch.release for launch, _ in pairs],
    )  # fmt: skip


def nodes_of(options: Options, values: Values) -> int:
    """The nodes of one replica, as its settings have them: their number, or that of shares of data parallelism."""
    nodes = values.integer(options.get("nnodes"), 1) or 1
    local, dp = (values.integer(options.get(name)) for name in ("data_parallel_size_local", "data_parallel_size"))
    return max(nodes, dp // local if local and dp and dp % local == 0 else 1)


def agreed(readings: Sequence[tuple[Reading, World]]) -> Reading:
    """The fields that all readings have alike; the others are None, and wait for the conditions that they rest on."""
    unresolved: list[str] = []
    if len({reading.fields["kind"] for reading, _ in readings}) > 1:
        asked = ", ".join(dict.fromkeys(_deciding([(reading.fields["kind"], world) for reading, world in readings])))
        raise PlannerError(f"starts one thing or another, as {asked} says", hint="give it with `--env NAME=VALUE`")
    fields = _agreed([(dict(reading.fields), world) for reading, world in readings], unresolved)
    if fields is None or ("roles" in fields and fields["roles"] is None):
        fields = {**dict.fromkeys(readings[0][0].fields), **(fields or {}), "kind": readings[0][0].fields["kind"]}
        fields |= {"roles": []} if "roles" in fields else {}
    names = [name for reading, _ in readings for name in reading.unresolved]
    findings = [text for text in readings[0][0].findings if all(text in reading.findings for reading, _ in readings)]
    guesses = readings[0][0].guesses
    beside = readings[0][0].beside
    beside = {key: value for key, value in beside.items() if all(r.beside.get(key) == value for r, _ in readings)}
    return Reading(fields, tuple(dict.fromkeys([*names, *unresolved])), tuple(findings), guesses, beside)


def _agreed(values: Sequence[tuple[Any, World]], unresolved: list[str]) -> Any:  # noqa: ANN401 - plain data
    value = values[0][0]
    if all(other == value for other, _ in values):
        return value
    if all(isinstance(other, dict) and other.keys() == value.keys() for other, _ in values):
        return {key: _agreed([(other[key], world) for other, world in values], unresolved) for key in value}
    if all(isinstance(other, list) and len(other) == len(value) for other, _ in values):
        return [_agreed([(other[k], world) for other, world in values], unresolved) for k in range(len(value))]
    unresolved += [name for name in _deciding(values) if name not in unresolved]
    return None


def _deciding(values: Sequence[tuple[Any, World]]) -> list[str]:
    """The variables of the conditions whose answer changes the value."""
    from planner.importing.values import unknown_names

    names: list[str] = []
    for condition in dict.fromkeys(text for _, world in values for text in world.decided):
        sides = [{repr(v) for v, world in values if world.decided.get(condition) is answer} for answer in (True, False)]
        if sides[0] != sides[1]:
            names += [name for name in unknown_names(condition) if name != "$()"]
    return names
