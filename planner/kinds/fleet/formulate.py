"""The day of a fleet as a problem of `solvers.schedules.days.split`: worth of windows by nodes before and in them.

Parameters  W windows of h hours, a_t(j) requests an hour in slot j of window t at each level of the load, r_n units an
            hour on n nodes (r_0 = 0), s the start-up in hours, u worth of a unit, c cost of a missing one
During a start-up a job makes d(m, n) an hour: r_min(m,n) where nodes that arrive start up, else r_n for n = m and
nothing for another n. So it makes p(m, n) = s d(m, n) + (h - s) r_n in a window, and of a load
    v_t(m, n) = mean over levels, sum over slots j of [u min(a, r) - c max(a - r, 0)] x hours of j,
where r is d(m, n) in the start-up and r_n behind it.
A job that keeps its nodes for w windows has each number of nodes w times: as its first, second ... window with it; only
from the last of these it can go on to another number, and a step that it cannot take costs more than a day is worth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats
from planner.documents.units import figure
from planner.errors import Conflict, Infeasible, PlannerError
from planner.kinds.fleet.jobs import SECONDS, Job, Point, free_nodes, on_pool, pools_of
from planner.kinds.fleet.options import FleetOptions
from planner.problem.resolve import Resolved
from planner.solvers.schedules.days.columns import longest_path
from planner.solvers.schedules.days.split import Day, DayJob, DaySplit, Goal, fewest

Share = tuple[int, ...]
"""Nodes of every pool."""


@dataclass(frozen=True, slots=True)
class FleetDay:
    """A fleet's day: what is to be split, and the jobs that it is split between."""

    resolved: Resolved
    options: FleetOptions
    jobs: tuple[Job, ...]

    @property
    def free_nodes(self) -> Share:
        """Nodes in service of every pool that jobs can have."""
        return free_nodes(self.resolved, self.options)

    @property
    def nodes(self) -> int:
        """Of all pools together."""
        return sum(self.free_nodes)

    def gpus(self, share: Share) -> int:
        """Of so many nodes of every pool."""
        return sum(count * pool.node.num_gpus for count, pool in zip(share, self.resolved.pools, strict=True))

    def by_pool(self, share: Share) -> dict[str, int]:
        """The nodes by the name of their pool, those without any left out."""
        return {pool.name: count for pool, count in zip(self.resolved.pools, share, strict=True) if count}

    def before(self, k: int) -> Share:
        """Nodes of a job before the day."""
        spec, size = self.jobs[k].spec, len(self.resolved.pools)
        first = 0 if k >= len(self.options.jobs) else pools_of(self.resolved, k, spec)[0]
        return on_pool(first, spec.nodes_before, size)

    def split(self, nodes: Share | None = None, without: int | None = None) -> DaySplit:
        """The problem, with other numbers of nodes, or without a job."""
        kept = [k for k in range(len(self.jobs)) if k != without]
        jobs = tuple(day_job(self.jobs[k], self.before(k), self.options) for k in kept)
        return DaySplit(self.free_nodes if nodes is None else nodes, jobs)

    def has_room(self, nodes: Share) -> bool:
        """Whether so many nodes of every pool hold the fewest that all jobs can have."""
        size = len(nodes)
        return fewest(nodes, [tuple(share for share, _ in states(job, size)) for job in self.jobs]) is not None

    def shares_of(self, day: Day) -> list[list[Share]]:
        """Nodes of every job by window and pool. [K][W][P]"""
        size = len(self.resolved.pools)
        return [[states(job, size)[state][0] for state in path] for job, path in zip(self.jobs, day, strict=True)]

    def day_of(self, shares_KWP: list[list[Share]]) -> Day:
        """The states of jobs that have these nodes; raises PlannerError for numbers that a job cannot have."""
        rows = zip(self.jobs, shares_KWP, strict=True)
        return tuple(_path(job, self.before(k), shares) for k, (job, shares) in enumerate(rows))


def states(job: Job, pools: int) -> list[tuple[Share, int]]:
    """(nodes, window with them, the last one standing for all later ones) of a job, by nodes."""
    shares = [*([(0,) * pools] if job.spec.least_nodes == 0 else []), *(point.share for point in job.points)]
    return [(share, age) for share in sorted(shares) for age in range(1, job.spec.least_windows + 1)]


