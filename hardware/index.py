"""Index of the built-in catalog: name to file, by a scan of the text without parsing the YAML.

The catalog is written in one way, which a test holds it to: sections at the margin, names indented by two, and the
aliases of an entry as one list on one line. So one lookup reads one file in full, however large the catalog grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CATALOG = Path(__file__).parent / "catalog"

_ALIASES = "aliases: ["


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Where a name of the catalog stands."""

    file: str  # without folder and ending
    name: str


@cache
def catalog_index() -> Mapping[tuple[str, str], CatalogEntry]:
    """The place of every folded spelling by section. A node stands in the file of its accelerator."""
    index: dict[tuple[str, str], CatalogEntry] = {}
    for path in sorted(CATALOG.glob("*.yaml")):
        _scan(path.stem, path.read_text(encoding="utf-8"), index)
    return index


def fold(name: str) -> str:
    """`name` as it is compared: lower case, without `-`, `_`, spaces and a leading `nvidia`."""
    folded = "".join(name.casefold().replace("-", "").replace("_", "").split())
    return folded.removeprefix("nvidia") or folded


def _scan(file: str, text: str, index: dict[tuple[str, str], CatalogEntry]) -> None:
    section, place = "", CatalogEntry(file, "")
    for line in text.splitlines():
        if line[:1] not in ("", " ", "#"):
            section = line.partition(":")[0]
        elif line[:2] == "  " and line[2:3] not in ("", " ", "#"):
            place = CatalogEntry(file, line[2:].partition(":")[0])
            index.setdefault((section, fold(place.name)), place)
        if _ALIASES in line:
            for spelling in line.partition(_ALIASES)[2].partition("]")[0].split(","):
                index.setdefault((section, fold(spelling)), place)
