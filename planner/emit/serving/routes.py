"""The routing table of placements, `routes.json`: where models, adapters, buckets and layers are served.

Shares of groups are what a simulation with the plan's router saw, those of adapters, layers and buckets what routers
are to send; of layers they are weights at each node that requests leave, which interleaved weighted round robin takes.
"""

import json
from collections import defaultdict
from collections.abc import Mapping

from planner.emit.registry import EmitTarget
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope, Role
from planner.plan.store import plan_digest, plan_json

Json = dict[str, object]
ROUTES = "planner.routes/1"


def routing_table(envelope: Envelope, decision: PlaceDecision, where: Mapping[str, Json], told: Json) -> str:
    """The text of `routes.json`; `where` says where each engine answers, by its role, or each group and model.

    `told` is what else is known of a launch, such as names of checkpoints.
    """
    return _text(envelope, {**told, **_rows(decision, where)})


def engine_name(group: str, model: str) -> str:
    """The role of the engine of a model on a group."""
    return f"{group}-{model}"


def _text(envelope: Envelope, data: Json) -> str:
    return json.dumps({"schema": ROUTES, "plan": plan_digest(plan_json(envelope)), **data}, indent=1) + "\n"


def _rows(decision: PlaceDecision, where: Mapping[str, Json]) -> Json:
    rows = defaultdict[str, list[Json]](list)
    if decision.adapters:
        for host in decision.adapters:
            rows[host.adapter].append({**where[host.engine], "share": host.share})
        return {"adapters": rows}
    for home in decision.hosts:
        rows[home.model].append({**where[engine_name(home.group, home.model)], "expected_share": home.share})
    return {"policy": decision.router_policy, "models": {model: {"engines": each} for model, each in rows.items()}}


def emit_routes(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """`routes.json` alone, by roles of the plan and their devices, of placements of every form."""
    assert isinstance(decision, PlaceDecision)
    places = {block.role: {"pool": block.pool, "devices": list(devices(block))} for block in decision.placement}
    for name in (role.name for role in decision.roles if role.name not in places):
        raise PlannerError(
            f"role `{name}` has no devices", where="decision.placement", hint="solve again, or state its devices"
        )
    data: Json
    if decision.slices:
        data = {"buckets": _buckets(decision)}
    elif decision.routing and not (decision.hosts or decision.adapters):
        data = {"nodes": {role.name: _layers(role) | places[role.name] for role in decision.roles}}
        data["next"] = _weights(decision)
    else:
        where: dict[str, Json] = {name: {"role": name, **place} for name, place in places.items()}
        where |= {
            engine_name(host.group, host.model): {"role": host.group, **places[host.group]} for host in decision.hosts
        }
        data = _rows(decision, where)
    return {"routes.json": _text(envelope, data)}


def _buckets(decision: PlaceDecision) -> Json:
    """Of every bucket, the shares of its requests that roles take; where phases are apart, those of each phase."""
    use = {role.name: role.limits.get("use", "whole") for role in decision.roles}
    whole, rows = defaultdict[str, int](int), defaultdict[str, list[Json]](list)
    for row in decision.slices:
        whole[row.bucket] += row.slices if use[row.to] != "decode" else 0
    for row in decision.slices:
        rows[row.bucket].append({"role": row.to, "use": use[row.to], "share": row.slices / whole[row.bucket]})
    return dict(rows)


def _layers(role: Role) -> Json:
    """The span of a node. Raises PlannerError for one that a plan by hand does not state."""
    names = ("first_layer", "num_layers")
    if not role.limits.keys() >= set(names):
        raise PlannerError(
            f"role `{role.name}` does not say which layers it has",
            where=f"decision.roles.{role.name}.limits",
            hint="state `first_layer` and `num_layers`",
        )
    return {name: role.limits[name] for name in names}


def _weights(decision: PlaceDecision) -> Json:
    """From every node, and from clients (""), the weights of the nodes that requests go to next."""
    sent = defaultdict[str, float](float)
    for route in decision.routing:
        sent[route.source or ""] += route.share
    rows = defaultdict[str, list[Json]](list)
    for route in decision.routing:
        source = route.source or ""
        rows[source].append({"role": route.to, "weight": route.share / sent[source]})
    return dict(rows)


TARGETS = (
    EmitTarget(
        "routes", "where each model, adapter, bucket or layer is served, in which shares", ("place",), emit_routes
    ),
)
