"""The copies of models that the replicas of a plan's roles are, with what they take of their devices."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.plan.placement import devices
from planner.plan.schema import Decision, Memory, Role
from planner.solvers.placement.regroup import Copy


def role_copies(decision: Decision) -> Iterator[Copy]:
    """Every replica of every role, in the order of its devices."""
    for role in decision.roles:
        memory, size = memory_of(role), role.parallelism.devices
        ranks = [
            (block.pool, device) for block in decision.placement if block.role == role.name for device in devices(block)
        ]
        for first in range(0, len(ranks), size):
            where = tuple(ranks[first : first + size])
            yield Copy(str(role.model), where, memory.used_bytes, memory.weights_bytes * len(where))


def room_bytes(decision: Decision) -> float:
    """What the plan may use of a device."""
    return max(memory_of(role).capacity_bytes for role in decision.roles)


def memory_of(role: Role) -> Memory:
    """Raises PlannerError where the role states none."""
    if role.memory is None:
        what, hint = f"role `{role.name}` states no memory", "check the plan: `planner check`"
        raise PlannerError(what, where="decision.roles", hint=hint)
    return role.memory
