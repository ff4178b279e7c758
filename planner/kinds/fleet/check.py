"""Rules of plans of a day beyond those of all plans: nodes that are there, curves that rise, plans for what is used."""

from collections.abc import Iterator

from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.options import FleetOptions
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import INPUTS, recorded_options, recorded_problem
from planner.problem.resolve import resolve_pool


def check(envelope: Envelope, decision: FleetDecision) -> list[Finding]:
    """One finding for each rule and part."""
    return list(_findings(envelope, decision))


def _findings(envelope: Envelope, decision: FleetDecision) -> Iterator[Finding]:
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, FleetOptions)
    if problem is None or options is None:
        return
    pool = resolve_pool(problem.cluster.pools[0], 0, INPUTS)
    there = len(pool.healthy_nodes) - options.reserve_nodes
    for index, window in enumerate(decision.windows):
        used = sum(window.nodes.values())
        what = f"{used} nodes in use and {window.idle_nodes} idle of {there}"
        right = used + window.idle_nodes == there
        yield Finding("fleet.nodes", right, what, f"windows.{index}", "use what is there, less the reserve")
    yield from _curves(decision)
    yield from _used(decision, options)


def _curves(decision: FleetDecision) -> Iterator[Finding]:
    for name in dict.fromkeys(point.job for point in decision.curves):
        own = [(point.nodes, point.units_per_hour) for point in decision.curves if point.job == name]
        right = own == sorted(own) and [rate for _, rate in own] == sorted(rate for _, rate in own)
        what = f"the curve of `{name}` {'rises' if right else 'falls'} with more nodes"
        yield Finding("fleet.rising", right, what, f"curves.{name}", "solve again")


def _used(decision: FleetDecision, options: FleetOptions) -> Iterator[Finding]:
    """Every number of nodes in use is on the curve of its job, and has a plan."""
    points = {(point.job, point.nodes): point.copies for point in decision.curves}
    plans = {(plan.job, plan.nodes) for plan in decision.plans}
    for job in options.jobs:
        used = sorted({window.nodes.get(job.name, 0) for window in decision.windows} - {0})
        strange = [nodes for nodes in used if (job.name, nodes) not in points]
        lacking = [
            nodes
            for nodes in used
            if job.problem is not None
            and nodes not in strange
            and (job.name, nodes // points[job.name, nodes]) not in plans
        ]
        what = f"`{job.name}` has {', '.join(map(str, used)) or 'no'} nodes"
        if strange or lacking:
            what += f", and no {'curve' if strange else 'plan'} for {(strange or lacking)[0]}"
        yield Finding("fleet.plans", not strange and not lacking, what, f"windows.{job.name}", "solve again")
