"""Training kernels of the token mixer: projections, softmax attention fused or not, latent attention, scans."""

from collections.abc import Callable, Iterator
from typing import Any

from planner.costs.operators.attention_core import (
    BACKWARD_BYTES,
    BACKWARD_KERNELS,
    AttentionCore,
    attention_core,
    backward_products,
    core_bytes,
    core_flop,
    keys_in_reach,
    prompt_pairs,
)
from planner.costs.operators.context import context_part, head_part, kv_values, query_values
from planner.costs.operators.products import mixer_products, scan_flop_per_token
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.linear import products_kernels
from planner.costs.training.layers.sizes import memory_pass, product, scatter, sweep
from planner.errors import PlannerError
from planner.models.architecture import GroupedQueryAttention, LatentAttention, LinearAttention, Mixer, UnsupportedMixer

ACTIVATION_BYTES = 2.0
_CORE = "core_attention"


def attention_kernels(machine: Machine, mixer: Mixer, shard: Shard) -> Iterator[Kernel]:
    """Every kernel of the mixer, without the norm in front of it and the exchange behind it.

    Raises PlannerError for a mixer without a cost model.
    """
    if isinstance(mixer, UnsupportedMixer):
        raise PlannerError(
            f"{mixer.kind} has no cost model",
            hint="choose a model whose layers all have costs; `planner models show` tells which do",
        )
    yield from _KERNELS_OF[type(mixer)](machine, mixer, shard)


def mixer_widths(mixer: Mixer, shard: Shard) -> tuple[float, float]:
    """Columns of a rank's first projections together, and rows of its last one, which exchanges are hidden behind."""
    match mixer:
        case GroupedQueryAttention():
            core = attention_core(mixer, shard.tp)
            return float(core.heads * core.head_dim + kv_values(core)), float(core.heads * core.v_head_dim)
        case LatentAttention():
            core = attention_core(mixer, shard.tp)
            return float(core.heads * core.head_dim), float(core.heads * core.v_head_dim)
        case LinearAttention():
            values = max(mixer.num_value_heads / shard.tp, 1.0) * mixer.value_head_dim
            keys = 2.0 * max(mixer.num_key_heads / shard.tp, 1.0) * mixer.key_head_dim
            return keys + 2.0 * values, values
        case UnsupportedMixer():
            return 0.0, 0.0


def _grouped(machine: Machine, mixer: GroupedQueryAttention, shard: Shard) -> Iterator[Kernel]:
    core = attention_core(mixer, shard.tp)
    queries, keys = float(core.heads * core.head_dim), float(kv_values(core))
    *entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, entering)
    moved = 2.0 * shard.tokens * (queries + keys) * ACTIVATION_BYTES
    copies = 1.0 if shard.fused else 2.0
    yield memory_pass(machine, "elementwise", FORWARD, "attention", copies * moved, 2.0 * copies)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, "attention", copies * moved, 2.0 * copies)
    yield from _core(machine, shard, core)
    yield from _context_exchange(machine, shard, core)
    yield from products_kernels(machine, shard, (leaving,))


