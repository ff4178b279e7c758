"""Instances as people run them, as a mix of instance types of the search.

The search lists what keeps the limits; here a type is looked up by its shape, batch and chunk, whatever it keeps. An
engine may hold fewer sequences than its limit says: as many as its cache has room for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import relaxed
from planner.kinds.serve.steady.formulate import formulate
from planner.kinds.serve.steady.points import CHUNK_TOKENS, CONTEXT_RULE, DECODE_BATCHES, PREFILL_CHUNK_TOKENS, Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, list_candidates, prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.verified.neighbours import Axes
from planner.plan.records import BY_NUMBER
from planner.problem.resolve import Resolved
from planner.solvers.mix import Flow, MixObjective, MixSolution
from planner.solvers.result import SolveResult, Status

SMALL_CHUNKS = (512, 1024)  # of prompts that hold answers up for less
ANY_LIMIT = 1e3  # times the limits of a problem: all shapes that can run keep them


@dataclass(frozen=True, slots=True)
class Instances:
    """Equal instances of one role: what an attention rank holds and prefills a step, 0 where the role does neither."""

    function: str  # colocated, prefill, decode
    shape: InstanceShape
    replicas: int
    max_batch: int
    chunk_tokens: int


def setting_around(resolved: Resolved, instances: Sequence[Instances]) -> ServeSetting:
    """The problem priced with the batches and chunks of these instances among those that are searched."""
    batches = {part.max_batch for part in instances if part.max_batch}
    chunks = {part.chunk_tokens for part in instances if part.chunk_tokens}
    usual = {*SMALL_CHUNKS, *CHUNK_TOKENS, *PREFILL_CHUNK_TOKENS}
    axes = {"max_batch": sorted({*DECODE_BATCHES, *batches}), "chunk_tokens": sorted({*usual, *chunks})}
    if not instances:
        axes = {}
    options = ServeOptions.model_validate({**axes, **copies_axis(instances), **resolved.problem.options}).model_dump(
        mode="json", exclude_unset=True
    )
    problem = resolved.problem.model_copy(update={"options": options})
    return prepare(replace(resolved, problem=problem), reserving=False)


def copies_axis(instances: Sequence[Instances]) -> dict[str, list[int | str]]:
    """The option by which experts lie as they do in these instances, or by number; none where all do."""
    copies = sorted({part.shape.redundant for part in instances} - {BY_NUMBER})
    return {"redundant_experts": ["off", *copies]} if copies else {}


def types_at_hand(setting: ServeSetting) -> list[Candidate]:
    """One type of each role and shape that runs and fits, whatever limits it keeps."""
    return list_candidates(setting, relaxed(setting.targets, ANY_LIMIT), Tally())


def outcome_of(setting: ServeSetting, instances: Sequence[Instances], rate_per_s: float) -> Outcome:
    """The instances under a load that each role shares out evenly.

    Raises PlannerError for a shape that the engine cannot run, or that leaves no room for a single sequence.
    """
    known = types_at_hand(setting)
    types = [type_of(setting, known, part) for part in instances]
    return outcome_of_types(setting, types, [part.replicas for part in instances], rate_per_s)


def type_of(setting: ServeSetting, known: Sequence[Candidate], part: Instances) -> Candidate:
    """The type of these instances, at the largest batch up to theirs that fits in memory.

    Of types by how many stand together, the one of most: equal instances wait behind one router.
    """
    own = part.function, part.shape
    alike = [each for each in known if (each.function, each.shape) == own and each.together <= max(part.replicas, 1)]
    alike.sort(key=lambda each: -each.together)
    if not alike:
        raise PlannerError(why_not(setting, part), where=part.function, hint="see `planner audit` without a workload")
    axes, first = Axes(setting), alike[0]
    chunk = part.chunk_tokens or first.chunk_tokens
    if part.function == "prefill":
        return axes.at(first, first.max_batch, chunk) or first
    wanted = setting.options.max_batch or DECODE_BATCHES
    for batch in sorted((b for b in wanted if b <= (part.max_batch or max(wanted))), reverse=True):
        varied = axes.at(first, batch, chunk)
        if varied is not None:
            return varied
    raise PlannerError(
        f"{part.shape.label} has no room for one sequence beside steps of {chunk} prompt tokens",
        where=part.function,
        hint="take more GPUs for an instance, or smaller steps",
    )


def why_not(setting: ServeSetting, part: Instances) -> str:
    """Why no instance of this shape is among the types at hand, with the numbers of its memory where that is it."""
    space = setting.spaces[next(iter(setting.spaces))]
    if part.shape in space.forbidden:
        return f"{part.shape.label} cannot run: {space.forbidden[part.shape]}"
    if part.shape not in space.shapes:
        return f"{part.shape.label} is no shape that {setting.release.name} runs on these nodes"
    tally = Tally()
    list_candidates(setting, relaxed(setting.targets, ANY_LIMIT), tally)
    dropped = [rule for rule in tally.pruned if not rule.startswith(("shape:", "another batch", "whole instances"))]
    weights, room = memory_of(setting, part)
    if weights > room:
        return f"weights take {weights / 1e9:.1f} GB of a GPU, the engine may use {room / 1e9:.1f} GB"
    held = setting.costs_of_pool[next(iter(setting.costs_of_pool))].held_tokens
    if CONTEXT_RULE in dropped and held:
        return (
            f"{part.shape.label} has no room for one sequence of {held} tokens: {(room - weights) / 1e9:.1f} GB a GPU"
        )
    if "KV cache does not fit in memory" in dropped and len(dropped) == 1:
        return f"{part.shape.label} leaves no room for the cache of one request: {(room - weights) / 1e9:.1f} GB a GPU"
    return f"{part.shape.label} serves no load of these requests: {', '.join(dropped) or 'no rule lets it run'}"


def memory_of(setting: ServeSetting, part: Instances) -> tuple[float, float]:
    """Bytes of weights on a GPU, and what weights, activations and caches may take of it."""
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import weight_bytes

    pool_costs, shape = setting.costs_of_pool[next(iter(setting.costs_of_pool))], part.shape
    shards = Shards.of(*shape.all_degrees)
    return float(weight_bytes(pool_costs.costs.arch, shards).max()), pool_costs.room_bytes


def outcome_of_types(
    setting: ServeSetting, types: Sequence[Candidate], counts: Sequence[int], rate_per_s: float
) -> Outcome:
    """So many instances of each type, requests of all workloads together at this rate."""
    formulated = formulate(setting.resolved, setting.targets, types)
    asked = [target.rate_per_s or target.share for target in setting.targets]
    rates = tuple(rate_per_s * part / sum(asked) for part in asked)
    gpus = [
        sum(slots.devices for slots in shape.slots) * n
        for shape, n in zip(formulated.problem.shapes, counts, strict=True)
    ]
    weights = _shares(types, counts)
    solution = MixSolution(
        counts=tuple(counts),
        load_per_s=tuple(tuple(rate * share for rate in rates) for share in weights),
        flows=tuple(_flows(setting, types, weights, rates)),
        served_per_s=rates,
        devices=sum(gpus),
        price_per_hour=sum(
            shape.price_per_hour * n for shape, n in zip(formulated.problem.shapes, counts, strict=True)
        ),
    )
    value = float(solution.devices)
    if formulated.problem.objective is MixObjective.PRICE:
        value = solution.price_per_hour
    elif formulated.problem.maximising:
        value = sum(rates) / sum(target.share for target in setting.targets)
    result = SolveResult(Status.FEASIBLE, "finished", solution, value, None, 0.0, "")
    return Outcome(formulated, formulated.problem, result, Tally())


def _shares(types: Sequence[Candidate], counts: Sequence[int]) -> list[float]:
    """The share of the requests that each type takes: by the devices of the instances of its side."""
    side: Mapping[bool, float] = {
        decodes: sum(n * each.devices for each, n in zip(types, counts, strict=True) if each.decodes is decodes)
        for decodes in (True, False)
    }
    return [n * each.devices / side[each.decodes] for each, n in zip(types, counts, strict=True)]


def _flows(
    setting: ServeSetting, types: Sequence[Candidate], shares: Sequence[float], rates: Sequence[float]
) -> list[Flow]:
    """What prefill hands to decode."""
    return [
        Flow(each.pool, each.pool, target.index, each.channel.index, rates[target.index] * share)
        for each, share in zip(types, shares, strict=True)
        if each.function == "prefill" and each.channel is not None
        for target in setting.targets
    ]
