"""Plans that reckon with failures, simulated with what each of them takes down for the whole run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from planner.plan.findings import Finding
from planner.plan.schema import Decision, Route
from planner.plan.sides import ffn_roles
from planner.simulate.plans.simulation import PlanSimulation, findings

MOST_FAILURES = 4  # the busiest are simulated
MOST_REQUESTS = 20_000  # of the runs of each of them


def failure_findings(decision: Decision, simulated: Callable[[Decision], PlanSimulation]) -> Iterator[Finding]:
    """Whether the limits are kept with each failure down that the plan reckons with, the busiest of them.

    `simulated` gives the run of a decision on the plan's requests.
    """
    stated = decision.model_dump(mode="json").get("availability") or {}
    failures = stated.get("failures", ())
    for failure in failures[:MOST_FAILURES]:
        text = f"with {' and '.join(f'{count} of `{role}`' for role, count in failure['lost'].items())} down"
        left = without(decision, failure["lost"])
        for finding in findings(simulated(left)):
            yield replace(finding, what=f"{text}: {finding.what}")
    if len(failures) > MOST_FAILURES:
        what = (
            f"not judged: {len(failures) - MOST_FAILURES} failures that leave more than the {MOST_FAILURES} simulated"
        )
        yield Finding("simulate.failures", True, what, "decision.availability.failures", skipped=True)


def without(decision: Decision, lost: Mapping[str, int]) -> Decision:
    """The decision without some instances, by role; what is left of equal roles shares their load by its number."""
    sides = {name: role.name for name, role in ffn_roles(decision).items()}
    gone = dict(lost) | {sides[name]: count for name, count in lost.items() if name in sides}
    left = {role.name: role.replicas - gone.get(role.name, 0) for role in decision.roles}
    part = {role.name: left[role.name] / role.replicas for role in decision.roles}
    roles = tuple(role.model_copy(update={"replicas": left[role.name]}) for role in decision.roles if left[role.name])
    routes = tuple(
        route.model_copy(update={"share": share}) for route, share in _shared_out(decision, part) if share > 0.0
    )
    return decision.model_copy(update={"roles": roles, "routing": routes})


def _shared_out(decision: Decision, part: Mapping[str, float]) -> Iterator[tuple[Route, float]]:
    """Routes with what each then carries: the whole of a workload between two functions stays as it is."""
    function = {role.name: role.function for role in decision.roles}
    kinds: dict[tuple[str, str | None, str], list[Route]] = {}
    for route in decision.routing:
        source = None if route.source is None else function[route.source]
        kinds.setdefault((route.workload, source, function[route.to]), []).append(route)
    for routes in kinds.values():
        weights = [route.share * part[route.to] * part.get(route.source or "", 1.0) for route in routes]
        whole = sum(route.share for route in routes) / max(sum(weights), 1e-300)
        yield from zip(routes, (weight * whole for weight in weights), strict=True)
