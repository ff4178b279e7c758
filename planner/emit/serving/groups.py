"""Which instances stand behind one router, and the connector of KV caches from its prefill to its decode roles."""

from collections.abc import Sequence

from planner.emit.serving.checkpoints import cache_traits
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import FUNCTIONS, RouterGroup, Scene, ServingEngine
from planner.engines.handover import Side, connector_between, why_apart
from planner.engines.release import Connector
from planner.plan.schema import Decision


def router_groups(scene: Scene, decision: Decision, engine: ServingEngine) -> list[RouterGroup]:
    """Routers in the order in which models and modes first appear.

    A router may send any request of its group to any instance, so that prefill and decode roles that no one connector
    joins stand behind routers of their own, as the plan's routes join them, and so does an engine with adapters.
    """
    members: dict[tuple[str, bool, str], list[EngineInstance]] = {}
    for instance in scene.instances:
        alone = instance.role.name if "lora_modules" in instance.role.limits else ""
        key = (scene.model_key(instance), instance.role.function == "colocated", alone)
        members.setdefault(key, []).append(instance)
    groups: list[RouterGroup] = []
    for group in members.values():
        parts = [group] if _joined(scene, group, engine) else _by_route(group, decision)
        whole = not all(_joined(scene, part, engine) for part in parts)
        groups += [_group(scene, part, len(groups) + i) for i, part in enumerate([group] if whole else parts)]
    return groups


def _group(scene: Scene, members: Sequence[EngineInstance], index: int) -> RouterGroup:
    by_function = {
        name: tuple(instance for instance in members if instance.role.function == name) for name in FUNCTIONS
    }
    if bool(by_function["prefill"]) != bool(by_function["decode"]):
        raise members[0].refuse("prefill and decode need each other", "plan both roles for the model")
    model = scene.model_name(members[0])
    return RouterGroup(index, model, by_function["colocated"], by_function["prefill"], by_function["decode"])


def _by_route(group: Sequence[EngineInstance], decision: Decision) -> list[list[EngineInstance]]:
    """The instances apart, those of roles together that hand over to each other."""
    together = {instance.role.name: {instance.role.name} for instance in group}
    for route in decision.routing:
        if route.source in together and route.to in together:
            roles = together[route.source] | together[route.to]
            together |= dict.fromkeys(roles, roles)
    parts = {min(roles): roles for roles in together.values()}
    return [[instance for instance in group if instance.role.name in roles] for roles in parts.values()]


def _joined(scene: Scene, group: Sequence[EngineInstance], engine: ServingEngine) -> bool:
    """Whether one connector takes caches from every prefill to every decode instance, and there are both or none."""
    senders, receivers = ([i for i in group if i.role.function == function] for function in ("prefill", "decode"))
    if not senders or not receivers:
        return not senders and not receivers
    return _connector(scene, senders, receivers, engine) is not None


def _connector(
    scene: Scene, senders: Sequence[EngineInstance], receivers: Sequence[EngineInstance], engine: ServingEngine
) -> Connector | None:
    """What takes caches from each of the senders to each of the receivers."""
    traits = cache_traits(scene.model(senders[0]))
    return connector_between(engine.release, {_side(i) for i in senders}, {_side(i) for i in receivers}, traits)


def _side(instance: EngineInstance) -> Side:
    return Side(instance.role.parallelism.tp, instance.role.parallelism.pp)


def connectors_of(scene: Scene, groups: Sequence[RouterGroup], engine: ServingEngine) -> dict[str, Connector]:
    """By role; raises PlannerError where any prefill instance of a group could not hand over to any decode of it."""
    connectors: dict[str, Connector] = {}
    for group in groups:
        senders = {instance.role.name: instance for instance in group.prefill}
        receivers = {instance.role.name: instance for instance in group.decode}
        for sender in senders.values():
            for receiver in receivers.values():
                engine.check_transfer(scene, sender, receiver)
                _require_joined(scene, sender, receiver, engine)
        if not senders:
            continue
        connector = _connector(scene, group.prefill, group.decode, engine)
        if connector is None:
            raise group.prefill[0].refuse(
                f"no connector of {engine.release.name} joins all prefill roles of its model with all decode roles",
                "route prefill roles that differ to decode roles of their own",
            )
        connectors |= dict.fromkeys((*senders, *receivers), connector)
    return connectors


def _require_joined(scene: Scene, sender: EngineInstance, receiver: EngineInstance, engine: ServingEngine) -> None:
    sent, received = _side(sender), _side(receiver)
    rule = why_apart(engine.release, sent, received, cache_traits(scene.model(sender)))
    if rule is not None:
        raise receiver.refuse(
            f"{engine.release.name} hands it no caches of role `{sender.role.name}`: {rule.why} (prefill has tp "
            f"{sent.tp} and pp {sent.pp}, decode tp {received.tp} and pp {received.pp})",
            "solve again, or plan decode with pp 1 and tensor parallel sizes of which one divides the other",
        )
