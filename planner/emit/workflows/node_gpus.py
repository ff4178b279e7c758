"""GPUs of the one node that all roles of a plan stand on."""

from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.plan.placement import devices
from planner.problem.recorded import INPUTS
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem


def gpus_of_roles(problem: Problem, decision: WorkflowDecision, numbers: str) -> dict[str, list[int]]:
    """Numbers in the node, by role; raises PlannerError for roles on several nodes, of which a file cannot tell."""
    places = {
        role.name: [device for block in decision.placement if block.role == role.name for device in devices(block)]
        for role in decision.roles
    }
    names = [spec.label for spec in problem.cluster.pools]
    used = {names.index(role.pool) for role in decision.roles}
    node = resolve_pool(problem.cluster.pools[min(used)], min(used), INPUTS).node.num_gpus
    if len(used) > 1 or len({device // node for own in places.values() for device in own}) > 1:
        what = f"{numbers} the GPUs of one node, and stages stand on several"
        raise PlannerError(what, where="decision.placement", hint="give stages options of one pool, on one node")
    return {name: [device % node for device in own] for name, own in places.items()}
