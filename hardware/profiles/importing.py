"""`planner profiles import`: converts all tables of a directory or wheel into a memory-mapped store."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import PlannerError
from planner.hardware.profiles.cache import convert_source
from planner.hardware.profiles.convert import UnknownLayoutError
from planner.hardware.profiles.files import publish, staging, write_files
from planner.hardware.profiles.sources import find_sources
from planner.hardware.profiles.store import INDEX, STORE_SCHEMA, read_index
from planner.hardware.profiles.table import COLUMNS, HEADER, TableHeader, TableIdentity


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did; `skipped` are tables whose columns are not known here, with the reason."""

    output_dir: Path
    tables: tuple[TableIdentity, ...]
    skipped: tuple[tuple[str, str], ...]
    rows_kept: int
    rows_dropped: int  # latencies that are no number, not positive or absurdly long
    size_bytes: int
    import_s: float


def import_profiles(path: Path, output_dir: Path) -> ImportReport:
    """Converts every table under `path` into a store at `output_dir`; tables of a store already there are kept.

    The store appears in one step when all tables are converted. Raises PlannerError for a path without tables, a
    damaged file, or an output that cannot be written or is something else than a store; nothing is left behind.
    """
    started = time.perf_counter()
    existing = _existing(output_dir)
    try:
        with staging(output_dir.absolute().parent) as folder:
            headers, skipped = _convert_all(path, folder / "store")
            index = existing | {_folder(header.identity): header.identity for header in headers}
            _publish(folder / "store", output_dir, index, headers, merge=bool(existing))
    except OSError as error:
        raise PlannerError(
            f"cannot write: {error.strerror}", where=str(output_dir), hint="give --output a folder that can be written"
        ) from error
    return ImportReport(
        output_dir=output_dir,
        tables=tuple(header.identity for header in headers),
        skipped=tuple(skipped),
        rows_kept=sum(header.rows_kept for header in headers),
        rows_dropped=sum(header.rows_dropped for header in headers),
        size_bytes=sum(header.num_bytes for header in headers),
        import_s=time.perf_counter() - started,
    )


def _existing(output_dir: Path) -> dict[str, TableIdentity]:
    """The index of a store already at `output_dir`, empty when there is nothing; raises PlannerError otherwise."""
    if (output_dir / INDEX).is_file():
        return read_index(output_dir)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise PlannerError("exists and is no profile store", where=str(output_dir), hint="name a new folder")
    return {}


def _folder(identity: TableIdentity) -> str:
    return "/".join((identity.accelerator, identity.engine, identity.version, identity.table))


def _convert_all(path: Path, staged: Path) -> tuple[list[TableHeader], list[tuple[str, str]]]:
    """Writes every table below `staged`; returns the headers, and what had to be skipped and why."""
    headers: list[TableHeader] = []
    skipped: list[tuple[str, str]] = []
    for source in find_sources(path):
        try:
            converted = convert_source(source)
        except UnknownLayoutError as error:
            skipped.append((source.where, error.what))
            continue
        files = {HEADER: converted.header.to_json().encode(), COLUMNS: converted.columns}
        write_files(staged / _folder(converted.header.identity), files)
        headers.append(converted.header)
    if not headers:
        where, what = skipped[0]
        raise PlannerError(f"no table could be read: {what}", where=where, hint="give tables of aiconfigurator-core")
    return headers, skipped


def _publish(
    staged: Path, output_dir: Path, index: dict[str, TableIdentity], headers: list[TableHeader], *, merge: bool
) -> None:
    """Moves the staged store into place: as a whole, or table by table into an existing one, its index last."""
    document = {"schema": STORE_SCHEMA, "tables": {folder: asdict(index[folder]) for folder in sorted(index)}}
    write_files(staged, {INDEX: (json.dumps(document, indent=1) + "\n").encode()})
    if not merge:
        publish(staged, output_dir)
        return
    for header in headers:
        folder = _folder(header.identity)
        publish(staged / folder, output_dir / folder)
    os.replace(staged / INDEX, output_dir / INDEX)
