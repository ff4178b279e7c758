"""What `explain` tells of plans of a day: what an hour of a node is worth and when, and what every job adds to it."""

from collections.abc import Iterator

from planner.documents.units import figure, significant
from planner.errors import PlannerError
from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.formulate import FleetDay
from planner.kinds.fleet.placed import clock
from planner.kinds.fleet.restate import day_of_plan, nodes_by_window
from planner.kinds.registry import Told
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.solvers.schedules.day_columns import relaxed
from planner.solvers.schedules.day_solve import split_day

_DEAREST = 3  # hours that are named


def facts(envelope: Envelope, decision: FleetDecision) -> Iterator[Told]:
    """Prices of nodes by hour, the day with a node more and one fewer and without each job, and what is used up."""
    try:
        day = day_of_plan(envelope, decision, AtHand())
        worth = day.split().worth(day.day_of(nodes_by_window(day, decision)))
    except PlannerError as error:
        yield "note", error.what, (), {}
        return
    yield from _hours(day)
    yield from _nodes(day, worth)
    yield from _jobs(day, worth)
    yield from _binding(decision)


def _hours(day: FleetDay) -> Iterator[Told]:
    """The prices of a node by hour that bound the day: what one more could bring there at most."""

    prices = relaxed(day.split()).prices
    hour_T, window_h = [float(price) / day.options.window_h for price in prices.hour_T], day.options.window_h
    free = sum(price <= 1e-9 for price in hour_T)
    dearest = sorted(range(len(hour_T)), key=lambda t: -hour_T[t])[:_DEAREST]
    told = ", ".join(
        f"{significant(hour_T[t])} USD at {clock(t * day.options.window_s)}" for t in dearest if hour_T[t] > 1e-9
    )
    mean = sum(hour_T) / len(hour_T)
    what = f"an hour of a node is worth {significant(mean)} USD in the mean of the day"
    what += f", most of all {told}" if told else ""
    what += f"; in {free * window_h:g} hours another node is worth nothing" if free else ""
    figures = {clock(t * day.options.window_s): price for t, price in enumerate(hour_T)}
    yield "worth", what, ("windows", "nodes", "objective"), figures
    for job, unit in zip(day.jobs, prices.units, strict=True):
        if job.spec.target is not None:
            what = f"one of the {job.unit} of `{job.spec.name}` less in its target is worth {significant(unit)} USD"
            yield "worth", what, (job.spec.name, "days", "objective"), {"usd": unit}


def _nodes(day: FleetDay, worth: float) -> Iterator[Told]:
    """The day split again with a node more, and with one fewer."""

    for step, word in ((1, "more"), (-1, "fewer")):
        least = sum(job.spec.least_nodes for job in day.jobs)
        if not day.nodes + step >= 1 or day.nodes + step < least:
            continue
        other = split_day(day.split(day.nodes + step)).objective
        assert other is not None
        hours = day.options.windows * day.options.window_h
        what = f"one node {word} all day: {figure('usd', other)} in place of {figure('usd', worth)}, "
        what += f"{significant(abs(other - worth) / hours)} USD an hour of the node"
        yield "change", what, ("windows", "nodes", "objective"), {"usd": other - worth}


def _jobs(day: FleetDay, worth: float) -> Iterator[Told]:
    """The day split again without each job: what it adds, beside what it is paid."""

    for k, job in enumerate(day.jobs if len(day.jobs) > 1 else ()):
        other = split_day(day.split(without=k)).objective
        assert other is not None
        what = f"without `{job.spec.name}` the nodes are worth {figure('usd', other)} to the other jobs: it adds "
        what += figure("usd", worth - other)
        yield "worth", what, (job.spec.name, "days", "objective"), {"usd": worth - other}


def _binding(decision: FleetDecision) -> Iterator[Told]:
    """Stretches in which all nodes are in use, and jobs that miss some of what was asked."""

    full = [window.hours for window in decision.windows if not window.idle_nodes]
    if full:
        yield "binding", f"all nodes are in use in {', '.join(full)}", ("windows", "nodes", "idle_nodes"), {}
    for each in decision.days:
        if each.missing > 1e-6 * max(each.units, 1.0):
            what = f"`{each.job}` misses {significant(each.missing)} of {significant(each.units + each.missing)} units"
            yield "limit", what, (each.job, "days"), {"missing": each.missing}