def _latent(machine: Machine, mixer: LatentAttention, shard: Shard) -> Iterator[Kernel]:
    """Multi-head latent attention with keys and values expanded (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    core = attention_core(mixer, shard.tp)
    heads, query_dim = float(core.heads), core.head_dim
    latent = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    *entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, entering)
    expanded = heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    moved = 2.0 * shard.tokens * (2.0 * heads * query_dim + expanded + latent) * ACTIVATION_BYTES
    yield memory_pass(machine, "elementwise", FORWARD, "attention", moved, 5.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, "attention", moved, 5.0)
    yield from _core(machine, shard, core)
    yield from _context_exchange(machine, shard, core)
    yield from products_kernels(machine, shard, (leaving,))


def _core(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    yield from (_unfused if shard.scores_written else _flash)(machine, shard, core)


def _flash(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    """FlashAttention: causal pairs only; with more ranks a part of the sequence, or of the heads, on each."""
    new, front = context_part(float(shard.sequence_tokens), shard.cp)
    if shard.cp > 1 and shard.context_parallel == "ulysses":
        new, front, core = float(shard.sequence_tokens), 0.0, head_part(core, shard.cp)
    heads, kv_heads, sizes = float(core.heads), float(core.kv_heads), (core.head_dim, core.v_head_dim)
    pairs = float(prompt_pairs(new, front, core.window, chunked=core.chunked))
    keys = float(keys_in_reach(new, front, core.window, chunked=core.chunked))
    once = core_flop(float(shard.sequences), heads, pairs, *sizes) / machine.peak_flop_per_s["bf16"]
    moved = shard.sequences * core_bytes(keys, kv_heads, new, heads, sum(sizes), ACTIVATION_BYTES)
    move_s = moved / machine.memory_bandwidth_bytes_per_s
    yield Kernel(f"attention.{shard.attention}", FORWARD, _CORE, once, move_s)
    yield Kernel(
        f"attention_backward.{shard.attention}", BACKWARD_INPUT, _CORE, backward_products(*sizes) * once,
        BACKWARD_BYTES * move_s, launches=BACKWARD_KERNELS,
    )  # fmt: skip


def _unfused(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    """Scores written out: two batched products over all pairs, scale-mask-softmax and dropout in between."""
    length, rows = float(shard.sequence_tokens), shard.sequence_tokens / shard.cp
    batch = shard.sequences * float(core.heads)
    scores = batch * rows * length
    for part, products in ((FORWARD, 1.0), (BACKWARD_INPUT, 2.0)):
        for depth in (core.head_dim, core.v_head_dim):
            yield product(machine, "bmm", part, _CORE, rows, length, depth, "bf16", batch, products)
        moved = scores * (9.0 if part == FORWARD else 11.0)  # softmax 2 + 2, dropout 2 + 2 + 1; gradients read more
        yield memory_pass(machine, "scores", part, _CORE, moved, 2.0)


def _context_exchange(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    """What context-parallel ranks exchange for the attention.

    ring        keys and values go round beside the attention on those at hand, an exchange for each of the other ranks;
                in the backward pass their gradients go with them (Liu et al., arXiv:2310.01889, section 3)
    all_gather  keys and values of all ranks first, and again in the backward pass, before their gradients are
                scattered: nothing runs beside it (Llama 3, arXiv:2407.21783, section 3.3.2)
    ulysses     queries, keys and values change from a part of the sequence to a part of the heads, and outputs back:
                all-to-alls of a rank's own tokens before and behind the attention (arXiv:2309.14509, section 3)
    """
    if shard.cp == 1:
        return
    keys, queries = float(kv_values(core)), float(query_values(core))
    for part, runs in ((FORWARD, 1.0), (BACKWARD_INPUT, 2.0)):
        match shard.context_parallel:
            case "ulysses":
                size = shard.tokens * (queries + keys) * ACTIVATION_BYTES
                moved = scatter(machine, "cp.heads", part, _CORE, size, shard.cp, shard.tp, 1.0)
                yield moved._replace(launches=2.0)
            case "all_gather":
                size = shard.tokens * shard.cp * keys * ACTIVATION_BYTES
                yield sweep(machine, "cp.gather", part, _CORE, size, shard.cp, shard.tp, runs)
            case _:
                size = shard.tokens * shard.cp * keys * ACTIVATION_BYTES
                moved = sweep(machine, "cp", part, _CORE, size, shard.cp, shard.tp, runs)
                yield moved._replace(launches=runs * (shard.cp - 1))


def _recurrent(machine: Machine, mixer: LinearAttention, shard: Shard) -> Iterator[Kernel]:
    """Projections, a short convolution, and a chunked scan."""
    entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    value_heads = max(mixer.num_value_heads / shard.tp, 1.0)
    values = value_heads * mixer.value_head_dim
    keys = 2.0 * max(mixer.num_key_heads / shard.tp, 1.0) * mixer.key_head_dim
    yield from products_kernels(machine, shard, (entering,))
    flop = float(scan_flop_per_token(mixer, value_heads)) * shard.tokens
    once = flop / machine.peak_flop_per_s["bf16"]
    moved = shard.tokens * (keys + 3.0 * values) * 2.0 * ACTIVATION_BYTES / machine.memory_bandwidth_bytes_per_s
    yield Kernel("scan", FORWARD, _CORE, once, moved, launches=6.0)
    yield Kernel("scan", BACKWARD_INPUT, _CORE, 2.0 * once, 2.0 * moved, launches=10.0)
    yield from products_kernels(machine, shard, (leaving,))


_KERNELS_OF: dict[type, Callable[[Machine, Any, Shard], Iterator[Kernel]]] = {
    GroupedQueryAttention: _grouped,
    LatentAttention: _latent,
    LinearAttention: _recurrent,
}
