"""Training kernels of the token mixer: projections, softmax attention fused or not, latent attention, scans."""

from collections.abc import Callable, Iterator
from typing import Any

from planner.costs.operators.attention_core import (
    BACKWARD_BYTES,
    BACKWARD_KERNELS,
    CORE,
    AttentionCore,
    attention_core,
    backward_products,
    core_bytes,
    core_flop,
    keys_in_reach,
    prompt_pairs,
)
from planner.costs.operators.context import context_part, head_part, kv_values, query_values
from planner.costs.operators.elementwise import (
    ACTIVATION_BYTES,
    convolution,
    expanded_keys,
    gate_and_norm,
    rotation,
)
from planner.costs.operators.products import SCAN_BACKWARD, mixer_products, rotated_values, scan_widths
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel
from planner.costs.training.layers.linear import products_kernels
from planner.costs.training.layers.sizes import collectives, memory_pass, pass_kernels, product, scatter
from planner.errors import PlannerError
from planner.models.architecture import GroupedQueryAttention, LatentAttention, LinearAttention, Mixer, UnsupportedMixer

SCAN_KERNELS = (5.0, 13.0)
"""Of a chunked scan, forward and backward: cumulative sums, states of chunks, their passing on, products of queries
and keys, outputs; the first four again, and nine for the gradients (`ssd_combined.py` of state-spaces/mamba)."""


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
            widths = scan_widths(mixer, shard.tp)
            return float(widths.keys + 2.0 * widths.values), float(widths.values)
        case UnsupportedMixer():
            return 0.0, 0.0


def _grouped(machine: Machine, mixer: GroupedQueryAttention, shard: Shard) -> Iterator[Kernel]:
    core = attention_core(mixer, shard.tp)
    *entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, entering)
    yield from pass_kernels(machine, rotation(shard.tokens * rotated_values(mixer, shard.tp), 2.0, shard.code))
    yield from _core(machine, shard, core)
    yield from _context_exchange(machine, shard, core)
    yield from products_kernels(machine, shard, (leaving,))


def _latent(machine: Machine, mixer: LatentAttention, shard: Shard) -> Iterator[Kernel]:
    """Multi-head latent attention with keys and values expanded (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    core = attention_core(mixer, shard.tp)
    *entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    yield from products_kernels(machine, shard, entering)
    read, written = core.heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), kv_values(core)
    yield from pass_kernels(machine, rotation(shard.tokens * rotated_values(mixer, shard.tp), 2.0, shard.code))
    yield from pass_kernels(machine, expanded_keys(shard.tokens * read, shard.tokens * written))
    yield from _core(machine, shard, core)
    yield from _context_exchange(machine, shard, core)
    yield from products_kernels(machine, shard, (leaving,))


def _core(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    yield from (_unfused if shard.scores_written else _flash)(machine, shard, core)


def _flash(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    """FlashAttention: causal pairs only; with more ranks a part of the sequence, or of the heads, on each.

    Of a sequence that is packed of documents each attends to itself alone.
    """
    length = shard.document_tokens or float(shard.sequence_tokens)
    count = shard.sequences * shard.sequence_tokens / length
    new, front = context_part(length, shard.cp)
    if shard.cp > 1 and shard.context_parallel == "ulysses":
        new, front, core = length, 0.0, head_part(core, shard.cp)
    heads, kv_heads, sizes = float(core.heads), float(core.kv_heads), (core.head_dim, core.v_head_dim)
    pairs = float(prompt_pairs(new, front, core.window, chunked=core.chunked))
    keys = float(keys_in_reach(new, front, core.window, chunked=core.chunked))
    once = core_flop(count, heads, pairs, *sizes) / machine.peak_flop_per_s["bf16"]
    moved = count * core_bytes(keys, kv_heads, new, heads, sum(sizes), ACTIVATION_BYTES)
    move_s = moved / machine.memory_bandwidth_bytes_per_s
    yield Kernel(f"attention.{shard.attention}", FORWARD, CORE, once, move_s)
    yield Kernel(
        f"attention_backward.{shard.attention}", BACKWARD_INPUT, CORE, backward_products(*sizes) * once,
        BACKWARD_BYTES * move_s, launches=BACKWARD_KERNELS,
    )  # fmt: skip


def _unfused(machine: Machine, shard: Shard, core: AttentionCore) -> Iterator[Kernel]:
    """Scores written out: two batched products over all pairs, scale-mask-softmax and any dropout in between."""
    length, rows = float(shard.sequence_tokens), shard.sequence_tokens / shard.cp
    batch = shard.sequences * float(core.heads)
    scores = batch * rows * length
    for part, products in ((FORWARD, 1.0), (BACKWARD_INPUT, 2.0)):
        for depth in (core.head_dim, core.v_head_dim):
            yield product(machine, "bmm", part, CORE, rows, length, depth, "bf16", batch, products)
        dropped = 5.0 if shard.attention_dropout else 0.0  # 2 + 2, and a mask of 1
        moved = scores * ((4.0 if part == FORWARD else 6.0) + dropped)  # softmax 2 + 2; gradients read its output too
        yield memory_pass(machine, "scores", part, CORE, moved, 2.0)


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
    for part, kinds in ((FORWARD, ("all_gather",)), (BACKWARD_INPUT, ("all_gather", "reduce_scatter"))):
        match shard.context_parallel:
            case "ulysses":
                size = shard.tokens * (queries + keys) * ACTIVATION_BYTES
                moved = scatter(machine, "cp.heads", part, CORE, size, shard.cp, shard.tp, 1.0)
                yield moved._replace(launches=2.0)
            case "all_gather":
                size = shard.tokens * shard.cp * keys * ACTIVATION_BYTES
                yield collectives(machine, "cp.gather", part, CORE, size, shard.cp, shard.tp, kinds)
            case _:
                size = shard.tokens * shard.cp * keys * ACTIVATION_BYTES
                moved = collectives(machine, "cp", part, CORE, size, shard.cp, shard.tp, kinds)
                yield moved._replace(launches=moved.launches * (shard.cp - 1))


def _recurrent(machine: Machine, mixer: LinearAttention, shard: Shard) -> Iterator[Kernel]:
    """Projections, and by the rates of the scan a short convolution, a chunked scan, a gate and a norm.

    Megatron-LM runs those between the projections as one operator (`mamba_split_conv1d_scan_combined`).
    """
    entering, leaving = mixer_products(mixer, shard.hidden, shard.tp)
    widths = scan_widths(mixer, shard.tp)
    yield from products_kernels(machine, shard, (entering,))
    if mixer.conv_kernel:
        yield from pass_kernels(machine, convolution(shard.tokens * (widths.keys + widths.values)), kind="scan")
    once = float(widths.flop_per_token) * shard.tokens / machine.peak_flop_per_s["bf16"]
    moved = float(widths.moved_values) * shard.tokens * ACTIVATION_BYTES / machine.memory_bandwidth_bytes_per_s
    again = SCAN_BACKWARD
    yield Kernel("scan", FORWARD, CORE, once, moved, launches=SCAN_KERNELS[0])
    yield Kernel("scan", BACKWARD_INPUT, CORE, again * once, again * moved, launches=SCAN_KERNELS[1])
    yield from pass_kernels(machine, gate_and_norm(shard.tokens * widths.values), kind="scan")
    yield from products_kernels(machine, shard, (leaving,))


_KERNELS_OF: dict[type, Callable[[Machine, Any, Shard], Iterator[Kernel]]] = {
    GroupedQueryAttention: _grouped,
    LatentAttention: _latent,
    LinearAttention: _recurrent,
}
