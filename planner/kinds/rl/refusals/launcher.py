"""What the launcher that an RL problem names does not run, refused where the problem asks for it."""

from collections.abc import Iterator

from planner.engines.rl_launchers import RL_LAUNCHERS, RlLauncher
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.refusals import Refusal
from planner.problem.resolve import Resolved

_CHANGES = {
    "tail_fractions": "equal replicas",
    "late_thresholds": "the same replicas until a rollout ends",
    "fusion_thresholds": "no model that scores on replicas that others generate beside",
    "fused_training": "actor and critic in turn",
}
"""Options that no launcher runs, and what they all run."""


def launcher_of(options: RlOptions) -> RlLauncher | None:
    """The launcher that the problem names."""
    return None if options.launcher is None else RL_LAUNCHERS[options.launcher]


def unlaunched(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Every rule of the launcher with whether the problem breaks it; nothing where it names none."""
    launcher = launcher_of(options)
    if launcher is None:
        return
    for applies, path, what, hint in (
        *_engine(resolved, launcher, options),
        *_values(launcher, options),
        *_rollouts(launcher, options),
        *_scoring(launcher, options),
        *(_all_or_none(options) if launcher.all_or_none else ()),
    ):
        yield applies, path, f"{launcher.title} {what}", hint


def _engine(resolved: Resolved, launcher: RlLauncher, options: RlOptions) -> Iterator[Refusal]:
    """The engine that generates, how it sleeps, and nodes."""
    name, known = resolved.problem.engine.name, " or ".join(f"`engine: {{name: {each}}}`" for each in launcher.engines)
    yield name not in launcher.engines, ("engine",), f"does not generate with {name}", f"write {known}"
    sleep = "host" if name in launcher.host_sleepers else "drop"
    shared = {"colocated", "hybrid"} & set(options.arrangements)
    in_turn = "synchronous" in (options.synchrony or ("synchronous",)) and not options.costs.generation
    what = f"{'keeps' if sleep == 'host' else 'drops'} weights of engines that sleep"
    wrong = bool(shared) and in_turn and options.engine_sleep != (sleep,)
    yield wrong, ("options", "engine_sleep"), what, f"write `engine_sleep: [{sleep}]`"
    yield not options.whole_nodes, ("options", "whole_nodes"), "starts roles on whole nodes", "leave it out"
    sizes = {pool.node.num_gpus for pool in resolved.pools}
    what = f"gives roles nodes of one size, and pools have nodes of {sorted(sizes)} GPUs"
    yield launcher.even_nodes and len(sizes) > 1, ("cluster", "pools"), what, "keep pools of one of them"


def _values(launcher: RlLauncher, options: RlOptions) -> Iterator[Refusal]:
    """Values of options, of which the launcher has some."""
    asked: dict[str, tuple[tuple[object, ...], tuple[object, ...]]] = {
        "algorithm": ((options.algorithm,), launcher.algorithms),
        "arrangements": (options.arrangements, ("colocated", "disaggregated")),
        "synchrony": (options.synchrony or (), (*launcher.synchrony, "one_step")),
        "training_precision": (options.training_precision, launcher.precisions),
        "rollout_weights": (options.rollout_weights, launcher.rollout_weights),
        "training_pp": (options.training_pp or (), options.training_pp or () if launcher.stages else (1,)),
        "training_ep": (options.training_ep or (), options.training_ep or () if launcher.spreads_experts else (1,)),
    }
    for name, (values, able) in asked.items():
        beyond = [value for value in values if value not in able]
        what = f"has no {name.replace('_', ' ')} `{beyond[0] if beyond else ''}`"
        yield bool(beyond), ("options", name), what, f"it has {', '.join(map(str, able))}"
    most, ahead = launcher.most_staleness, options.max_staleness
    hint = f"write `max_staleness: {most}`"
    yield most is not None and ahead > most, ("options", "max_staleness"), f"runs at most {most} ahead", hint
    most, running = launcher.max_running, options.max_running
    what, hint = f"leaves engines at {most} samples at once", f"write `max_running: {most}`"
    yield most is not None and running != most, ("options", "max_running"), what, hint
    prompts, parts = options.prompts, options.minibatches
    near = min((n for n in range(1, prompts + 1) if prompts % n == 0), key=lambda n: abs(n - parts))
    what = f"divides prompts into minibatches, and not {prompts} of them into {parts}"
    uneven = launcher.whole_prompts and prompts % parts > 0
    yield uneven, ("options", "minibatches"), what, f"write `minibatches: {near}`"


def _rollouts(launcher: RlLauncher, options: RlOptions) -> Iterator[Refusal]:
    """Rollouts that change, or go on, otherwise than those of the launcher."""
    for name, does in _CHANGES.items():
        yield bool(getattr(options, name)), ("options", name), f"runs {does}", f"leave `{name}` out"
    for name, asked in (("length_error", options.length_error), ("dispatch", options.dispatch)):
        ranked = asked not in (None, "fifo")
        yield ranked, ("options", name), "hands prompts out in their order", f"leave `{name}` out"
    tools, spec = options.tools, options.speculation
    chosen = tools is not None and (tools.priorities != ("fifo",) or bool(tools.move_thresholds))
    hint = "leave `priorities` and `move_thresholds` out"
    yield chosen, ("options", "tools"), "lets no samples overtake or move in tool calls", hint
    in_flight = options.in_flight_updates and not launcher.in_flight
    hint = "leave it out, or name another `launcher`"
    yield in_flight, ("options", "in_flight_updates"), "ends a rollout before it updates weights", hint
    more = options.over_sampling > 1 and not launcher.over_samples
    yield more, ("options", "over_sampling"), "generates no more samples than it trains on", "name `launcher: slime`"
    drafts = spec is not None and not launcher.drafts
    yield drafts, ("options", "speculation"), "starts generators without drafts", "name `launcher: nemo-rl`"
    nameless = spec is not None and spec.method == "stated" and spec.algorithm is None
    hint = "name it as `algorithm` (and its `checkpoint`)"
    yield nameless, ("options", "speculation"), "cannot name a drafter of which only the time is stated", hint


def _scoring(launcher: RlLauncher, options: RlOptions) -> Iterator[Refusal]:
    """Models that score where the launcher has none, or are sent what it does not send them."""
    specs = {spec.part: (index, spec) for index, spec in enumerate(options.served)}
    for part in ("reference", "reward", "teacher"):
        if getattr(options, part) is None:
            continue
        able = part in launcher.served, part in launcher.beside
        if part not in specs:
            hint = f"write `served: [{{part: {part}}}]`" if able[0] else f"leave `{part}` out"
            yield not able[1], ("options", part), f"has no {part} on the training GPUs", hint
            continue
        index, spec = specs[part]
        path = ("options", "served", index)
        hint = f"leave `served` for the {part} out" + ("" if able[1] else f", and `{part}`")
        yield not able[0], path, f"gives the {part} no GPUs of its own", hint
        either = spec.or_beside and not all(able)
        yield either, path, f"has no {part} on the training GPUs", "leave `or_beside` out"
        does = "whole batches" if launcher.batches else "samples as they are generated"
        hint = f"write `takes: {'batches' if launcher.batches else 'samples'}`, or leave it out"
        yield spec.whole != launcher.batches, path, f"sends the {part} {does}", hint
    both = launcher.one_server and {"reward", "teacher"} <= specs.keys()
    yield both, ("options", "served"), "asks one server beside the job", "serve the reward or the teacher, not both"
    own = "own" in options.critic_gpus and not launcher.all_or_none
    hint = "leave it out, or name `launcher: openrlhf`"
    yield own, ("options", "critic_gpus"), "trains the critic on the GPUs of the actor", hint


def _all_or_none(options: RlOptions) -> Iterator[Refusal]:
    """Either all share the GPUs, or critic and reward have their own, cut as the actor is."""
    served = {spec.part: spec for spec in options.served}
    whose: dict[str, set[str]] = {
        part: {"own", "actor"} if spec.or_beside else {"own"} for part, spec in served.items()
    }
    if options.reward is not None:
        whose.setdefault("reward", {"actor"})
    if options.algorithm == "ppo":
        whose["critic"] = set(options.critic_gpus)
    shared = {"own" if arrangement == "disaggregated" else "actor" for arrangement in options.arrangements}
    for part, gpus in whose.items():
        what = f"gives the {part} GPUs of its own where generation has its own, and shares all where it shares some"
        option = "critic_gpus" if part == "critic" else "served"
        hint = f"write one of `arrangements`, and `{option}` that goes with it"
        yield len(gpus | shared) > 1, ("options", "arrangements"), what, hint
    apart = [part for part, gpus in whose.items() if "own" in gpus]
    for name in ("training_tp", "training_cp") if apart else ():
        open_ = len(getattr(options, name) or ()) != 1
        yield open_, ("options", name), f"cuts the {apart[0]} as the actor", f"write one degree, such as `{name}: [1]`"
    for index, spec in enumerate(options.served):
        hint = f"write `tp: {list(options.training_tp or ())}`"
        path = ("options", "served", index, "tp")
        yield spec.tp != options.training_tp, path, f"cuts the {spec.part} as the actor", hint
