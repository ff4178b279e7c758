"""Kernel times from measured tables, and the roofline where no table speaks.

A table is read as its ratio to the roofline: log(latency / roofline) is interpolated linearly in the logarithm of each
axis, and the result is the roofline of the query times that ratio, to the power of how far such tables are trusted
(TableTrust). Inside the table this interpolates; outside it the ratio of the edge, that is its utilisation, is held and
the basis says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    Compute,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
    gradient_of,
)
from planner.costs.rates.calibration import FULL_TRUST, TableTrust
from planner.costs.rates.choice import ChosenTable, TableChooser
from planner.costs.rates.collectives import collective_s
from planner.costs.rates.evidence import Basis, KernelTime
from planner.costs.rates.roofline import Roofline
from planner.hardware.profiles.grid import Grid, corners

_DTYPES: dict[str, tuple[str, ...]] = {
    "fp32": ("float32",),
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16", "float16"),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
    "int4": ("int4_wo",),
    "int8": ("int8", "int8_wo", "sq"),
}
BULK_TOKENS = (
    256  # per rank: above it, dispatch and experts run their prefill kernels (DeepEP's decode ones stop at 256)
)
PASS_OF = {
    "norm": "norm",
    "rotary_and_cache": "rotary",
    "ffn_activation": "activation",
    "shared_expert_activation": "activation",
    "embedding": "embedding",
    "sampling": "sampling",
    "cross_entropy": "cross_entropy",
    "kv_gather": "gather",
    "expert_combine": "combine",
    "norm_input_gradient": "norm_backward",
    "rotary_and_cache_input_gradient": "rotary_backward",
    "ffn_activation_input_gradient": "activation_backward",
    "shared_expert_activation_input_gradient": "activation_backward",
    "cross_entropy_input_gradient": "cross_entropy_backward",
    "optimizer": "optimizer",
}
"""The kind of pass that was measured, by the name of an elementwise operator."""
_TRUST_OF = {
    "gemm": "gemm",
    "mla_bmm": "gemm",
    "moe": "experts",
    "moe_backward": "experts",
    "wideep_generation_moe": "experts",
    "wideep_context_moe": "experts",
    "custom_allreduce": "collective",
    "nccl": "collective",
}
"""Which trust a table takes; all others are of attention."""
_EXPERT_COLUMNS = ("hidden_size", "inter_size", "topk", "num_experts")
_MXFP4_WEIGHT_ONLY = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


@dataclass(frozen=True, slots=True)
class _Table:
    """A grid with its logarithmic ratio to the roofline."""

    grid: Grid
    log_ratio: Floats
    basis: Basis


@dataclass(slots=True)
class Profiled:
    """Prices operators from a store of tables for one engine and version; remembers which tables it used."""

    roofline: Roofline
    chooser: TableChooser
    trust: TableTrust = FULL_TRUST
    skew: str = "power_law_1.2"  # expert load of the MoE tables; 1.01 fits DeepSeek-R1, 1.2 Qwen3-235B (their README)
    _tables: dict[tuple[str | int | float | tuple[int, ...], ...], _Table | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        engine = f"{self.chooser.engine} {self.chooser.version or 'newest'}"
        return f"kernel tables of {self.roofline.accelerator.name} ({engine})"

    @property
    def multiprocessors(self) -> int:
        """Of the accelerator; 0 where unknown."""
        return self.roofline.multiprocessors

    @property
    def notes(self) -> set[str]:
        """Every fallback so far, in words."""
        return self.chooser.notes

    @property
    def digests(self) -> set[str]:
        """Of the tables used so far."""
        return self.chooser.digests

    def price(self, op: Operator) -> KernelTime:
        """Seconds [N] of one run of `op`, from the first table that covers its kind, else from the roofline."""
        match op:
            case Gemm():
                return self._gemm(op)
            case BatchedGemm():
                return self._batched(op)
            case PrefillAttention():
                return self._prefill(op)
            case DecodeAttention():
                return self._decode(op)
            case AttentionBackward():
                return self._attention_backward(op)
            case Experts():
                return self._experts(op)
            case MemoryPass():
                return self._memory_pass(op)
            case Collective():
                return self._collective(op)
            case _:
                return self.roofline.price(op)

    def _gemm(self, op: Gemm) -> KernelTime:
        def build(grid: Grid) -> Floats:
            m, n, k = (axis.ravel() for axis in grid.points())
            return self.roofline.compute_s(Gemm(op.name, 1.0, m, n, k, op.precision))

        keys = ({"gemm_dtype": dtype} for dtype in _DTYPES[op.precision])
        table = self._find(("gemm", op.precision), keys, build)
        return self._from(table, op, (op.m, op.n, op.k))

    def _batched(self, op: BatchedGemm) -> KernelTime:
        side = "mla_gen_pre" if op.name.startswith("absorbed_query") else "mla_gen_post"
        rank, nope = float(op.n[0]), float(op.k[0])

        def build(grid: Grid) -> Floats:
            tokens, heads = (axis.ravel() for axis in grid.points())
            one = np.ones_like(tokens)
            return self.roofline.compute_s(
                BatchedGemm(op.name, 1.0, heads, tokens, one * rank, one * nope, op.precision)
            )

        keys = ({"op_name": side, "bmm_dtype": dtype} for dtype in (*_DTYPES[op.precision], "bfloat16"))
        table = self._find(("mla_bmm", side, op.precision, rank, nope), keys, build)
        return self._from(table, op, (op.m, op.batch))

    def _prefill(self, op: PrefillAttention) -> KernelTime:
        """Tables hold chunks without past; a chunk with past takes the ratio of a prompt with as many pairs."""
        length = np.sqrt(op.new_tokens * (op.new_tokens + 2.0 * op.context))

        def build(grid: Grid, window: int) -> Floats:
            batch, isl, heads, *rest = (axis.ravel() for axis in grid.points())
            kv_heads = np.minimum(rest[0], heads) if rest else heads
            none = np.zeros_like(isl)
            like = replace(op, sequences=batch, new_tokens=isl, context=none, heads=heads, kv_heads=kv_heads)
            return self.roofline.compute_s(replace(like, window=window))

        if op.latent:
            identity = ("context_mla", op.head_dim, op.v_head_dim, op.kv_precision)
            table = self._find(identity, _latent_keys(op.kv_precision), lambda grid: build(grid, 0))
            return self._from(table, op, (op.sequences, length, op.heads))
        table = self._attention("context_attention", op, build)
        return self._from(table, op, (op.sequences, length, op.heads, op.kv_heads))

    def _decode(self, op: DecodeAttention) -> KernelTime:
        def build(grid: Grid, window: int) -> Floats:
            batch, step, heads, *rest = (axis.ravel() for axis in grid.points())
            kv_heads = np.minimum(rest[0], heads) if rest else np.ones_like(heads)
            like = replace(op, sequences=batch, context=step, heads=heads, kv_heads=kv_heads, queries=None)
            return self.roofline.compute_s(replace(like, window=window))

        if op.latent:
            identity = ("generation_mla", op.head_dim, op.v_head_dim, op.kv_precision)
            table = self._find(identity, _latent_keys(op.kv_precision), lambda grid: build(grid, 0))
            return self._from(table, op, (op.sequences, op.context, op.heads))
        table = self._attention("generation_attention", op, build)
        return self._from(table, op, (op.sequences, op.context, op.heads, op.kv_heads))

    def _attention(
        self, name: str, op: PrefillAttention | DecodeAttention, build: Callable[..., Floats]
    ) -> _Table | None:
        """The table of this head size and window; a window without one takes the full-context table's utilisation."""
        for window in dict.fromkeys((op.window, 0)):
            identity = (name, op.head_dim, op.v_head_dim, window, op.kv_precision)
            keys = _attention_keys(op.head_dim, window, op.kv_precision)
            table = self._find(identity, keys, partial(build, window=window))
            if table is not None:
                return table
        return None

    def _attention_backward(self, op: AttentionBackward) -> KernelTime:
        """Its own table where there is one, else the utilisation of the forward kernel."""
        once = op.forward
        if isinstance(once, PrefillAttention) and not once.latent:

            def build(grid: Grid, window: int) -> Floats:
                batch, isl, heads, kv_heads = (axis.ravel() for axis in grid.points())
                like = replace(once, sequences=batch, new_tokens=isl, context=np.zeros_like(isl), heads=heads)
                like = replace(like, kv_heads=np.minimum(kv_heads, heads), window=window)
                return self.roofline.compute_s(replace(op, forward=like))

            table = self._attention("context_attention_backward", once, build)
            if table is not None:
                length = np.sqrt(once.new_tokens * (once.new_tokens + 2.0 * once.context))
                return self._from(table, op, (once.sequences, length, once.heads, once.kv_heads))
        return self._like_forward(op)

    def _like_forward(self, op: AttentionBackward) -> KernelTime:
        once = self.price(op.forward)
        reference_s = self.roofline.compute_s(op.forward)
        ratio = np.where(reference_s > 0, once.seconds / np.where(reference_s > 0, reference_s, 1.0), 1.0)
        return KernelTime(self.roofline.compute_s(op) * ratio, np.maximum(once.basis, np.uint8(Basis.HELD)))

    def _memory_pass(self, op: MemoryPass) -> KernelTime:
        """From the table of its kind of pass, by the bytes it moves; of kinds that were not measured, the roofline."""
        kind = PASS_OF.get(op.name)
        if kind is None:
            return self.roofline.price(op)

        def build(grid: Grid) -> Floats:
            return self.roofline.compute_s(replace(op, size_bytes=grid.axes[0]))

        table = self._find(("memory_pass", kind, op.kernels), iter([{"op_name": kind}]), build)
        return self._from(table, op, (op.size_bytes,))

    def _experts(self, op: Experts) -> KernelTime:
        """Fused kernels where ranks hold every token; those of wide expert parallelism where tokens came to them.

        Gradients have a table of their own, and without it take the time of the forward kernel.
        """
        fused = self._experts_of(op, "moe", (op.tokens, op.moe_tp, op.ep))
        if gradient_of(op.name):
            own = self._experts_of(op, "moe_backward", (op.tokens, op.moe_tp, op.ep))
            known = own.basis < Basis.ANALYTICAL
            fused = KernelTime(
                np.where(known, own.seconds, fused.seconds), np.where(known, own.basis, fused.basis).astype(np.uint8)
            )
        if op.exchanged is None or not np.any(op.exchanged):
            return fused
        bulk = op.tokens / op.ep > BULK_TOKENS
        decode = self._experts_of(op, "wideep_generation_moe", (op.tokens, op.ep))
        prefill = self._experts_of(op, "wideep_context_moe", (op.tokens, op.ep))
        wide = op.exchanged > 0
        found = (wide & ~bulk & (decode.basis < Basis.ANALYTICAL), wide & bulk & (prefill.basis < Basis.ANALYTICAL))
        return KernelTime(
            np.select(found, (decode.seconds, prefill.seconds), fused.seconds),
            np.select(found, (decode.basis, prefill.basis), fused.basis).astype(np.uint8),
        )

    def _experts_of(self, op: Experts, name: str, points: tuple[Floats, ...]) -> KernelTime:
        """From the table of this expert shape; a shape without one takes the utilisation of the nearest measured."""
        shape = (op.hidden, op.intermediate, max(1, round(op.top_k)), op.num_experts)
        table = self._expert_table(op, name, shape)
        if table is not None and shape[2] != op.top_k:
            self.notes.add(f"{name}: {op.top_k:g} experts a token on average take the utilisation of {shape[2]}")
            table = replace(table, basis=Basis.HELD)
        if table is None:
            near = self._nearest_expert_shape(op, name, shape)
            table = None if near is None else self._expert_table(op, name, near)
            if table is not None:
                self.notes.add(f"{name}: experts of shape {shape} take the utilisation of the measured shape {near}")
                table = replace(table, basis=Basis.HELD)
        return self._from(table, op, points)

    def _expert_table(self, op: Experts, name: str, shape: tuple[int, int, int, int]) -> _Table | None:
        hidden, inter, top_k, experts = shape

        def build(grid: Grid) -> Floats:
            tokens, *degrees = (axis.ravel() for axis in grid.points())
            moe_tp, ep = degrees if len(degrees) == 2 else (np.ones_like(tokens), degrees[0])
            like = replace(op, tokens=tokens, moe_tp=moe_tp, ep=ep, hidden=hidden, intermediate=inter)
            return self.roofline.compute_s(replace(like, top_k=top_k, num_experts=experts))

        side = gradient_of(op.name) if name == "moe_backward" else ""
        keys = (
            self._expert_key(dtype, shape) | ({"gradient": side} if side else {}) for dtype in self._expert_dtypes(op)
        )
        return self._find((name, side, op.precision, op.activation, shape), keys, build)

    def _expert_dtypes(self, op: Experts) -> tuple[str, ...]:
        """Engines quantise the activations of mxfp4 experts to mxfp8 where tensor cores take mxfp4 directly."""
        if op.precision == "mxfp4" and not self.roofline.accelerator.supports("mxfp4"):
            return _MXFP4_WEIGHT_ONLY
        return _DTYPES[op.precision]

    def _expert_key(self, dtype: str, shape: tuple[int, int, int, int]) -> dict[str, str | int]:
        hidden, inter, top_k, experts = shape
        names = {"hidden_size": hidden, "inter_size": inter, "topk": top_k, "num_experts": experts}
        return {"moe_dtype": dtype, "distribution": self.skew, **names}

    def _nearest_expert_shape(
        self, op: Experts, name: str, shape: tuple[int, int, int, int]
    ) -> tuple[int, int, int, int] | None:
        """The measured expert shape nearest in the logarithm of its four sizes."""
        shapes: set[tuple[int, ...]] = set()
        for selection in self.chooser.selections(name):
            keys = selection.table.keys()
            rows = [dict(zip(selection.table.key_names, key, strict=True)) for key in keys]
            shapes |= {
                tuple(int(row[column]) for column in _EXPERT_COLUMNS)
                for row in rows
                if row["moe_dtype"] in self._expert_dtypes(op) and row["distribution"] == self.skew
            }
        if not shapes:
            return None
        ordered = sorted(shapes)
        distance = [sum(abs(np.log(a / b)) for a, b in zip(known, shape, strict=True)) for known in ordered]
        best = ordered[int(np.argmin(distance))]
        return best[0], best[1], best[2], best[3]

    def _collective(self, op: Collective) -> KernelTime:
        """Tables cover groups inside one scale-up domain; wider ones are analytical."""
        analytical = self.roofline.price(op)
        reach = self.roofline.topology.levels[0].size
        inside = op.group * op.stride <= reach

        def build(grid: Grid) -> Floats:
            group, size = (axis.ravel() for axis in grid.points())
            like = Collective(op.name, 1.0, op.kind, size, group, np.ones_like(size))
            return collective_s(like, self.roofline.topology, self.roofline.efficiencies)

        table = None
        if op.kind == "all_reduce":
            modes: list[Mapping[str, str | int]] = [{"mode": "graph"}, {}]
            table = self._find(("custom_allreduce",), iter(modes), build)
        if table is None and op.kind != "p2p":
            name = "alltoall" if op.kind == "all_to_all" else op.kind
            nccl: list[Mapping[str, str | int]] = [{"op_name": name, "dtype": "half"}]
            table = self._find(("nccl", name), iter(nccl), build, engine="nccl")
        if table is None or not np.any(inside):
            return analytical
        found = self._from(table, op, (op.group, op.size_bytes), reference_s=analytical.seconds)
        return KernelTime(
            np.where(inside, found.seconds, analytical.seconds),
            np.where(inside, found.basis, analytical.basis).astype(np.uint8),
        )

    def _find(
        self,
        identity: tuple[str | int | float | tuple[int, ...], ...],
        keys: Iterator[Mapping[str, str | int]],
        build: Callable[[Grid], Floats],
        engine: str | None = None,
    ) -> _Table | None:
        """The table that `identity` begins with, for the first of `keys` it holds, as a ratio to the roofline."""
        if identity not in self._tables:
            chosen = self.chooser.choose(str(identity[0]), keys, engine)
            found = None if chosen is None else _as_ratio(chosen, build, self._weight(chosen, identity))
            self._tables[identity] = found
        return self._tables[identity]

    def _weight(self, chosen: ChosenTable, identity: tuple[object, ...]) -> float:
        """How far the table counts against the roofline."""
        return 1.0 if chosen.ours else float(getattr(self.trust, _TRUST_OF.get(str(identity[0]), "attention")))

    def _from(
        self, table: _Table | None, op: Operator, points: tuple[Floats, ...], reference_s: Floats | None = None
    ) -> KernelTime:
        """Roofline of the query times the interpolated ratio."""
        if table is None:
            return self.roofline.price(op)
        if reference_s is None:
            assert not isinstance(op, Collective)
            reference_s = self.roofline.compute_s(_as_compute(op))
        idle = reference_s <= 0
        safe = tuple(
            np.where(idle, axis[0], np.maximum(p, 1e-9)) for axis, p in zip(table.grid.axes, points, strict=True)
        )
        at = corners(table.grid, safe)
        seconds = np.where(idle, 0.0, reference_s * np.exp(at.interpolate(table.log_ratio)))
        held = max(table.basis, Basis.HELD)
        return KernelTime(seconds, np.where(at.inside, table.basis, held).astype(np.uint8))


