"""Operators: the kernels of one step of one shard, with their sizes as arrays [N] over points.

`count` is how often the kernel runs in the step (layers of its kind, all pipeline stages together). `work` gives the
floating-point operations and the bytes that any implementation must move; rooflines divide them by the hardware's
rates, and measured kernels are expressed as a ratio to that roofline. `module` is what recomputation knows it by.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators import triton
from planner.costs.operators.attention_core import (
    BACKWARD_BYTES,
    BACKWARD_KERNELS,
    attended,
    backward_products,
    core_bytes,
    core_flop,
    keys_in_reach,
    prompt_pairs,
)
from planner.costs.operators.elementwise import Moved, Pass
from planner.costs.operators.experts import routed_rows, tiled_rows, touched_share
from planner.models.architecture import BITS


@dataclass(frozen=True, slots=True)
class Gemm:
    """[m, k] x [k, n]; `precision` is the format of the weights, `activation_precision` of it that of the inputs."""

    name: str
    count: float
    m: Floats
    n: Floats
    k: Floats
    precision: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class BatchedGemm:
    """`batch` products [m, k] x [k, n] with a weight each: the absorbed projections of latent attention."""

    name: str
    count: float
    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    precision: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Causal attention of `new_tokens` per sequence over themselves and `context` cached tokens."""

    name: str
    count: float
    sequences: Floats
    new_tokens: Floats
    context: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: int
    v_head_dim: int
    window: int
    kv_precision: str
    latent: bool = False  # multi-head form of latent attention (keys and values expanded)
    chunked: bool = False  # the window is the aligned chunk that holds a token
    module: str = ""


PROMPTS, DECODING = "prompts", "decoding"
"""Whose tokens sparse attention selects cached ones for."""


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """One new token per sequence over `context` cached tokens; latent attention reads one shared head.

    Where drafts are verified there are `queries` a sequence, which share what is read of the cache. Where attention is
    `sparse`, each token of prompts or of decoding reads cached ones selected for it alone.
    """

    name: str
    count: float
    sequences: Floats
    context: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: int
    v_head_dim: int
    window: int
    kv_precision: str
    latent: bool = False
    chunked: bool = False
    queries: Floats | None = None  # 1 if None
    sparse: str = ""  # PROMPTS or DECODING
    module: str = ""


@dataclass(frozen=True, slots=True)
class AttentionBackward:
    """The gradients of queries, keys and values of one forward attention."""

    name: str
    count: float
    forward: PrefillAttention | DecodeAttention
    module: str = ""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer on the busiest rank; `tokens` are those of all attention ranks together."""

    name: str
    count: float
    tokens: Floats
    moe_tp: Floats
    ep: Floats
    hidden: int
    intermediate: int
    top_k: float  # the mean where gating is adaptive
    num_experts: int
    gated: bool
    precision: str
    activation: str
    exchanged: Floats | None = None  # [N] 1 where tokens came by all-to-all: kernels of wide expert parallelism
    whole_tiles: Floats | None = None  # [N] 1 where a whole tile of every expert is computed, tokens or not
    triton: bool = False  # by OpenAI's Triton kernels (`planner.costs.operators.triton`)
    redundant: Floats | None = None  # [N] as in `Shards`; None: experts lie by number
    module: str = ""

    @property
    def slots(self) -> Floats | float:
        """Experts on all ranks, each copy of one counted."""
        return self.num_experts if self.redundant is None else self.num_experts + np.maximum(self.redundant, 0.0)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A linear-attention or state-space scan: reads and writes the state of each decoding sequence."""

    name: str
    count: float
    tokens: Floats
    sequences: Floats  # states read and written
    flop_per_token: Floats
    state_bytes: Floats  # one sequence, one rank
    module: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scorer of sparse attention: every new token against every cached key of the indexer."""

    name: str
    count: float
    pairs: Floats  # (new token, cached token) pairs
    keys: Floats  # cached keys read
    heads: int
    head_dim: int
    module: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPass:
    """Elementwise kernels (norms, rotary, activations, quantisation, sampling): bytes moved in `kernels` launches."""

    name: str
    count: float
    size_bytes: Floats
    kernels: float
    gradient: Moved | None = None  # of the kernels of its gradient, where it has one
    module: str = ""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks `stride` devices apart.

    `size_bytes` per rank: the whole buffer of an all-reduce, the gathered result of an all-gather, the input of a
    reduce-scatter, everything a rank sends in an all-to-all, the message of a p2p. An all-to-all of tokens names
    their `choices` of experts: where it is `forwarded`, a token crosses an outer link once for all ranks behind it.
    """

    name: str
    count: float | Floats
    kind: str  # all_reduce, all_gather, reduce_scatter, all_to_all, p2p
    size_bytes: Floats
    group: Floats
    stride: Floats
    choices: float = 0
    among: int = 0  # experts that the choices are made among
    forwarded: Floats | None = None  # [N] 1 where forwarded, 0 where every copy travels alone
    module: str = ""


