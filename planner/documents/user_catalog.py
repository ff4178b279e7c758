"""The folder of a user's own hardware and model entries, which join the built-in catalogs."""

import os
from pathlib import Path
from typing import Final

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError

HARDWARE: Final = "hardware"
MODELS: Final = "models"

Stamp = tuple[str, int, int]
"""A file by path, time of change in nanoseconds, and size in bytes: equal stamps mean equal content."""


VARIABLE: Final = "PLANNER_CATALOG"


def catalog_folder(section: str) -> Path:
    """The folder of `section` ("hardware" or "models"), which need not exist.

    `$PLANNER_CATALOG`, else `planner/catalog` in `$XDG_CONFIG_HOME`, else in `~/.config`.
    """
    stated = os.environ.get(VARIABLE)
    if stated:
        return Path(stated) / section
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "planner" / "catalog" / section


def catalog_stamps(section: str, *, new: bool = False) -> tuple[Stamp, ...]:
    """The YAML files of `section`, by name; empty when there is no such folder or it cannot be read.

    Raises PlannerError where `$PLANNER_CATALOG` names no catalog, unless it may be a `new` one.
    """
    if not new:
        require_catalog()
    folder = catalog_folder(section)
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.name.endswith((".yaml", ".yml")) and entry.name[0] != "."]
            states = [(entry.path, entry.stat()) for entry in files]
    except OSError:
        return ()
    return tuple((path, state.st_mtime_ns, state.st_size) for path, state in sorted(states, key=lambda item: item[0]))


def require_catalog() -> None:
    """Raises PlannerError where `$PLANNER_CATALOG` is no folder, or one with entries but without those of a catalog."""
    stated = os.environ.get(VARIABLE)
    if not stated:
        return
    folder = Path(stated)
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise PlannerError(
            f"`{folder}` is no folder of hardware and models: {error.strerror}",
            where=VARIABLE,
            hint="correct it or unset it; `planner hardware import` and `planner models import` make a new one",
        ) from None
    if names and not names & {HARDWARE, MODELS}:
        raise PlannerError(
            f"`{folder}` has neither a folder `{HARDWARE}` nor `{MODELS}`",
            where=VARIABLE,
            hint="name the folder above them, or unset it",
        )


def add_to_catalog(section: str, stem: str, text: str, *, force: bool = False) -> Path:
    """Writes `text` as `stem`.yaml into the folder of `section`, made when missing, and returns the file.

    Raises PlannerError when a file of that name with other content is there and `force` is not given.
    """
    file = catalog_file(section, stem)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        same = file.is_file() and file.read_text(encoding="utf-8") == text
        taken = file.exists()
    except OSError as error:
        raise PlannerError(
            f"cannot be used: {error.strerror}",
            where=str(file.parent),
            hint="check its permissions, or set PLANNER_CATALOG to another folder",
        ) from None
    if taken and not same and not force:
        raise PlannerError("is there already, with other content", where=str(file), hint="give --force to replace it")
    write_text_atomic(file, text)
    return file


def catalog_file(section: str, stem: str) -> Path:
    """Where `add_to_catalog` writes: characters that a file name should not have become `-`."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem).strip(".-")
    return catalog_folder(section) / f"{safe or 'imported'}.yaml"
