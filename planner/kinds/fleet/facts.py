"""What `explain` tells of plans of a day: what an hour of a node is worth and when, and what every job adds to it."""

from collections.abc import Iterator
from itertools import product
from typing import TypedDict

from planner.documents.units import clock, figure, significant
from planner.errors import PlannerError
from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.formulate import FleetDay
from planner.kinds.fleet.restate import day_of_plan, shares_by_window
from planner.kinds.registry import Told
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.solvers.schedules.days.columns import relaxed
from planner.solvers.schedules.days.solve import MANY, split_day


class Limit(TypedDict):
    """Of a day that is split again."""

    time_limit_s: float
    gap: float


_DEAREST = 3  # hours that are named
_MOST_TOLD = 5  # jobs, where there are many
LIMITS = Limit(time_limit_s=5.0, gap=1e-3)


def facts(envelope: Envelope, decision: FleetDecision) -> Iterator[Told]:
    """Prices of nodes by hour, the day with a node more and one fewer and without each job, and what is used up."""
    try:
        day = day_of_plan(envelope, decision, AtHand())
        worth = day.split().worth(day.day_of(shares_by_window(day, decision)))
    except PlannerError as error:
        yield "note", error.what, (), {}
        return
    yield from _hours(day)
    yield from _nodes(day, worth, worth if envelope.certificate.bound is None else envelope.certificate.bound)
    yield from _jobs(day, decision, worth)
    yield from _binding(decision)
    yield from _beside(day, decision)


def _hours(day: FleetDay) -> Iterator[Told]:
    """The prices of a node of every pool by hour that bound the day: what one more could bring there at most."""

    prices = relaxed(day.split()).prices
    for p, pool in enumerate(day.resolved.pools):
        of_pool = f" of {pool.name}" if len(day.resolved.pools) > 1 else ""
        yield _hours_on(day, of_pool, [float(price) / day.options.window_h for price in prices.hour_TP[:, p]])
    for job, unit in zip(day.jobs, prices.units, strict=True):
        if job.spec.target is not None:
            what = f"one of the {job.unit} of `{job.spec.name}` less in its target is worth {significant(unit)} USD"
            yield "worth", what, (job.spec.name, "days", "objective"), {"usd": unit}


def _hours_on(day: FleetDay, of_pool: str, hour_T: list[float]) -> Told:
    """What an hour of a node of a pool is worth."""
    window_h = day.options.window_h
    free = sum(price <= 1e-9 for price in hour_T)
    dearest = sorted(range(len(hour_T)), key=lambda t: -hour_T[t])[:_DEAREST]
    told = ", ".join(
        f"{significant(hour_T[t])} USD at {clock(t * day.options.window_s)}" for t in dearest if hour_T[t] > 1e-9
    )
    mean = sum(hour_T) / len(hour_T)
    what = f"an hour of a node{of_pool} is worth {significant(mean)} USD in the mean of the day"
    what += f", most of all {told}" if told else ""
    what += f"; in {free * window_h:g} hours another node is worth nothing" if free else ""
    figures = {clock(t * day.options.window_s): price for t, price in enumerate(hour_T)}
    return "worth", what, ("windows", "nodes", "objective"), figures


def _nodes(day: FleetDay, worth: float, bound: float) -> Iterator[Told]:
    """The day split again with a node more, and with one fewer; told apart where the bounds of both days are."""
    free, about = day.free_nodes, ("windows", "nodes", "objective")
    for (p, pool), (step, word) in product(enumerate(day.resolved.pools), ((1, "more"), (-1, "fewer"))):
        nodes = (*free[:p], free[p] + step, *free[p + 1 :])
        if not nodes[p]:
            continue
        of_pool = f" of {pool.name}" if len(free) > 1 else ""
        if not day.has_room(nodes):
            yield "change", f"one node{of_pool} fewer all day: jobs always have more", about, {}
            continue
        result = split_day(day.split(nodes), **LIMITS)
        other, most = result.objective, result.bound
        assert other is not None
        assert most is not None
        hours = day.options.windows * day.options.window_h
        what = f"one node{of_pool} {word} all day: {figure('usd', other)} in place of {figure('usd', worth)}, "
        if other <= bound and worth <= most:
            what += "as much as far as the bounds tell"
        else:
            what += f"{significant(abs(other - worth) / hours)} USD an hour of the node"
        yield "change", what, about, {"usd": other - worth}


def _jobs(day: FleetDay, decision: FleetDecision, worth: float) -> Iterator[Told]:
    """The day split again without each job, of many those that are paid most: what it adds, beside what it is paid."""
    usd = {each.job: each.usd for each in decision.days}
    paid = sorted(range(len(day.jobs)), key=lambda k: -usd.get(day.jobs[k].spec.name, 0.0))
    kept = sorted(paid[: _MOST_TOLD if len(paid) > MANY else None])
    if len(kept) < len(paid):
        what = f"what a job adds is told of the {len(kept)} of {len(paid)} that are paid most"
        yield "note", what, ("days", "objective"), {}
    for k in kept if len(day.jobs) > 1 else ():
        job = day.jobs[k]
        other = split_day(day.split(without=k), **LIMITS).objective
        assert other is not None
        what = f"without `{job.spec.name}` the nodes are worth {figure('usd', other)} to the other jobs: it adds "
        what += figure("usd", worth - other)
        yield "worth", what, (job.spec.name, "days", "objective"), {"usd": worth - other}


def _beside(day: FleetDay, decision: FleetDecision) -> Iterator[Told]:
    """What elastic and opportunistic jobs have, and what production loses to these."""
    least = {job.name: job.least_speed for job in day.options.elastic.jobs} if day.options.elastic else {}
    for each in decision.beside:
        what = (
            f"`{each.job}` has {significant(each.gpu_hours)} hours of a GPU at {significant(each.mean_speed)} of its "
        )
        what += f"speed in the mean of the day, worth {figure('usd', each.usd)}"
        what += f"; never less than {significant(each.least_speed)}" if least.get(each.job) else ""
        yield "worth", what, (each.job, "beside", "elastic", "opportunistic"), {"usd": each.usd}
    spec = day.options.opportunistic
    if spec is None:
        return
    for name in dict.fromkeys(job for window in decision.opportunistic for job in window.losses):
        most = max(window.losses.get(name, 0.0) for window in decision.opportunistic)
        what = (
            f"`{name}` loses up to {100 * most:.3g} % on a GPU that it shares; {100 * spec.most_loss:.3g} % are allowed"
        )
        yield "limit", what, (name, "opportunistic", "losses"), {"loss": most}
    missing = [
        job.name for job in spec.jobs if not any(each.job == job.name and each.gpu_hours for each in decision.beside)
    ]
    if missing:
        yield "note", f"{', '.join(f'`{name}`' for name in missing)} never run: no GPUs take them at that loss", (), {}


def _binding(decision: FleetDecision) -> Iterator[Told]:
    """Stretches in which all nodes are in use, and jobs that miss some of what was asked."""

    full = [window.hours for window in decision.windows if not window.idle_nodes]
    if full:
        yield "binding", f"all nodes are in use in {', '.join(full)}", ("windows", "nodes", "idle_nodes"), {}
    for each in decision.days:
        if each.missing > 1e-6 * max(each.units, 1.0):
            what = f"`{each.job}` misses {significant(each.missing)} of {significant(each.units + each.missing)} units"
            yield "binding", what, (each.job, "days"), {"missing": each.missing}
