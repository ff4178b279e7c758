"""Cache key of a solved point: digest of problem, models, hardware, tables, calibration, software, limits."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planner import __version__
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import profile_paths
from planner.documents.files import digest
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits

_SOLVERS = ("ortools", "numpy", "scipy")


def point_digest(resolved: Resolved, limits: Limits) -> str:
    """The digest under which the result of a problem is kept; equal ones have equal results, byte for byte."""
    return digest(
        {
            "problem": normalised(resolved),
            "inputs": resolved.digests(),
            "tables": list(tables_digests(resolved.problem.costs.profiles)),
            "calibration": calibration_digest(resolved.problem.costs.calibration),
            "limits": [limits.gap, limits.time_limit_s, limits.backend],
            "software": dict(software()),
        }
    )


@cache
def software() -> Mapping[str, str]:
    """Versions of everything that computes, and the digest of planner's own code and data."""
    versions = {"planner": __version__, "code": _code_digest()}
    for name in _SOLVERS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return versions


@cache
def calibration_digest(name: str) -> str:
    """The digest of a calibration by name or path."""
    return load_calibration(name).digest


def tables_digests(paths: Sequence[str]) -> tuple[str, ...]:
    """One digest for each path of kernel tables, those of the environment too: names, sizes and times of its files."""
    return tuple(_tables_digest(path) for path in profile_paths(paths))


@cache
def _tables_digest(path: str) -> str:
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    lines = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        lines.append(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _code_digest() -> str:
    """The digest of the package's own files, so that results of other code are never taken for ours."""
    root = Path(__file__).parent.parent
    total = hashlib.sha256()
    for path in sorted(_files(root)):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Code and catalogs below `folder`; the parts of the package may be links to folders beside it."""
    files: list[Path] = []
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            files += _files(path)
        elif path.suffix in (".py", ".yaml"):
            files.append(path)
    return files
