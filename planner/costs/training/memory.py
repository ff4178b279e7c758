"""Training memory of each pipeline rank: weights, gradients, optimizer state, activations in flight, buffers."""

from dataclasses import dataclass

from planner.costs.training.activations import layer_activations, stage_bytes
from planner.costs.training.config import Shard, TrainingConfig, stages_of_rank
from planner.costs.training.parameters import (
    StateBytes,
    layer_parameters,
    lora_state_bytes,
    rank_parameters,
    state_bytes,
)
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.stages import stage_contents
from planner.models.architecture import DenseFfn, GroupedQueryAttention, LatentAttention, Layer, MoeFfn

BF16 = 2.0
OUTPUT_GRADIENT_BYTES = 3.75  # per element of the output matrix, measured: docs/training-accuracy.md


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes at the fullest moment of one pipeline rank."""

    state: StateBytes
    activations_bytes: float
    ends_bytes: float  # logits and loss of one micro-batch
    buffers_bytes: float  # what one layer needs while it runs
    context_bytes: float  # what the driver and the communication library hold beside the allocator

    @property
    def allocated_bytes(self) -> float:
        """The peak of the framework's allocator; the loss and the backward pass of a layer are not at the same time."""
        return self.state.total_bytes + self.activations_bytes + max(self.ends_bytes, self.buffers_bytes)

    @property
    def total_bytes(self) -> float:
        """What must fit into the device."""
        return self.allocated_bytes + self.context_bytes


def memory(config: TrainingConfig, rates: Rates | None = None) -> RankMemory:
    """The fullest pipeline rank."""
    ranks = {0, min(1, config.pp - 1), config.pp - 1}
    return max((rank_memory(config, rank, rates) for rank in ranks), key=lambda usage: usage.total_bytes)


def rank_memory(config: TrainingConfig, rank: int, rates: Rates | None = None) -> RankMemory:
    """One pipeline rank."""
    known = rates or default_rates()
    parameters = rank_parameters(config, rank)
    last = config.pp * config.vpp - 1 in stages_of_rank(config)[rank]
    return RankMemory(
        state=state_bytes(config, parameters) + lora_state_bytes(config, parameters),
        activations_bytes=activations_bytes(config, rank),
        ends_bytes=ends_bytes(config) if last else 0.0,
        buffers_bytes=buffers_bytes(config, rank),
        context_bytes=known.get("memory.context_bytes"),
    )


def activations_bytes(config: TrainingConfig, rank: int) -> float:
    """Activations of the layers of a rank, for all micro-batches that are in flight there at once."""
    if "activations" in config.offload:
        return 0.0
    contents = stage_contents(config)
    stages = zip(stages_of_rank(config)[rank], chunks_in_flight(config, rank), strict=False)
    return sum(stage_bytes(config, contents[stage]) * in_flight for stage, in_flight in stages)


def chunks_in_flight(config: TrainingConfig, rank: int) -> tuple[float, ...]:
    """Micro-batches whose activations each of the vpp stages of a rank holds at the fullest moment.

    1F1B holds min(m, p - i) on rank i (arXiv:2104.04473, section 2.2.1); interleaving holds p (v - 1) + 2 (p - i) - 1
    chunks of 1/v (section 2.2.2), the first chunks p of them each and the last what is over; ZB-H2 2 p - 1, ZB-V and
    ZB-H1 p (arXiv:2401.10241, section 6); DualPipe p + 1 (its README).
    """
    p, v, m = config.pp, config.vpp, config.num_micro_batches
    match config.schedule:
        case "interleaved" if v > 1:
            chunks = min(p * (v - 1) + 2 * (p - rank) - 1, m * v)
            return tuple(float(n) for n in _interleaved(chunks, min(p, m), v))
        case "zb_h1":
            in_flight = p
        case "zb_h2":
            in_flight = 2 * p - 1
        case "zb_v":
            return tuple(min(m, p / v) for _ in range(v)) if v > 1 else (float(min(m, p)),)
        case "dualpipe" | "dualpipev":
            in_flight = p + 1
        case _:
            in_flight = p - rank
    return tuple(float(min(m, in_flight)) for _ in range(v))


def _interleaved(chunks: int, group: int, v: int) -> list[int]:
    """Chunks in flight by stage of the rank: micro-batches pass in groups, each through all of its stages in turn."""
    whole, over = divmod(chunks, group * v)
    return [whole * group + min(max(over - stage * group, 0), group) for stage in range(v)]


def ends_bytes(config: TrainingConfig) -> float:
    """Loss of one micro-batch at its fullest: its input, logits as the framework keeps them, and the gradient of the
    output matrix before it is added up, in bf16 and as the fp32 addend."""
    shard = config.shard
    logits = shard.tokens * config.arch.vocab_size / config.tp
    matrix = config.arch.vocab_size * config.arch.hidden_size / config.tp
    gradient = 0.0 if config.task == "lora" else matrix * OUTPUT_GRADIENT_BYTES
    return logits * config.framework.logit_bytes + gradient + shard.tokens * shard.hidden * BF16 / shard.spread


def working_bytes(layer: Layer, shard: Shard) -> float:
    """One layer's backward pass at its widest: gradients of the feed-forward part, and gathered activations."""
    wide = shard.tokens * shard.hidden * BF16
    gathered = 4.0 * wide if shard.sequence_parallel else 2.0 * wide
    if isinstance(layer.ffn, DenseFfn):
        inner = shard.tokens * layer.ffn.intermediate_size / shard.tp
        return gathered + inner * BF16 * (3.0 if layer.ffn.gated else 2.0)
    if isinstance(layer.ffn, MoeFfn):
        rows = shard.tokens / shard.tp * layer.ffn.experts_per_token * shard.etp
        inner = rows * layer.ffn.intermediate_size / shard.etp
        return gathered + inner * BF16 * 3.0 + 2.0 * rows * shard.hidden * BF16
    return gathered


def gathered_kv_bytes(layer: Layer, shard: Shard) -> float:
    """Keys and values of all context-parallel ranks with their gradients, where a layer gathers them."""
    if shard.cp == 1 or shard.context_parallel != "all_gather":
        return 0.0
    match layer.mixer:
        case GroupedQueryAttention() as mixer:
            values = max(mixer.num_kv_heads / shard.tp, 1.0) * (mixer.head_dim + mixer.v_head_dim)
        case LatentAttention() as mixer:
            values = mixer.num_heads / shard.tp * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
        case _:
            return 0.0
    return 2.0 * shard.tokens * shard.cp * values * BF16


def buffers_bytes(config: TrainingConfig, rank: int) -> float:
    """What one layer needs while it runs: its gradients, its weights gathered under ZeRO-3, and under full
    recomputation its activations once more."""
    contents = stage_contents(config)
    parts = [part for stage in stages_of_rank(config)[rank] for part in contents[stage]]
    layers = [part.layer for part in parts if part.part == "layer" and part.layer is not None]
    if not layers:
        return 0.0
    shard = config.shard
    size = max(working_bytes(layer, shard) + gathered_kv_bytes(layer, shard) for layer in layers)
    if config.zero_stage == 3:
        parameters = [layer_parameters(x, config.arch.hidden_size, config.tp, config.ep, config.etp) for x in layers]
        size += max(p.total for p in parameters) * (2.0 * BF16 + config.framework.reduce_bytes)
    if config.recompute.granularity == "full":
        size += max(layer_activations(layer, shard).total_bytes for layer in layers)
    return size
