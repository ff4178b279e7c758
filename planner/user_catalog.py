"""The folder where a user keeps hardware and model entries of their own, which join the catalogs of the package."""

import os
from pathlib import Path
from typing import Final

HARDWARE: Final = "hardware"
MODELS: Final = "models"

Stamp = tuple[str, int, int]
"""A file by path, time of change in nanoseconds, and size in bytes: equal stamps mean equal content."""


def catalog_folder(section: str) -> Path:
    """The folder of `section` ("hardware" or "models"), which need not exist.

    `$PLANNER_CATALOG`, else `planner/catalog` in `$XDG_CONFIG_HOME`, else in `~/.config`.
    """
    stated = os.environ.get("PLANNER_CATALOG")
    if stated:
        return Path(stated) / section
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "planner" / "catalog" / section


def catalog_stamps(section: str) -> tuple[Stamp, ...]:
    """The YAML files of `section`, by name; empty when there is no such folder or it cannot be read."""
    folder = catalog_folder(section)
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.name.endswith((".yaml", ".yml")) and entry.name[0] != "."]
            found = [(entry.path, entry.stat()) for entry in files]
    except OSError:
        return ()
    return tuple((path, state.st_mtime_ns, state.st_size) for path, state in sorted(found, key=lambda item: item[0]))
