"""Rollouts of RL problems: ways to hand out, move, carry over and update that do not go together."""

from collections.abc import Iterator

from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.refusals import Refusal


def of_rollouts(options: RlOptions) -> Iterator[Refusal]:
    """Every rule on rollouts with whether the options break it."""
    yield from _fusion(options)
    yield from _policies(options)
    yield from _partial(options)
    yield from _in_flight(options)
    yield from _simulated(options)
    yield from _useful(options)


def _fusion(options: RlOptions) -> Iterator[Refusal]:
    """Scoring is fused with generation where roles take turns, and every sample generated is trained on."""
    fuses, fewer = bool(options.fusion_thresholds), options.over_sampling > 1
    in_turn = bool({"colocated", "hybrid"} & set(options.arrangements))
    what = "scoring is fused with generation on GPUs that take turns, and all arrangements are disaggregated"
    hint = "add `colocated` to `arrangements`, or leave `fusion_thresholds` out"
    yield fuses and not in_turn, ("options", "fusion_thresholds"), what, hint
    what = "over-sampling drops the longest samples, and fusion moves them together"
    yield fuses and fewer, ("options", "over_sampling"), what, "leave `over_sampling` or `fusion_thresholds` out"
    what = f"`{options.algorithm}` trains no critic whose pipeline could be fused with the actor's"
    critic_free = options.algorithm in CRITIC_FREE
    hint = "leave `fused_training` out, or use `ppo`"
    yield options.fused_training and critic_free, ("options", "fused_training"), what, hint
    what = "over-sampling drops the samples that other replicas would go on with"
    late = bool(options.late_thresholds)
    yield late and fewer, ("options", "late_thresholds"), what, "leave `over_sampling` or `late_thresholds` out"


def _policies(options: RlOptions) -> Iterator[Refusal]:
    """Samples that wait and move by policies, and are carried over or fused."""
    tools = options.tools
    chosen = tools is not None and (bool(tools.move_thresholds) or tools.priorities != ("fifo",))
    what = "samples that wait and move by `tools` are neither carried over nor fused"
    for key in ("partial_rollouts", "fusion_thresholds", "late_thresholds"):
        hint = f"leave `{key}`, or `priorities` and `move_thresholds`, out"
        yield chosen and bool(getattr(options, key)), ("options", key), what, hint


def _partial(options: RlOptions) -> Iterator[Refusal]:
    """Partial rollouts have something to carry over and where to, may be stale, and hand samples out in turn."""
    rules = (
        (options.over_sampling == 1, "over_sampling", "nothing is left to carry over", "`over_sampling: 1.25`"),
        (options.iterations == 1, "iterations", "nothing is carried into the first", "`iterations: 2` or more"),
        (options.max_staleness == 0, "max_staleness", "older weights begin some samples", "`max_staleness: 1` or more"),
        (bool(options.tail_fractions), "tail_fractions", "what is carried over goes first", "no `tail_fractions`"),
        (options.length_error is not None, "length_error", "what is carried over goes first", "no `length_error`"),
    )
    for broken, key, what, instead in rules:
        wrong = options.partial_rollouts and broken
        yield wrong, ("options", key), f"partial rollouts: {what}", f"write {instead}"


def _in_flight(options: RlOptions) -> Iterator[Refusal]:
    """Updates in flight are of generators that run ahead; samples go out prompt by prompt, and all are trained on."""
    ahead = "asynchronous" in (options.synchrony or ("asynchronous",)) and "disaggregated" in options.arrangements
    rules = (
        (options.max_staleness == 0, "max_staleness", "nothing is under way when weights come", "`max_staleness: 1`"),
        (not ahead, "synchrony", "nothing is under way when weights come", "`synchrony: [asynchronous]`"),
        (options.partial_rollouts, "partial_rollouts", "nothing is left to carry over", "no `partial_rollouts`"),
        (options.over_sampling > 1, "over_sampling", "every sample is trained on", "no `over_sampling`"),
        (options.length_error is not None, "length_error", "prompts go out in turn", "no `length_error`"),
        (options.dispatch == "longest_first", "dispatch", "prompts go out in turn", "`dispatch: fifo`"),
        (options.tools is not None, "tools", "samples have one turn", "no `tools`"),
    )
    for broken, key, what, instead in rules:
        wrong = options.in_flight_updates and broken
        yield wrong, ("options", key), f"updates in flight: {what}", f"write {instead}"


def _simulated(options: RlOptions) -> Iterator[Refusal]:
    """Engines are simulated with the samples of an iteration, on replicas that begin and end them."""
    rules = {
        "late_thresholds": "other replicas late in a rollout",
        "fusion_thresholds": "scoring beside the last samples",
        "horizon": "lengths that drift",
    }
    for key, what in rules.items():
        wrong = options.simulated_rollouts and bool(getattr(options, key))
        hint = f"leave `{key}`, or `simulated_rollouts`, out"
        yield wrong, ("options", key), f"engines are not simulated with {what}", hint


def _useful(options: RlOptions) -> Iterator[Refusal]:
    """Prompts are dropped where more are generated, in iterations that begin anew."""
    fewer = options.useful_share < 1.0
    what = "prompts are dropped, and no more are generated than trained on"
    more = f"write `over_sampling: {min(4.0, 1.2 / options.useful_share):.2f}`"
    yield fewer and options.over_sampling == 1, ("options", "over_sampling"), what, more
    what = "samples that are carried over are trained on one by one, not by useful prompts"
    hint = "leave `partial_rollouts`, or `useful_share`, out"
    yield fewer and options.partial_rollouts, ("options", "partial_rollouts"), what, hint