def rate_of(job: Job, share: Share) -> float:
    """Units an hour."""
    point = job.point(share)
    return 0.0 if point is None else point.units_per_hour


def day_job(job: Job, nodes_before: Share, options: FleetOptions) -> DayJob:
    """Worth and progress of a job by its states."""
    spec, own = job.spec, states(job, len(nodes_before))
    before = (nodes_before, spec.least_windows)
    counts = tuple(share for share, _ in own)
    units, allowed = _steps(job, nodes_before, options)
    if spec.load is not None:
        worth = np.array([[_earned(job, m, n, options) for n, _ in own] for m, _ in [before, *own]])
        worth = np.moveaxis(worth, -1, 0)
    else:
        unit = 0.0 if spec.target is not None else (spec.usd_per_unit or 0.0)
        worth = np.repeat(unit * units[None], options.windows, axis=0)
    highest = (spec.usd_per_unit or 0.0) + spec.usd_per_missing
    most = 1.0 + float(np.abs(worth).max(axis=(1, 2)).sum()) + highest * float(units.max()) * options.windows
    held = _held(spec.name, [share for share, _ in own], options)
    worth = np.where(allowed[None] & held[:, None, :], worth, worth - 4.0 * most)
    goal, deadline = None, options.deadline_windows(spec)
    if spec.target is not None:
        goal = Goal(spec.target, spec.usd_per_unit or 0.0, spec.usd_per_missing)
    return DayJob(
        counts,
        worth[0, 0],
        worth[1:, 1:],
        goal,
        units[0],
        units[1:],
        None if deadline is None else round(deadline),
    )


def _steps(job: Job, nodes_before: Share, options: FleetOptions) -> tuple[Floats, Bools]:
    """Units of a window and whether it may be, by the state before and in it; the first row is before the day."""
    own = states(job, len(nodes_before))
    rows = [(nodes_before, job.spec.least_windows), *own]
    units = np.array([[made(job, m, n, options) for n, _ in own] for m, _ in rows])
    return units, np.array([[_allowed(job.spec.least_windows, was, now) for now in own] for was in rows])


def most_made(job: Job, nodes_before: Share, options: FleetOptions) -> float:
    """Units by its deadline of a job that may have all nodes: no day of its own makes more."""
    units, allowed = _steps(job, nodes_before, options)
    reached = np.where(allowed, units, -np.inf)
    windows = round(options.deadline_windows(job.spec) or options.windows)
    return longest_path(reached[0], np.repeat(reached[None, 1:], windows - 1, axis=0))[0]


def _held(name: str, shares: list[Share], options: FleetOptions) -> Bools:
    """The states that a job may be in by window: those that it is held to, and none that it does without. [W, A]"""
    nodes, gone = options.nodes_held(name), options.left_out(name)
    rows = [
        [nodes[w] in (None, sum(share)) and sum(share) not in gone for share in shares] for w in range(options.windows)
    ]
    return np.array(rows)


def require_held(day: FleetDay) -> None:
    """Raises PlannerError for nodes by hand that a job cannot have, Infeasible for more of them than there are."""
    options = day.options
    held = {job.spec.name: options.nodes_held(job.spec.name) for job in day.jobs}
    for job in day.jobs:
        name, gone = job.spec.name, options.left_out(job.spec.name)
        can = {point.nodes for point in job.points} | ({0} if job.spec.least_nodes == 0 else set())
        strange = next((nodes for nodes in held[name] if nodes is not None and nodes not in can - gone), None)
        if strange is not None:
            listed = ", ".join(map(str, sorted(can - gone))) or "none"
            what = f"job `{name}` cannot have {strange} nodes"
            raise PlannerError(what, where=day.resolved.where(("options", "fixed")), hint=f"it can have {listed}")
        if not can - gone:
            what = f"job `{name}` is to do without all nodes that it can have, {', '.join(map(str, sorted(can)))}"
            raise PlannerError(what, where=day.resolved.where(("options", "without")), hint="leave it one of these")
        never = sorted(gone - {point.nodes for point in job.points} - {0})
        if never:
            what = f"job `{name}` is to do without {never[0]} nodes, which it cannot have"
            hint = f"it can have {', '.join(map(str, sorted(can)))}"
            raise PlannerError(what, where=day.resolved.where(("options", "without")), hint=hint)
    for window in range(options.windows):
        least = {job.spec.name: _least(job, held[job.spec.name][window], options) for job in day.jobs}
        if sum(least.values()) > day.nodes:
            at = f"{window * options.window_s / SECONDS:g} h"
            limit = f"fixed: {', '.join(f'{name} {nodes}' for name, nodes in least.items() if nodes)} nodes at {at}"
            raise Infeasible([Conflict(limit=limit, nearest=f"{day.nodes} nodes are there")], proved=True)


