"""Training memory of each pipeline rank: weights, gradients, optimizer state, activations in flight, what is at work.

Training plans are chosen by these functions, rows of measured runs are estimated by them, and RL plans take them for
the models that they train. A rank is fullest as a backward pass begins: all activations that its schedule leaves in
flight are there, and beside them either the loss of a micro-batch, or one layer at work, whichever is larger
(Korthikanti et al., arXiv:2205.05198, section 4, count the activations; the allocator of SimuMax's runs shows that the
loss and the gradients of a layer are not there at the same time: docs/training-accuracy.md). Shape suffixes: S stage,
R rank of the pipeline.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.attention_core import attention_core
from planner.costs.operators.context import kv_values
from planner.costs.operators.products import Projection, dense_products, mixer_products
from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.activations import LayerActivations, layer_activations, product_input, stage_bytes
from planner.costs.training.config import RecomputeConfig, Shard, TrainingConfig, stages_of_rank
from planner.costs.training.parameters import (
    host_state_bytes,
    layer_parameters,
    lora_state_bytes,
    parameters_of_ranks,
    state_bytes,
)
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.stages import stage_contents
from planner.models.architecture import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, MoeFfn
from planner.solvers.schedules.pipeline import orders, peak_resident

BF16 = 2.0
ROUNDS_TO_FILL = 4
"""Micro-batches for each rank after which no schedule has more in flight."""


@dataclass(frozen=True, slots=True, eq=False)
class RankBytes:
    """Bytes at the fullest moment of each rank of the pipeline [R]."""

    weights_R: Floats
    gradients_R: Floats
    optimizer_R: Floats
    activations_R: Floats
    workspace_R: Floats  # what is at work, and what driver and communication library hold beside the allocator
    host_R: Floats  # of host memory: states that the host updates, and activations that lie there

    @property
    def state_R(self) -> Floats:
        """What is kept between two steps."""
        return self.weights_R + self.gradients_R + self.optimizer_R

    @property
    def total_R(self) -> Floats:
        """What must fit into the device."""
        return self.state_R + self.activations_R + self.workspace_R


@dataclass(frozen=True, slots=True)
class WorkBytes:
    """What passes take while they run, beside what is kept for later ones: never both at the same time."""

    layer_bytes: float  # one layer, at its widest
    loss_bytes: float  # the loss of one micro-batch

    @property
    def on_last_bytes(self) -> float:
        """Of the rank that holds the loss."""
        return max(self.layer_bytes, self.loss_bytes)


def memory(config: TrainingConfig, rates: Rates | None = None) -> RankBytes:
    """Every rank of the pipeline; raises PlannerError for sizes that its schedule has no order for."""
    context_bytes = (rates or default_rates()).get("memory.context_bytes")
    ranks = stages_of_rank(config)
    held = parameters_of_ranks(config)
    states = [state_bytes(config, own) + lora_state_bytes(config, own) for own in held]
    work, last = work_bytes(config), config.pp * config.vpp - 1
    work_R = [work.on_last_bytes if last in stages else work.layer_bytes for stages in ranks]
    sizes = (config.schedule, config.pp, config.vpp, config.num_micro_batches)
    kept_S, moved_S = _stage_bytes(config)
    return RankBytes(
        np.array([state.weights_bytes for state in states]),
        np.array([state.gradients_bytes for state in states]),
        np.array([state.optimizer_bytes for state in states]),
        in_flight_bytes(*sizes, kept_S),
        np.array(work_R) + context_bytes,
        np.array([host_state_bytes(config, own) for own in held]) + in_flight_bytes(*sizes, moved_S),
    )


def _stage_bytes(config: TrainingConfig) -> tuple[Floats, Floats]:
    """Activations of one micro-batch that each stage keeps on the device, and on the host [S]."""
    all_S = np.array([stage_bytes(config, parts) for parts in stage_contents(config)])
    return (1.0 - config.moved_share) * all_S, config.moved_share * all_S


def in_flight_bytes(schedule: str, pp: int, vpp: int, num_micro_batches: int, kept_S: Floats) -> Floats:
    """The most that each rank holds [R] of activations where its stages keep these bytes of a micro-batch.

    Read off the order of the schedule's passes: 1F1B holds min(m, p - i) micro-batches on rank i (arXiv:2104.04473,
    section 2.2.1), interleaving p (v - 1) + 2 (p - i) - 1 chunks of 1/v (section 2.2.2), ZB-H2 2 p - 1, ZB-V and ZB-H1
    p (arXiv:2401.10241, section 6), DualPipe p + 1 (its README).
    """
    if pp == 1:
        return np.array([kept_S.sum()])
    if not kept_S.any():
        return np.zeros(pp)
    order = orders(schedule, pp, vpp, min(num_micro_batches, ROUNDS_TO_FILL * pp))
    return peak_resident(order, kept_S, kept_S)


def work_bytes(config: TrainingConfig) -> WorkBytes:
    """What is at work under this configuration, its widest layer taken to be on every rank."""
    shard, layers = config.shard, [layer for layer, _ in config.arch.layer_groups()]
    size = max(working_bytes(layer, shard) + gathered_kv_bytes(layer, shard) for layer in layers)
    kept = [layer_activations(layer, shard) for layer in layers]
    size += again_bytes(kept, config.recompute, offloaded="activations" in config.offload)
    loss, standing = loss_bytes(config), placeholder_bytes(config)
    if config.zero_stage >= 2:
        held = [layer_parameters(layer, shard.hidden, config.tp, config.ep, config.etp).total for layer in layers]
        size = _with_exchanged(config, size, max(held))
    if config.zero_stage == 3:
        loss += config.arch.vocab_size * shard.hidden / config.tp * BF16  # the output matrix
    return WorkBytes(size + standing, loss + standing)


def placeholder_bytes(config: TrainingConfig) -> float:
    """Stand-ins for the gradients of weights, one for every shape of a weight, on every rank and for good.

    Products that add their gradients up in place hand them to autograd (`get_dummy_wgrad` of transformer_engine/
    pytorch/module/base.py, since release 2.3); the output matrix, which is not Transformer Engine's, has its own while
    it is at work (`loss_bytes`). Shapes of the whole model are taken to be on every rank.
    """
    if not config.framework.gradient_placeholders or config.task == "lora":
        return 0.0
    layers, shard = [layer for layer, _ in config.arch.layer_groups()], config.shard
    shapes = {(float(each.depth), float(each.columns)) for layer in layers for each in _weights(layer, shard)}
    return sum(depth * columns for depth, columns in shapes) * BF16


def _weights(layer: Layer, shard: Shard) -> Iterator[Projection]:
    """The products of a layer with weights of a rank's own, one expert for all."""
    if layer.mixer is not None:
        yield from mixer_products(layer.mixer, shard.hidden, shard.tp)
    match layer.ffn:
        case DenseFfn(intermediate_size=inner, gated=gated):
            yield from dense_products("ffn", "mlp", inner, gated, shard.hidden, shard.tp)
        case MoeFfn() as ffn:
            width = ffn.latent_size or shard.hidden
            yield from dense_products("expert", "moe", ffn.intermediate_size, ffn.gated, width, shard.etp)
            if ffn.shared_intermediate_size:
                shared = ffn.shared_intermediate_size
                yield from dense_products("shared_expert", "moe", shared, ffn.gated, shard.hidden, shard.tp)
        case None:
            pass


