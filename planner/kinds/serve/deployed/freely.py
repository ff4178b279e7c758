"""What the same hardware could do with everything free: the most load, and the fewest GPUs for the stated one.

Steady state proposes, under limits as stated and relaxed; what it proposes is simulated on the streams of the bench.
Instances of all forms compete, whether a run has them or not (`options.choice` is of `planner solve`). The fewest GPUs
are confirmed on fresh streams. No bound is proven here: that is for `planner solve`.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner.kinds.serve.deployed.changes import Changes, Tried
from planner.kinds.serve.deployed.instances import Instances, outcome_of_types
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.demand import Target, relaxed
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search
from planner.kinds.serve.verified.verifiable import Unverified
from planner.problem.schema import ObjectiveSpec
from planner.progress import Limits

FACTORS = (1.0,)  # of the limits, under which steady state proposes
AHEAD = (1.0, 1.15, 1.35)  # times the stated rates, for which it proposes the fewest GPUs
MORE = 1.01


def _asking(setting: ServeSetting, objective: ObjectiveSpec, *, rate: bool) -> ServeSetting:
    """The setting under another objective, with its stated rates or without."""
    problem = setting.resolved.problem.model_copy(update={"objective": objective})
    workloads, targets = problem.workloads, setting.targets
    if not rate:
        workloads = tuple(each.model_copy(update={"load": None}) for each in workloads)
        targets = tuple(replace(target, rate_per_s=None) for target in targets)
    problem = problem.model_copy(update={"workloads": workloads})
    return replace(setting, resolved=replace(setting.resolved, problem=problem), targets=targets)


def proposals(setting: ServeSetting, limits: Limits, *, fewest: bool) -> list[Outcome]:
    """What steady state prefers: the most load on all GPUs under each factor, or the fewest GPUs for rates ahead."""
    objective = ObjectiveSpec(minimize="gpus") if fewest else ObjectiveSpec(maximize="goodput_per_gpu")
    asked = _asking(setting, objective, rate=fewest)
    if fewest:
        under = [tuple(_faster(target, factor) for target in asked.targets) for factor in AHEAD]
    else:
        under = [tuple(relaxed(asked.targets, factor)) for factor in FACTORS]
    outcomes = [search(asked, targets, limits, proposes=True) for targets in under]
    return [outcome for outcome in outcomes if outcome.has_mix]


def _faster(target: Target, factor: float) -> Target:
    return replace(target, rate_per_s=target.rate_per_s and target.rate_per_s * factor)


def instances_of(outcome: Outcome) -> tuple[Instances, ...]:
    """The instances of a mix."""
    return tuple(
        Instances(item.candidate.function, item.candidate.shape, item.count, item.candidate.max_batch,
                  item.candidate.chunk_tokens)
        for item in outcome.roles
    )  # fmt: skip


def most_load(changes: Changes, limits: Limits, best: Tried) -> Tried:
    """What keeps most of all that is proposed on all GPUs; `best` where nothing proposed keeps more."""
    for outcome in proposals(changes.bench.setting, limits, fewest=False):
        tried = _tried(changes, outcome, best.scale * MORE)
        best = tried if tried is not None and tried.scale > best.scale else best
    return best


def fewest_gpus(changes: Changes, limits: Limits, known: Sequence[Tried]) -> Tried | None:
    """The fewest GPUs that keep the stated load, fresh streams included; None where nothing proposed does.

    Proposed are the mixes of steady state, with as few instances as simulation allows, and fewer of those `known`.
    """
    outcomes = proposals(changes.bench.setting, limits, fewest=True)
    kept: list[Tried] = []
    for instances in dict.fromkeys([*(each.instances for each in known), *map(instances_of, outcomes)]):
        kept += _thinned(changes, instances, min((devices(each.instances) for each in kept), default=None))
    for each in sorted(kept, key=lambda each: devices(each.instances)):
        if changes.bench.confirmed(each.variants):
            return each
    return None


def _thinned(changes: Changes, instances: tuple[Instances, ...], fewest: int | None) -> list[Tried]:
    """These instances and fewer of them, as far as they keep the load on fewer GPUs than the fewest so far."""
    kept: list[Tried] = []
    waiting, seen = [instances], {instances}
    while waiting:
        parts = waiting.pop()
        if fewest is None or devices(parts) < fewest:
            tried = _at_load(changes, parts)
            if tried is None:
                continue
            kept.append(tried)
            fewest = devices(parts)
        following = [fewer for fewer in _fewer(parts) if fewer not in seen]
        seen |= set(following)
        waiting += following
    return kept


def _fewer(parts: tuple[Instances, ...]) -> list[tuple[Instances, ...]]:
    return [
        (*parts[:index], replace(part, replicas=part.replicas - 1), *parts[index + 1 :])
        for index, part in enumerate(parts)
        if part.replicas > 1
    ]


def devices(parts: tuple[Instances, ...]) -> int:
    """GPUs of all instances."""
    return sum(part.replicas * part.shape.devices for part in parts)


def _at_load(changes: Changes, parts: tuple[Instances, ...]) -> Tried | None:
    """The instances where they keep the stated load; none where they do not, cannot run or have no regular place."""
    from planner.errors import PlannerError

    try:
        tried = changes.tried_at_load(parts)
    except (PlannerError, Unplaceable, Unverified):
        return None
    return tried if tried.scale >= 1.0 else None


def _tried(changes: Changes, outcome: Outcome, needed: float) -> Tried | None:
    """A proposal at the load that it keeps; its types are taken as they were proposed."""
    types = [item.candidate for item in outcome.roles]
    counts = [item.count for item in outcome.roles]
    try:
        whole = outcome_of_types(changes.bench.setting, types, counts, changes.rate_per_s)
        return changes.simulated_outcome(instances_of(outcome), whole, needed)
    except (Unplaceable, Unverified):
        return None
