"""Overrides of two problems that have two plans, parted by ` ; `; an empty text leaves the base as it is."""

Case = tuple[str, str]
PARTED = " ; "


def apart(first: str, second: str, before: str = "") -> Case:
    """Two changes of the same changed base."""
    parts = [PARTED.join(part for part in (before, change) if part) for change in (first, second)]
    return parts[0], parts[1]


OTHER_BASE = "base="
"""Before the name of another base problem of the kind (`field_cases.BASES`), as the first of the overrides."""
