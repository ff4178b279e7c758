"""Of plans that predictions do not tell apart, the one where runs were measured, and of those one with room in memory.

Costs rank plans to within their error. A plan outside the region of the measured runs of its kind
(`costs.training.measured_layouts`: degrees and schedules by generation of GPUs, ZeRO stages by family of codes with
and without a pipeline) is best under rates that other layouts gave. Where the fastest plan is such a one, the fastest
inside is searched too, and taken where its step is no longer than the upper end of the 80 % interval of the former's,
which is the wider the farther that plan is from any measured run.

Memory is predicted to within an error too, and allocators lose some of it between tensors. Where that plan fills more
than `ROOMY_SHARE` of a GPU and the problem states no share, the fastest measured plan that does not is searched, with
no feature added: no higher ZeRO stage, no sharding over a part of the ranks, no offload, and no schedule besides
1F1B and interleaved that the former does without. It is taken where it costs at most `ROOM_COSTS` of the goal. Plans
that decide heads, ranges, passes or what lengths recompute beside their layout use their room for these, and are left
as they are.

What is proven stays: the bound of the whole space, and the gap to it, which was given up. `choice: fastest` takes the
fastest, wherever it lies and whatever it fills.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.costs.training.config import Schedule
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.measured_layouts import NAMES, Region, kind_of, outside, region_of
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.figures import ROOMY_SHARE, ROUNDING
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.search import Inside, SearchResult
from planner.kinds.train.space.space import allowed_schedules
from planner.kinds.train.space.states import zero_stages
from planner.progress import Limits

USUAL: tuple[Schedule, ...] = ("1f1b", "interleaved")
LEAST_S = 0.1  # of the further searches, however little time is left
Axes = Mapping[str, Sequence[int]]


def far_of(best: Evaluation) -> tuple[str, ...]:
    """What of a plan no measured run of its region comes near, such as `ep 1 (4 to 64)`."""
    return tuple(dict.fromkeys(text for part in best.parts for text in outside(part.choice.config)))


def measured_jobs(jobs: Sequence[TrainJob], result: SearchResult) -> Iterator[tuple[TrainJob, ...]]:
    """The jobs with only what measured runs have of every axis: without a pipeline, and with one, or both together
    where the same ZeRO stages were measured in both. None where a job has nothing of an axis."""
    assert result.best is not None
    kind = kind_of(result.best.parts[0].choice.config)
    regions = [(job, region_of(kind, job.framework.family, job.machine.generation)) for job in jobs]
    together = all(_stages(*each, piped=False) == _stages(*each, piped=True) for each in regions)
    for piped in ((False, True),) if together else ((False,), (True,)):
        values = [dict(_values(job, region, result.space.axes, piped)) for job, region in regions]
        if all(all(own.values()) for own in values):
            yield tuple(_restricted(job, own) for job, own in zip(jobs, values, strict=True))


def allowed_value(best: Evaluation, value: float) -> float:
    """What the search minimises, at the upper end of the interval of a plan's step: longest of its parts."""
    high_s = max(
        step_interval_s(part.choice.config, best.step_s, part.choice.table.job.rates)[1] for part in best.parts
    )
    return value * high_s / best.step_s


def left_of(limits: Limits, started_s: float) -> Limits:
    """The limits with the time that is left since `started_s` of the monotonic clock."""
    if limits.time_limit_s is None:
        return limits
    least_s = min(LEAST_S, limits.time_limit_s)
    return replace(limits, time_limit_s=max(limits.time_limit_s - (time.monotonic() - started_s), least_s))


def half_of(limits: Limits) -> Limits:
    """The limits with half the time: the other half is for searches that may follow."""
    return limits if limits.time_limit_s is None else replace(limits, time_limit_s=limits.time_limit_s / 2)


def run_out(limits: Limits, least_s: float = LEAST_S) -> bool:
    """Whether no more time than `least_s` is left of the limits, as `left_of` gives them."""
    return limits.time_limit_s is not None and limits.time_limit_s <= max(least_s, LEAST_S)


def share_filled(best: Evaluation) -> float:
    """Of the memory of its GPU, what the fullest rank fills."""
    return float((best.memory.total_R / best.device_R).max())


