"""Checks of training plans: rules that launchers enforce late, or not at all."""

from collections.abc import Iterator

from planner.costs.operators.recompute import BY_OPERATOR
from planner.documents.units import format_si
from planner.engines.training import TRAINING_ENGINES
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.engine import is_named
from planner.kinds.train.figures import ROUNDING
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.split.check import modules_findings
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, LinearAttention, MoeFfn
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Memory, Parallelism, Role
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.problem.schema import Problem
from planner.solvers.schedules.pipeline import size_conflict


def check(envelope: Envelope, decision: TrainDecision) -> list[Finding]:
    """One finding a rule; those about model and job are left out where `inputs` is no training problem."""
    role, shape = decision.roles[0], decision.degrees
    findings = [_role(decision), *_stages(decision, shape), *_schedule(decision, shape), *_recompute(decision)]
    findings += [*_sharding(decision, shape), *_ranks(decision), *_hosts(decision), *_groups(decision, shape)]
    findings += modules_findings(decision, shape)
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, TrainOptions)
    if problem is None or options is None:
        return findings
    findings += [*_job(decision, options, shape), _modules_again(decision, problem)]
    model = recorded_model(problem, role.model)
    if model is None:
        what = f"not judged: the catalog does not know model `{role.model}`"
        return [*findings, Finding("train.layers", True, what, "stage_runs", skipped=True)]
    if decision.moved_layers is not None:
        findings.append(_moved(decision, model.num_layers))
    findings += [_layers(decision, model, options), *_divisible(model, shape), _context(decision, model, shape)]
    findings += _layer_runs(decision, model, shape)
    return findings


def _role(decision: TrainDecision) -> Finding:
    """One role, or one for each of several pools, alike but for the axis along which they share the job."""
    roles, use = decision.roles, decision.pools
    right = all(role.replicas == 1 and role.function == "train" for role in roles)
    right = right and len({role.pool for role in roles}) == len(roles) and (len(roles) == 1) == (use == "one")
    if use != "one":
        axis = "pp" if use == "stages" else "dp"
        right = right and len({role.parallelism.model_copy(update={axis: 1}) for role in roles}) == 1
        right = right and len(decision.role_micro_batches) == (len(roles) if use == "replicas" else 0)
    what = "one role `train` holds the whole job" if use == "one" else f"roles `train` on {len(roles)} pools, `{use}`"
    hint = "write one role `train` with one replica for each pool, equal but for pp (`stages`) or dp (`replicas`)"
    return Finding("train.role", right, what, "roles", hint)


def _stages(decision: TrainDecision, shape: Parallelism) -> Iterator[Finding]:
    stages = sum(run.stages for run in decision.stage_runs)
    wanted = shape.pp * shape.vpp
    what = f"{stages} stages laid out, pp {shape.pp} x vpp {shape.vpp} = {wanted}"
    yield Finding("train.stages", stages == wanted, what, "stage_runs", "lay out as many stages as the pipeline has")
    runs = decision.stage_runs
    parts = [part for run in runs for part in run.parts for _ in range(min(run.stages, 2))]
    ends = "embedding" in runs[0].parts and "loss" in runs[-1].parts
    right = ends and parts.count("embedding") == parts.count("loss") == 1 and parts.count("mtp") <= 1
    what = "the first stage holds the embedding and the last one the loss, each once"
    hint = "put `embedding` first and `loss` last, each in a run of one stage"
    yield Finding("train.ends", right, what, "stage_runs", hint)


def _schedule(decision: TrainDecision, shape: Parallelism) -> Iterator[Finding]:
    problem = size_conflict(decision.schedule, shape.pp, shape.vpp, decision.num_micro_batches)
    what, hint = problem or (f"`{decision.schedule}` suits pp, vpp and micro-batches", "")
    yield Finding("train.schedule", problem is None, what, "schedule", hint and f"{hint}; chunks are vpp, ranks pp")
    right = shape.tp > 1 or not decision.sequence_parallel
    what = f"sequence parallelism {'on' if decision.sequence_parallel else 'off'} with tp {shape.tp}"
    yield Finding("train.sequence_parallel", right, what, "sequence_parallel", "turn it off: it splits over tp ranks")


def _recompute(decision: TrainDecision) -> Iterator[Finding]:
    for index, run in enumerate(decision.stage_runs):
        recompute = run.recompute
        right = {
            "none": not recompute.modules and not recompute.num_layers,
            "selective": bool(recompute.modules) and not recompute.num_layers,
            "full": not recompute.modules and 1 <= recompute.num_layers <= run.num_layers,
        }[recompute.granularity]
        what = f"`{recompute.granularity}` with {len(recompute.modules)} modules and {recompute.num_layers} layers"
        hint = "name modules for `selective`, a number of the stage's layers for `full`, nothing for `none`"
        yield Finding("train.recompute", right, what, f"stage_runs.{index}.recompute", hint)
    if decision.cuda_graphs:
        whole = any(run.recompute.granularity == "full" for run in decision.stage_runs)
        what = f"layers are captured as CUDA graphs, and {'some' if whole else 'none'} are computed again whole"
        yield Finding("train.graphs", not whole, what, "cuda_graphs", "recompute modules, or leave the graphs out")


