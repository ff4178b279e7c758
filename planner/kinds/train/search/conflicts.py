"""Why no training plan is feasible: an irreducible set of limits in conflict, and the nearest value that works."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible
from planner.kinds.train.job import TrainJob
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import SearchResult
from planner.kinds.train.space.space import (
    NUMERIC_AXES,
    Space,
    allowed_schedules,
    axis_values,
    divisors,
    schedules,
    space_of,
)
from planner.progress import Limits
from planner.solvers.conflicts import minimal_conflict

MOST_TRIED = 4096  # values of a batch or a sequence to try on each side
ROUNDS = 64  # micro-batches, a multiple of which suits the rounds of every schedule over as many ranks
MOST_DOUBLINGS = 3  # tried, each by a search
MORE_PERCENT = (0, 1, 2, 4, 8, 16)  # of the memory, beside what the leanest plan needs; tried likewise
ANY_PLAN = Limits(gap=0.999)  # the first that fits ends the search
LISTED = ("batch_ramp", "lengths")
LIMIT_NAMES = ("global_batch", "sequence_tokens", "gpus", *LISTED)


@dataclass(frozen=True, slots=True)
class LegalLimit:
    """Something that the problem fixes: an axis, the batch, the sequence, or the number of GPUs."""

    name: str
    value: str


def explain(job: TrainJob, result: SearchResult) -> Infeasible:
    """The conflict behind a search that found no plan."""
    if not len(result.space) or not result.tally.candidates:
        return Infeasible(_legal_conflict(job), proved=True)
    return Infeasible(_memory_conflict(job, result), proved=result.stop_reason == "finished")


def has_candidates(job: TrainJob) -> bool:
    """Whether any combination of the axes is legal."""
    space = space_of(job)
    return bool(len(space)) and any(_has_schedule(job, space))


def _has_schedule(job: TrainJob, space: Space) -> Iterator[bool]:
    chunks = axis_values(job)["vpp"]
    batches_N = job.options.global_batch // (space.dp * space.micro_batch)
    for pp, batches in np.unique(np.stack([space.pp, batches_N]), axis=1).T:
        yield any(True for _ in schedules(job, int(pp), int(batches), chunks))


def _legal_conflict(job: TrainJob) -> list[Conflict]:
    """An irreducible set of the problem's limits that leaves no combination, with what each alone would have to be."""
    limits = list(_limits(job))
    chosen = minimal_conflict(limits, lambda kept: has_candidates(_without(job, set(limits) - kept)))
    return [{"limit": f"{limit.name} = {limit.value}", "nearest": _nearest(job, limit)} for limit in chosen]


def _limits(job: TrainJob) -> Iterator[LegalLimit]:
    """Facts of the job first: a conflict keeps earlier limits longest."""
    yield LegalLimit("gpus", str(job.num_gpus))
    yield LegalLimit("global_batch", str(job.options.global_batch))
    if job.options.batch_ramp:
        yield LegalLimit("batch_ramp", ", ".join(str(stage.global_batch) for stage in job.options.batch_ramp))
    yield LegalLimit("sequence_tokens", str(job.options.sequence_tokens))
    if job.options.lengths:
        yield LegalLimit("lengths", ", ".join(str(length.tokens) for length in job.options.lengths))
    search = job.options.search
    for name in (*NUMERIC_AXES, "schedule", "zero_stage", "zero_shards"):
        values = getattr(search, name)
        if values is not None:
            yield LegalLimit(name, ", ".join(map(str, values)))