def require_room(day: FleetDay) -> None:
    """Raises Infeasible where all jobs together always have more nodes than there are."""
    if day.has_room(day.free_nodes):
        return
    least = ", ".join(f"{job.spec.name} {job.spec.least_nodes}" for job in day.jobs if job.spec.least_nodes)
    there = ", ".join(f"{free} of {pool.name}" for pool, free in zip(day.resolved.pools, day.free_nodes, strict=True))
    raise Infeasible(
        [Conflict(limit=f"least_nodes: {least}", nearest=f"nodes that jobs can have: {there}")], proved=True
    )


def _least(job: Job, held: int | None, options: FleetOptions) -> int:
    """The fewest nodes that a job can have where it is held to a number."""
    if held is not None:
        return held
    can = {point.nodes for point in job.points} | ({0} if job.spec.least_nodes == 0 else set())
    return min(can - options.left_out(job.spec.name))


def require_allowed(day: FleetDay, chosen: Day, *, proved: bool) -> None:
    """Raises Infeasible where the best split does not keep what is held by hand and how long jobs keep their nodes."""
    for k, (job, shares) in enumerate(zip(day.jobs, day.shares_of(chosen), strict=True)):
        held, gone = day.options.nodes_held(job.spec.name), day.options.left_out(job.spec.name)
        off = [w for w, share in enumerate(shares) if held[w] not in (None, sum(share)) or sum(share) in gone]
        if not off:
            _path(job, day.before(k), shares)
            continue
        limit = f"{job.spec.name}: nodes held by hand at {off[0] * day.options.window_s / SECONDS:g} h"
        nearest = f"{sum(shares[off[0]])} nodes there, with those of the other jobs"
        raise Infeasible([Conflict(limit=limit, nearest=nearest)], proved=proved)


def require_deadlines(day: FleetDay) -> None:
    """Raises Infeasible for a target that a job alone on the cluster does not make by its deadline."""
    for k, job in enumerate(day.jobs):
        target = job.spec.target
        most = math.inf if target is None else most_made(job, day.before(k), day.options)
        if target is not None and most < target * (1.0 - 1e-9):
            raise Infeasible(_out_of_reach(day, k, target, most), proved=True)


def _out_of_reach(day: FleetDay, k: int, target: float, most: float) -> list[Conflict]:
    """The target and the nodes that cannot hold together, with what works of each where the job makes anything."""
    job, options = day.jobs[k], day.options
    name, unit = job.spec.name, job.unit
    hours = (job.spec.deadline_s or options.window_s * options.windows) / SECONDS
    best = max(job.points, key=lambda point: point.units_per_hour)
    lost = 0.0 if day.before(k) == best.share else job.spec.start_up_s / SECONDS
    nearest, more = f"{most:.4g} {unit}", ""
    if best.units_per_hour > 0.0:
        nearest += f", or {target / best.units_per_hour + lost:.4g} h for the target"
        rate = target / (hours - lost)
        more = f"nodes that make {rate:.4g} {unit} an hour together, "
        more += f"{rate / best.units_per_hour:.3g} times as many at the same speed each"
    return [
        Conflict(limit=f"{name}: {target:g} {unit} within {hours:g} h", nearest=nearest),
        Conflict(limit=f"{name}: at most {best.nodes} of the {day.nodes} nodes", nearest=more),
    ]


def require_run(day: FleetDay, chosen: Day, *, proved: bool) -> None:
    """Raises Infeasible where the best split leaves all nodes idle: nothing would run by its plan."""
    if any(sum(share) for row in day.shares_of(chosen) for share in row):
        return
    value = day.split().worth(chosen)
    limit = f"jobs: a day worth more than {figure('usd', value)}, which it is without any nodes"
    raise Infeasible([Conflict(limit=limit, nearest="")], proved=proved)


