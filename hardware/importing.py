"""Adds a user's hardware file to the user catalog, after it has been read in full."""

from dataclasses import dataclass
from pathlib import Path

from planner.documents.read import load_document
from planner.documents.user_catalog import HARDWARE, add_to_catalog, catalog_file, catalog_stamps
from planner.hardware.entries import read_entries
from planner.hardware.library import builtin_library, load_user_hardware


@dataclass(frozen=True, slots=True)
class ImportedHardware:
    """The file that was written, and the names that it adds or replaces, by section."""

    file: Path
    names: dict[str, list[str]]


def import_hardware(path: str | Path, *, force: bool = False) -> ImportedHardware:
    """Checks the hardware file at `path` against the catalog and the user's other files, and copies it beside them.

    Raises PlannerError with file and line for a mistake in it; nothing is written then.
    """
    document = load_document(path)
    target = catalog_file(HARDWARE, Path(path).stem)
    library = builtin_library()
    for other, _, _ in catalog_stamps(HARDWARE, new=True):
        if Path(other) != target:
            library = load_user_hardware(load_document(other), library)
    load_user_hardware(document, library)
    names = {section: list(entries) for section, entries in read_entries(document).items() if entries}
    text = Path(path).read_text(encoding="utf-8-sig")
    return ImportedHardware(add_to_catalog(HARDWARE, Path(path).stem, text, force=force), names)
