"""What fails together on a cluster: one instance, what stands on one node, or in one rack, as `availability` says.

For the search a failure takes so many of the instances of a type (`losses`). An instance fails alone. Where a domain (a
node or a rack) fails, some domain has at least as many instances of a type as all have in the mean: that is what the
search reckons with, and what its bound rests on. Whether the placement keeps to it is judged once it stands.
"""

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.steady.candidates import Candidate
from planner.problem.resolve import Resolved

Losses = tuple[int, int | None]
"""Instances of a type that a failure takes of every so many (None: of any number) in use."""


def domain_gpus(pool: Pool, per: str) -> int:
    """GPUs of what fails together: a node, or a rack."""
    return pool.node.num_gpus if per == "node" else pool.node.scale_up_size


def domains(pool: Pool, per: str) -> int:
    """How many nodes or racks of a pool have devices in service."""
    size = domain_gpus(pool, per)
    return len({node * pool.node.num_gpus // size for node in pool.healthy_nodes})


def require_domains(resolved: Resolved) -> None:
    """Raises PlannerError where racks may fail and a pool has none, or limits are judged by simulation."""
    availability = resolved.problem.availability
    if availability is None:
        return
    if resolved.problem.options.get("judged_by") == "simulation":
        raise PlannerError(
            "simulation judges placements with every instance up",
            where=resolved.where(("availability",)),
            hint="take `judged_by: queueing`; `planner check --level simulate` simulates the plan with failures",
        )
    for pool in resolved.pools:
        if availability.per == "rack" and pool.node.scale_up_size <= pool.node.num_gpus:
            raise PlannerError(
                f"pool `{pool.name}` states no racks: the scale-up domain of `{pool.node.name}` is one node",
                where=resolved.where(("availability", "per")),
                hint="write `per: node`, or name a rack-scale node such as gb200-nvl72",
            )


def losses(pool: Pool, per: str | None) -> Losses:
    """What a failure takes of the instances of a type whose own pool is this one, at the least."""
    if per is None:
        return 0, None
    return (1, None) if per == "role" else (1, domains(pool, per))


def most_losses(candidate: Candidate, pools: tuple[Pool, ...], per: str) -> Losses:
    """What a failure takes of the instances of a type wherever they stand: all that a domain has room for."""
    cut = candidate.shape.pieces
    parts = [(pools[index], devices // cut) for index, devices in candidate.devices_of_pool]
    return max(max(domain_gpus(pool, per) // devices, 1) for pool, devices in parts), None
