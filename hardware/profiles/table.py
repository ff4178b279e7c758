"""One kernel table in the project's own format: a small JSON header and one little-endian binary file.

The binary file holds, in this order, a directory (int64, one row a grid: key codes, axis numbers, number of the kernel
source set, byte offset of the latencies, byte offset of the nearest-cell index), the latencies (float64, seconds, NaN
where unmeasured, C order) and the indices of the nearest measured cells (int32). docs/profiles.md describes it.
"""

import json
import mmap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Floats, Ints
from planner.hardware.profiles.grid import Grid

SCHEMA = "planner.profile/1"
HEADER, COLUMNS = "header.json", "columns.bin"

KeyValue = str | int


class DamagedTableError(Exception):
    """A stored table that is incomplete or not in this format; the reader of a cache rebuilds it."""


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """What was measured: on which accelerator, with which engine and version, which table, of which exact file."""

    accelerator: str
    engine: str  # vllm, sglang, trtllm, nccl
    version: str
    table: str  # gemm, context_attention, ...
    digest: str  # sha256 of the parquet file it came from, hexadecimal


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A categorical column: its name, the values it takes in the table, and the one meant when none is named."""

    name: str
    values: tuple[KeyValue, ...]
    default: KeyValue | None


@dataclass(frozen=True, slots=True, eq=False)
class TableHeader:
    """Everything about a table but its numbers; `axes` are shared by the grids that number them in the directory."""

    identity: TableIdentity
    axis_names: tuple[str, ...]
    keys: tuple[KeyColumn, ...]
    axes: tuple[tuple[float, ...], ...]
    kernel_sources: tuple[tuple[str, ...], ...]
    num_grids: int
    num_bytes: int
    rows_kept: int
    rows_dropped: int

    def to_json(self) -> str:
        """The header as it is stored."""
        return json.dumps({"schema": SCHEMA, "latency_unit": "s", **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "TableHeader":
        """Reads `to_json`; raises DamagedTableError on anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data["schema"] != SCHEMA:
                raise DamagedTableError(f"schema is {data['schema']!r}, wanted {SCHEMA!r}")
            return cls(
                identity=TableIdentity(**data["identity"]),
                axis_names=tuple(data["axis_names"]),
                keys=tuple(KeyColumn(key["name"], tuple(key["values"]), key["default"]) for key in data["keys"]),
                axes=tuple(tuple(axis) for axis in data["axes"]),
                kernel_sources=tuple(tuple(sources) for sources in data["kernel_sources"]),
                num_grids=data["num_grids"],
                num_bytes=data["num_bytes"],
                rows_kept=data["rows_kept"],
                rows_dropped=data["rows_dropped"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedTableError(f"not a table header: {error!r}") from error


class KernelTable:
    """A table of latencies: grids found by key. Holds the file mapped, copies nothing until a cell is read."""

    def __init__(self, header: TableHeader, columns: bytes | mmap.mmap) -> None:
        width = len(header.keys) + len(header.axis_names) + 3
        self.identity = header.identity
        self.header = header
        self.key_names = tuple(key.name for key in header.keys)
        self.axis_names = header.axis_names
        self._columns = columns
        self._directory = np.frombuffer(columns, "<i8", header.num_grids * width).reshape(header.num_grids, width)
        self._code_of = [{value: code for code, value in enumerate(key.values)} for key in header.keys]
        self._grids: dict[int, Grid] = {}

    @classmethod
    def map(cls, folder: Path) -> "KernelTable":
        """The table stored in `folder`, its numbers mapped; raises DamagedTableError when it is not all there."""
        try:
            header = TableHeader.from_json((folder / HEADER).read_text(encoding="utf-8"))
            with open(folder / COLUMNS, "rb") as file:
                columns = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamagedTableError(f"{folder}: {error}") from error
        if len(columns) != header.num_bytes:
            raise DamagedTableError(f"{folder}: {len(columns)} bytes of columns, wanted {header.num_bytes}")
        return cls(header, columns)

    def keys(self) -> list[tuple[KeyValue, ...]]:
        """The key tuples of all grids, in the order of `key_names`."""
        values = [key.values for key in self.header.keys]
        rows = self._directory[:, : len(values)].tolist()
        return [tuple(column[code] for column, code in zip(values, row, strict=True)) for row in rows]

    def grid(self, **key: KeyValue) -> Grid | None:
        """The grid of one key, None when it was not measured; naming an axis too fixes it to a value and drops it.

        A key left out takes its only value, or its default; ValueError when neither decides.
        """
        unknown = [name for name in key if name not in self.key_names and name not in self.axis_names]
        if unknown:
            raise ValueError(f"table {self.identity.table} has keys {self.key_names}, found {unknown}")
        row = self._find(key)
        if row is None:
            return None
        if row not in self._grids:
            self._grids[row] = self._load(row)
        grid: Grid | None = self._grids[row]
        for name in self.axis_names:
            if name in key and grid is not None:
                grid = grid.at(name, float(key[name]))
        return grid

    def _find(self, key: dict[str, KeyValue]) -> int | None:
        """The directory row of a key, None when absent."""
        rows: Ints = np.arange(self.header.num_grids)
        for column, name in enumerate(self.key_names):
            if name in key:
                code = self._code_of[column].get(key[name], -1)
                rows = rows[self._directory[rows, column] == code]
        for column, name in enumerate(self.key_names):
            if name not in key and len(rows) > 1:
                rows = rows[self._directory[rows, column] == self._implied(column, rows)]
        return int(rows[0]) if len(rows) else None

    def _implied(self, column: int, rows: Ints) -> int:
        codes = np.unique(self._directory[rows, column])
        if len(codes) == 1:
            return int(codes[0])
        key = self.header.keys[column]
        default = -1 if key.default is None else self._code_of[column].get(key.default, -1)
        if default not in codes:
            values = [key.values[code] for code in codes]
            raise ValueError(f"table {self.identity.table} needs a {key.name}, one of {values}")
        return default

    def _load(self, row: int) -> Grid:
        num_keys, num_axes = len(self.key_names), len(self.axis_names)
        numbers = self._directory[row].tolist()
        axes = tuple(np.asarray(self.header.axes[axis]) for axis in numbers[num_keys : num_keys + num_axes])
        sources, latency_at, nearest_at = numbers[num_keys + num_axes :]
        shape = tuple(len(axis) for axis in axes)
        size = int(np.prod(shape))
        latency_s: Floats = np.frombuffer(self._columns, "<f8", size, latency_at).reshape(shape)
        nearest: NDArray[np.int32] = np.frombuffer(self._columns, "<i4", size, nearest_at).reshape(shape)
        return Grid(axes, self.axis_names, latency_s, self.header.kernel_sources[sources], nearest)
