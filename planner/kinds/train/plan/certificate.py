"""The certificate of a training plan: space searched, rules and bounds that pruned it, the next best plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from pydantic import JsonValue

from planner.kinds.train.choice import far_of, share_filled
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.weigh import merged
from planner.kinds.train.search.layerwise import MIXES_RULE, Mixes
from planner.kinds.train.search.search import LAYOUT_RULE, Compared, Inside, SearchResult
from planner.kinds.train.search.tally import BOUND, MEMORY, NOT_ON_RACKS, group_records
from planner.kinds.train.space.space import allowed_schedules, context_methods
from planner.kinds.train.space.states import offloads, zero_stages
from planner.kinds.train.whole_run.on_racks import has_uplinks
from planner.plan.schema import Certificate, Objective, Preferred, Proven

METHOD = "branch_and_bound"
TOLERANCE = 1e-6
CLOSED = "no plan of these axes is faster under the costs"
OPEN = "no plan of these axes beats the bound"
AMONG = "and of {among} none is faster under the costs"
BOUNDS = (
    "computing: micro-batches times the slowest rank's least work",
    "computing and exchange: hand-overs, data-parallel ranks, optimizer, the first way through",
    "recomputation: the fastest that may fit in memory",
)
BOUND_OF_MIXES = "strategies by layer: chains of each stage, exact in seconds and bytes"
BOUND_OF_WAITS = "uplinks: the least wait under any layout and any placement on the racks"
ILLEGAL = "illegal: "


def certificate(job: TrainJob, result: SearchResult) -> Certificate:
    """Objective, bound and gap with every axis and every count, of all plans and of those that were preferred."""
    assert result.best is not None
    assert result.value is not None
    axes = axes_of(job, result)
    others = _alternatives(job, result, result.value)
    legal = None if result.uses else result.space.legal
    within = _within(job, result, among_of(result.best)) if result.inside else None
    whole = _proven(job, result, axes, others, legal)
    claim = claim_of(whole.status == "optimal", within)
    return Certificate(**{**dict(whole), "claim": claim, "within": within})


def among_of(best: Evaluation) -> str:
    """What plans of the part of the space that a plan was preferred in have in common."""
    share = best.choice.table.job.roomy_share
    room = "" if share is None else f", with {100 * (1.0 - share):.0f} % of memory free and no feature added"
    return f"plans where runs were measured{room}"


def _within(job: TrainJob, result: SearchResult, among: str) -> Preferred:
    """What was proven of these plans; their searches are one, or those without pipelines and with them."""
    own = merged([each.result for each in result.inside])
    stops = [each.result.stop_reason for each in result.inside]
    stopped = next((reason for reason in stops if reason != "finished"), "finished")
    own = replace(own, value=result.value, stop_reason=stopped)
    legal = own.space.legal if len(result.inside) == 1 and not own.uses else None
    others = None if own.second is None else _alternative(job, own.second, result.value or 0.0)
    return Preferred(**dict(_proven(job, own, _axes_inside(result.inside), others, legal)), among=among)


def _axes_inside(inside: Sequence[Inside]) -> dict[str, list[JsonValue]]:
    """Every axis with its values in one of these searches."""
    each = [axes_of(own.job, own.result) for own in inside]
    axes: dict[str, list[JsonValue]] = {name: [] for own in each for name in own}
    for own in each:
        for name, values in own.items():
            axes[name] += [value for value in values if value not in axes[name]]
    plain, piped = zero_stages(inside[0].job, 1), zero_stages(inside[-1].job, 2)
    axes["zero_stage"] = list(plain)
    if piped != plain:
        axes["zero_stage_in_pipelines"] = list(piped)
    return axes


def _proven(
    job: TrainJob, result: SearchResult, axes: dict[str, list[JsonValue]], others: JsonValue, legal: int | None
) -> Proven:
    """What a search proved over its axes; `legal` combinations of degrees are counted where it was one search."""
    assert result.value is not None
    value, bound = in_metric(job, result.value), in_metric(job, result.bound)
    gap = gap_of(value, bound)
    tally, mixes = result.tally, result.mixes
    pruned = {f"{ILLEGAL}{name}": count for name, count in tally.illegal.items()}
    pruned |= {f"{BOUND}{name}": count for name, count in tally.bounded.items()}
    pruned |= {MEMORY: tally.unfit} if tally.unfit else {}
    pruned |= {NOT_ON_RACKS: tally.not_on_racks} if tally.not_on_racks else {}
    return Proven(
        claim=claim_of(gap <= TOLERANCE),
        status="optimal" if gap <= TOLERANCE else "feasible",
        stop_reason=result.stop_reason,
        objective=objective(job, value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=axes,
        candidates=tally.candidates,
        pruned=pruned,
        proof={
            "method": METHOD,
            "evaluated": tally.evaluated,
            "bounds": bounds_of(job, mixed=bool(mixes)),
            **({"cuts_of_mixes": mixes.cuts, "cuts_solved": mixes.solved} if mixes else {}),
            **({} if legal is None else {"legal": legal}),
            "groups": [*group_records(tally), *_cuts(job, mixes)],
            "least_bound_left": bound,
            **({"compared": [_compared(row) for row in result.compared]} if result.compared else {}),
        },
        next_best=others,
    )


def gap_of(value: float, bound: float) -> float:
    """Of an objective to its bound, as a share of the objective."""
    return abs(value - bound) / max(abs(value), 1e-9)


def claim_of(closed: bool, within: Preferred | None = None) -> str:
    """What is proven of all plans, and of those that this one was preferred among."""
    if closed:
        return CLOSED
    if within is None or within.status != "optimal":
        return OPEN
    return f"{OPEN}, {AMONG.format(among=within.among)}"


def bounds_of(job: TrainJob, *, mixed: bool) -> list[JsonValue]:
    """What the bound of a search rests on; `mixed`: layers have strategies of their own."""
    return [*BOUNDS, *([BOUND_OF_WAITS] if has_uplinks(job) else []), *([BOUND_OF_MIXES] if mixed else [])]


def _alternatives(job: TrainJob, result: SearchResult, value: float) -> JsonValue:
    """The next best plan; where another was preferred to them, the faster ones, and why they were not taken."""
    faster = [{**_alternative(job, plan, value), **_passed(plan)} for plan in result.passed if plan.objective < value]
    if faster:
        return list(faster)
    fastest = next(iter(result.passed), None)  # as fast as the plan: an alternative where more than states differ
    alike = fastest is None or result.best is None or _layout(fastest) == _layout(result.best)
    second = result.second if alike else fastest
    return None if second is None else _alternative(job, second, value)


def _passed(plan: Evaluation) -> dict[str, JsonValue]:
    """Why another plan was preferred to this one: no measured run comes near, or it leaves less room."""
    far = far_of(plan)
    return {"no_measurement_near": list(far)} if far else {"memory_filled": share_filled(plan)}


def objective(job: TrainJob, value: float) -> Objective:
    """What is optimised, in its own metric."""
    metric = "tokens_per_s_per_gpu" if job.per_gpu else "step_time_s"
    metric = f"mean_{metric}" if job.mean_of_lengths else metric
    return Objective(metric=metric, sense="maximize" if job.per_gpu else "minimize", value=value)


def _cuts(job: TrainJob, mixes: Mixes | None) -> Iterator[JsonValue]:
    """Cuts into stages of layers with strategies of their own; they are no candidates."""
    if mixes is None:
        return
    gpus = job.num_gpus if job.per_gpu else 1
    for end, cuts, least in (
        ("chains solved", mixes.solved, mixes.least_solved),
        ("bound: chains", mixes.cuts - mixes.solved, mixes.least_left),
    ):
        if cuts:
            yield {"end": end, "cuts": cuts, **({"least": least * gpus} if isfinite(least) else {})}


def in_metric(job: TrainJob, value: float) -> float:
    """The goal's own figure of what the search minimises, and the other way round."""
    if not job.per_gpu:
        return value
    return job.options.global_batch * job.mean_tokens / value


