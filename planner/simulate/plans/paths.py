"""Paths of requests by a plan's routes: a colocated role, or prefill and then decode."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.schema import Decision, Route
from planner.simulate.fleet.instances import RequestPath

LEAST_SHARE = 1e-9  # of a workload; less is rounding


@dataclass(frozen=True, slots=True)
class RolePaths:
    """The paths of each workload of a plan, and the number of each role on them."""

    number_of_role: dict[str, int]
    paths: tuple[tuple[RequestPath, ...], ...]  # by workload


def paths_of(decision: Decision, workloads: Sequence[str]) -> RolePaths | None:
    """The paths of a plan; None where all requests go one way, or where routes leave a workload or a role out."""
    number = {role.name: index for index, role in enumerate(decision.roles)}
    routes = decision.routing
    paths = tuple(_paths([route for route in routes if route.workload == name], number) for name in workloads)
    left_out = not all(paths) or {route.to for route in routes} != set(number)
    return None if left_out or sum(map(len, paths)) < 2 else RolePaths(number, paths)


def _paths(routes: Sequence[Route], number: dict[str, int]) -> tuple[RequestPath, ...]:
    """The paths of one workload; a role that hands nothing on does both."""
    onward = {route.source for route in routes}
    used = [route for route in routes if route.source is not None or route.to not in onward]
    ways = [(route.source or route.to, route.to, route.share) for route in used]
    whole = sum(share for _, _, share in ways)
    return tuple(
        RequestPath(number[first], number[last], share / whole)
        for first, last, share in ways
        if share > LEAST_SHARE * whole
    )