def run_of(passed: Pass, count: float) -> MemoryPass:
    """The forward run of an elementwise operator, `count` times in the step."""
    moved, kernels = passed.forward
    return MemoryPass(passed.name, count, np.asarray(moved), kernels, passed.backward, passed.module)


Attention = PrefillAttention | DecodeAttention | AttentionBackward
Compute = Gemm | BatchedGemm | Attention | Experts | Recurrence | Scores | MemoryPass
Operator = Compute | Collective


@dataclass(frozen=True, slots=True)
class KernelDemand:
    """What an operator asks of a device [N]; `precision` picks the peak rate."""

    flop: Floats
    size_bytes: Floats
    precision: str
    kernels: Floats | float = 1.0


def gradient_of(name: str) -> str:
    """What an operator of that name is the gradient of: `input`, `weight`, or empty for the forward pass."""
    for side in ("input", "weight"):
        if name.endswith(f"_{side}_gradient"):
            return side
    return ""


_STORED_ONLY = "_stored"


def stored_as(precision: str) -> str:
    """The name of a format whose weights are only stored in it: kernels read them so and multiply in 16 bits."""
    return stored_format(precision) + _STORED_ONLY


def stored_format(precision: str) -> str:
    """The format that weights have in memory."""
    return precision.removesuffix(_STORED_ONLY)


def is_stored_only(precision: str) -> bool:
    """Whether weights are only stored in the format, and multiplied in 16 bits."""
    return precision.endswith(_STORED_ONLY)


def bytes_per(precision: str) -> float:
    """Bytes per stored value, scales included."""
    return BITS[stored_format(precision)] / 8


def activation_precision(weights: str) -> str:
    """The format activations have in a GEMM on such weights: 8-bit and nvfp4 formats quantise them, others do not."""
    return weights if weights in ("fp8", "fp8_block", "nvfp4", "int8", "fp32") else "bf16"


def quantises(weights: str) -> bool:
    """Whether activations are quantised on their way into a GEMM on such weights."""
    return activation_precision(weights) not in ("bf16", "fp32")


def working_bytes(precision: str) -> float:
    """Bytes per value of the activations around an operator in this format: fp32 stays fp32, all else works in bf16."""
    return 4.0 if precision == "fp32" else 2.0


def _working_precision(precision: str) -> str:
    return "fp32" if precision == "fp32" else "bf16"


