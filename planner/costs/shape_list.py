"""Shapes to profile: all kernels of some models under some degrees of parallelism, without duplicates.

The operators of a step are derived for two amounts of work; sizes that differ between them depend on the work and are
swept, the others are fixed. A size that a degree does not divide is left out, as engines would not run it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.backward import training_operators
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    DecodeAttention,
    Experts,
    Gemm,
    Operator,
    PrefillAttention,
    gradient_of,
)
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.pricer import expert_skew
from planner.hardware.profiling.shapes import BALANCED, PASS_KINDS, Family
from planner.models.architecture import Architecture

MEASURED_AS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "fp32": "fp32", "int4": "int4"}
"""The precision that is measured for a precision of weights; others have no kernel in PyTorch."""
GROUPED = ("bf16", "fp8")
"""Those of them that grouped products take."""

_MOST_TOKENS, _MOST_PREFILL, _MOST_CONTEXT = 16384, 32768, 131072
_MOST_SEQUENCES, _MOST_EXPERT_TOKENS = 512, 65536
_PACKED = (2, 4, 8, 16)  # prompts in one step
_MOST_TOGETHER, _MOST_USUAL = 4096, 16384  # tokens of each of several prompts, of the context of many sequences
_LEAST_TRAINED = 128  # tokens of a micro-batch
_VOCABULARY = 131072  # width of the rows that are sampled from
_WORK = (1024.0, 2048.0)


def powers(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from `low` to `high`, and from 16 on the sizes half-way to the next."""
    exact = [2**exponent for exponent in range(low.bit_length() - 1, high.bit_length())]
    between = [size * 3 // 2 for size in exact if 16 <= size < high]
    return tuple(sorted(size for size in {*exact, *between} if low <= size <= high))


_Sizes = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class ShapeList:
    """Families to measure, and in words what has none."""

    families: tuple[Family, ...]
    skipped: tuple[str, ...]


def shape_list(
    archs: Iterable[Architecture], *, tp: Sequence[int], ep: Sequence[int] = (), training: bool = True
) -> ShapeList:
    """The families of all `archs` under each tensor-parallel degree, and each degree of wide expert parallelism.

    With `training` the gradients too, last, behind elementwise kernels, copies and launches. Raises PlannerError for a
    model without costs, ValueError for a degree below one.
    """
    if not tp or min(*tp, *ep, 1) < 1:
        raise ValueError(f"degrees must be positive, found tp {tuple(tp)}, ep {tuple(ep)}")
    shardings = (*(_tensor(degree) for degree in tp), *(_wide(degree) for degree in ep if degree > 1))
    pairs = [(arch, shards) for arch in archs for shards in shardings]
    served = [entry for arch, shards in pairs for entry in _of(_inference(arch, shards), arch)]
    trained = [entry for arch, shards in pairs if training for entry in _of(_gradients(arch, shards), arch)]
    entries = dict.fromkeys((*served, *_common(), *trained))
    families = tuple(entry for entry in entries if isinstance(entry, Family))
    return ShapeList(families, tuple(entry for entry in entries if isinstance(entry, str)))


def _of(operators: Iterable[Operator], arch: Architecture) -> Iterator[Family | str]:
    for op in operators:
        yield from _families(op, arch)


def _tensor(degree: int) -> Shards:
    return Shards.of([degree, degree], moe_tp=degree)


def _wide(degree: int) -> Shards:
    return Shards.of([1, 1], dp=degree, ep=degree)


def _inference(arch: Architecture, shards: Shards) -> Iterator[Operator]:
    tokens, sequences = np.array(_WORK), np.array(_WORK) / 64
    yield from forward(arch, shards, Work.of(tokens, sequences, 0.0, sequences, tokens))
    if shards.moe_tp[0] > 1:  # the same ranks with whole experts instead of slices of all
        whole = Shards.of(shards.tp, moe_tp=1, ep=shards.tp)
        yield from (op for op in forward(arch, whole, Work.prefill(tokens)) if isinstance(op, Experts))


def _gradients(arch: Architecture, shards: Shards) -> Iterator[Operator]:
    if shards.dp[0] == 1:
        parts = training_operators(arch, shards, Work.prefill(np.array(_WORK)))
        yield from (*parts.backward_input, *parts.backward_weight)


def _families(op: Operator, arch: Architecture) -> Iterator[Family | str]:
    """The family of an operator; a text says why there is none."""
    measured = MEASURED_AS.get(getattr(op, "precision", "bf16"))
    match op:
        case Gemm() | BatchedGemm() | Experts() if measured is None:
            yield f"{arch.name}: {op.name} in {op.precision} has no kernel in PyTorch"
        case Experts() if measured not in GROUPED or (gradient_of(op.name) and measured != "bf16"):
            yield f"{arch.name}: {op.name} in {op.precision} has no grouped kernel in PyTorch"
        case Gemm():
            yield from _gemm(op)
        case BatchedGemm():
            yield from _batched(op)
        case PrefillAttention():
            yield from _prefill(op, backward=False)
        case AttentionBackward(forward=PrefillAttention() as once):
            yield from _prefill(once, backward=True)
        case DecodeAttention():
            yield from _decode(op)
        case Experts():
            yield from _experts(op, expert_skew(arch))


def _whole(*sizes: Floats) -> list[int] | None:
    """Sizes as whole numbers, None where one is not, or varies with the work."""
    fixed = all(size[0] == size[-1] and float(size[0]).is_integer() and size[0] >= 1 for size in sizes)
    return [int(size[0]) for size in sizes] if fixed else None


def _gemm(op: Gemm) -> Iterator[Family]:
    precision = MEASURED_AS[op.precision]
    outer, inner = _whole(op.n, op.k), _whole(op.m, op.n)
    if outer is not None:
        fixed = (("n", outer[0]), ("k", outer[1]), ("precision", precision))
        yield Family("gemm", fixed, (("m", powers(1, _MOST_TOKENS)),))
    elif inner is not None:  # the gradient of weights: a product over the tokens
        fixed = (("m", inner[0]), ("n", inner[1]), ("precision", precision))
        yield Family("gemm", fixed, (("k", powers(128, _MOST_TOKENS)),))


def _batched(op: BatchedGemm) -> Iterator[Family]:
    sizes = _whole(op.batch, op.n, op.k)
    sides = {"absorbed_query": "mla_gen_pre", "absorbed_value": "mla_gen_post"}
    if sizes is not None and op.name in sides:
        fixed = (("heads", sizes[0]), ("n", sizes[1]), ("k", sizes[2]), ("side", sides[op.name]))
        yield Family("batched_gemm", fixed, (("tokens", powers(1, _MOST_SEQUENCES)),))


def _prefill(op: PrefillAttention, *, backward: bool) -> Iterator[Family]:
    sizes = _whole(op.heads, op.kv_heads)
    if sizes is None or op.chunked:
        return
    heads, kv_heads = sizes
    if op.latent and not backward:
        latent = (("heads", heads), ("head_dim", op.head_dim), ("v_head_dim", op.v_head_dim))
        yield from _by_prompts("latent_prefill", latent)
    elif not op.latent and op.head_dim == op.v_head_dim and heads % kv_heads == 0:
        fixed = (("heads", heads), ("kv_heads", kv_heads), ("head_dim", op.head_dim), ("window", op.window))
        yield from _by_prompts("prefill_attention", (*fixed, ("backward", int(backward))))
        if not backward and not op.window:
            packed = (("batch", _PACKED), ("length", powers(16, _MOST_TOGETHER)))
            yield Family("prefill_attention", (*fixed, ("uneven", 1)), packed)


def _by_prompts(kind: str, fixed: _Sizes) -> Iterator[Family]:
    """One prompt of any length, several that are shorter: a step of many long ones has no room in a batch."""
    yield Family(kind, (*fixed, ("batch", 1)), (("length", powers(16, _MOST_PREFILL)),))
    yield Family(kind, fixed, (("batch", _PACKED), ("length", powers(16, _MOST_TOGETHER))))


def _by_contexts(kind: str, fixed: _Sizes) -> Iterator[Family]:
    """Many sequences of usual length, one of any."""
    usual = powers(16, _MOST_USUAL)
    yield Family(kind, fixed, (("batch", powers(1, _MOST_SEQUENCES)), ("context", usual)))
    yield Family(kind, (*fixed, ("batch", 1)), (("context", powers(usual[-1] + 1, _MOST_CONTEXT)),))


def _decode(op: DecodeAttention) -> Iterator[Family]:
    sizes = _whole(op.heads, op.kv_heads)
    if sizes is None or op.chunked:
        return
    heads, kv_heads = sizes
    if op.latent:
        fixed = (("heads", heads), ("head_dim", op.head_dim), ("rank", op.v_head_dim))
        yield from _by_contexts("latent_decode", fixed)
    elif op.head_dim == op.v_head_dim and heads % kv_heads == 0:
        grouped = (("heads", heads), ("kv_heads", kv_heads), ("head_dim", op.head_dim), ("window", op.window))
        yield from _by_contexts("decode_attention", grouped)


def _experts(op: Experts, skew: str) -> Iterator[Family]:
    degrees = _whole(op.moe_tp, op.ep)
    if (
        degrees is None
        or op.intermediate % degrees[0]
        or op.num_experts % degrees[1]
        or not float(op.top_k).is_integer()
    ):
        return
    for precision in dict.fromkeys((MEASURED_AS[op.precision], "bf16")):  # as they run where 8 bits are not grouped
        fixed = (
            *(("moe_tp", degrees[0]), ("ep", degrees[1]), ("hidden", op.hidden), ("intermediate", op.intermediate)),
            *(("top_k", int(op.top_k)), ("num_experts", op.num_experts), ("gated", int(op.gated))),
            ("precision", precision),
        )
        most = _MOST_EXPERT_TOKENS * max(1, degrees[1] // 4)
        yield from _loads(fixed, skew, gradient_of(op.name), most)


def _loads(fixed: _Sizes, skew: str, gradient: str, most: int) -> Iterator[Family]:
    """Under the skewed and the even load, up to `most` tokens of all ranks."""
    tokens = powers(_LEAST_TRAINED if gradient else 1, most)
    side: _Sizes = (("gradient", gradient),) if gradient else ()
    for distribution in (skew, BALANCED):
        yield Family("experts", (*fixed, ("distribution", distribution), *side), (("tokens", tokens),))


def _common() -> Iterator[Family]:
    """What does not depend on the model."""
    for n, k in ((256, 7168), (4096, 4096)):  # routers that keep fp32, and a square product
        yield Family("gemm", (("n", n), ("k", k), ("precision", "fp32")), (("m", powers(1, _MOST_TOKENS)),))
    for kind in PASS_KINDS:
        of_logits = kind.startswith(("sampling", "cross_entropy"))
        width = _VOCABULARY if of_logits else 4096
        largest = 2**33 if kind == "gather" else 2**32 if of_logits else 2**30
        sizes = powers(2**19 if of_logits else 2**12, largest)
        yield Family("memory_pass", (("pass_kind", kind), ("width", width)), (("moved_bytes", sizes),))
    for direction in ("device_to_device", "host_to_device", "device_to_host"):
        yield Family("copy", (("direction", direction),), (("moved_bytes", powers(2**12, 2**30)),))
    for mode in ("graph", "eager"):
        yield Family("launch", (("mode", mode),), (("num_kernels", (1, 2, 4, 8, 16)),))