def _without(job: TrainJob, dropped: set[LegalLimit]) -> TrainJob:
    """The job with these limits set aside: axes free, and batch, sequence and GPUs such that all values divide."""
    names = {limit.name for limit in dropped}
    search = job.options.search.model_copy(update=dict.fromkeys(names - set(LIMIT_NAMES)))
    options = job.options.model_copy(update={"search": search})
    free = replace(job, options=options)
    if "gpus" in names:
        free = replace(free, num_gpus=max(_product(free), free.num_gpus))
    options = options.model_copy(update=dict.fromkeys(names & set(LISTED), ()))
    if "global_batch" in names:
        unit = _least(free, ("dp", "micro_batch", "pp")) * ROUNDS
        options = options.model_copy(update={"global_batch": _above(options.global_batch, unit)})
    if "sequence_tokens" in names:
        unit = 2 * _least(free, ("tp", "cp"))
        options = options.model_copy(update={"sequence_tokens": _above(options.sequence_tokens, unit)})
    return replace(free, options=options)


def _above(value: int, unit: int) -> int:
    return max(-(-value // unit), 1) * unit


def _least(job: TrainJob, names: tuple[str, ...]) -> int:
    """Product of the least values that the problem allows these axes."""
    product = 1
    for name in names:
        values = getattr(job.options.search, name)
        product *= min(values) if values is not None else 1
    return product


def _product(job: TrainJob) -> int:
    return _least(job, ("tp", "cp", "pp", "dp"))


def _nearest(job: TrainJob, limit: LegalLimit) -> str:
    """The nearest value that works with all other limits as they are; empty where none does."""
    if limit.name == "global_batch":
        return _nearest_number(job, limit, lambda value: {"global_batch": value}, job.options.global_batch)
    if limit.name in LISTED:
        return _nearest_listed(job, limit.name)
    if limit.name == "sequence_tokens":
        return _nearest_number(job, limit, lambda value: {"sequence_tokens": value}, job.options.sequence_tokens)
    if limit.name == "gpus":
        wanted = max(_product(job), 1)
        works = wanted > job.num_gpus and has_candidates(replace(job, num_gpus=wanted))
        return f"{wanted} GPUs" if works else ""
    freed = _without(job, {limit})
    if not has_candidates(freed):
        return ""
    if limit.name == "schedule":
        able = allowed_schedules(freed)
        return next((name for name in able if has_candidates(_fixed(job, "schedule", name))), "")
    if limit.name == "zero_stage":
        stages = (
            stage
            for stage in job.engine.stages(1, job.options.task)
            if has_candidates(_fixed(job, "zero_stage", stage))
        )
        return next((f"zero_stage {stage}" for stage in stages), "")
    if limit.name == "zero_shards":
        return "zero_shards all"
    current = min(getattr(job.options.search, limit.name))
    legal = getattr(
        space_of(freed), "etp" if limit.name == "moe_tp" else limit.name, np.array(axis_values(freed)["vpp"])
    )
    tried = sorted({int(value) for value in legal}, key=lambda value: abs(value - current))
    nearest = next((value for value in tried if has_candidates(_fixed(job, limit.name, value))), None)
    return "" if nearest is None else f"{limit.name} {nearest}"


def _nearest_listed(job: TrainJob, name: str) -> str:
    """Batches of the ramp, or lengths, rounded to multiples of the least number that works."""
    options = job.options
    field, last = (
        ("global_batch", options.global_batch) if name == "batch_ramp" else ("tokens", options.sequence_tokens)
    )
    for unit in divisors(last):
        rounded = tuple(
            entry.model_copy(update={field: max(round(getattr(entry, field) / unit), 1) * unit})
            for entry in getattr(options, name)
        )
        sizes = [getattr(entry, field) for entry in rounded]
        if len(set(sizes)) < len(sizes) or (name == "batch_ramp" and max(sizes) >= last):
            continue
        if has_candidates(replace(job, options=options.model_copy(update={name: rounded}))):
            return f"{name} {', '.join(map(str, sizes))}"
    return ""


def _fixed(job: TrainJob, axis: str, value: object) -> TrainJob:
    search = job.options.search.model_copy(update={axis: (value,)})
    return replace(job, options=job.options.model_copy(update={"search": search}))


def _nearest_number(job: TrainJob, limit: LegalLimit, update: Callable[[int], dict[str, int]], current: int) -> str:
    for step in range(1, MOST_TRIED):
        for value in (current - step, current + step):
            if value >= 1 and has_candidates(replace(job, options=job.options.model_copy(update=update(value)))):
                return f"{limit.name} {value}"
    return ""


def _memory_conflict(job: TrainJob, result: SearchResult) -> list[Conflict]:
    """Memory of a GPU and its host against what the leanest plan needs, and the freedoms that were not given; what is
    named nearest has been searched and fits, but for the memory itself."""
    need, room = result.needed_bytes, job.capacity_bytes
    memory: Conflict = {
        "limit": f"memory of a GPU = {format_si(room, 'B')}",
        "nearest": f"about {format_si(need, 'B')}" if need > room else "",
    }
    conflict = [memory, *_host_conflict(job, result.needed_host_bytes)]
    conflict.append(Conflict(limit=f"gpus = {job.num_gpus}", nearest=_nearest_gpus(job, need)))
    share = _nearest_share(job, need)
    if share:
        conflict.append(Conflict(limit=f"memory_utilisation = {job.usable_share:g}", nearest=share))
    search = job.options.search
    conflict += [
        Conflict(limit=f"{name} = {', '.join(map(str, values))}", nearest="")
        for name in (*NUMERIC_AXES, "schedule", "zero_stage", "zero_shards", "recompute")
        if (values := getattr(search, name)) is not None
    ]
    if not job.options.search.offload:
        conflict.append(Conflict(limit="no offload", nearest=_nearest_offload(job)))
    return conflict


def _nearest_offload(job: TrainJob) -> str:
    """The optimizer on the host where a plan then fits, or would with more memory of the host; else empty."""
    moved, wish = replace(job, options=_searching(job, offload=("optimizer",))), "offload: [optimizer]"
    if not has_candidates(moved):
        return ""
    result = OnePoolSearch(moved, ANY_PLAN).run()
    if result.best is not None:
        return wish
    need = result.needed_host_bytes
    return f"{wish}, with about {format_si(need, 'B')} of host memory a GPU" if need else ""


def _host_conflict(job: TrainJob, need: float) -> Iterator[Conflict]:
    """Host memory for a GPU, where it kept from fitting what devices have room for."""
    if need:
        limit = f"host memory of a GPU for training = {format_si(job.host_bytes, 'B')}"
        yield Conflict(limit=limit, nearest=f"about {format_si(need, 'B')}")


def _searching(job: TrainJob, **wishes: object) -> TrainOptions:
    search = job.options.search.model_copy(update=wishes)
    return job.options.model_copy(update={"search": search})


def _fits(job: TrainJob) -> bool:
    """Whether any plan fits in memory."""
    return has_candidates(job) and OnePoolSearch(job, ANY_PLAN).run().best is not None


def _nearest_gpus(job: TrainJob, need: float) -> str:
    """GPUs doubled until a plan fits, from where they would hold what is needed; empty where none would."""
    if need <= job.capacity_bytes or job.room_bytes <= 0.0:
        return ""
    first = max(int(log2(need / job.capacity_bytes)), 1)
    for doublings in range(first, first + MOST_DOUBLINGS):
        number = job.num_gpus << doublings
        if _fits(replace(job, num_gpus=number)):
            return f"{number} GPUs"
    return ""


def _nearest_share(job: TrainJob, need: float) -> str:
    """A share of the memory near what is needed under which a plan fits; empty where all of it is too little."""
    least = max(round(need / job.machine.memory_bytes * 100.0), int(job.usable_share * 100.0) + 1)
    for percent in (least + more for more in MORE_PERCENT if least + more <= 100):
        options = job.options.model_copy(update={"memory_utilisation": percent / 100.0})
        if _fits(replace(job, options=options)):
            return f"memory_utilisation {percent / 100.0:g}"
    return ""
