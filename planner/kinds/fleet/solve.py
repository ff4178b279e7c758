"""Solves the day of a fleet: curves of the jobs by the solvers of their kinds, then the split of the nodes."""

from planner.errors import Stopped
from planner.kinds.fleet.elastic import elastic_job
from planner.kinds.fleet.envelope import envelope
from planner.kinds.fleet.formulate import (
    FleetDay,
    require_allowed,
    require_deadlines,
    require_held,
    require_room,
    require_run,
)
from planner.kinds.fleet.jobs import Job, free_nodes, read_jobs
from planner.kinds.fleet.opportunistic import require_gpus
from planner.kinds.fleet.options import FleetOptions
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.result import Status
from planner.solvers.schedules.days.solve import DUST, split_day

FEW_STEPS = 500  # of single jobs: days with no more are solved to the end
CLOSE = 1e-4  # of the worth of other days: the gap at which they are done


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The split that is worth most, as a plan, with a bound on all splits.

    Raises PlannerError for jobs that cannot be solved, Infeasible for a target out of reach of the whole cluster, for
    more nodes that jobs always have than there are, and where nothing is worth running.
    """
    day = read_day(resolved, limits)
    require_deadlines(day)
    require_room(day)
    require_held(day)
    split = day.split()
    steps = sum(len(job.counts) ** 2 for job in split.jobs) * split.hours
    least = DUST if steps <= FEW_STEPS else CLOSE
    result = split_day(split, time_limit_s=limits.time_limit_s, gap=max(limits.gap, least))
    if result.solution is None:
        raise Stopped(result.stop_reason, bound=result.bound)
    proved = result.status is Status.OPTIMAL
    require_allowed(day, result.solution, proved=proved)
    require_run(day, result.solution, proved=proved)
    reason = "node_limit" if result.stop_reason == "step_limit" else result.stop_reason
    return envelope(day, result.solution, result.bound, reason)


def read_day(resolved: Resolved, limits: Limits) -> FleetDay:
    """The day with the curves of its jobs."""
    options = FleetOptions.model_validate(resolved.problem.options)
    return FleetDay(resolved, options, day_jobs(resolved, options, limits))


def day_jobs(resolved: Resolved, options: FleetOptions, limits: Limits) -> tuple[Job, ...]:
    """The jobs in their order, and the elastic ones together behind them."""
    require_gpus(resolved, options)
    jobs = read_jobs(resolved, options, limits)
    elastic = elastic_job(resolved, options, free_nodes(resolved, options))
    return jobs if elastic is None else (*jobs, elastic)