def wants_room(best: Evaluation) -> bool:
    """Whether a plan with more room is preferred to this measured one."""
    options = best.choice.table.job.options
    decided = (options.sparse_heads, options.core_attention_apart, options.schedule_by_modality, options.lengths)
    if options.memory_utilisation is not None or any(decided) or far_of(best):
        return False
    return share_filled(best) > ROOMY_SHARE * (1.0 + ROUNDING)


def roomy_jobs(parts: Iterable[Sequence[TrainJob]], best: Evaluation) -> Iterator[tuple[TrainJob, ...]]:
    """The parts of the space, of `measured_jobs`, with plans alone that leave more room, and have no feature that the
    best does without."""
    for jobs in parts:
        values = [dict(_no_more_features(job, best.choice)) for job in jobs]
        if all(own["zero_stage"] for own in values):
            yield tuple(
                replace(_restricted(job, own), roomy_share=ROOMY_SHARE) for job, own in zip(jobs, values, strict=True)
            )


def _no_more_features(job: TrainJob, best: PlanChoice) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """What the search may still have of each feature."""
    search = job.options.search
    yield "zero_stage", tuple(stage for stage in search.zero_stage or () if stage <= best.zero_stage)
    yield "offload", tuple(name for name in search.offload if name in best.offload)
    yield "schedule", tuple(name for name in allowed_schedules(job) if name in {*USUAL, best.schedule})
    if not best.shards and "all" in (search.zero_shards or ("all",)):
        yield "zero_shards", ("all",)


def preferred(result: SearchResult, inside: Sequence[Inside], most: float) -> SearchResult:
    """The best measured plan of a part of the space up to `most`, with what all searches proved; the plan as it is
    where there is none."""
    able = [each.result for each in inside if each.result.best is not None and not far_of(each.result.best)]
    best = min(able, key=lambda own: own.decided_value, default=None)
    if best is None or result.best is None or best.decided_value > most:
        return result
    return replace(
        result, best=best.best, value=best.value, bound=_bound_of_all(result.bound, best.value, inside),
        compared=best.compared, passed=(*result.passed, result.best), inside=tuple(inside),
    )  # fmt: skip


def gone_on(chosen: SearchResult, whole: SearchResult) -> SearchResult:
    """The plan that was chosen, with what the search of the whole space, gone on since, has proven."""
    return replace(
        whole, best=chosen.best, value=chosen.value, bound=_bound_of_all(whole.bound, chosen.value, chosen.inside),
        compared=chosen.compared, passed=chosen.passed, inside=chosen.inside,
    )  # fmt: skip


def _bound_of_all(bound: float, value: float | None, inside: Sequence[Inside]) -> float:
    """The bound of the whole space, beside a plan of a part of it.

    Layouts are made for the slowest rank, and of those as slow one with less memory may suit the pipeline better: a
    plan with room can beat the bound of all without. What is proven of both is then the lower bound.
    """
    if value is None or value >= bound:
        return bound
    return min((value, *(each.result.bound for each in inside)))


def _stages(job: TrainJob, region: Region, *, piped: bool) -> tuple[int, ...]:
    """The measured ZeRO stages among those that may be used."""
    return tuple(stage for stage in zero_stages(job, 2 if piped else 1) if stage in region.stages[piped])


def _values(
    job: TrainJob, region: Region, axes: Axes, piped: tuple[bool, ...]
) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """The degrees and schedules that have values beyond what was measured, each with its others, and ZeRO stages."""
    yield "zero_stage", _stages(job, region, piped=piped[0])
    for degree in NAMES:
        values = tuple(getattr(job.options.search, degree) or axes[degree])
        measured = tuple(value for value in values if region.holds(degree, value))
        if degree == "pp":
            measured = tuple(pp for pp in measured if (pp > 1) in piped)
        if measured != values:
            yield degree, measured
    schedules = allowed_schedules(job)
    measured_schedules = tuple(schedule for schedule in schedules if schedule in region.schedules)
    if True in piped and measured_schedules != schedules:
        yield "schedule", measured_schedules


def _restricted(job: TrainJob, values: Mapping[str, tuple[int | str, ...]]) -> TrainJob:
    search = job.options.search.model_copy(update=dict(values))
    return replace(job, options=job.options.model_copy(update={"search": search}))
