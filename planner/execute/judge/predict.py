"""Prediction for one step of one rank by the cost model: seconds by operator, and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.backward import backward_input, training_operators
from planner.costs.operators.context import context_gathers, context_part
from planner.costs.operators.copies import expert_permutes, kv_gathers
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Collective, Gemm, MemoryPass, Operator
from planner.costs.operators.optimizer import adamw
from planner.costs.operators.recompute import again, recomputed_layers, recomputed_modules
from planner.costs.operators.work import Shards, Work
from planner.costs.operators.working_format import BF16, in_working_format
from planner.costs.rates.pricer import Pricer
from planner.costs.serving.memory import activation_bytes, footprint, weight_divisors
from planner.execute.shards.cases import EXPERT_LAYER, KV_TRANSFER, OPTIMIZER, TRAIN, StepCase
from planner.execute.shards.expert_layout import laid_out
from planner.execute.shards.spec import RankSpec, RoleSpec
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence

BACKWARD = "_backward"
_FIRST_STAGE = ("embedding", "project_in")
_LAST_STAGE = ("logits", "sampling", "project_out", "cross_entropy", "loss_all_reduce", "flow_head")


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Predicted seconds of all runs of an operator in the step, and how many runs."""

    seconds: float
    count: float


def rank_arch(arch: Architecture, rank: RankSpec) -> Architecture:
    """The model with the layers of the rank's stages alone."""
    return replace(arch, layers=tuple(arch.layers[layer] for layer in rank.layers))


def as_executed(arch: Architecture, plain: Sequence[str]) -> Architecture:
    """The model with matrices of the formats `plain`, and the KV cache, in bf16, as they ran."""
    formats = {part.name: getattr(arch.precisions, part.name) for part in fields(arch.precisions)}
    executed = {name: "bf16" if precision in plain else precision for name, precision in formats.items()}
    return replace(arch, precisions=replace(arch.precisions, **{**executed, "kv_cache": "bf16"}))


def executed_operators(
    role: RoleSpec, rank: RankSpec, case: StepCase, plain: Sequence[str] = (), working: str = BF16
) -> list[Operator]:
    """The operators of one step of one rank in the formats that ran: matrices of the formats `plain` in `working`."""
    arch = as_executed(role.arch, plain)
    if case.kind == OPTIMIZER:
        return [adamw(rank_parameters(arch, rank, updated=True), working)]
    operators = laid_out(rank_operators(arch, rank, case), role.layouts_of(rank), rank.expert_part)
    return list(in_working_format([*operators, *expert_permutes(operators)], working))


def rank_operators(arch: Architecture, rank: RankSpec, case: StepCase) -> list[Operator]:
    """The operators of one step of one rank: those of its layers, and of the ends of the model that it holds.

    A training step is the forward pass of one micro-batch, the gradients of its inputs and those of its weights, and
    what is computed again for them. A serving step copies cached tokens out of their blocks.
    """
    if case.kind == KV_TRANSFER:
        size = np.array([request_kv_bytes(arch, rank, case.prefill_tokens)])
        return [Collective(KV_TRANSFER, 1.0, "p2p", size, np.array([2.0]), np.array([1.0]))]
    own, shards, work = rank_arch(arch, rank), rank_shards(rank), step_work(case, rank)
    tokens = float(case.prefill_sequences * context_tokens(case, rank))
    gathers = list(context_gathers(own, shards, rank.parallelism.cp, tokens, trained=case.kind == TRAIN))
    if case.kind == TRAIN:
        parts = training_operators(own, shards, work)
        operators = [*parts.forward, *gathers, *backward_input(gathers), *parts.backward_input, *parts.backward_weight]
        operators += _recomputed(arch, rank, work, tokens)
    elif case.kind == EXPERT_LAYER:
        operators = forward(own, shards, work)
    else:
        operators = [*forward(own, shards, work), *gathers, *kv_gathers(own, shards, _gathered_tokens(case))]
    absent: tuple[str, ...] = () if rank.embeds else _FIRST_STAGE
    absent += () if rank.yields_logits else _LAST_STAGE
    kept = [op for op in operators if not op.name.startswith(absent)]
    return kept if case.kind == TRAIN else [_of_whole_context(op, rank, tokens) for op in kept]


