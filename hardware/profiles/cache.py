"""Cache folder of converted kernel tables, so that each parquet file is read once for all processes."""

import hashlib
import os
import shutil
from pathlib import Path

from planner.hardware.profiles.convert import Converted, convert
from planner.hardware.profiles.files import publish, staging, write_files
from planner.hardware.profiles.sources import Source
from planner.hardware.profiles.table import COLUMNS, HEADER, DamagedTableError, KernelTable

# Raise when the conversion gives other numbers for the same file, so that older entries are left alone.
CONVERSION = 1


def default_cache_dir() -> Path:
    """$PLANNER_CACHE_DIR, else $XDG_CACHE_HOME/planner, else ~/.cache/planner."""
    if own := os.environ.get("PLANNER_CACHE_DIR"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "planner"
    return Path(os.path.expanduser("~")) / ".cache" / "planner"


def convert_source(source: Source) -> Converted:
    """Reads and converts one parquet file; raises PlannerError."""
    return convert(
        source.read(),
        accelerator=source.accelerator,
        engine=source.engine,
        version=source.version,
        table=source.table,
        where=source.where,
    )


class TableCache:
    """Converted tables in one folder each, named by the path, size and modification time of their source."""

    def __init__(self, root: Path) -> None:
        self._root = root / "kernel-tables" / f"v{CONVERSION}"

    def load(self, source: Source) -> KernelTable:
        """The table of `source`, mapped from the cache, converted first when it is not (soundly) there.

        A cache that cannot be written costs a conversion a process, nothing else.
        """
        cached = self.peek(source)
        if cached is not None:
            return cached
        entry = self._entry(source)
        converted = convert_source(source)
        try:
            self._store(entry, converted)
            return KernelTable.map(entry)
        except (OSError, DamagedTableError):
            return KernelTable(converted.header, converted.columns)

    def peek(self, source: Source) -> KernelTable | None:
        """The table if the cache holds it whole for the file as it is now."""
        try:
            return KernelTable.map(self._entry(source))
        except (OSError, DamagedTableError):
            return None

    def _entry(self, source: Source) -> Path:
        size, modified_ns = source.stamp()
        return self._root / f"{self._place(source)}-{size:x}-{modified_ns:x}"

    @staticmethod
    def _place(source: Source) -> str:
        name = f"{os.path.abspath(source.path)}\0{source.member or ''}"
        return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _store(self, entry: Path, converted: Converted) -> None:
        with staging(self._root) as folder:
            files = {HEADER: converted.header.to_json().encode(), COLUMNS: converted.columns}
            write_files(folder / "table", files)
            publish(folder / "table", entry)
        for older in self._root.glob(entry.name.split("-")[0] + "-*"):
            if older != entry:
                shutil.rmtree(older, ignore_errors=True)
