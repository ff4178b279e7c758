"""What the cost model says of one step of one rank: seconds by operator, and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.costs.backward import training_operators
from planner.costs.forward import forward
from planner.costs.memory import activation_bytes, footprint, weight_divisors
from planner.costs.operators import Operator
from planner.costs.shapes import Shards, Work
from planner.costs.step import Pricer
from planner.execute.cases import TRAIN, StepCase
from planner.execute.spec import RankSpec
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence

_FIRST_STAGE = ("embedding", "project_in")
_LAST_STAGE = ("logits", "sampling", "project_out", "cross_entropy", "loss_all_reduce", "flow_head")


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Predicted seconds of all runs of an operator in the step, and how many runs."""

    seconds: float
    count: float


def rank_arch(arch: Architecture, rank: RankSpec) -> Architecture:
    """The model with the layers of the rank's stages alone."""
    layers = tuple(arch.layers[layer] for stage in rank.stages for layer in stage.layers)
    return replace(arch, layers=layers)


def as_executed(arch: Architecture, plain: Sequence[str]) -> Architecture:
    """The model with matrices of the formats `plain`, and the KV cache, in bf16, as they ran."""
    formats = {part.name: getattr(arch.precisions, part.name) for part in fields(arch.precisions)}
    executed = {name: "bf16" if precision in plain else precision for name, precision in formats.items()}
    return replace(arch, precisions=replace(arch.precisions, **{**executed, "kv_cache": "bf16"}))


def rank_operators(arch: Architecture, rank: RankSpec, case: StepCase) -> list[Operator]:
    """The operators of one step of one rank: those of its layers, and of the ends of the model that it holds.

    A training step is the forward pass of one micro-batch, the gradients of its inputs and those of its weights.
    """
    own, shards, work = rank_arch(arch, rank), rank_shards(rank), step_work(case)
    if case.kind == TRAIN:
        parts = training_operators(own, shards, work)
        operators: Sequence[Operator] = [*parts.forward, *parts.backward_input, *parts.backward_weight]
    else:
        operators = forward(own, shards, work)
    return list(_held(operators, rank))


def rank_shards(rank: RankSpec) -> Shards:
    """The degrees of the rank's role [1], its stage apart from the others."""
    shape = rank.parallelism
    return Shards.of(tp=shape.tp, dp=shape.dp, moe_tp=shape.moe_tp, ep=shape.ep)


def step_work(case: StepCase) -> Work:
    """The step as the cost model takes it [1]."""
    new = case.prefill_sequences * case.prefill_tokens
    return Work.of(new, case.prefill_sequences, case.prefill_context, case.decode_sequences, case.decode_context)


def predict(operators: Sequence[Operator], pricer: Pricer) -> dict[str, OperatorTime]:
    """Seconds and runs by name."""
    found: dict[str, OperatorTime] = {}
    for op in operators:
        count = float(np.asarray(op.count).reshape(-1)[0])
        before = found.get(op.name, OperatorTime(0.0, 0.0))
        seconds = float(pricer.price(op).seconds[0]) * count
        found[op.name] = OperatorTime(before.seconds + seconds, before.count + count)
    return {name: time for name, time in found.items() if time.count > 0}


def rank_weight_bytes(arch: Architecture, rank: RankSpec) -> float:
    """Weights of the rank: those of its layers, and of the ends that it holds."""
    whole, divisors = footprint(rank_arch(arch, rank)), weight_divisors(arch, rank_shards(rank))
    layers = sum(size / float(divisors[split][0]) for split, size in whole.layers.items())
    ends = sum(size / float(divisors[split][0]) for split, size in whole.ends.items())
    embeds = any(stage.embeds for stage in rank.stages)
    yields = any(stage.yields_logits for stage in rank.stages)
    share = (embeds + yields) / 2.0 if not arch.tied_embeddings else float(embeds or yields)
    return layers + ends * share


def rank_memory_bytes(arch: Architecture, rank: RankSpec, case: StepCase) -> float:
    """Weights, KV cache and live activations of a serving step on one rank; nothing of an engine around them."""
    own, shards, work = rank_arch(arch, rank), rank_shards(rank), step_work(case)
    tp = shards.tp.astype(np.int64)
    state = float(state_bytes_per_sequence(own, tp)[0])
    prefill = float(kv_bytes(own, case.prefill_context + case.prefill_tokens, tp)[0]) + state
    decode = float(kv_bytes(own, case.decode_context + 1, tp)[0]) + state
    cache = case.prefill_sequences * prefill + case.decode_sequences * decode
    sampled = work.sampled * any(stage.yields_logits for stage in rank.stages)
    live = float(activation_bytes(own, shards, work.tokens, sampled)[0])
    return rank_weight_bytes(arch, rank) + cache + live


def request_kv_bytes(arch: Architecture, rank: RankSpec, tokens: int) -> float:
    """Bytes of the KV cache of one sequence on one rank."""
    own, tp = rank_arch(arch, rank), rank_shards(rank).tp.astype(np.int64)
    return float(kv_bytes(own, tokens, tp)[0] + state_bytes_per_sequence(own, tp)[0])


def _held(operators: Sequence[Operator], rank: RankSpec) -> Iterator[Operator]:
    embeds = any(stage.embeds for stage in rank.stages)
    yields = any(stage.yields_logits for stage in rank.stages)
    for op in operators:
        if op.name.startswith(_FIRST_STAGE) and not embeds:
            continue
        if op.name.startswith(_LAST_STAGE) and not yields:
            continue
        yield op
