"""Finds kernel tables in NVIDIA's layout: in a directory, or inside an `aiconfigurator-core` wheel the user has."""

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from planner.documents.read import file_not_found
from planner.errors import PlannerError

_SUFFIX = "_perf.parquet"
_DEEPEST = 10  # folders below the given directory; the package nests its tables 7 deep
_HINT = "give a directory holding <system>/<family>/<framework>/<version>/*.parquet, an imported store, or a wheel"


@dataclass(frozen=True, slots=True)
class Source:
    """One parquet file: what it measured, by its place in the layout, and where its bytes are."""

    accelerator: str
    engine: str
    version: str
    table: str
    path: Path
    member: str | None  # inside `path` when that is a wheel

    @property
    def where(self) -> str:
        """The place named in messages."""
        return f"{self.path}!{self.member}" if self.member else str(self.path)

    def stamp(self) -> tuple[int, int]:
        """Size and modification time (ns) of the file on disk; what a cache is keyed by."""
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def read(self) -> bytes:
        """The bytes of the parquet file; raises PlannerError when they cannot be had."""
        try:
            if self.member is None:
                return self.path.read_bytes()
            with zipfile.ZipFile(self.path) as wheel:
                return wheel.read(self.member)
        except (OSError, zipfile.BadZipFile, zlib.error, KeyError) as error:
            raise PlannerError(f"cannot read the table: {error}", where=self.where) from error


def find_sources(path: Path) -> list[Source]:
    """All tables under a directory or in a wheel, in order of their names; raises PlannerError when there are none."""
    if path.is_dir():
        root = os.path.abspath(path)
        members = [_source(file, Path(file), None) for file in sorted(_files(root))]
    else:
        members = [_source(member, path, member) for member in sorted(_wheel_members(path))]
    sources = [source for source in members if source is not None]
    if not sources:
        raise PlannerError("no kernel tables found", where=str(path), hint=_HINT)
    return sources


def _files(root: str) -> list[str]:
    """Parquet files below `root`; hidden folders are left out, links to folders are not followed."""
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if folder.count(os.sep) - root.count(os.sep) >= _DEEPEST:
            folders.clear()
        paths += [os.path.join(folder, name) for name in files if name.endswith(_SUFFIX)]
    return paths


def _wheel_members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as wheel:
            return [name for name in wheel.namelist() if name.endswith(_SUFFIX)]
    except FileNotFoundError as error:
        raise file_not_found(path, otherwise=_HINT) from error
    except (OSError, zipfile.BadZipFile) as error:
        raise PlannerError(f"not a wheel: {error}", where=str(path), hint=_HINT) from error


def _source(name: str, path: Path, member: str | None) -> Source | None:
    """Reads <system>/<family>/<framework>/<version>/<table>_perf.parquet off the end of a file's name."""
    parts = name.replace(os.sep, "/").split("/")
    if len(parts) < 5 or any(part.startswith(".") for part in parts[-5:]):
        return None
    system, _family, framework, version, file = parts[-5:]
    return Source(system, framework.lower(), version, file.removesuffix(_SUFFIX), path, member)