def context_tokens(case: StepCase, rank: RankSpec) -> int:
    """New tokens of a prefilling sequence on all context-parallel ranks together: two equal chunks on each."""
    cp = rank.parallelism.cp
    return case.prefill_tokens if cp == 1 else 2 * cp * -(-case.prefill_tokens // (2 * cp))


def _recomputed(arch: Architecture, rank: RankSpec, work: Work, tokens: float) -> Iterator[Operator]:
    shards = rank_shards(rank)
    for stage in rank.stages:
        if stage.recompute.num_layers:
            first = list(stage.layers)[: stage.recompute.num_layers]
            own = replace(arch, layers=tuple(arch.layers[layer] for layer in first))
            yield from recomputed_layers(own, shards, work)
            yield from again(context_gathers(own, shards, rank.parallelism.cp, tokens, trained=True))
        elif stage.num_layers:
            own = rank_arch(arch, replace(rank, stages=(stage,)))
            modules = stage.recompute.modules
            yield from recomputed_modules(own, shards, work, modules)
            gathers = context_gathers(own, shards, rank.parallelism.cp, tokens, trained=True)
            yield from again(op for op in gathers if op.module in modules)


def _gathered_tokens(case: StepCase) -> float:
    """Tokens that attention reads from the cache: none where a prompt begins."""
    chunk = case.prefill_context + case.prefill_tokens if case.prefill_context else 0
    return float(case.prefill_sequences * chunk + case.decode_sequences * (case.decode_context + 1))


def _of_whole_context(op: Operator, rank: RankSpec, tokens: float) -> Operator:
    """Keys and values of latents that were gathered are expanded by every context-parallel rank for all tokens."""
    if rank.parallelism.cp == 1 or not isinstance(op, Gemm) or not op.name.startswith("kv_up"):
        return op
    return replace(op, m=np.full_like(op.m, tokens))


def rank_shards(rank: RankSpec) -> Shards:
    """The degrees of the rank's role [1], its stage apart from the others.

    Ranks of one set of experts that have tokens of their own count as data-parallel, by whatever axis they do.
    """
    shape = rank.parallelism
    own_tokens = max(shape.moe_tp * shape.ep // shape.tp, 1)
    return Shards.of(tp=shape.tp, dp=own_tokens, moe_tp=shape.moe_tp, ep=shape.ep)


def step_work(case: StepCase, rank: RankSpec) -> Work:
    """The step as the cost model takes it [1]; a context-parallel rank has its part of each sequence."""
    own, front = context_part(context_tokens(case, rank), rank.parallelism.cp)
    past = case.prefill_context + front
    return Work.of(
        case.prefill_sequences * own, case.prefill_sequences, past, case.decode_sequences, case.decode_context
    )


def predict(operators: Sequence[Operator], pricer: Pricer) -> dict[str, OperatorTime]:
    """Seconds and runs by name; the two gradients of an operator are one, as they are measured together."""
    times: dict[str, OperatorTime] = {}
    for op in operators:
        count = float(np.asarray(op.count).reshape(-1)[0])
        name = row_name(op.name)
        before = times.get(name, OperatorTime(0.0, 0.0))
        seconds = float(pricer.price(op).seconds[0]) * count
        runs = before.count + count if name == op.name else max(before.count, count)
        times[name] = OperatorTime(before.seconds + seconds, runs)
    return {name: time for name, time in times.items() if time.count > 0}


def row_name(name: str) -> str:
    """What an operator is measured as: both gradients of one are timed together."""
    for ending in ("_input_gradient", "_weight_gradient"):
        if name.endswith(ending):
            return name.removesuffix(ending) + BACKWARD
    return name


def rank_parameters(arch: Architecture, rank: RankSpec, *, updated: bool) -> Floats:
    """Parameters [1] of the rank, or with `updated` those that its optimizer updates: its share under ZeRO."""
    shape = rank.parallelism
    formats = {part.name: "bf16" for part in fields(arch.precisions)}
    plain = replace(arch, precisions=replace(arch.precisions, **formats))
    experts = shape.moe_tp * shape.ep
    stage_ranks = shape.tp * shape.cp * shape.dp
    replicas = shape.cp * shape.dp
    expert_replicas = stage_ranks // experts if experts >= shape.tp else replicas
    sharded = updated and rank.zero_stage >= 1
    count = sum(
        size / 2.0 / ((expert_replicas if split == "experts" else replicas) if sharded else 1)
        for split, size in _weight_bytes(plain, rank)
    )
    return np.array([count])


def rank_weight_bytes(arch: Architecture, rank: RankSpec) -> float:
    """Weights of the rank: those of its layers, and of the ends that it holds."""
    return sum(size for _, size in _weight_bytes(arch, rank))


def _weight_bytes(arch: Architecture, rank: RankSpec) -> Iterator[tuple[str, float]]:
    """Bytes by the way in which tensors are split."""
    whole, divisors = footprint(rank_arch(arch, rank)), weight_divisors(arch, rank_shards(rank))
    ends = (rank.embeds, rank.yields_logits)
    share = float(any(ends)) if arch.tied_embeddings else sum(ends) / 2.0
    for split, size in whole.layers.items():
        yield split, size / float(divisors[split][0])
    for split, size in whole.ends.items():
        yield split, share * size / float(divisors[split][0])


def rank_memory_bytes(arch: Architecture, rank: RankSpec, case: StepCase, micro_batches: int = 1) -> float:
    """Weights, KV cache and live activations of a serving step on one rank; nothing of an engine around them.

    Every micro-batch on its way through the stages has a cache of its own. Live are the widest moment of a layer, or
    the cache of one layer out of its blocks.
    """
    own, shards, work = rank_arch(arch, rank), rank_shards(rank), step_work(case, rank)
    tp = shards.tp.astype(np.int64)
    state = float(state_bytes_per_sequence(own, tp)[0])
    prefill = float(kv_bytes(own, case.prefill_context + case.prefill_tokens, tp)[0]) + state
    decode = float(kv_bytes(own, case.decode_context + 1, tp)[0]) + state
    cache = case.prefill_sequences * prefill + case.decode_sequences * decode
    live = float(activation_bytes(own, shards, work.tokens, work.sampled * rank.yields_logits)[0])
    return rank_weight_bytes(arch, rank) + micro_batches * cache + max(live, _largest_gather_bytes(own, shards, case))


def _largest_gather_bytes(own: Architecture, shards: Shards, case: StepCase) -> float:
    """The cached tokens of one layer in order: they are gone again when logits are there."""
    copies = kv_gathers(own, shards, _gathered_tokens(case))
    return max((float(op.size_bytes[0]) / 2.0 for op in copies if isinstance(op, MemoryPass)), default=0.0)


def request_kv_bytes(arch: Architecture, rank: RankSpec, tokens: int) -> float:
    """Bytes of the KV cache of one sequence on one rank."""
    own, tp = rank_arch(arch, rank), rank_shards(rank).tp.astype(np.int64)
    return float(kv_bytes(own, tokens, tp)[0] + state_bytes_per_sequence(own, tp)[0])
