"""Static checks of where the roles of an RL plan stand: which share devices, fit there, and have nodes of their own."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.names import BATCH_SAMPLES, GPUS
from planner.kinds.rl.options import RlOptions, ServedModel
from planner.plan.findings import Finding
from planner.plan.schema import Role
from planner.problem.resolve import gpus_per_node
from planner.problem.schema import Problem

REL_TOL = 1e-9
Devices = dict[str, set[tuple[str, int]]]
"""By role, pool and number of its GPUs."""


def roles_of(decision: RlDecision, function: str) -> list[Role]:
    """The roles of a function, in the order of the plan."""
    return [role for role in decision.roles if role.function == function]


def arrangement(decision: RlDecision, devices: Devices) -> Finding:
    """Colocated: generation and training on the same devices; disaggregated: on none in common; hybrid: on some."""
    generating = set[tuple[str, int]]().union(*(devices[role.name] for role in roles_of(decision, "rollout")))
    training = set[tuple[str, int]]().union(*(devices[role.name] for role in roles_of(decision, "actor")))
    common = len(generating & training)
    stands = "disaggregated" if not common else "colocated" if generating == training else "hybrid"
    return Finding(
        "rl.arrangement",
        decision.arrangement == stands,
        f"says `{decision.arrangement}`; {common} devices both generate and train, which is `{stands}`",
        "arrangement",
        f"write `{stands}`",
    )


def residency(decision: RlDecision, devices: Devices) -> Iterator[Finding]:
    """While a role works on a device, what the others keep there fits beside it."""
    for role in decision.roles:
        if role.memory is None:
            continue
        others = [other for other in decision.roles if other is not role and devices[other.name] & devices[role.name]]
        kept = sum(decision.resident_bytes.get(other.name, 0.0) for other in others)
        needed, capacity = role.memory.used_bytes + kept, role.memory.capacity_bytes
        yield Finding(
            "rl.residency",
            needed <= capacity * (1 + REL_TOL),
            f"needs {format_si(needed, 'B')} with what others keep there, may use {format_si(capacity, 'B')}",
            f"roles.{role.name}.memory",
            "offload more of the roles out of turn",
        )


def served(decision: RlDecision, options: RlOptions, devices: Devices) -> Iterator[Finding]:
    """What is served is what the problem serves, on devices of its own; nothing where nothing is."""
    asked: dict[str, ServedModel] = {spec.part: spec for spec in options.served}
    for role in decision.roles:
        spec, apart = asked.get(role.function), BATCH_SAMPLES in role.limits
        if spec is None and not apart:
            continue
        yield Finding(
            "rl.served",
            spec is not None and (apart or spec.or_beside),
            f"`{role.name}` has {'engines of its own' if apart else 'no engines of its own'}",
            f"roles.{role.name}",
            "serve what `served` of the problem names, and nothing else",
        )
        shared = (
            other.name for other in decision.roles if other is not role and devices[other.name] & devices[role.name]
        )
        other = next(shared, None)
        yield Finding(
            "rl.served_devices",
            not apart or other is None,
            f"`{role.name}` stands on devices of `{other}`" if other else "stands on devices of its own",
            f"roles.{role.name}",
            "place engines that score on devices of their own",
        )


def critic_gpus(decision: RlDecision, options: RlOptions, devices: Devices) -> Iterator[Finding]:
    """The critic trains on the GPUs that the problem asks for."""
    actors = set[tuple[str, int]]().union(*(devices[role.name] for role in roles_of(decision, "actor")))
    for role in roles_of(decision, "critic"):
        others = [other for other in decision.roles if other is not role and devices[other.name] & devices[role.name]]
        own = role.limits.get(GPUS) == "own"
        yield Finding(
            "rl.critic_gpus",
            ("own" if own else "actor") in options.critic_gpus
            and (not others if own else devices[role.name] <= actors),
            f"`{role.name}` trains on GPUs of {'its own' if own else 'the actor'}"
            + (f", where `{others[0].name}` stands" if own and others else ""),
            f"roles.{role.name}",
            "train it on the GPUs that `critic_gpus` of the problem names",
        )


def whole_nodes(decision: RlDecision, problem: Problem, devices: Devices) -> Iterator[Finding]:
    """Every role stands on all GPUs of its nodes, or all that a pool has of the plan stands on one node."""
    sizes = {spec.label: gpus_per_node(spec) for spec in problem.cluster.pools}
    nodes = {name: {(pool, gpu // sizes.get(pool, 1)) for pool, gpu in own} for name, own in devices.items()}
    for role in decision.roles:
        size, taken, own = sizes.get(role.pool, 1), len(devices[role.name]), nodes[role.name]
        of_pool = {node for others in nodes.values() for node in others if node[0] == role.pool}
        yield Finding(
            "rl.whole_nodes",
            taken == size * len(own) or len(of_pool) == 1,
            f"`{role.name}` has {taken} GPUs on {len(own)} nodes of {size}",
            f"roles.{role.name}",
            "give every role whole nodes, as `whole_nodes` of the problem asks, or all of them one node",
        )
