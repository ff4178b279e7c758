"""Plans of the jobs of a day, each by the solver of its own kind, and what they make an hour."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from planner.costs.rates.pricer import serving_tables
from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError, errors_at
from planner.kinds.fleet.options import ELASTIC, FleetOptions, JobSpec
from planner.kinds.fleet.solved import entry, keep, recalled
from planner.kinds.registry import Kind, find_kind
from planner.plan.schema import Envelope
from planner.problem.reads import refuse_unread
from planner.problem.resolve import Resolved, resolve
from planner.problem.schema import CostsSpec, Problem
from planner.progress import Limits
from planner.schema.base import Where, planner_error

SOLVED: dict[str, Envelope] = {}
"""Plans of this process by the digest of their problem, so that sweeps and questions solve each once."""
OWN = {"serve": "requests", "train": "Gtokens", "rl": "iterations"}
"""Kinds of jobs, and what their work is counted in."""
TOKENS = 1e9  # of a unit of training
SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Point:
    """Nodes of every pool, and what a job makes of them as so many copies of a plan."""

    share: tuple[int, ...]
    units_per_hour: float
    copies: int = 1

    @property
    def nodes(self) -> int:
        """Of all pools together."""
        return sum(self.share)

    @property
    def plan(self) -> tuple[int, int]:
        """The pool of the plan of a copy, and its nodes; of points on one pool."""
        return next(p for p, count in enumerate(self.share) if count), self.nodes // self.copies


@dataclass(frozen=True, slots=True)
class Job:
    """A job with its numbers of nodes and what it makes of each an hour; `plans` by pool and the nodes of a copy."""

    spec: JobSpec
    kind: str | None  # None for a stated curve
    points: tuple[Point, ...]
    plans: dict[tuple[int, int], Envelope]

    def point(self, share: tuple[int, ...]) -> Point | None:
        """The point of so many nodes, None where there is none."""
        return next((point for point in self.points if point.share == share), None)

    @property
    def unit(self) -> str:
        """What its work is counted in."""
        if self.kind is not None:
            return OWN[self.kind]
        if self.spec.name == ELASTIC:
            return "USD"
        return "requests" if self.spec.load is not None else "units"

    @property
    def restarts(self) -> str:
        """What starts up after a change."""
        return self.spec.restarts or ("nodes" if self.kind in (None, "serve") else "job")


def read_jobs(resolved: Resolved, options: FleetOptions, limits: Limits) -> tuple[Job, ...]:
    """Every job with its curve, solved where it has a problem; raises PlannerError for jobs that cannot be solved."""
    free = free_nodes(resolved, options)
    if min(free) < 1:
        what = f"{options.reserve_nodes} nodes in reserve of {options.reserve_nodes + min(free)}"
        raise PlannerError(what, where=resolved.where(("options", "reserve_nodes")), hint="leave some to the jobs")
    return tuple(_job(resolved, index, spec, free, limits) for index, spec in enumerate(options.jobs))


def free_nodes(resolved: Resolved, options: FleetOptions) -> tuple[int, ...]:
    """Nodes in service of every pool that jobs can have."""
    return tuple(len(pool.healthy_nodes) - options.reserve_nodes for pool in resolved.pools)


def pools_of(resolved: Resolved, index: int, spec: JobSpec) -> list[int]:
    """The pools that a job may run on; raises PlannerError for unknown ones, and for curves on others."""
    names = [pool.name for pool in resolved.pools]
    given = [*(spec.pools or names), *(each.pool for each in spec.curve or () if each.pool is not None)]
    strange = next((name for name in given if name not in names), None)
    if strange is not None:
        hint = f"the pools are {', '.join(f'`{name}`' for name in names)}"
        where = resolved.where(("options", "jobs", index, "pools" if strange in (spec.pools or ()) else "curve"))
        raise PlannerError(f"no pool is called `{strange}`", where=where, hint=hint)
    away = next((name for name in given if spec.pools is not None and name not in spec.pools), None)
    if away is not None:
        what = f"job `{spec.name}` has a point of its curve on `{away}`, which is none of its pools"
        where = resolved.where(("options", "jobs", index, "pools"))
        raise PlannerError(what, where=where, hint=f"add `{away}` to `pools`, or leave the point out")
    return [names.index(name) for name in dict.fromkeys(spec.pools or names)]


def on_pool(pool: int, nodes: int, pools: int) -> tuple[int, ...]:
    """So many nodes of one of the pools."""
    return tuple(nodes if p == pool else 0 for p in range(pools))


def _job(resolved: Resolved, index: int, spec: JobSpec, free: tuple[int, ...], limits: Limits) -> Job:
    places = pools_of(resolved, index, spec)
    if spec.curve is not None:
        on_pools = (_never_falling(_stated(resolved, spec, pool, free), spec.nodes_before) for pool in places)
        stated = tuple(point for own in on_pools for point in own)
        return _bounded(Job(spec, None, stated, {}), resolved, index, max(free[pool] for pool in places))
    problem = job_problem(resolved, index, spec)
    kind = find_kind(problem.kind)
    counts = _counts(resolved, index, spec, kind, max(free[pool] for pool in places))
    points: list[Point] = []
    plans: dict[tuple[int, int], Envelope] = {}
    why: list[str] = []
    for pool in places:
        fitting = [count for count in counts if count <= free[pool]]
        own = _plans_on(resolved, (index, pool), (spec, problem), fitting, limits, why)
        plans |= {(pool, nodes): plan for nodes, plan in own.items()}
        points += _never_falling(_solved(spec, (pool, len(free)), fitting, own), spec.nodes_before)
    if not points:
        what = f"job `{spec.name}` has no plan on {', '.join(map(str, counts))} node{'s' if counts != [1] else ''}"
        what += f": {why[-1]}" if why else ""
        where = resolved.where(("options", "jobs", index, "nodes"))
        raise PlannerError(what, where=where, hint="give it more nodes, or looser limits")
    return _bounded(Job(spec, kind.name, tuple(points), plans), resolved, index, max(free[pool] for pool in places))


def _stated(resolved: Resolved, spec: JobSpec, pool: int, free: tuple[int, ...]) -> Iterator[Point]:
    """The points of a stated curve on a pool."""
    for each in spec.curve or ():
        if each.pool in (None, resolved.pools[pool].name) and each.nodes <= free[pool]:
            yield Point(on_pool(pool, each.nodes, len(free)), each.units_per_hour)


def copies_of(spec: JobSpec, kind: str, nodes: int) -> int:
    """Copies of a plan that a job has on so many nodes: those of a service."""
    return nodes // spec.unit_nodes if kind == "serve" else 1


def _plans_on(
    resolved: Resolved,
    place: tuple[int, int],
    job: tuple[JobSpec, Problem],
    counts: Sequence[int],
    limits: Limits,
    why: list[str],
) -> dict[int, Envelope]:
    """Plans of a job on a pool, by the nodes of a copy, on those that have one; `why` is told why others have none."""
    (index, pool), (spec, problem) = place, job
    plans: dict[int, Envelope] = {}
    for nodes in sorted({nodes // copies_of(spec, problem.kind, nodes) for nodes in counts}):
        limits.tell(f"{spec.name} on {nodes} nodes")
        try:
            with errors_at(resolved.where(("options", "jobs", index, "problem"))):
                plans[nodes] = plan_on(resolved, problem, spec, nodes, pool)
        except Infeasible as answer:
            why += [_reason(answer)] if answer.conflict else []
    return plans


def _reason(answer: Infeasible) -> str:
    """The limits that cannot hold together, with what is the nearest of each."""
    nearest = [f" (nearest: {entry['nearest']})" if entry["nearest"] else "" for entry in answer.conflict]
    return ", ".join(entry["limit"] + near for entry, near in zip(answer.conflict, nearest, strict=True))


def _solved(
    spec: JobSpec, place: tuple[int, int], counts: Sequence[int], plans: dict[int, Envelope]
) -> Iterator[Point]:
    """The points of these plans on one of so many pools."""
    for nodes in counts:
        copies = copies_of(spec, next(iter(plans.values())).kind if plans else "", nodes)
        if nodes // copies in plans:
            rate = copies * units_per_hour(plans[nodes // copies], spec)
            yield Point(on_pool(place[0], nodes, place[1]), rate, copies)


def job_problem(resolved: Resolved, index: int, spec: JobSpec) -> Problem:
    """The problem of a job on the pool of the fleet; raises PlannerError, at its place, for one that is not valid."""
    place = ("options", "jobs", index, "problem")
    written = spec.problem
    if not isinstance(written, dict):
        what = f"the problem of the job is {written!r}"
        raise PlannerError(what, where=resolved.where(place), hint="write a problem, or the path of one")
    where = _below(resolved, place)
    cluster = resolved.problem.cluster.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        problem = Problem.model_validate({**written, "cluster": cluster})
    except ValidationError as error:
        raise planner_error(error, where) from None
    if problem.kind not in OWN:
        what = f"jobs of kind `{problem.kind}` have no curve over nodes"
        hint = f"the kinds are {', '.join(f'`{kind}`' for kind in OWN)}; or state a `curve`"
        raise PlannerError(what, where=where(("kind",)), hint=hint)
    if not problem.models:
        raise PlannerError("the problem of a job has no `models`", where=where(()), hint="add `models:`")
    return problem


def _below(resolved: Resolved, place: tuple[str | int, ...]) -> Where:
    """Places below the problem of a job."""

    class Below(Where):
        def __call__(self, path: tuple[str | int, ...]) -> str:
            return resolved.where((*place, *path))

    return Below({}, "")


def plan_on(resolved: Resolved, problem: Problem, spec: JobSpec, nodes: int, pool: int) -> Envelope:
    """The plan of a job on so many nodes of a pool, by the solver of its kind; Infeasible is raised for none."""
    kind = find_kind(problem.kind)
    own = on_nodes(resolved, problem, spec, nodes, pool)
    key = digest(own.problem.model_dump(mode="json", by_alias=True))
    if key in SOLVED:
        return SOLVED[key]
    path = entry(own)
    plan = recalled(path)
    if plan is None:
        plan = kind.solve(own, Limits(seed=own.problem.seed))
        keep(path, plan)
    SOLVED[key] = plan
    return plan


def on_nodes(resolved: Resolved, problem: Problem, spec: JobSpec, nodes: int, place: int) -> Resolved:
    """The problem of a job on so many nodes of a pool: as much as they serve, or as fast as it gets."""
    kind, fleet = find_kind(problem.kind), resolved.problem
    pool = fleet.cluster.pools[place].model_copy(
        update={"nodes": nodes, "gpus": None, "node_names": None, "out_of_service": ()}
    )
    update: dict[str, Any] = {
        "name": f"{spec.name}-{nodes}" if len(resolved.pools) == 1 else f"{spec.name}-{pool.label}-{nodes}",
        "cluster": fleet.cluster.model_copy(update={"pools": (pool,)}),
        "costs": _costs(problem, kind),
    }
    if kind.name == "serve":
        options = {**problem.options, **(dict(kind.levels[spec.level]) if spec.level in kind.levels else {})}
        update |= {"options": options, "objective": problem.objective.model_copy(update=MOST)}
        update["workloads"] = tuple(each.model_copy(update={"load": None}) for each in problem.workloads)
    located = problem.model_copy(update=update)
    where = Where({}, f"job `{spec.name}`")
    with_options(kind, located, where)
    refuse_unread(kind.reads, located, where)
    return resolve(located, where)


MOST = {"maximize": "goodput_per_gpu", "minimize": None, "pareto": None}
"""The goal of a serving plan of a copy."""


def _costs(problem: Problem, kind: Kind) -> CostsSpec:
    """What the plans of a job rest on, with the kernel tables of the machine where its kind takes those unasked."""
    costs = problem.costs
    if not kind.tables_unasked or costs.profiles:
        return costs
    return costs.model_copy(update={"profiles": serving_tables(())})


def with_options(kind: Kind, problem: Problem, where: Where) -> None:
    """Raises PlannerError for options that the kind of the job refuses."""
    try:
        kind.options.model_validate(problem.options)
    except ValidationError as error:
        raise planner_error(error, lambda path: where(("options", *path))) from None


def units_per_hour(plan: Envelope, spec: JobSpec) -> float:
    """What a plan makes in an hour, in units of its kind, less what is kept free."""
    value = {(row.metric, row.statistic): 0.0 for row in plan.predictions}
    for row in plan.predictions:
        value[row.metric, row.statistic] += row.value
    if plan.kind == "serve":
        return value["requests_per_s", "mean"] * SECONDS * (1.0 - spec.safety)
    if plan.kind == "train":
        return value["tokens_per_s", "mean"] * SECONDS / TOKENS
    return SECONDS / value["iteration_time_s", "mean"]


def _counts(resolved: Resolved, index: int, spec: JobSpec, kind: Kind, free: int) -> list[int]:
    """Numbers of nodes to solve for."""
    place = resolved.where(("options", "jobs", index, "nodes"))
    if kind.name == "serve":
        counts = [*spec.nodes] if spec.nodes is not None else [*range(spec.unit_nodes, free + 1, spec.unit_nodes)]
        odd = [count for count in counts if count % spec.unit_nodes]
        if odd:
            what = f"{odd[0]} nodes are no whole number of copies of {spec.unit_nodes}"
            raise PlannerError(what, where=place, hint="give multiples of `unit_nodes`")
    elif spec.nodes is None:
        what = f"job `{spec.name}` of kind `{kind.name}` has no `nodes`"
        raise PlannerError(what, where=place, hint="write the numbers of nodes it can have, such as `nodes: [4, 8]`")
    else:
        counts = [*spec.nodes]
    largest = max(resolved.pools[pool].num_nodes for pool in pools_of(resolved, index, spec))
    if max(spec.nodes or (0,)) > largest:
        what = f"job `{spec.name}` is to have {max(spec.nodes or (0,))} nodes, and no pool of it has over {largest}"
        raise PlannerError(what, where=place, hint="leave that number out, or give the cluster more nodes")
    fitting = sorted({count for count in counts if count <= free})
    if not fitting:
        what = f"job `{spec.name}` needs {min(counts, default=0)} nodes, and {free} are there"
        raise PlannerError(what, where=place, hint="give it fewer nodes, or the cluster more")
    return fitting


def _never_falling(points: Iterable[Point], before: int) -> list[Point]:
    """Of one pool, without numbers of nodes that make no more than fewer do; those before the day stay."""
    kept: list[Point] = []
    for point in points:
        least = kept[-1].units_per_hour if kept else -1.0
        if point.units_per_hour > least or (point.nodes == before and point.units_per_hour == least):
            kept.append(point)
    return kept


def _bounded(job: Job, resolved: Resolved, index: int, most: int) -> Job:
    """The job with the points of at least as many nodes as it always has."""
    if not job.points:
        fewest = min(each.nodes for each in job.spec.curve or ())
        what = f"job `{job.spec.name}` needs {fewest} nodes, and a pool of it has at most {most}"
        place = resolved.where(("options", "jobs", index, "curve"))
        raise PlannerError(what, where=place, hint="give its curve a point on fewer nodes, or the cluster more")
    place = resolved.where(("options", "jobs", index, "least_nodes"))
    points = tuple(point for point in job.points if point.nodes >= job.spec.least_nodes)
    if not points:
        what = f"job `{job.spec.name}` always has {job.spec.least_nodes} nodes, and its most are "
        what += f"{max((point.nodes for point in job.points), default=0)} of the {most} there are"
        raise PlannerError(what, where=place, hint="lower `least_nodes`, or give it more nodes")
    return replace(job, points=points)
