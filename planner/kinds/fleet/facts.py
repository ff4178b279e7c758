"""What `explain` tells of plans of a day: what an hour of a node is worth and when, and what every job adds to it.

Days with a node more, one fewer, or without a job are split again. Of more than `MANY` jobs they are bounded instead by
the prices of the relaxation, which bound every day (`columns.bound_at`), since splits that are stopped early are poor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TypedDict

from planner.documents.units import clock, figure, significant
from planner.errors import PlannerError
from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.formulate import FleetDay, Share
from planner.kinds.fleet.restate import day_of_plan, shares_by_window
from planner.kinds.registry import Told
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.solvers.schedules.days.columns import Relaxation, bound_at, relaxed
from planner.solvers.schedules.days.solve import MANY, split_day
from planner.solvers.schedules.days.split import Day, DaySplit


class Limit(TypedDict):
    """Of a day that is split again."""

    time_limit_s: float
    gap: float


_DEAREST = 3  # hours that are named
_MOST_TOLD = 5  # jobs, where there are many
_NEAR = 0.01  # of what a job adds: one figure tells it
LIMITS = Limit(time_limit_s=5.0, gap=1e-3)


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """The plan's day, what it is worth, in USD, and what no day is worth more than."""

    day: FleetDay
    problem: DaySplit
    relaxation: Relaxation
    planned: Day
    worth: float
    bound: float

    @property
    def many(self) -> bool:
        """Whether other days are bounded, and only some jobs named."""
        return len(self.problem.jobs) > MANY

    def with_nodes(self, nodes: Share) -> tuple[float, float]:
        """What the best day with so many nodes is worth at the least and at the most."""
        problem = replace(self.problem, nodes=nodes)
        fits = all(has >= had for has, had in zip(nodes, self.problem.nodes, strict=True))
        least = self.worth if fits else -math.inf
        if self.many:
            return least, bound_at(problem, self.relaxation.prices)[0]
        return _split_again(problem, least)

    def without(self, k: int) -> tuple[float, float]:
        """The same of the best day without job k: the others can go on as in the plan."""
        problem = replace(self.problem, jobs=self.problem.jobs[:k] + self.problem.jobs[k + 1 :])
        least = self.worth - self.problem.jobs[k].worth(self.planned[k])
        if self.many:
            prices = self.relaxation.prices
            return least, bound_at(problem, replace(prices, units=prices.units[:k] + prices.units[k + 1 :]))[0]
        return _split_again(problem, least)


def _split_again(problem: DaySplit, least: float) -> tuple[float, float]:
    result = split_day(problem, **LIMITS)
    assert result.objective is not None
    assert result.bound is not None
    return max(result.objective, least), result.bound


def facts(envelope: Envelope, decision: FleetDecision) -> Iterator[Told]:
    """Prices of nodes by hour, the day with a node more and one fewer and without each job, and what is used up."""
    try:
        day = day_of_plan(envelope, decision, AtHand())
        problem, planned = day.split(), day.day_of(shares_by_window(day, decision))
    except PlannerError as error:
        yield "note", error.what, (), {}
        return
    worth, bound = problem.worth(planned), envelope.certificate.bound
    around = _Around(day, problem, relaxed(problem), planned, worth, worth if bound is None else bound)
    named = _named(around, decision)
    if len(named) < len(day.jobs):
        yield "note", f"{len(named)} of {len(day.jobs)} jobs are told of: those that are paid most", (), {}
    yield from _hours(around, named)
    yield from _nodes(around)
    yield from _jobs(around, named)
    yield from _binding(decision, _MOST_TOLD if around.many else len(decision.days))
    yield from _beside(day, decision)


def _named(around: _Around, decision: FleetDecision) -> list[int]:
    """The jobs that are told of: all, or of many those that are paid most."""
    usd = {each.job: each.usd for each in decision.days}
    paid = sorted(range(len(around.day.jobs)), key=lambda k: -usd.get(around.day.jobs[k].spec.name, 0.0))
    return sorted(paid[: _MOST_TOLD if around.many else None])


def _hours(around: _Around, named: list[int]) -> Iterator[Told]:
    """The prices of a node of every pool by hour that bound the day: what one more could bring there at most."""
    day, prices = around.day, around.relaxation.prices
    for p, pool in enumerate(day.resolved.pools):
        of_pool = f" of {pool.name}" if len(day.resolved.pools) > 1 else ""
        yield _hours_on(day, of_pool, [float(price) / day.options.window_h for price in prices.hour_TP[:, p]])
    for k in named:
        job, unit = day.jobs[k], prices.units[k]
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


def _nodes(around: _Around) -> Iterator[Told]:
    """The day with a node more, and with one fewer; told apart where the bounds of both days are."""
    day, free, about = around.day, around.day.free_nodes, ("windows", "nodes", "objective")
    for (p, pool), (step, word) in product(enumerate(day.resolved.pools), ((1, "more"), (-1, "fewer"))):
        nodes = (*free[:p], free[p] + step, *free[p + 1 :])
        if not nodes[p]:
            continue
        of_pool = f" of {pool.name}" if len(free) > 1 else ""
        if not day.has_room(nodes):
            yield "change", f"one node{of_pool} fewer all day: jobs always have more", about, {}
            continue
        least, most = around.with_nodes(nodes)
        other = most if around.many else least
        a_node = f"{significant(abs(other - around.worth) / (day.options.windows * day.options.window_h))} USD an hour"
        what = (
            f"one node{of_pool} {word} all day: {'at most ' if around.many else ''}{figure('usd', other)} in place of "
        )
        what += f"{figure('usd', around.worth)}, "
        if around.many and step > 0:
            what += f"at most {a_node} of the node"
        elif around.worth <= most and (around.many or other <= around.bound):
            what += "as much as far as the bounds tell"
        else:
            what += f"{'at least ' if around.many else ''}{a_node} of the node"
        yield "change", what, about, {"usd": other - around.worth}


def _jobs(around: _Around, named: list[int]) -> Iterator[Told]:
    """The day without each job: what it adds, beside what it is paid."""
    for k in named if len(around.day.jobs) > 1 else ():
        name = around.day.jobs[k].spec.name
        least, most = around.without(k)
        low, high = around.worth - most, around.worth - least
        if high - low <= _NEAR * abs(high):
            others, adds = figure("usd", least), figure("usd", high)
        else:
            others, adds = (f"{figure('usd', a)} to {figure('usd', b)}" for a, b in ((least, most), (low, high)))
        what = f"without `{name}` the nodes are worth {others} to the other jobs: it adds {adds}"
        yield "worth", what, (name, "days", "objective"), {"usd": high, "usd_least": low}


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


def _binding(decision: FleetDecision, most_told: int) -> Iterator[Told]:
    """Stretches in which all nodes are in use, and jobs that miss most of what was asked."""

    full = [window.hours for window in decision.windows if not window.idle_nodes]
    if full:
        yield "binding", f"all nodes are in use in {', '.join(full)}", ("windows", "nodes", "idle_nodes"), {}
    short = [each for each in decision.days if each.missing > 1e-6 * max(each.units, 1.0)]
    worst = sorted(short, key=lambda each: -each.missing / (each.units + each.missing))[:most_told]
    for each in short:
        if each in worst:
            what = f"`{each.job}` misses {significant(each.missing)} of {significant(each.units + each.missing)} units"
            yield "binding", what, (each.job, "days"), {"missing": each.missing}
    if len(worst) < len(short):
        yield "note", f"{len(short) - len(worst)} further jobs miss a smaller share of theirs", (), {}