def _with_exchanged(config: TrainingConfig, layer_bytes: float, elements: float) -> float:
    """What a layer at work takes with the whole weights (ZeRO-3) and gradients (ZeRO-2 and 3) that pass through.

    The next layer's weights are gathered ahead (arXiv:2304.11277, section 3.3.2), and gradients are made while those of
    the layer before are on their way. Megatron-FSDP has one buffer for all gradients of a layer, in the format that it
    adds up and sends (`fetch_bucket` of megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py);
    FSDP2 makes them one by one in 16 bits as activations are freed, and waits for the exchange before as it begins the
    next (`post_backward` of torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    code = config.framework
    passing = 2.0 * BF16 * elements if config.zero_stage == 3 else 0.0
    if config.task == "lora":
        return layer_bytes + passing
    sent = elements * code.reduce_bytes
    if code.whole_gradients:
        return layer_bytes + passing + 2.0 * sent
    return max(layer_bytes, elements * BF16) + passing + sent


def again_bytes(kept: Iterable[LayerActivations], recompute: RecomputeConfig, *, offloaded: bool) -> float:
    """Activations of one layer that are on the device only while its backward pass runs.

    All of them where they are fetched from the host, all but what is kept of a layer that is computed again whole or by
    operator. Of single modules those of the feed-forward part count, whose backward pass comes first; as that of the
    attention begins, they are freed.
    """
    if offloaded:
        return max(layer.total_bytes for layer in kept)
    match recompute.granularity:
        case "full":
            return max(layer.total_bytes - layer.input_bytes for layer in kept)
        case "selective":
            first = set(recompute.modules) & {BY_OPERATOR, "mlp", "moe", "moe_activation"}
            return max(layer.total_bytes - layer.without(first) for layer in kept)
        case _:
            return 0.0


def loss_bytes(config: TrainingConfig) -> float:
    """Loss of one micro-batch at its fullest, beside input and output of the last norm: logits as the code keeps them,
    or behind them the gradients of the output product: of logits, of its matrix in 16 bits (and as it is sent, where
    ZeRO scatters it), and of its input, which sequence-parallel ranks gather and scatter."""
    shard, code = config.shard, config.framework
    logits = shard.tokens * config.arch.vocab_size / config.tp
    matrix = config.arch.vocab_size * config.arch.hidden_size / config.tp
    width = BF16 + (code.reduce_bytes if config.zero_stage >= 2 else 0.0)
    gradient = 0.0 if config.task == "lora" else matrix * width
    wide = shard.tokens * shard.hidden * BF16
    own = wide / shard.spread
    moved = wide + own if shard.sequence_parallel else 0.0
    behind = logits * min(code.logit_bytes, BF16) + gradient + wide + moved
    return 2.0 * own + max(logits * code.logit_bytes, behind)


def working_bytes(layer: Layer, shard: Shard) -> float:
    """One layer's backward pass at its widest, beside all that its forward pass keeps.

    The gradient of its output stays for the residual. Of a dense part the widest moment is that of the last product,
    whose gathered gradient and that of its input are there; of the activation, for which that product's input is freed;
    or of the first products, whose gathered input and its gradient are. Experts have rows sent and received beside all
    gradients, for streams hold what they exchange.
    """
    wide = shard.tokens * shard.hidden * BF16
    own, gathered = wide / shard.spread, wide if shard.sequence_parallel else 0.0
    match layer.ffn:
        case DenseFfn(intermediate_size=size, gated=gated):
            values = shard.tokens * size / shard.tp
            inner, freed = values * BF16, product_input(shard, values, adapted=False)
            between = inner * (3.0 if gated else 2.0) - freed
            return own + max(gathered + inner, between, wide + gathered + own - freed)
        case MoeFfn() as ffn:
            uneven = shard.expert_load.of_rank(ffn.num_experts, shard.ep)
            rows = shard.tokens / shard.tp * ffn.experts_per_token * shard.etp * uneven
            inner = rows * ffn.intermediate_size / shard.etp
            return own + wide + 2.0 * gathered + inner * BF16 * 3.0 + 2.0 * rows * shard.hidden * BF16
        case None:
            return own + wide + 2.0 * gathered


def allocated_bytes(config: TrainingConfig, rates: Rates | None = None) -> float:
    """The peak of the framework's allocator on the fullest rank, without what driver and library hold beside it."""
    known = rates or default_rates()
    return float(memory(config, known).total_R.max()) - known.get("memory.context_bytes")


def gathered_kv_bytes(layer: Layer, shard: Shard) -> float:
    """Keys and values of all context-parallel ranks with their gradients, where a layer gathers them."""
    if shard.cp == 1 or shard.context_parallel != "all_gather":
        return 0.0
    if not isinstance(layer.mixer, GroupedQueryAttention | LatentAttention):
        return 0.0
    values = float(kv_values(attention_core(layer.mixer, shard.tp)))
    return 2.0 * shard.tokens * shard.cp * values * BF16
