"""Compares two kernel profiles of one accelerator, table by table, with each other and with the roofline."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.kernels import (
    AttentionBackward,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    PrefillAttention,
    demand,
)
from planner.costs.rates.table_keys import PASS_OF
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator
from planner.hardware.profiles.grid import Grid
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiles.table import KernelTable, KeyValue

_PRECISION = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "float32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
}
_LATENT = {"context_mla": (192, 128), "generation_mla": (576, 512)}  # DeepSeek's sizes of keys and values
CLOSE = 0.15
EQUAL = 0.02  # sizes as near as this are the same shape: 4095 cached tokens and a new one, or 4096 in all


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table: its cells, their share of the roofline's rate (median, p10, p90), and the other profile's.

    Over the shapes that both measured: `ratio` is the median of other latency / this latency, `difference` the median
    of |this / other - 1|, `within` the share of those that differ by less than 15 %.
    """

    table: str
    cells: int
    utilisation: tuple[float | None, float | None, float | None]
    shared: int
    ratio: float | None
    difference: float | None
    within: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tables of the first profile."""

    accelerator: str
    first: str
    second: str
    lines: tuple[TableComparison, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"schema": "planner.profiles_compare/1", **asdict(self)}


def compare(
    name: str,
    accelerator: Accelerator | None,
    first: ProfileStore,
    second: ProfileStore,
    places: tuple[str, str],
    engine: str | None = None,
) -> Comparison:
    """Compares every table that the first profile has of accelerator `name` with the fullest one of the second, or that
    of `engine`.

    Without the data sheet of the accelerator nothing is said of utilisation. Raises PlannerError when the first
    has none.
    """
    wanted = [identity for identity in first.identities() if identity.accelerator == name]
    if not wanted:
        known = ", ".join(first.accelerators())
        raise PlannerError(f"no tables of `{name}`", where=places[0], hint=f"it has tables of {known}")
    lines, notes = [], []
    if accelerator is None:
        notes.append(f"the catalog does not know `{name}`: nothing can be said of utilisation")
    for table in sorted({identity.table for identity in wanted}):
        ours, theirs = _newest(first, name, table), _newest(second, name, table, engine)
        assert ours is not None
        if theirs is None:
            notes.append(f"{table}: {places[1]} has no such table")
        lines.append(_line(table, ours, theirs, accelerator))
    return Comparison(name, *places, tuple(lines), tuple(notes))


def _newest(store: ProfileStore, accelerator: str, table: str, engine: str | None = None) -> KernelTable | None:
    """The table with most rows of those a store has, of `engine` alone where one is named."""
    known = store.identities()
    engines = {each.engine for each in known if (each.accelerator, each.table) == (accelerator, table)}
    engines = engines if engine is None else engines & {engine}
    tables = [
        store.select(accelerator=accelerator, table=table, engine=engine, version=None) for engine in sorted(engines)
    ]
    return max(filter(None, tables), key=lambda each: each.header.rows_kept, default=None)


def _line(name: str, ours: KernelTable, theirs: KernelTable | None, accelerator: Accelerator | None) -> TableComparison:
    shares: list[Floats] = []
    ratios: list[Floats] = []
    cells = 0
    for key, grid in _grids(ours):
        known = ~np.isnan(grid.latency_s)
        cells += int(known.sum())
        floor_s = None if accelerator is None else roofline_s(name, key, grid, accelerator)
        if floor_s is not None:
            shares.append((floor_s.reshape(grid.latency_s.shape) / grid.latency_s)[known])
        if theirs is not None:
            ratios.append(_ratios(key, grid, theirs))
    share = np.concatenate(shares) if shares else np.zeros(0)
    ratio = np.concatenate(ratios) if ratios else np.zeros(0)
    spread = tuple(float(value) for value in np.percentile(share, [50, 10, 90])) if len(share) else (None, None, None)
    within = float(np.mean(np.abs(ratio - 1.0) < CLOSE)) if len(ratio) else None
    median = float(np.median(ratio)) if len(ratio) else None
    difference = float(np.median(np.abs(1.0 / ratio - 1.0))) if len(ratio) else None
    return TableComparison(name, cells, (spread[0], spread[1], spread[2]), len(ratio), median, difference, within)


def _grids(table: KernelTable) -> Iterator[tuple[dict[str, KeyValue], Grid]]:
    for values in table.keys():  # noqa: SIM118 - a method of the table, not of a mapping
        key = dict(zip(table.key_names, values, strict=True))
        grid = table.grid(**key)
        if grid is not None:
            yield key, grid


def _ratios(key: dict[str, KeyValue], grid: Grid, theirs: KernelTable) -> Floats:
    """Other latency / own latency at the own cells whose shapes the other table holds."""
    shared = {name: value for name, value in key.items() if name in theirs.key_names}
    try:
        other = theirs.grid(**shared)
    except ValueError:  # the other table has a key that this one lacks
        return np.zeros(0)
    if other is None or other.axis_names != grid.axis_names:
        return np.zeros(0)
    own_s = grid.latency_s.ravel()
    kept, place = ~np.isnan(own_s), []
    for points, known in zip(grid.points(), other.axes, strict=True):
        own = points.ravel()
        nearest = np.argmin(np.abs(own[:, None] - known), axis=1)
        kept &= np.abs(own - known[nearest]) <= EQUAL * own
        place.append(nearest)
    other_s = other.latency_s[tuple(place)]
    kept &= ~np.isnan(other_s)
    result: Floats = other_s[kept] / own_s[kept]
    return result


def roofline_s(name: str, key: dict[str, KeyValue], grid: Grid, accelerator: Accelerator) -> Floats | None:
    """max(operations / peak, bytes / bandwidth) of every cell, without efficiencies or floors; None for other kinds."""
    points = tuple(axis.ravel() for axis in grid.points())
    op = _operator(name, key, points)
    if op is None:
        return None
    asked = demand(op)
    compute_s = asked.flop / accelerator.peak(asked.precision)
    return np.maximum(compute_s, asked.size_bytes / accelerator.memory_bandwidth_bytes_per_s)


def _operator(
    name: str, key: dict[str, KeyValue], points: tuple[Floats, ...]
) -> Gemm | PrefillAttention | DecodeAttention | AttentionBackward | Experts | MemoryPass | None:
    if name == "gemm" and str(key["gemm_dtype"]) in _PRECISION:
        m, n, k = points
        return Gemm(name, 1.0, m, n, k, _PRECISION[str(key["gemm_dtype"])])
    if name in ("context_attention", "context_attention_backward", "generation_attention"):
        head_dim, window = int(key["head_dim"]), int(key["window_size"])
        batch, length, heads, kv_heads = points
        return _attention(name, (batch, length, heads, np.minimum(kv_heads, heads)), (head_dim, head_dim), window)
    if name in _LATENT:
        batch, length, heads = points
        shared = heads if name == "context_mla" else np.ones_like(heads)
        return _attention(name, (batch, length, heads, shared), _LATENT[name], 0, latent=True)
    if name == "moe" and str(key["moe_dtype"]) in _PRECISION:
        precision = _PRECISION[str(key["moe_dtype"])]
        tokens, moe_tp, ep = points
        hidden, inter, top_k, among = (int(key[name]) for name in ("hidden_size", "inter_size", "topk", "num_experts"))
        return Experts(name, 1.0, tokens, moe_tp, ep, hidden, inter, top_k, among, True, precision, precision)
    if name == "memory_pass" and str(key["op_name"]) in PASS_OF.values():
        return MemoryPass(name, 1.0, points[0], 1.0)
    return None


def _attention(
    name: str, points: tuple[Floats, ...], dims: tuple[int, int], window: int, *, latent: bool = False
) -> PrefillAttention | DecodeAttention | AttentionBackward:
    batch, length, heads, kv_heads = points
    sizes = (heads, kv_heads, *dims, window, "bf16")
    if name.startswith("generation"):
        return DecodeAttention(name, 1.0, batch, length, *sizes, latent=latent)
    once = PrefillAttention(name, 1.0, batch, length, np.zeros_like(length), *sizes, latent=latent)
    return AttentionBackward(name, 1.0, once) if name.endswith("backward") else once
