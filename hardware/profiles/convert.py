"""Converts one parquet kernel table in NVIDIA's aiconfigurator layout to the project's own format."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsInt

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.hardware.profiles.grid import nearest_measured
from planner.hardware.profiles.layout import ELEMENT_BYTES, KEY_DEFAULTS, RENAMED, TableLayout, layout_of
from planner.hardware.profiles.table import KeyColumn, KeyValue, TableHeader, TableIdentity

# A kernel of one layer takes microseconds to seconds; anything longer is a failed measurement.
LONGEST_LATENCY_S = 60.0

if TYPE_CHECKING:
    import pyarrow

Columns = dict[str, NDArray[Any]]


class UnknownLayoutError(PlannerError):
    """A readable table whose columns say nothing of shapes or latencies."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A table ready to be stored or used: its header and the content of its binary file."""

    header: TableHeader
    columns: bytes


@dataclass(frozen=True, slots=True)
class _Cells:
    """One latency a cell: key codes, axis values and the set of kernel sources of its key group."""

    keys: tuple[KeyColumn, ...]
    code_KR: Ints  # [key, row] sorted by key
    axis_DR: Floats  # [axis, row]
    latency_R: Floats
    source_R: Ints
    source_names: tuple[str, ...]


def convert(data: bytes, *, accelerator: str, engine: str, version: str, table: str, where: str) -> Converted:
    """The table in our format; raises PlannerError naming `where` when the file is damaged or unknown."""
    columns = _read_parquet(data, where)
    layout = _layout(table, columns, where)
    columns = _normalised(columns, layout, where)
    latency_R = columns["latency_s"]
    kept = np.isfinite(latency_R) & (latency_R > 0) & (latency_R < LONGEST_LATENCY_S)
    for column in columns.values():
        if column.dtype.kind == "f":
            kept &= np.isfinite(column)
    if not kept.any():
        raise UnknownLayoutError("the table holds no usable latency", where=where)
    cells = _cells({name: column[kept] for name, column in columns.items()}, layout)
    identity = TableIdentity(accelerator, engine, version, table, hashlib.sha256(data).hexdigest())
    return _laid_out(identity, layout.axes, cells, rows_kept=int(kept.sum()), rows_dropped=int((~kept).sum()))


def _read_parquet(data: bytes, where: str) -> Columns:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(data), use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PlannerError(
            f"not a readable parquet file: {reason}", where=where, hint="fetch the file again, it may be truncated"
        ) from error
    return {name: _numpy_column(table.column(name)) for name in table.column_names}


def _numpy_column(column: "pyarrow.ChunkedArray") -> NDArray[Any]:
    """Numbers as they are (missing ones NaN), text as an object array with one str a distinct value, missing ''."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pyarrow.ChunkedArray) else encoded
        words = np.array([*encoded.dictionary.to_pylist(), ""], dtype=object)
        text: NDArray[Any] = words[encoded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]
        return text
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _layout(table: str, columns: Columns, where: str) -> TableLayout:
    renamed = {RENAMED.get(name, name): column for name, column in columns.items()}
    numeric = {name for name, column in renamed.items() if _is_numeric(column) and len(column)}
    varying = frozenset(name for name in numeric if (renamed[name] != renamed[name][0]).any())
    layout = layout_of(table, varying, frozenset(renamed))
    if layout is None:
        raise UnknownLayoutError(f"table `{table}` has no axis and latency columns known here", where=where)
    return layout


def _normalised(columns: Columns, layout: TableLayout, where: str) -> Columns:
    """The layout's axes, keys, `kernel_source` and `latency_s` [row], phases unfolded, sizes in bytes."""
    columns = {RENAMED.get(name, name): column for name, column in columns.items()}
    if "message_size" in columns and _is_numeric(columns["message_size"]):
        columns["message_bytes"] = columns["message_size"] * _element_bytes(columns, where)
    if "mode" in layout.keys:
        columns |= _mode(columns)
    phases = layout.phases or {"": (layout.latency,)}
    parts = [_phase(columns, layout, phase, names, where) for phase, names in phases.items()]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _phase(columns: Columns, layout: TableLayout, phase: str, latencies: tuple[str, ...], where: str) -> Columns:
    unusable = [name for name in (*layout.axes, *latencies) if name not in columns or not _is_numeric(columns[name])]
    if unusable:
        raise UnknownLayoutError(
            f"column {', '.join(unusable)} is missing or holds no numbers",
            where=where,
            hint="give tables of aiconfigurator-core 0.12",
        )
    num_rows = len(columns[latencies[0]])
    result = {axis: columns[axis] for axis in layout.axes}
    for key in layout.keys:
        column = columns.get(f"{phase}_{key}" if phase else key, columns.get(key))
        default = phase if key == "phase" else KEY_DEFAULTS.get(key, "")
        result[key] = np.full(num_rows, default, dtype=object) if column is None else column
    result["kernel_source"] = columns.get("kernel_source", np.full(num_rows, "", dtype=object))
    result["latency_s"] = layout.unit_s * np.sum([columns[name].astype(np.float64) for name in latencies], axis=0)
    return result


