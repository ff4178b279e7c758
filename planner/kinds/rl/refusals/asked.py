"""What is asked of RL plans and cannot be had: rules that a problem and its options break together."""

from collections.abc import Iterator

from planner.costs.training.config import computed_in
from planner.engines.training import TRAINING_ENGINES
from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.refusals import Refusal
from planner.kinds.rl.refusals.launcher import unlaunched
from planner.kinds.rl.refusals.rollouts import of_rollouts
from planner.kinds.rl.refusals.without_models import without_models
from planner.models.architecture import MoeFfn
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem, TraceLengths

MOST_SAMPLES = 2**21  # of all iterations drawn; a solve of so many takes some 16 s


def refusals(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Every rule with whether the problem breaks it, those first that others build on."""
    yield from without_models(resolved, options)
    yield from _foreign(resolved)
    yield from unlaunched(resolved, options)
    yield from _lengths(resolved)
    yield from _samples(options)
    yield from _synchrony(options)
    yield from _curves(options)
    yield from of_rollouts(options)
    yield from _horizon(resolved.problem, options)
    yield from _agents(options)
    yield from _served(options)
    yield from _critic(options)
    yield from _formats(resolved, options)
    yield from _sleep(options)
    yield from _degrees(resolved, options)
    yield from _drafts(options)
    yield from _prices(resolved)


def _foreign(resolved: Resolved) -> Iterator[Refusal]:
    """What problems of other kinds may ask for, and no RL plan is searched by."""
    problem, workloads = resolved.problem, resolved.workloads
    what = f"{len(workloads)} workloads; the prompts and outputs of an iteration are one"
    wrong = len(workloads) != 1 and bool(problem.models)
    yield wrong, ("workloads",), what, "give one workload with `output_tokens`"
    what = "lengths are recorded, and a workload is to be drawn from"
    yield bool(workloads) and not problem.models, ("workloads",), what, "leave `workloads` out"
    name = problem.engine.name
    what = f"`engine` of RL plans generates, and {name} trains"
    yield name in TRAINING_ENGINES, ("engine",), what, "write `engine: {name: vllm}`, or another that serves"
    goal = problem.objective
    known = goal.minimize in ("iteration_time", "cost") or goal.maximize == "tokens_per_usd"
    hint = "write `minimize: iteration_time`, `minimize: cost` or `maximize: tokens_per_usd`"
    yield not known, ("objective",), "no objective of RL plans", hint


def _lengths(resolved: Resolved) -> Iterator[Refusal]:
    """Lengths that come from a trace: a plan does not keep its path, and would not say what they were."""
    if not resolved.problem.workloads:
        return
    spec = resolved.problem.workloads[0]
    hint = "give `{mean: ..., cv: ...}` or `{low: ..., high: ...}`, as the trace has them"
    for side in ("input_tokens", "output_tokens"):
        traced = isinstance(getattr(spec, side), TraceLengths)
        yield traced, ("workloads", 0, side), "RL plans do not read traces of lengths", hint


def _prices(resolved: Resolved) -> Iterator[Refusal]:
    """A goal in dollars without the price of every pool."""
    in_dollars = resolved.problem.objective.minimize != "iteration_time"
    for index, pool in enumerate(resolved.pools):
        what = f"pool `{pool.name}` has no price, and the objective is in dollars"
        unpriced = in_dollars and not pool.usd_per_gpu_hour
        yield unpriced, ("cluster", "pools", index), what, "add `price: 2.50 USD/h`, of one GPU"


def _samples(options: RlOptions) -> Iterator[Refusal]:
    """More samples than rollouts can be simulated of."""
    drawn = options.prompts * options.samples_per_prompt * options.iterations
    what = f"{drawn} samples of {options.iterations} iterations are to be simulated, and {MOST_SAMPLES} can be"
    part = "prompts" if options.prompts > options.samples_per_prompt else "samples_per_prompt"
    yield drawn > MOST_SAMPLES, ("options", part), what, "write fewer of them, or fewer `iterations`"


def _synchrony(options: RlOptions) -> Iterator[Refusal]:
    """Minibatches, staleness and synchrony that no cluster can do."""
    samples, parts = options.prompts * options.samples_per_prompt, options.minibatches
    divisors = (count for count in range(1, samples + 1) if samples % count == 0)
    near = min(divisors, key=lambda count: (abs(count - parts), count))
    what = f"{samples} samples do not divide into {parts} minibatches"
    uneven = samples % parts > 0 and options.equal_shares
    yield uneven, ("options", "minibatches"), what, f"write `minibatches: {near}`"
    ahead = {"asynchronous", "one_step"} & set(options.synchrony or ())
    stale = bool(ahead) and options.most_staleness == 0
    hint = "write `max_staleness: 1` or more, or leave `asynchronous` out"
    yield stale, ("options", "max_staleness"), "asynchronous training with a staleness of 0", hint
    in_turn = "disaggregated" not in options.arrangements
    hint = "add `disaggregated` to `arrangements`, or `synchronous` to `synchrony`"
    wrong = in_turn and "synchronous" not in (options.synchrony or ("synchronous",))
    yield wrong, ("options", "arrangements"), "colocated roles take turns and cannot stream or run ahead", hint


def _curves(options: RlOptions) -> Iterator[Refusal]:
    """Measured curves that contradict themselves, and two of one replica: they would be two plans that look alike."""
    costs = options.costs
    for index, curve in enumerate(costs.training):
        alone, together = curve.score_tokens_per_s, curve.forward_tokens_per_s
        what = f"scores alone {alone or 0.0:g} tokens/s, with log-probabilities {together:g}"
        path = ("options", "costs", "training", index, "score_tokens_per_s")
        slower = alone is not None and alone < together
        yield slower, path, what, f"write `score_tokens_per_s: {together:g}` or more"
    named: dict[str, list[tuple[object, ...]]] = {
        "generation": [(curve.pool, curve.tp, curve.pp, curve.ep) for curve in costs.generation],
        "training": [(curve.pool, curve.tp, curve.pp) for curve in costs.training],
    }
    for part, keys in named.items():
        for index, key in enumerate(keys):
            what = f"two curves of tp {key[1]} pp {key[2]} on `{key[0]}`"
            twice = key in keys[:index]
            yield twice, ("options", "costs", part, index), what, "keep the one that was measured as you run it"


WITH_AGENTS = frozenset(
    {"algorithm", "prompts", "samples_per_prompt", "minibatches", "equal_shares", "arrangements", "synchrony", "agents"}
    | {"costs", "max_iteration_s", "generation_tp", "training_tp", "training_pp", "whole_nodes"}
)
"""Options that problems of agents read."""


def _agents(options: RlOptions) -> Iterator[Refusal]:
    """Agents bring their lengths, turns, policies and staleness along; nothing of an iteration is cut or fused."""
    if options.agents is None:
        return
    for name in sorted(options.model_fields_set - WITH_AGENTS):
        what = f"`{name}` does not go with `agents`"
        hint = "write `agents.staleness`" if name == "max_staleness" else f"leave `{name}` out"
        yield getattr(options, name) != RlOptions.model_fields[name].default, ("options", name), what, hint
    strange = sorted({"stream", "one_step"} & set(options.synchrony or ()))
    what = f"agents are not planned with `{', '.join(strange)}`"
    yield bool(strange), ("options", "synchrony"), what, "write `synchronous`, `asynchronous`, or both"


def _degrees(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Experts spread that no model has."""
    sparse = any(isinstance(layer.ffn, MoeFfn) for arch in resolved.models.values() for layer in arch.layers)
    spread = [degree for degree in options.training_ep or () if degree > 1]
    yield bool(spread) and not sparse, ("options", "training_ep"), "no model has experts to spread", "leave it out"


def _drafts(options: RlOptions) -> Iterator[Refusal]:
    """Several numbers of drafts, none, and drafts beside measured curves of generation, which have them in them."""
    spec = options.speculation
    if spec is None:
        return
    path, counts = ("options", "speculation"), sorted(set(spec.draft_tokens))
    what = f"{len(counts)} numbers of drafts; generators of a rollout verify one number"
    yield len(counts) != 1, path, what, f"write `draft_tokens: [{counts[-1]}]`"
    yield counts == [0], path, "0 drafts in a step", "leave `speculation` out"
    measured = bool(options.costs.generation)
    what = "measured curves of generation hold what drafts are worth"
    yield measured, path, what, "leave `speculation`, or `costs.generation`, out"


def _served(options: RlOptions) -> Iterator[Refusal]:
    """Parts that are served have a model each and one entry, and score on no other GPUs."""
    parts = [spec.part for spec in options.served]
    for index, part in enumerate(parts):
        path = ("options", "served", index, "part")
        what, hint = f"a {part} is served, and none is named", f"name its model: `{part}: ...` in `options`"
        yield getattr(options, part) is None, path, what, hint
        yield part in parts[:index], path, f"the {part} is served twice", "keep one of them"
    for name in ("served", "reward_calls"):
        wrong = bool(getattr(options, name)) and options.horizon is not None
        what, hint = f"`{name}` does not go with lengths that drift", f"leave `horizon`, or `{name}`, out"
        yield wrong, ("options", "horizon"), what, hint
    measured = bool(options.costs.training) and bool(parts)
    what = "measured curves of training hold what models beside it take, and some are served"
    yield measured, ("options", "served"), what, "leave `served`, or `costs.training`, out"


def _critic(options: RlOptions) -> Iterator[Refusal]:
    """A critic on GPUs of its own is there, modelled, and trains with an actor whose rollouts stay as they are."""
    path = ("options", "critic_gpus")
    own = "own" in options.critic_gpus
    what = f"`{options.algorithm}` has no critic that could have GPUs of its own"
    yield own and options.algorithm in CRITIC_FREE, path, what, "leave `critic_gpus` out, or use `ppo`"
    what = "measured curves of training hold what the critic takes"
    yield own and bool(options.costs.training), path, what, "leave `critic_gpus`, or `costs.training`, out"
    together = options.fused_training and own and "actor" not in options.critic_gpus
    what = "fused pipelines of actor and critic run through the same GPUs, and the critic has its own"
    yield together, path, what, "write `critic_gpus: [actor, own]`, or leave `fused_training` out"
    what = "a critic on GPUs of its own does not go with lengths that drift"
    drifts = own and options.horizon is not None
    yield drifts, ("options", "horizon"), what, "leave `horizon`, or `critic_gpus`, out"


def _formats(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Formats that no pool computes in, and those of parts whose curves are measured in one."""
    gpus = [pool.node.accelerator for pool in resolved.pools] if resolved.problem.models else []
    for name in options.training_precision if gpus else ():
        known = sorted({able for gpu in gpus for able in computed_in(gpu)})
        what = f"no pool's GPUs train in {name}"
        yield name not in known, ("options", "training_precision"), what, f"write some of {', '.join(known)}"
    for weights in options.rollout_weights if gpus else ():
        able = any(gpu.supports(weights.removesuffix("_block")) for gpu in gpus)
        what = f"no pool's GPUs compute with weights in {weights}"
        yield not able, ("options", "rollout_weights"), what, "leave it out, or write `bf16`"
    costs = options.costs
    for key, measured in (("training_precision", costs.training), ("rollout_weights", costs.generation)):
        part = key.partition("_")[0]
        wrong = bool(measured) and key in options.model_fields_set
        what = f"measured curves of {part} are of the format that they were measured in"
        yield wrong, ("options", key), what, f"leave `{key}`, or the curves, out"


def _sleep(options: RlOptions) -> Iterator[Refusal]:
    """Engines that sleep are modelled and share GPUs with training; host memory is asked for where something goes."""
    asked, path = "host" in options.engine_sleep, ("options", "engine_sleep")
    shared = bool({"colocated", "hybrid"} & set(options.arrangements)) and not options.generation_only
    what = "engines sleep where they share GPUs with training, and all arrangements are disaggregated"
    yield asked and not shared, path, what, "add `colocated` to `arrangements`, or leave `engine_sleep` out"
    in_turn = "synchronous" in (options.synchrony or ("synchronous",))
    what = "engines that share GPUs with training take turns with it, and no synchrony is synchronous"
    yield asked and not in_turn, path, what, "add `synchronous` to `synchrony`, or leave `engine_sleep` out"
    beside = any((options.reference, options.reward, options.teacher))  # a critic stays on its GPUs
    idle = options.host_bandwidth_bytes_per_s is not None and not shared and not beside
    what = "nothing goes to the host where all arrangements are disaggregated and no model scores"
    yield idle, ("options", "host_bandwidth_bytes_per_s"), what, "leave `host_bandwidth` out, or add `colocated`"
    what = "measured curves do not say what weights an engine has that sleeps with them on the host"
    measured = asked and bool(options.costs.generation)
    yield measured, path, what, "leave `engine_sleep`, or `costs.generation`, out"


def _horizon(problem: Problem, options: RlOptions) -> Iterator[Refusal]:
    """A horizon is planned for one group of replicas, with nothing fused; only a horizon starts from what runs now."""
    over_time = options.horizon is not None
    hint = "add `horizon:` to `options`, with what a change takes"
    running = problem.current is not None
    yield running and not over_time, ("current",), "a plan that runs now, and no horizon", hint
    rules = {
        "tail_fractions": "a horizon has one group of replicas",
        "fusion_thresholds": "a horizon fuses nothing",
        "fused_training": "a horizon fuses nothing",
        "late_thresholds": "a horizon has one group of replicas",
    }
    for key, what in rules.items():
        wrong = over_time and bool(getattr(options, key))
        yield wrong, ("options", key), what, f"leave out `{key}`, or `horizon`"
    adds_up = problem.objective.maximize is None
    hint = "write `minimize: cost`, or `minimize: iteration_time`"
    yield over_time and not adds_up, ("objective",), "a horizon adds up time or cost", hint
