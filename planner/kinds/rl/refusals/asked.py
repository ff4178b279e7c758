"""What is asked of RL plans and cannot be had: rules that a problem and its options break together."""

from collections.abc import Iterator

from planner.costs.training.config import computed_in
from planner.engines.training import TRAINING_ENGINES
from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.refusals.launcher import Refusal, unlaunched
from planner.models.architecture import MoeFfn
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem, TraceLengths

OF_MODELS = (
    *("actor", "critic", "reference", "reward", "tools", "speculation", "length_error", "iterations", "max_running"),
    *("fused_training", "fusion_thresholds", "late_thresholds", "late_change_s", "partial_rollouts", "recompute"),
    *("teacher", "served", "reward_calls", "training_precision", "rollout_weights", "engine_sleep"),
    *("host_bandwidth_bytes_per_s", "critic_gpus"),
    *("useful_share", "max_output_tokens", "weight_sync_s", "training_cp", "training_ep", "simulated_rollouts"),
    "launcher",
)
"""Options without effect where all is stated and no model named."""
MOST_SAMPLES = 2**21  # of all iterations drawn; a solve of so many takes some 16 s


def refusals(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Every rule with whether the problem breaks it, those first that others build on."""
    yield from _bare(resolved, options)
    yield from _foreign(resolved)
    yield from unlaunched(resolved, options)
    yield from _lengths(resolved)
    yield from _samples(options)
    yield from _synchrony(options)
    yield from _fusion(options)
    yield from _curves(options)
    yield from _policies(options)
    yield from _partial(options)
    yield from _in_flight(options)
    yield from _simulated(options)
    yield from _useful(options)
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


def _bare(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Without a model all is stated: lengths sample by sample, curves, and what handing over takes; else drawn."""
    bare, costs, horizon = not resolved.problem.models, options.costs, options.horizon
    periods = () if horizon is None else horizon.periods
    recorded = all(period.records for period in periods) if periods else bool(options.records or options.agents)
    yield bare and not recorded, ("models",), "no model is named, and lengths are not recorded", "add `models:`"
    what = "no model is named, and what it takes to generate is not measured"
    yield bare and not costs.generation, ("models",), what, "add `models:`, or curves: `options.costs.generation`"
    what = "no model is named, and what it takes to train is not measured"
    trains = not options.generation_only
    yield bare and trains and not costs.training, ("models",), what, "add `models:`, or `options.costs.training`"
    stated = {
        "records": bool(options.records),
        "agents": options.agents is not None,
        "dispatch": options.dispatch is not None,
        "generation_only": options.generation_only,
        "equal_shares": not options.equal_shares,
        "costs.weight_sync": bool(costs.weight_sync),
        "costs.switch": costs.switch_s is not None,
        "horizon.periods": any(period.records for period in periods),
        "horizon.running": horizon is not None and horizon.running is not None,
    }
    for name, given in stated.items():
        what = f"`{name}` goes with costs and lengths that are all stated, and models are named"
        yield not bare and given, ("options", *name.split(".")), what, f"leave `{name}` out, or `models`"
    for name in OF_MODELS:
        what = f"`{name}` is of a model, and none is named"
        wrong = bare and name in options.model_fields_set
        yield wrong, ("options", name), what, f"leave `{name}` out, or add `models:`"
    what = "`over_sampling` draws more samples, and they are recorded"
    yield bare and options.over_sampling > 1, ("options", "over_sampling"), what, "leave it out"
    alone = options.generation_only
    what = "generation alone is planned, and training is measured"
    yield alone and bool(costs.training), ("options", "costs", "training"), what, "leave it out"
    what, apart = "generation alone has GPUs of its own", "disaggregated" in options.arrangements
    yield alone and not apart, ("options", "arrangements"), what, "write `arrangements: [disaggregated]`"
    in_turn = "synchronous" in (options.synchrony or ("synchronous",))
    yield alone and not in_turn, ("options", "synchrony"), what, "write `synchrony: [synchronous]`"
    what = "generation alone is planned, and a horizon changes training too"
    yield options.generation_only and horizon is not None, ("options", "horizon"), what, "leave one of them out"
    records = [row for period in periods for row in period.records] or list(options.records)
    sizes = {len(row.output_tokens) for row in records}
    sizes |= {len(batch.trajectories) for batch in options.agents.batches} if options.agents is not None else set()
    what = f"{options.prompts * options.samples_per_prompt} samples are trained on, and records have {sorted(sizes)}"
    short = bool(sizes) and min(sizes) != options.prompts * options.samples_per_prompt
    yield bare and short, ("options", "prompts"), what, "write the samples of the smallest record"


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


def _useful(options: RlOptions) -> Iterator[Refusal]:
    """Prompts are dropped where more are generated, in iterations that begin anew."""
    fewer = options.useful_share < 1.0
    what = "prompts are dropped, and no more are generated than trained on"
    more = f"write `over_sampling: {min(4.0, 1.2 / options.useful_share):.2f}`"
    yield fewer and options.over_sampling == 1, ("options", "over_sampling"), what, more
    what = "samples that are carried over are trained on one by one, not by useful prompts"
    hint = "leave `partial_rollouts`, or `useful_share`, out"
    yield fewer and options.partial_rollouts, ("options", "partial_rollouts"), what, hint


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
