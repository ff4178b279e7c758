"""Placements of several models as clusters start them: an engine of each model of each group, and who shares GPUs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from planner.emit.clusters.launch import Group, Launch, Shares, read_launch
from planner.emit.options import ClusterOptions, flag
from planner.emit.serving.routes import Json, engine_name, routing_table
from planner.emit.serving.shared_groups import SHARING, engines_of
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_options, recorded_problem


def read_placement(
    envelope: Envelope, decision: Decision, options: ClusterOptions, target: str, engines: Sequence[str]
) -> Launch:
    """The engines of a placement and their routers, those of a group with the GPUs that they share.

    Raises PlannerError for what no engine starts, and for copies that are to be apart on nodes without names.
    """
    assert isinstance(decision, PlaceDecision)
    _require_nodes(envelope)
    able = [name for name in engines if name in SHARING]
    launch = read_launch(envelope, engines_of(envelope, decision), (), options, target, able)
    shares = _shares(launch, decision)
    groups = tuple(dataclasses.replace(each, shares=shares.get(each.role.name)) for each in launch.groups)
    return dataclasses.replace(launch, groups=groups, placed=decision)


def require_claims(launch: Launch) -> None:
    """Raises PlannerError where engines share GPUs and no claims say so."""
    shared = next((group for group in launch.groups if group.shares is not None), None)
    if shared is not None and launch.options.gpus != "claims":
        raise PlannerError(
            f"`{shared.role.name}` shares its GPUs with other engines, which counts of GPUs cannot say",
            where=flag("gpus"),
            hint=f"give `{flag('gpus')} claims`: pods of a group then name one claim of dynamic allocation",
        )


def routes(launch: Launch, where: Mapping[str, Json]) -> dict[str, str]:
    """The routing table of a placement, by where the engine of every role answers; none of other plans."""
    if not isinstance(launch.placed, PlaceDecision):
        return {}
    models = {group.role.name: {"checkpoint": group.model} for group in launch.groups}
    told = {name: {**models[name], **place} for name, place in where.items()}
    return {"routes.json": routing_table(launch.envelope, launch.placed, told, {})}


def _shares(launch: Launch, decision: PlaceDecision) -> dict[str, Shares]:
    """By role of an engine, where several live on its group; they start one after the other."""
    number = Counter(host.group for host in decision.hosts)
    by_role: dict[str, Group] = {group.role.name: group for group in launch.groups}
    last: dict[str, str] = {}
    shares = {}
    for host in decision.hosts:
        if number[host.group] > 1:
            group = by_role[engine_name(host.group, host.model)]
            claim = f"{launch.name}-{host.group}-gpus"
            shares[group.role.name] = Shares(claim, group.pods[0].gpus, last.get(host.group))
            last[host.group] = group.name
    return shares


def _require_nodes(envelope: Envelope) -> None:
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, PlaceOptions)
    floor = None if options is None else options.floor
    named = problem is not None and all(pool.node_names for pool in problem.cluster.pools)
    if floor is not None and floor.apart is not None and not named:
        raise PlannerError(
            f"copies are to be on {floor.apart}s of their own, and clusters know nodes by their names alone",
            where="inputs.cluster.pools",
            hint="solve with `node_names` of the pool",
        )