def axes_of(job: TrainJob, result: SearchResult) -> dict[str, list[JsonValue]]:
    """Every axis with its values."""
    axes = searched_axes(job, result.space.axes)
    if result.uses:
        axes["modules" if job.options.samples and len(job.resolved.pools) == 1 else "pools"] = list(result.uses)
    if result.mixes:
        axes["strategies_by_layer"] = [MIXES_RULE]
    return axes


def searched_axes(job: TrainJob, numeric: Mapping[str, Sequence[int]]) -> dict[str, list[JsonValue]]:
    """The axes of a search on one pool, all layers under one strategy."""
    search = job.options.search
    axes: dict[str, list[JsonValue]] = {name: list(values) for name, values in numeric.items()}
    axes["schedule"] = list(allowed_schedules(job))
    axes["zero_stage"] = list(zero_stages(job, 1))
    piped = zero_stages(job, 2)
    if piped != zero_stages(job, 1):
        axes["zero_stage_in_pipelines"] = list(piped)
    axes["zero_shards"] = list(search.zero_shards or ("all", "those of one NVLink domain"))
    axes["context_parallel"] = list(context_methods(job))
    axes["sequence_parallel"] = ["on with tp" if job.framework.sequence_parallel else "off"]
    axes["offload"] = [sorted(some) for some in offloads(job, 1, 1)]  # type: ignore[misc]  # lists of names
    axes["recompute"] = [f"{name}: the fastest that fits" for name in job.recomputations]
    axes["layers"] = ["equally many in every stage" if search.layers == "even" else LAYOUT_RULE]
    return axes


def _compared(row: Compared) -> dict[str, JsonValue]:
    """A plan that was weighed with what is decided beside its layout."""
    return {"plan": _layout(row.plan), "step_time_s": row.plan.step_s, "step_time_with_s": row.with_s}


def _alternative(job: TrainJob, second: Evaluation, value: float) -> dict[str, JsonValue]:
    """The best plan of another shape that the search came by, and what it loses."""
    objective = in_metric(job, second.objective)
    return {"plan": _layout(second), "objective": objective, "loss": second.objective / value - 1.0}


def _layout(plan: Evaluation) -> str:
    """Degrees and schedule in words."""
    choice = plan.choice
    shape = choice.table.shape
    what = f"tp {shape.tp}, cp {shape.cp}, pp {choice.pp} x {choice.vpp}, dp {choice.dp}, ep {shape.ep}"
    what += f" by {shape.context}" if shape.cp > 1 else ""
    what += f", micro-batch {shape.micro_batch}, {choice.schedule}"
    if len(choice.table.job.resolved.pools) > 1:
        what += f", on {' and '.join(part.choice.table.job.pool.name for part in plan.parts)}"
    return what
