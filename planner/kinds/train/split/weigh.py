"""Networks on the stages of the language model, or on GPUs of their own: both searched together."""

from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.weigh import Searches
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import PlanSearch
from planner.kinds.train.split.search import ApartSearch, require_apart
from planner.kinds.train.split.sides import apart_of
from planner.progress import Limits


def searches_of_modules(job: TrainJob, limits: Limits, value: float = float("inf")) -> Searches:
    """Searches of all places of the networks that the problem allows, for what is better than `value`.

    Raises PlannerError for what networks apart do not go with.
    """
    wanted = job.options.search.modules
    searches: list[tuple[str, PlanSearch]] = []
    if "colocated" in wanted:
        searches.append(("networks colocated", OnePoolSearch(job, limits, value)))
    if "apart" in wanted:
        require_apart(job)
        searches.append(("networks apart", ApartSearch(apart_of(job), limits, value)))
    return Searches(searches)
