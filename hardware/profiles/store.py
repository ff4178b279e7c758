"""All kernel tables of the user (imported stores, raw directories, wheels), and the choice among versions."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from planner.errors import PlannerError
from planner.hardware.profiles.cache import TableCache, default_cache_dir
from planner.hardware.profiles.sources import Source, find_sources
from planner.hardware.profiles.table import DamagedTableError, KernelTable, TableIdentity
from planner.hardware.profiles.versions import by_preference

__all__ = ["INDEX", "STORE_SCHEMA", "KernelTable", "ProfileStore", "TableIdentity", "read_index"]

STORE_SCHEMA = "planner.profiles/1"
INDEX = "index.json"


class _Entry(Protocol):
    """A table that can be loaded, known by its place."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Accelerator, engine, version, table."""
        ...

    def load(self) -> KernelTable: ...

    def identity(self) -> TableIdentity: ...


@dataclass(frozen=True, slots=True)
class _Stored:
    """A table of an imported store."""

    folder: Path
    known: TableIdentity

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.known.accelerator, self.known.engine, self.known.version, self.known.table

    def load(self) -> KernelTable:
        try:
            return KernelTable.map(self.folder)
        except DamagedTableError as error:
            raise PlannerError(
                f"the stored table is damaged: {error}",
                where=str(self.folder),
                hint="run `planner profiles import` again",
            ) from error

    def identity(self) -> TableIdentity:
        return self.known


@dataclass(frozen=True, slots=True)
class _Raw:
    """A table in NVIDIA's layout, converted through the cache."""

    source: Source
    cache: TableCache

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.source.accelerator, self.source.engine, self.source.version, self.source.table

    def load(self) -> KernelTable:
        return self.cache.load(self.source)

    def identity(self) -> TableIdentity:
        cached = self.cache.peek(self.source)
        if cached is not None:
            return cached.identity
        return TableIdentity(*self.key, digest=hashlib.sha256(self.source.read()).hexdigest())


class ProfileStore:
    """Kernel tables by accelerator, table, engine and version; of two equal ones the earlier path wins."""

    def __init__(self, entries: Sequence[_Entry], *, lenient: bool = False) -> None:
        self._lenient = lenient
        self.left_out: set[str] = set()  # tables that a lenient store could not read, and why
        self._entries: dict[tuple[str, str, str, str], _Entry] = {}
        for entry in entries:
            self._entries.setdefault(entry.key, entry)
        self._versions: dict[tuple[str, str, str], list[str]] = {}
        for accelerator, engine, version, table in self._entries:
            self._versions.setdefault((accelerator, engine, table), []).append(version)
        self._loaded: dict[tuple[str, str, str, str], KernelTable | None] = {}

    @classmethod
    def open(cls, paths: Sequence[Path], cache: Path | None = None, *, lenient: bool = False) -> "ProfileStore":
        """Finds the tables under `paths`, reading none of them; raises PlannerError for a path that holds none.

        A path is an imported store, a directory in NVIDIA's layout or an `aiconfigurator-core` wheel. A `lenient` store
        goes on without the tables that it cannot read, and names them.
        """
        table_cache = TableCache(cache or default_cache_dir())
        entries: list[_Entry] = []
        for path in paths:
            if (path / INDEX).is_file():
                entries += [_Stored(path / folder, identity) for folder, identity in read_index(path).items()]
            else:
                entries += [_Raw(source, table_cache) for source in find_sources(path)]
        return cls(entries, lenient=lenient)

    def select(self, *, accelerator: str, table: str, engine: str, version: str | None) -> KernelTable | None:
        """The table of the wanted version, else of the nearest one of the same engine (the newest for None).

        None when this accelerator has no such table of this engine. Reads the one table that is chosen.
        """
        return next(self.candidates(accelerator=accelerator, table=table, engine=engine, version=version), None)

    def candidates(self, *, accelerator: str, table: str, engine: str, version: str | None) -> Iterator[KernelTable]:
        """All versions of a table, the one `select` gives first; each is read when the iteration reaches it.

        Versions differ in what they measured (a release candidate may hold one new model alone), so a caller whose
        key is missing in one table goes on to the next.
        """
        for chosen in by_preference(version, self._versions.get((accelerator, engine, table), [])):
            loaded = self._load((accelerator, engine, chosen, table))
            if loaded is not None:
                yield loaded

    def _load(self, key: tuple[str, str, str, str]) -> KernelTable | None:
        """One table, read once; None where it cannot be read and need not be."""
        if key not in self._loaded:
            try:
                self._loaded[key] = self._entries[key].load()
            except PlannerError as error:
                if not self._lenient:
                    raise
                self._loaded[key] = None
                self.left_out.add(f"{'/'.join(key)} cannot be read: {error.what}")
        return self._loaded[key]

    def accelerators(self) -> list[str]:
        """Names of the accelerators that have tables, sorted."""
        return sorted({accelerator for accelerator, _, _ in self._versions})

    def places(self) -> list[tuple[str, str, str, str]]:
        """Accelerator, engine, version and name of all tables, sorted; reads none."""
        return sorted(self._entries)

    def identities(self) -> list[TableIdentity]:
        """All tables, sorted by place; hashes the files of raw directories that were never converted."""
        return [self._entries[key].identity() for key in sorted(self._entries)]


def read_index(root: Path) -> dict[str, TableIdentity]:
    """Folder (relative to the store's root) to identity of the tables of an imported store; raises PlannerError."""
    where = str(root / INDEX)
    try:
        data = json.loads((root / INDEX).read_text(encoding="utf-8"))
        if data["schema"] != STORE_SCHEMA:
            raise PlannerError(f"schema must be {STORE_SCHEMA!r}, found {data['schema']!r}", where=where)
        index = {str(folder): TableIdentity(**identity) for folder, identity in data["tables"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlannerError(
            f"not the index of a profile store: {error!r}", where=where, hint="run `planner profiles import` again"
        ) from error
    outside = [folder for folder in index if os.path.isabs(folder) or ".." in Path(folder).parts]
    if outside:
        raise PlannerError(f"folder {outside[0]!r} lies outside the store", where=where)
    return index
