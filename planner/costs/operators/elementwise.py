"""Elementwise operators: bytes that they read and write, forward and for their gradients, and kernels launched.

Every operator is stated once; what a code joins in one kernel is data. Serving engines join the sum of the residual
with the norm behind it and gather tokens of experts inside the products; Megatron-LM has a kernel for each operator;
eager PyTorch writes out what lies between. Sizes count values of one rank, as arrays [N] or numbers; activations are in
16 bits.
"""

from dataclasses import dataclass
from typing import NamedTuple

from planner.costs.operators.attention_core import CORE
from planner.costs.operators.products import Size

ACTIVATION_BYTES = 2.0  # bf16 and fp16 alike
SCORE_BYTES = 4.0  # scores of a router and logits at the loss, in fp32


@dataclass(frozen=True, slots=True)
class Fusion:
    """Which elementwise operators a code joins."""

    joins_residual: bool  # one kernel adds the residual, writes the sum and norms it
    gathers_rows: bool  # kernels of experts read tokens where they lie
    joins_selection: bool  # scores of experts become weights in one pass
    spill: float = 1.0  # bytes of norms, residuals and activations for one of a single kernel
    rotations: float = 1.0  # passes of a rotary embedding
    residual_kernels: float = 1.0


SERVING = Fusion(joins_residual=True, gathers_rows=True, joins_selection=True)
"""vLLM's `fused_add_rms_norm`, `fused_moe` and `topk_softmax`, and their like in other engines."""
FUSED = Fusion(joins_residual=False, gathers_rows=False, joins_selection=False)
"""Megatron-LM with Transformer Engine: `bias_dropout_add`, a norm, a rotation, `permute` and `unpermute` apart."""
EAGER = Fusion(False, False, False, spill=1.5, rotations=2.0, residual_kernels=3.0)
"""PyTorch, an operation at a time."""


class Moved(NamedTuple):
    """Bytes read and written, and kernels launched."""

    size_bytes: Size
    kernels: float


@dataclass(frozen=True, slots=True)
class Pass:
    """An elementwise operator: what its forward run moves, and what the kernels of its gradient do."""

    name: str
    module: str  # by which recomputation names it
    forward: Moved
    backward: Moved


def _widths(name: str, module: str, values: Size, there: tuple[float, float], back: tuple[float, float]) -> Pass:
    """A pass that moves `values` values so often, in so many kernels, there and back."""
    moved = (Moved(widths * values * ACTIVATION_BYTES, kernels) for widths, kernels in (there, back))
    return Pass(name, module, *moved)


def norm(values: Size, code: Fusion) -> Pass:
    """Reads and writes; its gradient reads that of the output and the input, and writes that of the input.

    Joined with the residual in front it reads both, and writes sum and norm.
    """
    if code.joins_residual:
        return _widths("norm", "layernorm", values, (4.0, 1.0), (6.0, 3.0))
    return _widths("norm", "layernorm", values, (2.0 * code.spill, 1.0), (3.0 * code.spill, 1.0))


def adaptive_norm(name: str, values: Size) -> Pass:
    """A norm, and its output scaled and shifted by what another product gives."""
    return _widths(name, "", values, (4.0, 2.0), (6.0, 2.0))


def residual(values: Size, module: str, code: Fusion) -> Pass:
    """Reads both, writes the sum, dropout included; two gradients come together, and one goes on through dropout."""
    there, back = (3.0 * code.spill, code.residual_kernels), (3.0 * code.spill, 2.0)
    return _widths("residual", module, values, there, back)


def rotation(values: Size, kernels: float, code: Fusion) -> Pass:
    """Queries, keys and values read, rotated or copied to their place, and written; the gradient is rotated back."""
    once = 2.0 * code.rotations, kernels * code.rotations
    return _widths("rotary_and_cache", "attention", values, once, once)


def latent_norms(tokens: Size, q_rank: int, kv_rank: int) -> Pass:
    """Compressed queries, where there are some, and compressed keys and values of latent attention, normed apart.

    DeepSeek-V2 (arXiv:2405.04434, section 3.1.2); `q_norm` and `kv_norm` of DeepSeek-V3's inference/model.py.
    """
    kernels = 2.0 if q_rank else 1.0
    return _widths("latent_norms", "attention", tokens * (q_rank + kv_rank), (2.0, kernels), (3.0, kernels))