def _modules_again(decision: TrainDecision, problem: Problem) -> Finding:
    """What the engine's selective recomputation knows: modules by name, or its policy of operators alone."""
    by_operator = is_named(problem) and TRAINING_ENGINES[str(problem.engine.name)].again_by_operator
    named = {module for run in decision.stage_runs for module in run.recompute.modules}
    named |= {module for run in decision.layer_runs for module in run.modules}
    unknown = sorted(module for module in named if (module == BY_OPERATOR) != by_operator)
    engine = f"`{problem.engine.name}`" if is_named(problem) else "Megatron"
    what = f"{engine} recomputes {'operators by its policy' if by_operator else 'modules by their names'}"
    what += f", not `{unknown[0]}`" if unknown else ""
    hint = f"write `{BY_OPERATOR}` alone" if by_operator else "name modules, or plan for an engine with such a policy"
    return Finding("train.modules_again", not unknown, what, "stage_runs", hint)


def _sharding(decision: TrainDecision, shape: Parallelism) -> Iterator[Finding]:
    ranks, shards = shape.dp * shape.cp, decision.zero_shards
    right = shards is None or (ranks % shards == 0 and decision.zero_stage > 0)
    experts = shape.tp * ranks // (shape.ep * shape.moe_tp)
    right = right and (shards is None or experts % (ranks // shards) == 0 or shape.ep * shape.moe_tp == 1)
    what = f"ZeRO {decision.zero_stage} over {shards or ranks} of dp x cp = {ranks} ranks"
    hint = f"shard over a divisor of {ranks} ranks, with a ZeRO stage of at least 1"
    yield Finding("train.zero_shards", right, what, "zero_shards", hint)


def _moved(decision: TrainDecision, layers: int) -> Finding:
    """Layers whose activations lie on the host."""
    moved = decision.moved_layers
    right = moved is None or ("activations" in decision.offload and moved < layers)
    what = f"activations of {moved} of {layers} layers offloaded" if moved else "no number of layers to offload"
    return Finding("train.offload", right, what, "moved_layers", "offload activations of fewer layers than there are")


def _ranks(decision: TrainDecision) -> Iterator[Finding]:
    """What is said of each rank of the pipeline: so many of them, all within memory, the fullest that of the role."""
    ranks = decision.pipeline_ranks
    if not ranks:
        return
    wanted = sum(role.parallelism.pp for role in decision.roles)
    what = f"{len(ranks)} ranks described, pp is {wanted}"
    yield Finding("train.ranks", len(ranks) == wanted, what, "pipeline_ranks", "describe every rank of the pipeline")
    if len(ranks) != wanted:
        return
    first = 0
    for index, role in enumerate(decision.roles):
        own = ranks[first : first + role.parallelism.pp]
        first += role.parallelism.pp
        fullest = max((rank.memory for rank in own), key=lambda memory: memory.used_bytes)
        yield from _fullest(role, index, fullest)
        if decision.memory_utilisation is not None:
            yield _room(fullest, decision.memory_utilisation)


def _room(fullest: Memory, share: float) -> Finding:
    """Whether the fullest rank leaves the room that the plan was preferred for."""
    filled = fullest.used_bytes / fullest.capacity_bytes
    what = f"the fullest rank fills {filled:.1%} of its GPU, and the plan was preferred for at most {share:.1%}"
    hint = "leave it out, or solve again"
    return Finding("train.room", filled <= share * (1 + ROUNDING), what, "memory_utilisation", hint)


def _fullest(role: Role, index: int, fullest: Memory) -> Iterator[Finding]:
    """Whether the fullest rank of a role fits, and is what the role states."""
    over = fullest.used_bytes > fullest.capacity_bytes * (1 + ROUNDING)
    what = f"the fullest needs {format_si(fullest.used_bytes, 'B')}, may use {format_si(fullest.capacity_bytes, 'B')}"
    yield Finding("train.rank_memory", not over, what, "pipeline_ranks", "recompute more, or spread over more GPUs")
    same = role.memory is None or abs(role.memory.used_bytes - fullest.used_bytes) <= ROUNDING * fullest.used_bytes
    what = f"the role's memory is {'' if same else 'not '}that of its fullest rank"
    hint = "state the memory of the fullest rank"
    yield Finding("train.role_memory", same, what, f"roles.{index}.memory", hint)


def _hosts(decision: TrainDecision) -> Iterator[Finding]:
    """Whether the hosts of each role hold what is offloaded to them."""
    for index, memory in enumerate(decision.host_memory):
        where, used, capacity = f"host_memory.{index}", memory.used_bytes, memory.capacity_bytes
        if capacity is None:
            what = f"not judged: the host memory of role `{memory.role}` is not known"
            yield Finding("train.host_memory", True, what, where, skipped=True)
            continue
        what = f"needs {format_si(used, 'B')} of host memory a GPU, may use {format_si(capacity, 'B')}"
        hint = "offload less, or share states out over more ranks"
        yield Finding("train.host_memory", used <= capacity * (1 + ROUNDING), what, where, hint)


def _groups(decision: TrainDecision, shape: Parallelism) -> Iterator[Finding]:
    """Groups of ranks have the sizes of the degrees, and the strides that Megatron-LM gives them."""
    if not decision.groups:
        return
    stage = shape.tp * shape.cp * shape.dp
    wanted = {
        "tp": (shape.tp, 1),
        "cp": (shape.cp, shape.tp),
        "dp": (shape.dp, shape.tp * shape.cp),
        "pp": (shape.pp, stage),
        "moe_tp": (shape.moe_tp, 1),
        "ep": (shape.ep, shape.moe_tp),
        "expert_dp": (stage // (shape.ep * shape.moe_tp), shape.ep * shape.moe_tp),
        "zero": (decision.zero_shards or shape.dp * shape.cp, shape.tp),
    }
    able = {(name, *sizes) for name, sizes in wanted.items()}
    for run in decision.layer_runs:
        tp, cp, dp = run.tp, shape.cp, run.dp
        able |= {("tp", tp, 1), ("cp", cp, tp), ("dp", dp, tp * cp), ("zero", dp * cp, tp)}
    wrong = [group for group in decision.groups if (group.name, group.size, group.stride) not in able]
    what = "groups have the sizes and strides of the degrees"
    if wrong:
        size, stride = wanted[wrong[0].name]
        what = (
            f"group `{wrong[0].name}` of {wrong[0].size} ranks {wrong[0].stride} apart; it has {size}, {stride} apart"
        )
    yield Finding("train.groups", not wrong, what, "groups", "derive the groups from the degrees")


def _context(decision: TrainDecision, model: Architecture, shape: Parallelism) -> Finding:
    """Ulysses gives each rank whole heads (arXiv:2309.14509, section 3)."""
    mixers = [layer.mixer for layer, _ in model.layer_groups()]
    heads = sorted({count for mixer in mixers for count in (*_head_counts(mixer), *_kv_head_counts(mixer))})
    ranks = shape.tp * shape.cp
    odd = [count for count in heads if count % ranks] if decision.context_parallel == "ulysses" and shape.cp > 1 else []
    what = f"{odd[0]} heads over tp x cp = {ranks}" if odd else f"`{decision.context_parallel}` suits the heads"
    return Finding(
        "train.context", not odd, what, "context_parallel", "use `ring`, or a cp whose tp x cp divides the heads"
    )


def _layer_runs(decision: TrainDecision, model: Architecture, shape: Parallelism) -> Iterator[Finding]:
    """Strategies by layer: every layer has one, on the ranks of its stage, which it can share out."""
    runs, where = decision.layer_runs, "layer_runs"
    if not runs:
        return
    ranks, sequences = shape.tp * shape.dp, decision.micro_batch * shape.dp
    heads = sorted({count for layer, _ in model.layer_groups() for count in _head_counts(layer.mixer)})
    laid = sum(run.layers for run in runs)
    problems = [f"{laid} layers have a strategy, `{model.name}` has {model.num_layers}"] * (laid != model.num_layers)
    if (shape.ep, shape.vpp) != (1, 1) or decision.schedule != "1f1b" or decision.offload:
        problems.append("strategies by layer with ep, vpp, offload or another schedule than `1f1b`")
    for run in runs:
        if run.tp * run.dp != ranks:
            problems.append(f"tp {run.tp} x dp {run.dp} of a layer on the {ranks} ranks of a stage")
        elif sequences % run.dp:
            problems.append(f"dp {run.dp} of a layer does not divide the {sequences} sequences of a micro-batch")
        elif any(count % run.tp for count in heads):
            problems.append(f"{heads[0]} heads over tp {run.tp} of a layer")
        elif run.sequence_parallel and run.tp == 1:
            problems.append("sequence parallelism in a layer with tp 1")
        elif bool(run.modules) != (run.recompute == "selective"):
            problems.append(f"`{run.recompute}` with {len(run.modules)} modules in a layer")
    first = runs[0]
    if (first.tp, first.dp, first.zero_stage) != (shape.tp, shape.dp, decision.zero_stage):
        problems.append("the role's tp, dp and ZeRO stage are not those of its first layer")
    what = problems[0] if problems else "every layer has one strategy on the ranks of its stage"
    yield Finding(
        "train.layer_runs", not problems, what, where, "split the ranks of a stage into tp x dp at every layer"
    )


def _job(decision: TrainDecision, options: TrainOptions, shape: Parallelism) -> Iterator[Finding]:
    each = [role.parallelism.dp for role in decision.roles[: None if decision.pools == "replicas" else 1]]
    pairs = list(zip(decision.batches, each, strict=False))
    batch = decision.micro_batch * sum(number * dp for number, dp in pairs)
    inner = " + ".join(f"{number} x dp {dp}" for number, dp in pairs)
    what = f"micro-batch {decision.micro_batch} x {inner if len(pairs) == 1 else f'({inner})'} = {batch}"
    what += f", the global batch is {options.global_batch}"
    hint = "make their product the global batch"
    yield Finding("train.batch", batch == options.global_batch, what, "num_micro_batches", hint)
    pieces = 2 * shape.cp if shape.cp > 1 and decision.context_parallel != "ulysses" else shape.cp
    pieces *= shape.tp if decision.sequence_parallel else 1
    odd = [size for size in (options.sequence_tokens, *(length.tokens for length in options.lengths)) if size % pieces]
    what = f"sequences of {(odd or [options.sequence_tokens])[0]} tokens in {pieces} equal pieces"
    hint = f"use a multiple of {pieces} tokens, or a smaller cp"
    yield Finding("train.sequence", not odd, what, "parallelism.cp", hint)
    what = f"plans {decision.precision}, the problem asks for {options.precision}"
    yield Finding("train.precision", decision.precision == options.precision, what, "precision", "use that one")


def _layers(decision: TrainDecision, model: Architecture, options: TrainOptions) -> Finding:
    laid = sum(run.stages * run.num_layers for run in decision.stage_runs)
    what = f"{laid} layers laid out, `{model.name}` has {model.num_layers}"
    hint = "lay out every layer once"
    heads = any("mtp" in run.parts for run in decision.stage_runs)
    if laid == model.num_layers and heads and not model.mtp_layers:
        return Finding("train.layers", False, f"`{model.name}` has no MTP heads", "stage_runs", "drop the part `mtp`")
    if laid == model.num_layers and options.mtp not in (None, heads):
        does = "lays out MTP heads" if heads else "lays out no MTP heads"
        what = f"{does}, the problem says `mtp: {str(options.mtp).lower()}`"
        return Finding("train.layers", False, what, "stage_runs", "solve again")
    return Finding("train.layers", laid == model.num_layers, what, "stage_runs", hint)


def _divisible(model: Architecture, shape: Parallelism) -> Iterator[Finding]:
    """Heads by tp, experts by ep, and expert groups that tile the ranks of a stage."""
    heads = sorted({count for layer, _ in model.layer_groups() for count in _head_counts(layer.mixer)})
    odd = [count for count in heads if count % shape.tp]
    what = f"{odd[0]} heads over tp {shape.tp}" if odd else f"heads divide by tp {shape.tp}"
    yield Finding("train.heads", not odd, what, "parallelism.tp", "use a tp that divides the heads")
    experts = sorted({layer.ffn.num_experts for layer in model.layers if isinstance(layer.ffn, MoeFfn)})
    ranks, group = shape.tp * shape.cp * shape.dp, shape.ep * shape.moe_tp
    problem = ""
    if not experts and group > 1:
        problem = f"`{model.name}` has no experts for ep {shape.ep} x moe_tp {shape.moe_tp}"
    elif any(count % shape.ep for count in experts):
        problem = f"{experts[0]} experts over ep {shape.ep}"
    elif ranks % group:
        problem = f"ep {shape.ep} x moe_tp {shape.moe_tp} does not divide the {ranks} ranks of a stage"
    hint = "use an ep that divides the experts, with ep x moe_tp dividing tp x cp x dp"
    yield Finding("train.experts", not problem, problem or "expert groups tile the ranks", "parallelism.ep", hint)


def _kv_head_counts(mixer: object) -> tuple[int, ...]:
    return (mixer.num_kv_heads,) if isinstance(mixer, GroupedQueryAttention) else ()


def _head_counts(mixer: object) -> tuple[int, ...]:
    match mixer:
        case GroupedQueryAttention() | LatentAttention():
            return (mixer.num_heads,)
        case LinearAttention():
            return (mixer.num_key_heads, mixer.num_value_heads)
        case _:
            return ()
