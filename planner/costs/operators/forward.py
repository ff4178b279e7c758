"""Lists the operators of a forward pass: architecture x shards x work in, kernels with their sizes out.

Sharding follows the engines: attention and dense FFN split by `tp` inside each attention-data-parallel rank, routed
experts by moe_tp x ep over all tp x dp ranks of a stage, embedding and logits by `tp`. Activations are bf16 in memory;
quantising them for 8- and 4-bit GEMMs is part of the GEMM, as kernel tables time it and as engines fuse it.
A token passes every layer, so with pipeline stages the operators are those of all stages together, and the result is
the latency of one micro-batch through the whole pipeline.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Bools, Floats
from planner.costs.operators.elementwise import (
    ACTIVATION_BYTES,
    SERVING,
    activation,
    adaptive_norm,
    embedding,
    norm,
    permutation,
    router_selection,
)
from planner.costs.operators.experts import distinct_places
from planner.costs.operators.kernels import Collective, Experts, Gemm, MemoryPass, Operator, quantises, run_of
from planner.costs.operators.mixers import mixer_operators
from planner.costs.operators.products import dense_products, sparse_products
from planner.costs.operators.step import Step, all_reduce, gemm, product
from planner.costs.operators.work import Shards, Work
from planner.errors import PlannerError
from planner.models.architecture import Architecture, DenseFfn, Ffn, Layer, Module, MoeFfn
from planner.models.modules import TIMESTEP_WIDTH

EXCHANGED = ("dispatch", "combine")
"""Tokens on their way to experts on other ranks and back."""
JOINT_OPERATORS = ("experts", "moe_all_gather_tokens", "moe_reduce_scatter")
"""What attention ranks that share experts do together: as long as the tokens of all of them ask for."""


def forward(arch: Architecture, shards: Shards, work: Work) -> list[Operator]:
    """Every operator of one step, layers of equal kind together.

    Raises PlannerError naming the layer type when the architecture holds one without a cost model.
    """
    reasons = arch.unsupported_parts()
    if reasons:
        raise PlannerError(
            f"{arch.name} cannot be priced: unsupported {'; '.join(reasons)}",
            hint="choose a model whose layers all have costs; `planner models show` tells which do",
        )
    step = Step(arch, shards, work)
    operators: list[Operator] = list(_ends(step))
    for layer, count in arch.layer_groups():
        operators += layer_operators(arch, shards, work, layer, float(count))
    operators += _pipeline(step)
    return operators


def layer_operators(arch: Architecture, shards: Shards, work: Work, layer: Layer, count: float) -> Iterator[Operator]:
    """Every operator of so many layers of one kind in a step."""
    step = Step(arch, shards, work)
    if layer.mixer is not None:
        yield from mixer_operators(step, layer.mixer, count)
    if layer.ffn is not None:
        yield from _ffn(step, layer.ffn, count)
    yield run_of(norm(step.tokens * arch.hidden_size, SERVING), count * layer.num_norms)


def ranks_in_step(arch: Architecture, dp: ArrayLike) -> Floats:
    """Attention ranks that make their steps together [N]: all of a stage where experts join them."""
    joined = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    return np.asarray(dp if joined else np.ones_like(dp), dtype=np.float64)


def _ends(step: Step) -> Iterator[Operator]:
    """Embedding, final norm, logits and sampling."""
    arch, tp = step.arch, step.shards.tp
    yield run_of(embedding(step.tokens * arch.hidden_size), 1.0)
    yield from all_reduce(step, "embedding_all_reduce", 1.0)
    sampled = step.work.sampled
    vocab, width = arch.vocab_size / tp, arch.embedding_size or arch.hidden_size
    if width != arch.hidden_size:
        yield gemm(step, "project_in", 1.0, arch.hidden_size, width, arch.precisions.embedding)
        out = step.one * width
        yield Gemm("project_out", 1.0, sampled, out, step.one * arch.hidden_size, arch.precisions.embedding)
    yield Gemm("logits", 1.0, sampled, vocab, step.one * width, arch.precisions.lm_head)
    gathered = sampled * arch.vocab_size * ACTIVATION_BYTES
    yield Collective("logits_all_gather", 1.0, "all_gather", gathered, tp, step.one)
    yield MemoryPass("sampling", 1.0, sampled * arch.vocab_size * 4.0 * 3.0, 4.0)
    for module in arch.modules:
        if module.kind == "flow_head" and module.steps_per_token:
            yield from _flow_head(step, module)


def _flow_head(step: Step, head: Module) -> Iterator[Operator]:
    """A denoising MLP that runs `steps_per_token` times for each sampled token, whole on every tensor-parallel rank.

    Each run projects latent, condition and time to the width of the blocks, and back; a block has an MLP and the matrix
    of its adaptive norm (NextStep-1, arXiv:2508.10711). Guidance by a second, unconditional pass is not counted.
    """
    runs, width, sampled = float(head.steps_per_token), head.hidden_size, step.work.sampled
    blocks = runs * head.num_layers
    sizes = (
        ("flow_head_up", blocks, head.intermediate_size, width),
        ("flow_head_down", blocks, width, head.intermediate_size),
        ("flow_head_modulation", blocks, 3 * width, width),
        ("flow_head_ends", runs, 2 * head.latent_size + head.condition_size + TIMESTEP_WIDTH, width),
        ("flow_head_time_and_final", runs, 3 * width, width),
    )
    for name, count, n, k in sizes:
        yield Gemm(name, count, sampled, step.one * n, step.one * k, step.arch.precisions.encoder)
    yield run_of(adaptive_norm("flow_head_norms", sampled * width), blocks)


FAR = float(1 << 40)  # a stride beyond every domain but the outermost


def _pipeline(step: Step) -> Iterator[Operator]:
    """Hand-over at each of the pp - 1 boundaries between stages; between pieces they leave the domain."""
    pp, cuts = step.shards.pp, step.shards.pieces - 1.0
    if np.all(pp <= 1):
        return
    size = step.tokens * step.arch.hidden_size * ACTIVATION_BYTES
    pair = np.where(pp > 1, 2.0, 1.0)
    yield Collective("stage_handover", pp - 1.0 - cuts, "p2p", size, pair, step.shards.tp * step.shards.dp)
    if np.any(cuts > 0):
        yield Collective("stage_handover_apart", cuts, "p2p", size, pair, np.full_like(pair, FAR))


def _ffn(step: Step, ffn: Ffn, count: float) -> Iterator[Operator]:
    if isinstance(ffn, DenseFfn):
        yield from _dense(step, "ffn", "mlp", count, ffn.intermediate_size, ffn.gated, step.arch.precisions.ffn)
        yield from all_reduce(step, "ffn_all_reduce", count, "mlp")
        return
    yield from _moe(step, ffn, count)


def _dense(
    step: Step, name: str, module: str, count: float, intermediate: int, gated: bool, precision: str
) -> Iterator[Operator]:
    up, down = dense_products(name, module, intermediate, gated, step.arch.hidden_size, step.shards.tp)
    yield product(step, (up,), up.name, count, precision)
    inner = step.tokens * down.depth
    yield run_of(activation(f"{name}_activation", up.module, inner, gated=gated, code=SERVING), count)
    yield product(step, (down,), down.name, count, precision)


def _moe(step: Step, ffn: MoeFfn, count: float) -> Iterator[Operator]:
    """Router, shared experts, dispatch, routed experts, combine."""
    arch, shards = step.arch, step.shards
    width = ffn.latent_size or arch.hidden_size
    products = sparse_products(ffn, arch.hidden_size)
    yield product(step, products, "router", count, "bf16")
    yield run_of(router_selection(step.tokens * ffn.num_experts, SERVING), count)
    if ffn.shared_intermediate_size:
        shared = arch.precisions.shared_experts
        yield from _dense(step, "shared_expert", "moe", count, ffn.shared_intermediate_size, ffn.gated, shared)
    if ffn.latent_size:
        for name in ("latent_down", "latent_up"):
            yield product(step, products, name, count, arch.precisions.shared_experts)
    yield from _dispatch(step, ffn, count, width)
    yield Experts(
        "experts",
        count,
        step.work.shared_tokens * shards.dp,
        shards.moe_tp,
        shards.ep,
        width,
        ffn.intermediate_size,
        ffn.experts_per_token,
        ffn.num_experts,
        ffn.gated,
        arch.precisions.experts,
        arch.precisions.expert_activation,
        exchanged=_exchanged(shards).astype(np.float64),
        redundant=shards.redundant,
        module="moe",
    )
    yield run_of(permutation(step.tokens * width, ffn.experts_per_token, SERVING), count)


def _exchanged(shards: Shards) -> Bools:
    """Where tokens of several attention-data-parallel ranks go to whole experts on other ranks.

    Where experts are split, every rank that has a part must see the token, and engines gather: all-to-all backends of
    SGLang set `ep_size` to all ranks (srt/server_args.py), vLLM's expert parallelism spans all, and TensorRT-LLM
    exchanges where an environment or a fabric of many nodes lets it (fused_moe_cutlass.py).
    """
    return (shards.dp > 1) & (shards.ep > 1) & (shards.moe_tp <= 1)


def _dispatch(step: Step, ffn: MoeFfn, count: float, width: int) -> Iterator[Operator]:
    """How tokens reach the experts and come back.

    Without attention data parallelism every rank holds every token, and one all-reduce over the tp ranks sums the
    partial outputs. With it, ranks that hold whole experts exchange tokens all to all, each token to at most min(top_k,
    ep) ranks, in fp8 where the experts take it and back in bf16; ranks that split experts gather all tokens and scatter
    the sums. Steps that prefill send a token once to each node and forward it inside; steps that only decode
    send every copy at once, for latency (DeepEP's normal and low-latency kernels).
    """
    shards, arch = step.shards, step.arch
    attention_only = shards.dp <= 1
    exchange = _exchanged(shards)
    gather = ~attention_only & ~exchange
    row = step.tokens * width
    if np.any(attention_only & (shards.tp > 1)):
        group = np.where(attention_only, shards.tp, 1.0)
        yield Collective("moe_all_reduce", count, "all_reduce", row * ACTIVATION_BYTES, group, step.one, module="moe")
    if np.any(exchange):
        sent_bytes = 1.0 if quantises(arch.precisions.experts) else ACTIVATION_BYTES
        copies = distinct_places(shards.ep, ffn.experts_per_token, ffn.num_experts)
        group = np.where(exchange, shards.ep, 1.0)
        per_rank = row / shards.tp * copies
        stride = shards.moe_tp
        bulk = (step.work.prefill_sequences > 0).astype(np.float64)
        for name, value_bytes in (("dispatch", sent_bytes), ("combine", ACTIVATION_BYTES)):
            yield Collective(
                name,
                count,
                "all_to_all",
                per_rank * value_bytes,
                group,
                stride,
                choices=ffn.experts_per_token,
                among=ffn.num_experts,
                forwarded=bulk,
                module="moe",
            )
        regroup = np.where(exchange, shards.tp, 1.0)
        yield Collective("moe_all_gather", count, "all_gather", row * ACTIVATION_BYTES, regroup, step.one, module="moe")
    if np.any(gather):
        group = np.where(gather, shards.dp, 1.0)
        whole = step.work.shared_tokens * width * shards.dp * ACTIVATION_BYTES
        yield Collective("moe_all_gather_tokens", count, "all_gather", whole, group, shards.tp, module="moe")
        yield Collective("moe_reduce_scatter", count, "reduce_scatter", whole, group, shards.tp, module="moe")


def exchange_copies(arch: Architecture, shards: Shards, tokens: Floats) -> Iterator[Operator]:
    """What an exchange between experts asks of the device where the network moves tokens by itself.

    A copy of each token for each rank that holds experts of it is written, and read where it arrives; and back.
    """
    for layer, count in arch.layer_groups():
        if isinstance(layer.ffn, MoeFfn):
            rows = tokens * distinct_places(shards.ep, layer.ffn.experts_per_token, layer.ffn.num_experts)
            sent_bytes = 1.0 if quantises(arch.precisions.experts) else ACTIVATION_BYTES
            size = rows * arch.hidden_size
            yield MemoryPass("dispatch_copies", float(count), 3.0 * size * sent_bytes, 2.0)
            yield MemoryPass("combine_copies", float(count), 3.0 * size * ACTIVATION_BYTES, 2.0)
