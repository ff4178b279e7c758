"""The nodes of a plan that decided a rack for every node: of each rack those in service, in order."""

from collections.abc import Sequence

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.plan.schema import Decision


def nodes_on_racks(decision: Decision, pool: Pool) -> tuple[int, ...]:
    """The node of every node of ranks, through the nodes of a stage and then the stages; none where none was decided.

    Raises PlannerError for a rack with fewer nodes in service than stand there.
    """
    rows: Sequence[Sequence[int]] = getattr(getattr(decision, "racks", None), "rack_of_node", ())
    free: dict[int, list[int]] = {}
    for node in reversed(pool.job_nodes):
        free.setdefault(int(pool.rack_of_node[node]), []).append(node)
    nodes = []
    for rack in (rack for row in rows for rack in row):
        if not free.get(rack):
            what = f"the plan stands on more nodes of rack {rack} than are in service"
            raise PlannerError(what, where="decision.racks", hint="solve it again")
        nodes.append(free[rack].pop())
    return tuple(nodes)
