"""Of plans that predictions do not tell apart, the one where runs were measured.

Costs rank plans to within their error. A plan whose degrees lie outside those of every measured run of its kind
(`costs.training.measured_ranges`) is best under rates that other layouts gave. Where the fastest plan is such a one,
the fastest of those inside is searched too, and taken where the upper end of the 80 % interval of the former's step is
no shorter than its own. What is proven stays: the bound of the whole space, and the gap to it, which was given up.
`choice: fastest` takes the fastest, wherever it lies.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planner.costs.training.intervals import step_interval_s
from planner.costs.training.measured_ranges import NAMES, kind_of, measured_ranges, outside
from planner.kinds.train.evaluation.evaluate import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.search import SearchResult
from planner.kinds.train.space.space import zero_stages
from planner.progress import Limits

LEAST_S = 0.1  # of the second search, however little time is left


def far_of(best: Evaluation) -> tuple[str, ...]:
    """The degrees of a plan that no measured run of its kind comes near, such as `ep 1 (4 to 64)`."""
    return tuple(dict.fromkeys(text for part in best.parts for text in outside(part.choice.config)))


def measured_jobs(jobs: Sequence[TrainJob], result: SearchResult) -> tuple[TrainJob, ...] | None:
    """The jobs with only those values of every degree that measured runs have; None where one has none of them."""
    assert result.best is not None
    kind = kind_of(result.best.parts[0].choice.config)
    restricted = []
    for job in jobs:
        values = dict(_inside(kind, job, result.space.axes))
        if not all(values.values()):
            return None
        search = job.options.search.model_copy(update=values)
        restricted.append(replace(job, options=job.options.model_copy(update={"search": search})))
    return tuple(restricted)


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
    return replace(limits, time_limit_s=max(limits.time_limit_s - (time.monotonic() - started_s), LEAST_S))


def chosen(result: SearchResult, measured: SearchResult) -> SearchResult:
    """The measured plan with what the whole search proved; the fastest plan where there is no measured one."""
    if measured.best is None or measured.value is None or far_of(measured.best):
        return result
    return replace(result, best=measured.best, value=measured.value, fastest=result.best)


def _inside(kind: str, job: TrainJob, axes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The degrees that have values beyond what was measured, each with its others."""
    free = {**axes, "zero_stage": sorted({*zero_stages(job, 1), *zero_stages(job, 2)})}
    for degree in NAMES:
        measured = measured_ranges().get((kind, degree))
        values = getattr(job.options.search, degree) or free[degree]
        if measured is not None and not all(measured.least <= value <= measured.most for value in values):
            yield degree, tuple(value for value in values if measured.least <= value <= measured.most)