def _as_ratio(chosen: ChosenTable, build: Callable[[Grid], Floats], weight: float) -> _Table:
    reference = np.maximum(build(chosen.grid), 1e-12).reshape(chosen.grid.latency_s.shape)
    ratio = weight * chosen.grid.filled(reference)
    return _Table(chosen.grid, ratio, Basis.MEASURED if chosen.ours else Basis.IMPORTED)


def _as_compute(op: Operator) -> Compute:
    assert not isinstance(op, Collective)
    return op


def _kv(precision: str) -> str:
    return "fp8" if precision == "fp8" else "bfloat16"


def _attention_formats(kv_precision: str) -> Iterator[tuple[str, str]]:
    """Formats of cache and queries, the one asked for first; what runs in fp32 is like no table of another format."""
    if kv_precision == "fp32":
        yield "float32", "float32"
        return
    for kv in (_kv(kv_precision), "bfloat16", "fp8"):
        for dtype in ("bfloat16", "fp8"):
            yield kv, dtype


def _latent_keys(kv_precision: str) -> Iterator[Mapping[str, str | int]]:
    for kv, dtype in _attention_formats(kv_precision):
        yield {"mla_dtype": dtype, "kv_cache_dtype": kv}


def _attention_keys(head_dim: int, window: int, kv_precision: str) -> Iterator[Mapping[str, str | int]]:
    """The cache format asked for first, then the other."""
    for kv, dtype in _attention_formats(kv_precision):
        yield {"head_dim": head_dim, "window_size": window, "attn_dtype": dtype, "kv_cache_dtype": kv}
