"""Groups of GPUs that engines of several models share, as instances of serving scripts: one for each model of a group.

Engines of a group stand on the same GPUs, each with its own part of their memory, of which vLLM measures at its start
what is left; so the engines of a node are to be started one after the other.
"""

import json
from collections import defaultdict

from planner.emit.serving.scene import API_PORT, ServingEngine
from planner.emit.serving.scripts import emit_serving, read_scene
from planner.errors import PlannerError
from planner.kinds.place.decision import Host, PlaceDecision, PlaceOptions
from planner.plan.schema import Block, Decision, Envelope, Role
from planner.plan.store import plan_digest, plan_json
from planner.problem.recorded import recorded_options, recorded_problem

ROUTES = "planner.routes/1"


def emit_groups(envelope: Envelope, decision: Decision, *, engine: ServingEngine) -> dict[str, str]:
    """Scripts of every node, the router of every model with several engines, and `routes.json`.

    Raises PlannerError for groups that take requests one by one, which no engine here does.
    """
    assert isinstance(decision, PlaceDecision)
    engines = as_engines(envelope, decision)
    scripts = emit_serving(envelope, engines, engine=engine)
    return {**scripts, "routes.json": _routes(envelope, decision, engines, engine)}


def as_engines(envelope: Envelope, decision: PlaceDecision) -> Decision:
    """A role for each model of each group, on the devices of the group and with a part of their memory."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, PlaceOptions)
    if problem is None or options is None:
        raise PlannerError("is no valid problem", where="inputs", hint="check the plan: `planner check`")
    if not options.batching:
        raise PlannerError(
            "engines batch requests, and the groups of the plan take them one by one",
            where="inputs.options.batching",
            hint="solve without `batching: false`",
        )
    groups = {role.name: role for role in decision.roles}
    roles, placement = list[Role](), list[Block]()
    for host in decision.hosts:
        group, name = groups[host.group], _name(host)
        limits: dict[str, float | int | str] = {
            "max_batch": host.max_batch,
            "chunk_tokens": options.chunk_tokens,
            "kv_cache_bytes": int(host.kv_cache_bytes),
            "memory_utilisation": round(problem.engine.memory_utilisation * _part(decision, group, host), 4),
        }
        own = {"name": name, "function": "colocated", "model": host.model, "limits": limits}
        roles.append(group.model_copy(update=own))
        blocks = (block for block in decision.placement if block.role == host.group)
        placement += [block.model_copy(update={"role": name}) for block in blocks]
    return Decision(roles=tuple(roles), placement=tuple(placement), router_policy=decision.router_policy)


def _name(host: Host) -> str:
    return f"{host.group}-{host.model}"


def _part(decision: PlaceDecision, group: Role, host: Host) -> float:
    """Of what engines may use of a device: an engine's own weights and cache, and an equal part of all the rest."""
    memory = group.memory
    if memory is None:
        where, hint = f"decision.roles.{group.name}", "check the plan: `planner check`"
        raise PlannerError("states no memory", where=where, hint=hint)
    number = sum(other.group == group.name for other in decision.hosts)
    rest = memory.capacity_bytes - memory.weights_bytes - memory.kv_cache_bytes
    return (host.weights_bytes + host.kv_cache_bytes + rest / number) / memory.capacity_bytes


def _routes(envelope: Envelope, decision: PlaceDecision, engines: Decision, engine: ServingEngine) -> str:
    """Where the engines of every model answer, and the share of its requests that the plan expects each to take."""
    scene, _ = read_scene(envelope, engines, (), engine)
    shares = {_name(host): host.share for host in decision.hosts}
    rows = defaultdict[str, list[dict[str, object]]](list)
    checkpoints = {}
    for instance in scene.instances:
        key = str(instance.role.model)
        checkpoints[key] = scene.model_name(instance)
        where = {"node": scene.node(instance.head).title, "port": API_PORT + instance.head.slot}
        rows[key].append({**where, "expected_share": shares[instance.role.name]})
    models = {key: {"checkpoint": checkpoints[key], "engines": engines_of} for key, engines_of in rows.items()}
    digest = plan_digest(plan_json(envelope))
    data = {"schema": ROUTES, "plan": digest, "policy": engines.router_policy, "models": models}
    return json.dumps(data, indent=1) + "\n"
