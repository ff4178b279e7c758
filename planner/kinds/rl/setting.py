"""A resolved RL problem with its parts named: who plays which part, on which pools."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import open_store, profile_paths
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.rl.decision import CRITIC_FREE, RlOptions
from planner.models.architecture import Architecture
from planner.problem.resolve import Resolved, Workload
from planner.problem.schema import TraceLengths

if TYPE_CHECKING:
    from planner.hardware.profiles.store import ProfileStore

PARTS = ("actor", "critic", "reference", "reward")


@dataclass(frozen=True, slots=True)
class RlSetting:
    """Everything the solve reads; `keys` names the model of each part that there is."""

    resolved: Resolved
    options: RlOptions
    keys: dict[str, str]
    workload: Workload
    calibration: Calibration
    store: "ProfileStore | None"

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.resolved.pools

    def model(self, part: str) -> Architecture | None:
        """The architecture of a part; None where the algorithm runs without it."""
        return self.resolved.models[self.keys[part]] if part in self.keys else None

    @property
    def actor(self) -> Architecture:
        return self.resolved.models[self.keys["actor"]]


def read_setting(resolved: Resolved) -> RlSetting:
    """The setting of a problem; raises PlannerError for parts without a model, and for several workloads or none."""
    problem, where = resolved.problem, resolved.where
    options = RlOptions.model_validate(problem.options)
    if len(resolved.workloads) != 1:
        what = f"{len(resolved.workloads)} workloads; the prompts and outputs of an iteration are one"
        raise PlannerError(what, where=where(("workloads",)), hint="give one workload with `output_tokens`")
    if problem.objective.minimize not in ("iteration_time", "cost") and problem.objective.maximize != "tokens_per_usd":
        hint = "write `minimize: iteration_time`, `minimize: cost` or `maximize: tokens_per_usd`"
        raise PlannerError("no objective of RL plans", where=where(("objective",)), hint=hint)
    _require_known_wishes(resolved)
    _require_stated_lengths(resolved)
    _require_consistent(resolved, options)
    _require_prices(resolved)
    keys = _keys(resolved, options)
    for key in sorted(set(keys.values())):
        resolved.require_priceable(key)
    calibration = load_calibration(problem.costs.calibration)
    store = open_store(profile_paths(problem.costs.profiles))
    return RlSetting(resolved, options, keys, resolved.workloads[0], calibration, store)


def _require_known_wishes(resolved: Resolved) -> None:
    """Refuses what problems of other kinds may wish for, and no RL plan is searched by."""
    problem, workload = resolved.problem, resolved.workloads[0].spec
    slo = workload.slo
    wishes = (
        (problem.limits.usd_per_hour is not None, ("limits", "price"), "a cap on dollars an hour", "`minimize: cost`"),
        (workload.load is not None, ("workloads", 0, "load"), "a load", "`prompts` of the options"),
        (any(slo.limits()), ("workloads", 0, "slo"), "limits on requests", "`max_iteration`"),
    )
    for wished, path, what, instead in wishes:
        if wished:
            raise PlannerError(f"RL plans know nothing of {what}", where=resolved.where(path), hint=f"use {instead}")


def _require_stated_lengths(resolved: Resolved) -> None:
    """Refuses lengths that come from a trace: a plan does not keep its path, and would not say what they were."""
    spec = resolved.problem.workloads[0]
    for side in ("input_tokens", "output_tokens"):
        if isinstance(getattr(spec, side), TraceLengths):
            where = resolved.where(("workloads", 0, side))
            hint = "give `{mean: ..., cv: ...}` or `{low: ..., high: ...}`, as the trace has them"
            raise PlannerError("RL plans do not read traces of lengths", where=where, hint=hint)


def _require_prices(resolved: Resolved) -> None:
    """A goal in dollars needs the price of every pool."""
    goal = resolved.problem.objective
    unpriced = [index for index, pool in enumerate(resolved.pools) if not pool.usd_per_gpu_hour]
    if unpriced and goal.minimize != "iteration_time":
        where = resolved.where(("cluster", "pools", unpriced[0]))
        what = f"pool `{resolved.pools[unpriced[0]].name}` has no price, and the objective is in dollars"
        raise PlannerError(what, where=where, hint="add `price: 2.50 USD/h`, of one GPU")


def _require_consistent(resolved: Resolved, options: RlOptions) -> None:
    """Refuses what no cluster can mend."""
    samples, where = options.prompts * options.samples_per_prompt, resolved.where
    if samples % options.minibatches:
        divisors = (count for count in range(1, samples + 1) if samples % count == 0)
        near = min(divisors, key=lambda count: (abs(count - options.minibatches), count))
        what = f"{samples} samples do not divide into {options.minibatches} minibatches"
        raise PlannerError(what, where=where(("options", "minibatches")), hint=f"write `minibatches: {near}`")
    _require_fusible(resolved, options)
    _require_one_curve_each(resolved, options)
    _require_partial(resolved, options)
    _require_horizon(resolved, options)
    if "asynchronous" in (options.synchrony or ()) and options.max_staleness == 0:
        hint = "write `max_staleness: 1` or more, or leave `asynchronous` out"
        what = "asynchronous training with a staleness of 0"
        raise PlannerError(what, where=where(("options", "max_staleness")), hint=hint)
    if "disaggregated" not in options.arrangements and "synchronous" not in (options.synchrony or ("synchronous",)):
        hint = "add `disaggregated` to `arrangements`, or `synchronous` to `synchrony`"
        what = "colocated roles take turns and cannot stream or run ahead"
        raise PlannerError(what, where=where(("options", "arrangements")), hint=hint)


def _require_fusible(resolved: Resolved, options: RlOptions) -> None:
    """Scoring is fused with generation where roles take turns, and every sample generated is trained on."""
    where = resolved.where
    if options.fusion_thresholds and not {"colocated", "hybrid"} & set(options.arrangements):
        hint = "add `colocated` to `arrangements`, or leave `fusion_thresholds` out"
        what = "scoring is fused with generation on GPUs that take turns, and all arrangements are disaggregated"
        raise PlannerError(what, where=where(("options", "fusion_thresholds")), hint=hint)
    if options.fusion_thresholds and options.over_sampling > 1:
        hint = "leave `over_sampling` or `fusion_thresholds` out"
        what = "over-sampling drops the longest samples, and fusion moves them together"
        raise PlannerError(what, where=where(("options", "over_sampling")), hint=hint)
    if options.fused_training and options.algorithm in CRITIC_FREE:
        hint = "leave `fused_training` out, or use `ppo`"
        what = f"`{options.algorithm}` trains no critic whose pipeline could be fused with the actor's"
        raise PlannerError(what, where=where(("options", "fused_training")), hint=hint)
    for index, one in enumerate(options.costs.training):
        if one.score_tokens_per_s is not None and one.score_tokens_per_s < one.forward_tokens_per_s:
            hint = f"write `score_tokens_per_s: {one.forward_tokens_per_s:g}` or more"
            what = (
                f"scores alone {one.score_tokens_per_s:g} tokens/s, with log-probabilities {one.forward_tokens_per_s:g}"
            )
            raise PlannerError(
                what, where=where(("options", "costs", "training", index, "score_tokens_per_s")), hint=hint
            )


def _require_one_curve_each(resolved: Resolved, options: RlOptions) -> None:
    """Two measured curves of one replica would be two plans that look alike."""
    costs = options.costs
    named: tuple[tuple[str, list[tuple[object, ...]]], ...] = (
        ("generation", [(one.pool, one.tp, one.pp, one.ep) for one in costs.generation]),
        ("training", [(one.pool, one.tp, one.pp) for one in costs.training]),
    )
    for part, keys in named:
        twice = next((index for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            what = f"two curves of tp {keys[twice][1]} pp {keys[twice][2]} on `{keys[twice][0]}`"
            where = resolved.where(("options", "costs", part, twice))
            raise PlannerError(what, where=where, hint="keep the one that was measured as you run it")


def _require_partial(resolved: Resolved, options: RlOptions) -> None:
    """Partial rollouts have something to carry over, may be stale, and hand samples out in turn."""
    tools = options.tools
    if tools is not None and (tools.move_thresholds or tools.priorities != ("fifo",)):
        for key in ("partial_rollouts", "fusion_thresholds", "late_thresholds"):
            if getattr(options, key):
                what = "samples that wait and move by `tools` are neither carried over nor fused"
                hint = f"leave `{key}`, or `priorities` and `move_thresholds`, out"
                raise PlannerError(what, where=resolved.where(("options", key)), hint=hint)
    if options.late_thresholds and options.over_sampling > 1:
        hint = "leave `over_sampling` or `late_thresholds` out"
        what = "over-sampling drops the samples that other replicas would go on with"
        raise PlannerError(what, where=resolved.where(("options", "late_thresholds")), hint=hint)
    if not options.partial_rollouts:
        return
    wishes = (
        (options.over_sampling == 1, "over_sampling", "nothing is left to carry over", "`over_sampling: 1.25`"),
        (options.max_staleness == 0, "max_staleness", "older weights begin some samples", "`max_staleness: 1` or more"),
        (bool(options.tail_fractions), "tail_fractions", "what is carried over goes first", "no `tail_fractions`"),
        (options.length_error is not None, "length_error", "what is carried over goes first", "no `length_error`"),
    )
    for wrong, key, what, instead in wishes:
        if wrong:
            where = resolved.where(("options", key))
            raise PlannerError(f"partial rollouts: {what}", where=where, hint=f"write {instead}")


def _require_horizon(resolved: Resolved, options: RlOptions) -> None:
    """A horizon is planned for one group of replicas, with nothing fused; only a horizon starts from what runs now."""
    where, problem = resolved.where, resolved.problem
    if options.horizon is None:
        if problem.current is not None:
            hint = "add `horizon:` to `options`, with what a change takes"
            raise PlannerError("a plan that runs now, and no horizon", where=where(("current",)), hint=hint)
        return
    wishes = (
        (bool(options.tail_fractions), "tail_fractions", "a horizon has one group of replicas"),
        (bool(options.fusion_thresholds), "fusion_thresholds", "a horizon fuses nothing"),
        (options.fused_training, "fused_training", "a horizon fuses nothing"),
        (bool(options.late_thresholds), "late_thresholds", "a horizon has one group of replicas"),
    )
    for wrong, key, what in wishes:
        if wrong:
            raise PlannerError(what, where=where(("options", key)), hint=f"leave out `{key}`, or `horizon`")
    if problem.objective.maximize is not None:
        hint = "write `minimize: cost`, or `minimize: iteration_time`"
        raise PlannerError("a horizon adds up time or cost", where=where(("objective",)), hint=hint)


def _keys(resolved: Resolved, options: RlOptions) -> dict[str, str]:
    """The model of each part; an actor there always is, a critic where the algorithm has one."""
    models, where = resolved.problem.models, resolved.where
    named = {part: getattr(options, part) for part in PARTS}
    if named["actor"] is None:
        known = [key for key in ("actor", "policy") if key in models]
        if not known and len(models) > 1:
            hint = "call it `actor`, or name it: `actor: ...`"
            raise PlannerError("no model is said to be the actor", where=where(("models",)), hint=hint)
        named["actor"] = known[0] if known else next(iter(models))
    if options.algorithm in CRITIC_FREE:
        if named["critic"] is not None:
            what = f"`{options.algorithm}` has no critic"
            raise PlannerError(what, where=where(("options", "critic")), hint="leave `critic` out, or use `ppo`")
    elif named["critic"] is None:
        if "critic" not in models:
            what = f"`{options.algorithm}` trains a critic, and no model is called `critic`"
            raise PlannerError(what, where=where(("models",)), hint="add `critic:`, or use `grpo`")
        named["critic"] = "critic"
    for part, key in named.items():
        if key is not None and key not in models:
            known_keys = ", ".join(f"`{name}`" for name in models)
            what = f"no model is called `{key}`"
            raise PlannerError(what, where=where(("options", part)), hint=f"use one of {known_keys}")
    return {part: key for part, key in named.items() if key is not None}
