"""Rules of plans of a day beyond those of all plans: nodes that are there, curves that rise, plans for what is used.

What runs beside production is judged by `check_beside`.
"""

from collections.abc import Iterator, Sequence

from planner.hardware.cluster import Pool
from planner.kinds.fleet.check_beside import elastic_findings, opportunistic_findings
from planner.kinds.fleet.check_moves import move_findings
from planner.kinds.fleet.decision import CurvePoint, FleetDecision
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
    pools = [resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)]
    yield from _nodes(decision, options, pools)
    yield from _curves(decision)
    yield from _used(decision, options)
    yield from move_findings(decision)
    yield from elastic_findings(decision, options, pools)
    yield from opportunistic_findings(decision, options, pools)


def _nodes(decision: FleetDecision, options: FleetOptions, pools: Sequence[Pool]) -> Iterator[Finding]:
    """No more nodes than there are, of all pools and of each."""
    free = {pool.name: len(pool.healthy_nodes) - options.reserve_nodes for pool in pools}
    there = sum(free.values())
    for index, window in enumerate(decision.windows):
        used = sum(window.nodes.values())
        what = f"{used} nodes in use and {window.idle_nodes} idle of {there}"
        right = used + window.idle_nodes == there
        if len(pools) > 1:
            of_pool = {name: sum(own.get(name, 0) for own in window.pools.values()) for name in free}
            right = right and sum(of_pool.values()) == used and all(of_pool[name] <= free[name] for name in free)
            what += f", in use {', '.join(f'{of_pool[name]} of {free[name]} of {name}' for name in free)}"
        yield Finding("fleet.nodes", right, what, f"windows.{index}", "use what is there, less the reserve")


def _curves(decision: FleetDecision) -> Iterator[Finding]:
    """By job and pool; points on several pools at a time follow no order."""
    places = dict.fromkeys((point.job, tuple(point.pools)) for point in decision.curves if len(point.pools) < 2)
    for name, pools in places:
        points = [point for point in decision.curves if point.job == name and tuple(point.pools) == pools]
        own = [(point.nodes, point.units_per_hour) for point in points]
        right = own == sorted(own) and [rate for _, rate in own] == sorted(rate for _, rate in own)
        what = f"the curve of `{name}` {'rises' if right else 'falls'} with more nodes"
        what += f" of {pools[0]}" if pools else ""
        yield Finding("fleet.rising", right, what, f"curves.{name}", "solve again")


def _used(decision: FleetDecision, options: FleetOptions) -> Iterator[Finding]:
    """Every number of nodes in use is on the curve of its job, and has a plan."""
    points = {(point.job, point.nodes, frozenset(point.pools.items())): point for point in decision.curves}
    plans = {(plan.job, plan.pool, plan.nodes) for plan in decision.plans}
    solved = {job.name for job in options.jobs if job.problem is not None}
    for name in decision.windows[0].nodes:
        used = dict.fromkeys(
            (window.nodes.get(name, 0), frozenset(window.pools.get(name, {}).items()))
            for window in decision.windows
            if window.nodes.get(name, 0)
        )
        strange = [nodes for nodes, pools in used if (name, nodes, pools) not in points]
        lacking = [
            point.nodes
            for point in (points.get((name, *key)) for key in used)
            if point is not None and name in solved and _plan_of(point) not in plans
        ]
        what = f"`{name}` has {', '.join(map(str, sorted({nodes for nodes, _ in used}))) or 'no'} nodes"
        if strange or lacking:
            what += f", and no {'curve' if strange else 'plan'} for {(strange or lacking)[0]}"
        yield Finding("fleet.plans", not strange and not lacking, what, f"windows.{name}", "solve again")


def _plan_of(point: CurvePoint) -> tuple[str, str | None, int]:
    """Job, pool and nodes of the plan of a copy."""
    return point.job, next(iter(point.pools), None), point.nodes // point.copies
