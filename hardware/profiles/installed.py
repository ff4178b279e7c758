"""Kernel tables of the machine: those of `aiconfigurator-core`, where that package is installed (extra `tables`).

The package is looked up and never imported. What of it is read are its tables (`planner.hardware.profiles.sources`),
nothing else.
"""

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from planner.hardware.profiles.embedded import embedded_profiles

PACKAGE = "aiconfigurator-core"
BELOW = ("systems", "data")  # of the package, as of release 0.12.0
_TABLES = "*/*/*/*/*_perf.parquet"  # accelerator, family, engine, version


@dataclass(frozen=True, slots=True)
class InstalledTables:
    """The release of the package, and the folder of its tables; `problem` says why there is none."""

    release: str
    folder: Path
    problem: str = ""

    @property
    def name(self) -> str:
        """The package with its release."""
        return f"{PACKAGE} {self.release}"


def installed_tables() -> InstalledTables | None:
    """The package as it is installed; None where it is not."""
    place = _place(PACKAGE.replace("-", "_"))
    if place is None:
        return None
    folder = place.joinpath(*BELOW)
    try:
        release = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        release = "of no stated release"
    if next(folder.glob(_TABLES), None) is None:
        return InstalledTables(release, folder, f"no kernel tables at {folder}, where those of 0.12.0 are")
    return InstalledTables(release, folder)


def installed_profiles() -> tuple[str, ...]:
    """The path of the tables of the machine, as `--profiles` takes it; empty where there are none."""
    tables = installed_tables()
    return () if tables is None or tables.problem else (str(tables.folder),)


def unasked_profiles() -> tuple[str, ...]:
    """The tables that serve where none are named: those that come with the package, then those of the machine."""
    return (*embedded_profiles(), *installed_profiles())


def _place(module: str) -> Path | None:
    """The folder of a package, which is not imported; None where it is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None
