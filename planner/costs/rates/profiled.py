"""Kernel times interpolated in measured tables, with the roofline where no table covers the kernel.

A table is read as its ratio to the roofline: log(latency / roofline) is interpolated linearly in the logarithm of each
axis, and the result is the roofline of the query times that ratio, to the power of how far such tables are trusted
(TableTrust). Inside the table this interpolates; outside it the ratio of the edge, that is its utilisation, is held and
the basis says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

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
    evenly_read_bytes,
    gradient_of,
)
from planner.costs.operators.work import Shards
from planner.costs.operators.working_format import as_run_on, in_whole_tiles
from planner.costs.rates.calibration import FULL_TRUST, TableTrust
from planner.costs.rates.choice import ChosenTable, Key, TableChooser, Usable
from planner.costs.rates.evidence import Basis, KernelTime
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.table_keys import (
    DTYPES,
    MXFP4_WEIGHT_ONLY,
    PASS_OF,
    attention_keys,
    latent_keys,
    prefill_like,
    prefill_points,
)
from planner.hardware.profiles.grid import Grid, corners
from planner.hardware.profiles.store import KernelTable
from planner.models.architecture import Architecture

BULK_TOKENS = (
    256  # per rank: above it, dispatch and experts run their prefill kernels (DeepEP's decode ones stop at 256)
)
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
EVEN_LOAD = "balanced"  # of experts, as kernel tables call it
_EXPERT_COLUMNS = ("hidden_size", "inter_size", "topk", "num_experts")


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
    def slowdown(self) -> float:
        """Of whole steps."""
        return self.roofline.slowdown

    def slowdown_of(self, shards: Shards) -> Floats | float:
        """Of whole steps of instances [N]."""
        return self.roofline.slowdown_of(shards)

    def triton_layers(self, arch: Architecture) -> float:
        """Layers of a model whose experts Triton's kernels run."""
        return self.roofline.triton_layers(arch)

    def of_role(self, function: str) -> "Profiled":
        """That of instances of a function, from the same tables."""
        return self if self.roofline.near is None else replace(self, roofline=self.roofline.of_role(function))

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
        op = as_run_on(op, self.roofline.accelerator)
        priced_by = _PRICED_BY.get(type(op))
        return self.roofline.price(op) if priced_by is None else priced_by(self, op)

    def _gemm(self, op: Gemm) -> KernelTime:
        def like(m: Floats, n: Floats, k: Floats) -> Gemm:
            return Gemm(op.name, 1.0, m, n, k, op.precision)

        keys = ({"gemm_dtype": dtype} for dtype in DTYPES.get(op.precision, ()))
        return self._from(self._table(("gemm", op.precision), keys, like), op, (op.m, op.n, op.k))

    def _batched(self, op: BatchedGemm) -> KernelTime:
        side = "mla_gen_pre" if op.name.startswith("absorbed_query") else "mla_gen_post"
        rank, nope = float(op.n[0]), float(op.k[0])

        def like(tokens: Floats, heads: Floats) -> BatchedGemm:
            ones = np.ones_like(tokens)
            return BatchedGemm(op.name, 1.0, heads, tokens, ones * rank, ones * nope, op.precision)

        keys = ({"op_name": side, "bmm_dtype": dtype} for dtype in (*DTYPES[op.precision], "bfloat16"))
        table = self._table(("mla_bmm", side, op.precision, rank, nope), keys, like)
        return self._from(table, op, (op.m, op.batch))

    def _prefill(self, op: PrefillAttention) -> KernelTime:
        table = self._attention("context_mla" if op.latent else "context_attention", op, prefill_like(op))
        return self._from(table, op, prefill_points(op))

    def _decode(self, op: DecodeAttention) -> KernelTime:
        def like(window: int, batch: Floats, step: Floats, heads: Floats, *rest: Floats) -> DecodeAttention:
            kv_heads = np.minimum(rest[0], heads) if rest else np.ones_like(heads)
            sizes = replace(op, sequences=batch, context=step, heads=heads, kv_heads=kv_heads)
            return replace(sizes, queries=None, window=window)

        table = self._attention("generation_mla" if op.latent else "generation_attention", op, like)
        points = (op.sequences, op.context, op.heads)
        return self._from(table, op, points if op.latent else (*points, op.kv_heads))

    def _attention(
        self, name: str, op: PrefillAttention | DecodeAttention, like: Callable[..., Compute]
    ) -> _Table | None:
        """The table of this head size and window; a window without one takes the full-context table's utilisation."""
        for window in (0,) if op.latent else dict.fromkeys((op.window, 0)):
            identity = (name, op.head_dim, op.v_head_dim, window, op.kv_precision)
            keys = latent_keys(op.kv_precision) if op.latent else attention_keys(op.head_dim, window, op.kv_precision)
            table = self._table(identity, keys, partial(like, window))
            if table is not None:
                return table
        return None

    def _attention_backward(self, op: AttentionBackward) -> KernelTime:
        """Its own table where there is one, else the utilisation of the forward kernel."""
        once = op.forward
        if isinstance(once, PrefillAttention) and not once.latent:
            forward_like = prefill_like(once)
            table = self._attention(
                "context_attention_backward", once, lambda *sizes: replace(op, forward=forward_like(*sizes))
            )
            if table is not None:
                return self._from(table, op, prefill_points(once))
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
        identity = ("memory_pass", kind, op.kernels)
        table = self._table(identity, iter([{"op_name": kind}]), lambda size_bytes: replace(op, size_bytes=size_bytes))
        return self._from(table, op, (op.size_bytes,))

    def _experts(self, op: Experts) -> KernelTime:
        """Fused kernels where ranks hold every token; those of wide expert parallelism where tokens came to them.

        Gradients have a table of their own, and without it take the time of the forward kernel.
        """
        sizes, gathered = (op.tokens, op.moe_tp, op.ep), replace(op, exchanged=None)
        time = self._experts_of(gathered, "moe", sizes)
        whole = in_whole_tiles(op, self.roofline.whole_tiles).whole_tiles
        if whole is not None:  # no table times those kernels
            time = time.where(whole <= 0, self.roofline.price(op))
        if gradient_of(op.name):
            own = self._experts_of(gathered, "moe_backward", sizes)
            time = own.where(own.basis < Basis.ANALYTICAL, time)
        if op.exchanged is None or not np.any(op.exchanged):
            return time
        time = time.where(time.basis < Basis.ANALYTICAL, self.roofline.price(op))
        bulk = op.tokens / op.ep > BULK_TOKENS
        for name, chosen in (("wideep_generation_moe", ~bulk), ("wideep_context_moe", bulk)):
            wide = self._experts_of(op, name, (op.tokens, op.ep))
            time = wide.where((op.exchanged > 0) & chosen & (wide.basis < Basis.ANALYTICAL), time)
        return time

    def _experts_of(self, op: Experts, name: str, points: tuple[Floats, ...]) -> KernelTime:
        """From the table of this expert shape; a shape without one takes the utilisation of the nearest measured."""
        shape = (op.hidden, op.intermediate, max(1, round(op.top_k)), op.num_experts)
        table, note = self._expert_table(op, name, shape), ""
        if table is not None and shape[2] != op.top_k:
            note = f"{name}: {op.top_k:g} experts a token on average take the utilisation of {shape[2]}"
        if table is None:
            near, table = self._nearest_expert_table(op, name, shape)
            note = f"{name}: experts of shape {shape} take the utilisation of the measured shape {near}"
        if table is not None and note:
            self.notes.add(note)
            table = replace(table, basis=Basis.HELD)
        return self._from(table, op, points)

    def _expert_table(self, op: Experts, name: str, shape: tuple[int, ...]) -> _Table | None:
        hidden, inter, top_k, experts = shape

        def like(tokens: Floats, *degrees: Floats) -> Experts:
            moe_tp, ep = degrees if len(degrees) == 2 else (np.ones_like(tokens), degrees[0])
            sizes = replace(op, tokens=tokens, moe_tp=moe_tp, ep=ep, hidden=hidden, intermediate=inter)
            exchanged = None if op.exchanged is None else np.ones_like(tokens)
            return replace(sizes, top_k=top_k, num_experts=experts, exchanged=exchanged, redundant=None)

        side = gradient_of(op.name) if name == "moe_backward" else ""
        fixed: dict[str, str | int] = {"distribution": self.skew, **dict(zip(_EXPERT_COLUMNS, shape, strict=True))}
        if side:
            fixed["gradient"] = side
        keys = ({"moe_dtype": dtype, **fixed} for dtype in self._expert_dtypes(op))
        usable = partial(self._reads_all_experts, like) if name == "moe" else None
        return self._table((name, side, op.precision, op.activation, shape), keys, like, usable=usable)

    def _reads_all_experts(self, like: Callable[..., Experts], table: KernelTable, key: Key) -> bool:
        """Whether kernels under an even load take as long as memory takes to read the weights of its experts.

        Kernels that route by DeepSeek's groups, half of them for each token, read half of what tables of its shape say.
        """
        grid = table.grid(**{**key, "distribution": EVEN_LOAD})
        if grid is None:
            return True
        read_s = evenly_read_bytes(like(*grid.points())) / self.roofline.accelerator.memory_bandwidth_bytes_per_s
        return not np.any(grid.latency_s < read_s)

    def _expert_dtypes(self, op: Experts) -> tuple[str, ...]:
        """Engines quantise the activations of mxfp4 experts to mxfp8 where tensor cores take mxfp4 directly."""
        if op.precision == "mxfp4" and not self.roofline.accelerator.supports("mxfp4"):
            return MXFP4_WEIGHT_ONLY
        return DTYPES.get(op.precision, ())

    def _nearest_expert_table(
        self, op: Experts, name: str, shape: tuple[int, ...]
    ) -> tuple[tuple[int, ...] | None, _Table | None]:
        """The measured expert shape nearest in the logarithm of its four sizes, and its table."""
        shapes: set[tuple[int, ...]] = set()
        for table in self.chooser.tables(name):
            rows = [dict(zip(table.key_names, key, strict=True)) for key in table.keys()]  # noqa: SIM118 - a method
            shapes |= {
                tuple(int(row[column]) for column in _EXPERT_COLUMNS)
                for row in rows
                if row["moe_dtype"] in self._expert_dtypes(op) and row["distribution"] == self.skew
            }
        ordered = sorted(shapes - {shape}, key=lambda known: (_distance(known, shape), known))
        near = ((known, self._expert_table(op, name, known)) for known in ordered)
        return next((pair for pair in near if pair[1] is not None), (None, None))

    def _collective(self, op: Collective) -> KernelTime:
        """Tables cover groups inside one scale-up domain; wider ones are analytical."""
        analytical = self.roofline.price(op)
        inside = op.group * op.stride <= self.roofline.topology.levels[0].size

        def like(group: Floats, size: Floats) -> Collective:
            return Collective(op.name, 1.0, op.kind, size, group, np.ones_like(size))

        table = None
        if op.kind == "all_reduce":
            table = self._table(("custom_allreduce",), iter([{"mode": "graph"}, {}]), like)
        if table is None and op.kind != "p2p":
            name = "alltoall" if op.kind == "all_to_all" else op.kind
            table = self._table(("nccl", name), iter([{"op_name": name, "dtype": "half"}]), like, engine="nccl")
        if table is None or not np.any(inside):
            return analytical
        return self._from(table, op, (op.group, op.size_bytes)).where(inside, analytical)

    def _table(
        self,
        identity: tuple[str | int | float | tuple[int, ...], ...],
        keys: Iterator[Mapping[str, str | int]],
        like: Callable[..., Operator],
        engine: str | None = None,
        usable: Usable | None = None,
    ) -> _Table | None:
        """The table that `identity` begins with, for the first of `keys` it holds, as a ratio to the roofline.

        `like` gives the operator at the sizes that the table's axes hold.
        """
        if identity not in self._tables:
            chosen = self.chooser.choose(str(identity[0]), keys, engine, usable)
            self._tables[identity] = None if chosen is None else self._as_ratio(str(identity[0]), chosen, like)
        return self._tables[identity]

    def _as_ratio(self, name: str, chosen: ChosenTable, like: Callable[..., Operator]) -> _Table:
        """The grid over the roofline of its cells, to the power of how far the table counts against it."""
        grid = chosen.grid
        cells = like(*(axis.ravel() for axis in grid.points()))
        reference = np.maximum(self.roofline.price(cells).seconds, 1e-12).reshape(grid.latency_s.shape)
        if chosen.ours:
            return _Table(grid, grid.filled(reference), Basis.MEASURED)
        trust = float(getattr(self.trust, _TRUST_OF.get(name, "attention")))
        return _Table(grid, trust * grid.filled(reference), Basis.IMPORTED)

    def _from(self, table: _Table | None, op: Operator, points: tuple[Floats, ...]) -> KernelTime:
        """Roofline of the query times the interpolated ratio."""
        reference = self.roofline.price(op)
        if table is None:
            return reference
        idle = reference.seconds <= 0
        safe = tuple(
            np.where(idle, axis[0], np.maximum(p, 1e-9)) for axis, p in zip(table.grid.axes, points, strict=True)
        )
        place = corners(table.grid, safe)
        seconds = np.where(idle, 0.0, reference.seconds * np.exp(place.interpolate(table.log_ratio)))
        outside = max(table.basis, Basis.HELD)
        return KernelTime(seconds, np.where(place.inside, table.basis, outside).astype(np.uint8))


_PRICED_BY: dict[type[Operator], Callable[[Profiled, Any], KernelTime]] = {
    Gemm: Profiled._gemm,
    BatchedGemm: Profiled._batched,
    PrefillAttention: Profiled._prefill,
    DecodeAttention: Profiled._decode,
    AttentionBackward: Profiled._attention_backward,
    Experts: Profiled._experts,
    MemoryPass: Profiled._memory_pass,
    Collective: Profiled._collective,
}
"""Kinds of operators that tables hold."""


def _distance(known: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """Between expert shapes: the sum of the logarithms of their sizes' ratios."""
    return float(sum(abs(np.log(a / b)) for a, b in zip(known, shape, strict=True)))
