"""Which of a few plans is best with what is decided beside its layout: heads on ranks, or ranges of core attention.

The search knows nothing of either. So the best plan of each context-parallel degree (sparse heads) or tensor-parallel
degree (core attention apart), the degrees that they depend on most, is searched too, and the one is taken whose step is
shortest with them. What is proven stays that of the search: no plan is faster without them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import Compared, SearchResult
from planner.kinds.train.whole_run.attention_ranges import apart_step_s
from planner.kinds.train.whole_run.head_groups import sparse_step_s
from planner.progress import Limits


def best_with_decided(jobs: Sequence[TrainJob], result: SearchResult, left: Callable[[], Limits]) -> SearchResult:
    """The best plan of those of each degree, with what is decided beside them; `result` where nothing is to compare.

    `left` are the limits with the time that is left.
    """
    axis, step_s = _compared_by(jobs[0])
    values = () if axis is None else result.space.axes.get(axis, ())
    if len(jobs) > 1 or result.best is None or len(values) < 2 or step_s is None:
        return result
    rivals = [result.best, *_others(jobs[0], result.best, str(axis), values, left)]
    compared = tuple(Compared(rival, _or_none(step_s, rival)) for rival in rivals)
    able = [(row.objective, place) for place, row in enumerate(compared) if row.objective is not None]
    if not able:
        return result
    best = compared[min(able)[1]].plan
    value = result.value if best is result.best else best.objective
    return replace(result, best=best, value=value, compared=compared)


def _compared_by(job: TrainJob) -> tuple[str | None, Callable[[Evaluation], float] | None]:
    """The degree whose best plans are compared, and the seconds of a step with what is decided."""
    if job.options.sparse_heads is not None:
        return "cp", sparse_step_s
    if job.options.core_attention_apart is not None:
        return "tp", apart_step_s
    return None, None


def _others(
    job: TrainJob, best: Evaluation, axis: str, values: Sequence[int], left: Callable[[], Limits]
) -> Iterator[Evaluation]:
    """The best plan of each other value."""
    for value in values:
        if value == getattr(best.choice.table.shape, axis):
            continue
        search = job.options.search.model_copy(update={axis: (value,)})
        own = replace(job, options=job.options.model_copy(update={"search": search}))
        rival = OnePoolSearch(own, left(), float("inf")).run().best
        if rival is not None:
            yield rival


def _or_none(step_s: Callable[[Evaluation], float], plan: Evaluation) -> float | None:
    """None where the plan cannot have what is to be decided."""
    try:
        return step_s(plan)
    except PlannerError:
        return None