def demand(op: Compute, routing_concentration: float = math.inf) -> KernelDemand:
    """Operations and bytes of one run of `op` on one device; experts as popular as `touched_share` says."""
    match op:
        case Gemm():
            inputs = op.m * op.k * bytes_per(activation_precision(op.precision))
            weights = op.n * op.k * bytes_per(op.precision) * (op.m > 0)  # without tokens the kernel is not launched
            moved = weights + inputs + working_bytes(op.precision) * op.m * op.n
            return KernelDemand(2.0 * op.m * op.n * op.k, moved, activation_precision(op.precision))
        case BatchedGemm():
            weights = op.n * op.k * bytes_per(op.precision) * (op.m > 0)
            moved = op.batch * (weights + working_bytes(op.precision) * op.m * (op.k + op.n))
            return KernelDemand(2.0 * op.batch * op.m * op.n * op.k, moved, activation_precision(op.precision))
        case PrefillAttention():
            return _prefill(op)
        case DecodeAttention():
            return _decode(op)
        case AttentionBackward():
            return _attention_backward(op.forward)
        case Experts():
            return _experts(op, routing_concentration)
        case Recurrence():
            return KernelDemand(op.tokens * op.flop_per_token, 2.0 * op.sequences * op.state_bytes, "bf16")
        case Scores():
            flop = 2.0 * op.pairs * op.heads * op.head_dim
            return KernelDemand(flop, op.keys * op.head_dim + 4.0 * op.pairs, "fp8")
        case MemoryPass():
            return KernelDemand(np.zeros_like(op.size_bytes), op.size_bytes, "bf16", kernels=op.kernels)


def _prefill(op: PrefillAttention) -> KernelDemand:
    pairs = prompt_pairs(op.new_tokens, op.context, op.window, chunked=op.chunked)
    keys = keys_in_reach(op.new_tokens, op.context, op.window, chunked=op.chunked)
    flop = core_flop(op.sequences, op.heads, pairs, op.head_dim, op.v_head_dim)
    formats = bytes_per(op.kv_precision), working_bytes(op.kv_precision)
    once = core_bytes(keys, op.kv_heads, op.new_tokens, op.heads, op.head_dim + op.v_head_dim, *formats)
    return KernelDemand(flop, op.sequences * once, _working_precision(op.kv_precision))


def _decode(op: DecodeAttention) -> KernelDemand:
    context = attended(op.context, op.window, chunked=op.chunked)
    flop = core_flop(op.sequences, op.heads, context, op.head_dim, op.v_head_dim)
    width = op.head_dim if op.latent else op.head_dim + op.v_head_dim
    cached = context * op.kv_heads * width * bytes_per(op.kv_precision)
    queries = working_bytes(op.kv_precision) * op.heads * (op.head_dim + op.v_head_dim)
    if op.queries is not None:
        flop, queries = flop * op.queries, queries * op.queries
    return KernelDemand(flop, op.sequences * (cached + queries), _working_precision(op.kv_precision))


def _attention_backward(op: PrefillAttention | DecodeAttention) -> KernelDemand:
    once = demand(op)
    flop = backward_products(op.head_dim, op.v_head_dim) * once.flop
    return KernelDemand(flop, BACKWARD_BYTES * once.size_bytes, once.precision, kernels=BACKWARD_KERNELS)


def evenly_read_bytes(op: Experts) -> Floats:
    """Weights [N] of a rank's experts where tokens are spread evenly: of every one from E / k tokens on."""
    matrices = 3.0 if op.gated else 2.0
    touched = op.num_experts / op.ep * np.minimum(op.tokens * op.top_k / op.num_experts, 1.0)
    return np.asarray(touched * matrices * op.hidden * op.intermediate / op.moe_tp * bytes_per(op.precision))


def _experts(op: Experts, concentration: float) -> KernelDemand:
    matrices = 3.0 if op.gated else 2.0
    inter = op.intermediate / op.moe_tp
    routed = routed_rows(op.tokens, op.top_k, op.ep)
    held = op.slots / op.ep
    touched = held * touched_share(op.tokens, op.top_k, op.slots, concentration)
    if op.whole_tiles is not None:
        whole = (op.whole_tiles > 0) & (routed > 0)
        touched = np.where(whole, held, touched)
        routed = np.where(whole, tiled_rows(routed, held), routed)
    values = triton.weight_values(op.hidden, inter) if op.triton else matrices * op.hidden * inter
    kernels = matrices + triton.launches(op.ep) if op.triton else matrices
    weights = np.maximum(touched, np.minimum(routed, 1.0)) * values * bytes_per(op.precision)
    value = working_bytes(op.activation)
    moved = weights + routed * (op.hidden * (bytes_per(op.activation) + value) + value * (matrices - 1.0) * inter)
    return KernelDemand(2.0 * routed * matrices * op.hidden * inter, moved, op.activation, kernels=kernels)
