"""Chooses the measured table for a kernel by engine, version and key, and says every compromise in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.hardware.profiles.grid import Grid
from planner.hardware.profiles.store import KernelTable, ProfileStore

OURS = "planner"  # engine name of tables that this program measured itself
Key = Mapping[str, str | int]

_ENGINES = ("trtllm", "sglang", "vllm")
_COMPLETE = 0.9  # of the cells of the fullest version; a table with fewer is a partial one
_SLOWEST_FLOOR_S = 15e-6  # no kernel of a replayed graph takes longer to do nothing; such a table timed the host


@dataclass(frozen=True, slots=True)
class ChosenTable:
    """The chosen grid and where it is from."""

    table: KernelTable
    grid: Grid

    @property
    def ours(self) -> bool:
        return self.table.identity.engine == OURS


@dataclass(slots=True)
class TableChooser:
    """Chooses tables of one accelerator for one engine and version; collects what it had to compromise on."""

    store: ProfileStore
    accelerator: str
    engine: str
    version: str | None
    notes: set[str] = field(default_factory=set)
    digests: set[str] = field(default_factory=set)

    def choose(self, table: str, keys: Iterable[Key], engine: str | None = None) -> ChosenTable | None:
        """The grid of the first key that our own tables, the engine's, or another engine's hold.

        Among versions the nearest to the one asked for wins, unless it measured under nine tenths of what the fullest
        did. A table whose fastest cell takes longer than any launch timed the host and not the kernel: the next
        engine's is taken.
        """
        wanted = list(keys)
        host_bound: ChosenTable | None = None
        for candidate in (OURS, engine or self.engine, *(() if engine else _ENGINES)):
            chosen = self._of_engine(table, wanted, candidate)
            if chosen is None or (host_bound is not None and chosen.table is host_bound.table):
                continue
            if table == "gemm" and float(np.nanmin(chosen.grid.latency_s)) > _SLOWEST_FLOOR_S:
                host_bound = host_bound or chosen
                continue
            return self._settled(table, chosen, host_bound)
        return None if host_bound is None else self._settled(table, host_bound, None)

    def tables(self, table: str) -> list[KernelTable]:
        """All versions of a table of the engine asked for, else of the first engine that has one."""
        for candidate in (OURS, self.engine, *_ENGINES):
            candidates = list(self._candidates(table, candidate))
            if candidates:
                return candidates
        return []

    def _candidates(self, table: str, engine: str) -> Iterable[KernelTable]:
        version = self.version if engine == self.engine else None
        return self.store.candidates(accelerator=self.accelerator, table=table, engine=engine, version=version)

    def _of_engine(self, table: str, keys: list[Key], engine: str) -> ChosenTable | None:
        versions = list(self._candidates(table, engine))
        for key in keys:
            grids = [(version, version.grid(**key)) for version in versions]
            tables = [ChosenTable(version, grid) for version, grid in grids if grid is not None]
            if tables:
                cells = [int(np.sum(~np.isnan(table.grid.latency_s))) for table in tables]
                return next(table for table, size in zip(tables, cells, strict=True) if size >= _COMPLETE * max(cells))
        return None

    def _settled(self, table: str, chosen: ChosenTable, host_bound: ChosenTable | None) -> ChosenTable:
        identity = chosen.table.identity
        self.digests.add(identity.digest)
        self.notes |= self.store.left_out
        if host_bound is not None:
            slow = host_bound.table.identity
            self.notes.add(
                f"{table}: the table of {slow.engine} {slow.version} timed the host, that of "
                f"{identity.engine} {identity.version} is used"
            )
        elif identity.engine not in (OURS, self.engine, "nccl"):
            self.notes.add(
                f"{table}: {self.engine} has no such table, that of {identity.engine} {identity.version} is used"
            )
        elif identity.engine == self.engine and self.version not in (None, identity.version):
            self.notes.add(f"{table}: {self.engine} {self.version} asked, tables of {identity.version} used")
        return chosen