def indexer_inputs(values: Size) -> Pass:
    """Queries and keys of the scorer of sparse attention made ready: keys normed, both rotated, quantised and kept.

    The indexer of DeepSeek-V3.2 (inference/model.py of DeepSeek-V3.2-Exp) as SGLang launches it
    (layers/attention/nsa/nsa_indexer.py, `_get_q_k_bf16`, `forward_cuda`): norm of the keys; rotary embedding; rotated
    halves of queries and of keys copied back; Hadamard transforms of both; both quantised; weights of heads times
    scales and times a constant; keys written to the cache. Rotated and copied are half of the values, transformed all;
    quantised ones are written in 8 bits.
    """
    return _widths("indexer_inputs", "attention", values, (1.0 + 1.0 + 2.0 + 1.5, 11.0), (5.5, 11.0))


def expanded_keys(read: Size, written: Size) -> Pass:
    """Keys and values of all heads of latent attention put together from what was expanded and the shared rotary part.

    Values `read` and `written`; Megatron-LM's `fused_apply_mla_rope_for_kv` moves each once.
    """
    return _widths("expanded_keys", "attention", read + written, (1.0, 3.0), (1.0, 3.0))


def activation(name: str, module: str, values: Size, *, gated: bool, code: Fusion) -> Pass:
    """Gate and value read and their product written; the gradient reads all three and writes two."""
    reads = 2.0 if gated else 1.0
    there, back = (reads + 1.0) * code.spill, (2.0 * reads + 1.0) * code.spill
    return _widths(name, module, values, (there, 1.0), (back, 1.0))


def clamped_halves(values: Size) -> Pass:
    """Gate and value clamped and joined again before their product: both read and written twice.

    The gradient is cut in two, masked by what was clamped, and joined (Megatron-LM's `weighted_bias_quick_geglu_impl`).
    """
    return _widths("expert_clamp", "moe_activation", values, (4.0, 3.0), (5.0, 4.0))


def expert_biases(values: Size) -> Pass:
    """Biases of experts added to their outputs, weighted by the router, expert by expert and in fp32.

    The weighted bias is written, the sum read and written, all experts joined and rounded: 28 bytes a value. Its
    gradients by the output, by the bias and by the router's weight take 40 (`_apply_bias` of Megatron-LM, core_v0.16.0,
    megatron/core/transformer/moe/experts.py).
    """
    return _widths("expert_biases", "moe", values, (14.0, 4.0), (20.0, 8.0))


def convolution(values: Size) -> Pass:
    """A short convolution along the sequence: channels read and written; its gradient reads the input once more."""
    return _widths("convolution", CORE, values, (2.0, 1.0), (3.0, 1.0))


def gate_and_norm(values: Size) -> Pass:
    """The output of a recurrent mixer normed and gated: two read, one written; its gradient reads three, writes two."""
    return _widths("mixer_gate_and_norm", CORE, values, (3.0, 2.0), (5.0, 2.0))


def router_selection(scores: Size, code: Fusion) -> Pass:
    """Top-k of the scores in fp32, and weights of those chosen.

    Joined, scores are read and written once; apart, softmax, top-k and the map from tokens to experts each do so. The
    gradient goes back through the first two.
    """
    passes, kernels = (1.0, 2.0) if code.joins_selection else (3.0, 8.0)
    there, back = (2.0 * count * SCORE_BYTES * scores for count in (passes, 2.0))
    return Pass("router_top_k", "moe", Moved(there, kernels), Moved(back, 5.0))


def permutation(values: Size, copies: float, code: Fusion) -> Pass:
    """Tokens to their experts and back, `copies` a token; the gradient goes the same way in the other direction.

    The sum of a token's copies reads them and writes one. A code whose products do not gather tokens writes the copies
    from the tokens too, and sorts those of several ranks by expert.
    """
    widths, kernels = (copies + 1.0, 2.0) if code.gathers_rows else (4.0 * copies + 2.0, 4.0)
    return _widths("expert_combine", "moe", values, (widths, kernels), (widths, kernels))


def embedding(values: Size) -> Pass:
    """Rows read and written; the gradient is read and added to rows."""
    return _widths("embedding", "embedding", values, (2.0, 1.0), (3.0, 1.0))


def cross_entropy(logits: Size) -> Pass:
    """Loss of logits in 16 bits: an fp32 copy, its largest value, exponentials with their sum in its place, the target.

    Megatron-LM's vocabulary-parallel one (arXiv:1909.08053, section 3). The gradient is made of the exponentials and
    written in 16 bits.
    """
    copied, largest, exponentials = ACTIVATION_BYTES + SCORE_BYTES, SCORE_BYTES, 2.0 * SCORE_BYTES
    there, back = copied + largest + exponentials, SCORE_BYTES + ACTIVATION_BYTES
    return Pass("cross_entropy", "loss", Moved(there * logits, 4.0), Moved(back * logits, 1.0))