def _allowed(windows: int, was: tuple[Share, int], now: tuple[Share, int]) -> bool:
    """A number of nodes is kept as another window with it, or any earlier one; it is left after enough of them."""
    if was[0] == now[0]:
        return now[1] <= min(was[1] + 1, windows)
    return was[1] == windows and now[1] == 1


def _during(job: Job, before: Share, nodes: Share) -> float:
    """Units an hour while a change starts up: by the most nodes of the curve that the job keeps, where it goes on."""
    if before == nodes:
        return rate_of(job, nodes)
    if job.restarts == "job":
        return 0.0
    kept = [min(was, now) for was, now in zip(before, nodes, strict=True)]
    return max((point.units_per_hour for point in job.points if _within(point, kept)), default=0.0)


def _within(point: Point, nodes: Sequence[int]) -> bool:
    return all(own <= there for own, there in zip(point.share, nodes, strict=True))


def made(job: Job, before: Share, nodes: Share, options: FleetOptions) -> float:
    """Units of a window of a job without a load."""
    start_h = job.spec.start_up_s / SECONDS
    return start_h * _during(job, before, nodes) + (options.window_h - start_h) * rate_of(job, nodes)


def loads(job: Job, options: FleetOptions) -> Floats:
    """Requests an hour by level, window and slot. [L, W, S]"""
    load = job.spec.load
    assert load is not None
    assert load.rates_per_s is not None
    rates = np.array(load.rates_per_s).reshape(options.windows, -1) * load.scale * SECONDS
    return np.asarray(np.array(load.levels)[:, None, None] * rates)


def starting_share(job: Job, options: FleetOptions, slots: int) -> Floats:
    """The share of every slot of a window in which a change starts up. [S]"""
    start = job.spec.start_up_s / options.window_s * slots
    return np.asarray(np.clip(start - np.arange(slots), 0.0, 1.0))


def _earned(job: Job, before: Share, nodes: Share, options: FleetOptions) -> Floats:
    """Worth of every window, at all levels of the load in the mean. [W]"""
    load_LWS = loads(job, options)
    return np.asarray(earned(job, load_LWS, before, nodes, options).mean(axis=0))


def earned(job: Job, load_LWS: Floats, before: Share, nodes: Share, options: FleetOptions) -> Floats:
    """Worth of windows with these loads, by level. [L, W]"""
    starting_S = starting_share(job, options, load_LWS.shape[-1])
    hours = options.window_h / load_LWS.shape[-1]
    spec = job.spec

    def worth(rate: float) -> Floats:
        served = np.minimum(load_LWS, rate)
        return np.asarray((spec.usd_per_unit or 0.0) * served - spec.usd_per_missing * (load_LWS - served))

    slots = starting_S * worth(_during(job, before, nodes)) + (1.0 - starting_S) * worth(rate_of(job, nodes))
    return np.asarray(hours * slots.sum(axis=-1))


def served(job: Job, load_LWS: Floats, before: Share, nodes: Share, options: FleetOptions) -> Floats:
    """Requests served in windows with these loads, by level. [L, W]"""
    starting_S = starting_share(job, options, load_LWS.shape[-1])
    hours = options.window_h / load_LWS.shape[-1]
    early, late = (np.minimum(load_LWS, rate) for rate in (_during(job, before, nodes), rate_of(job, nodes)))
    return np.asarray(hours * (starting_S * early + (1.0 - starting_S) * late).sum(axis=-1))


def _path(job: Job, nodes_before: Share, nodes_WP: list[Share]) -> tuple[int, ...]:
    """The states of a job, each as far on as its windows allow."""
    own = states(job, len(nodes_before))
    index = {state: number for number, state in enumerate(own)}
    was, path = (nodes_before, job.spec.least_windows), []
    for window, nodes in enumerate(nodes_WP):
        now = (nodes, min(was[1] + 1, job.spec.least_windows) if nodes == was[0] else 1)
        if now not in index:
            what = f"job `{job.spec.name}` has {sum(nodes)} nodes in window {window}, for which it has no plan"
            raise PlannerError(what, where="decision.windows", hint="solve again")
        if not _allowed(job.spec.least_windows, was, now):
            what = f"job `{job.spec.name}` keeps {sum(was[0])} nodes for fewer than {job.spec.least_windows} windows"
            raise PlannerError(what, where="decision.windows", hint="solve again")
        path.append(index[now])
        was = now
    return tuple(path)