def _is_numeric(column: NDArray[Any]) -> bool:
    return column.dtype.kind in "iuf"


def _element_bytes(columns: Columns, where: str) -> Ints:
    """Bytes of one element of a message, by its dtype [row]."""
    names, code_R = np.unique(columns["dtype"], return_inverse=True) if "dtype" in columns else (["half"], 0)
    unknown = [str(name) for name in names if name not in ELEMENT_BYTES]
    if unknown:
        raise UnknownLayoutError(f"element type {unknown[0]!r} is not one of {', '.join(ELEMENT_BYTES)}", where=where)
    return np.array([ELEMENT_BYTES[str(name)] for name in names], dtype=np.int64)[code_R]


def _mode(columns: Columns) -> Columns:
    """`graph` or `eager`, from names such as `vllm_eager`; what says neither was replayed from a graph."""
    if "backend" not in columns:
        return {}
    names, code_R = np.unique(columns["backend"], return_inverse=True)
    modes = np.array(["eager" if str(name).endswith("eager") else "graph" for name in names], dtype=object)
    return {"mode": modes[code_R]}


def _cells(columns: Columns, layout: TableLayout) -> _Cells:
    """One row a cell: the median over repetitions of one kernel source, the minimum over kernel sources.

    Several sources of one cell are either the engine's own dispatch or alternatives it may choose among, so the
    fastest stands for what the engine can do.
    """
    keys, codes = [], []
    for name in layout.keys:
        values, code_R = np.unique(columns[name], return_inverse=True)
        keys.append(KeyColumn(name, tuple(_plain(value) for value in values), KEY_DEFAULTS.get(name)))
        codes.append(code_R)
    sources, source_R = np.unique(columns["kernel_source"], return_inverse=True)
    axis_DR = np.stack([columns[axis].astype(np.float64) for axis in layout.axes])
    latency_R = columns["latency_s"]
    order = np.lexsort([latency_R, source_R, *axis_DR[::-1], *codes[::-1]])
    code_KR = np.stack(codes)[:, order] if codes else np.zeros((0, len(order)), dtype=np.int64)
    axis_DR, source_R, latency_R = axis_DR[:, order], source_R[order], latency_R[order]
    new_cell_R = _changes(code_KR) | _changes(axis_DR)
    run_at = np.flatnonzero(new_cell_R | _changes(source_R[None, :]))
    run_length = np.diff(np.append(run_at, len(latency_R)))
    median = (latency_R[run_at + (run_length - 1) // 2] + latency_R[run_at + run_length // 2]) / 2
    cell_at = np.flatnonzero(new_cell_R[run_at])
    fastest = np.minimum.reduceat(median, cell_at)
    runs = (code_KR[:, run_at], axis_DR[:, run_at], source_R[run_at])
    cell_of_run = np.cumsum(new_cell_R[run_at]) - 1
    return _Cells(tuple(keys), runs[0], runs[1], fastest[cell_of_run], runs[2], tuple(str(s) for s in sources))


def _changes(rows: NDArray[Any]) -> Bools:
    """[row] whether a column of `rows` differs from the one before it; the first one does."""
    changed = np.ones(rows.shape[1], dtype=np.bool_)
    changed[1:] = (rows[:, 1:] != rows[:, :-1]).any(axis=0)
    return changed


def _plain(value: str | SupportsInt) -> KeyValue:
    """A key value as JSON keeps it: text, or a whole number."""
    return value if isinstance(value, str) else int(value)


def _laid_out(
    identity: TableIdentity, axis_names: tuple[str, ...], cells: _Cells, *, rows_kept: int, rows_dropped: int
) -> Converted:
    """Lays every key's cells on its own full grid and joins the grids into one block of bytes."""
    builder = _TableBuilder()
    starts = np.flatnonzero(_changes(cells.code_KR)) if cells.keys else np.zeros(1, dtype=np.int64)
    for start, end in zip(starts, np.append(starts[1:], len(cells.latency_R)), strict=True):
        names = tuple(cells.source_names[s] for s in np.unique(cells.source_R[start:end]) if cells.source_names[s])
        builder.add(cells.code_KR[:, start].tolist(), cells.axis_DR[:, start:end], cells.latency_R[start:end], names)
    columns = builder.columns()
    header = TableHeader(
        identity=identity,
        axis_names=axis_names,
        keys=cells.keys,
        axes=tuple(builder.axes),
        kernel_sources=tuple(builder.sources),
        num_grids=len(starts),
        num_bytes=len(columns),
        rows_kept=rows_kept,
        rows_dropped=rows_dropped,
    )
    return Converted(header, columns)


class _TableBuilder:
    """Collects grids; axes and source sets that repeat are stored once, nearest cells are computed once a pattern."""

    def __init__(self) -> None:
        self.axes: dict[tuple[float, ...], int] = {}
        self.sources: dict[tuple[str, ...], int] = {}
        self._rows: list[list[int]] = []
        self._latencies: list[Floats] = []
        self._nearest: dict[bytes, tuple[int, NDArray[np.int32]]] = {}
        self._nearest_of: list[int] = []
        self._nearest_end = 0

    def add(self, codes: list[int], axis_DR: Floats, latency_R: Floats, sources: tuple[str, ...]) -> None:
        """One grid from the cells of one key."""
        unique = [np.unique(values, return_inverse=True) for values in axis_DR]
        axes = tuple(values for values, _ in unique)
        latency_s = np.full(tuple(len(axis) for axis in axes), np.nan)
        latency_s[tuple(place for _, place in unique)] = latency_R
        numbers = [self.axes.setdefault(tuple(axis.tolist()), len(self.axes)) for axis in axes]
        pattern = repr(numbers).encode() + np.packbits(np.isnan(latency_s)).tobytes()
        if pattern not in self._nearest:
            self._nearest[pattern] = (self._nearest_end, nearest_measured(axes, latency_s))
            self._nearest_end += 4 * latency_s.size
        self._nearest_of.append(self._nearest[pattern][0])
        self._rows.append([*codes, *numbers, self.sources.setdefault(sources, len(self.sources))])
        self._latencies.append(latency_s.ravel())

    def columns(self) -> bytes:
        """The directory, the latencies and the nearest cells, little-endian."""
        width = len(self._rows[0]) + 2
        latency_at = 8 * width * len(self._rows)
        nearest_at = latency_at + 8 * sum(len(block) for block in self._latencies)
        directory = []
        for row, block, offset in zip(self._rows, self._latencies, self._nearest_of, strict=True):
            directory.append([*row, latency_at, nearest_at + offset])
            latency_at += 8 * len(block)
        parts = [np.array(directory, dtype="<i8").tobytes(), np.concatenate(self._latencies).astype("<f8").tobytes()]
        parts += [nearest.astype("<i4").tobytes() for _, nearest in self._nearest.values()]
        return b"".join(parts)
