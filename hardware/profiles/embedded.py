"""Kernel profiles shipped with this package: one store an accelerator, in folders beside these modules."""

from pathlib import Path

from planner.hardware.profiles.store import INDEX

FOLDER = Path(__file__).parent


def embedded_profiles() -> tuple[str, ...]:
    """The stores that come with the package, sorted; empty when there are none."""
    return tuple(str(index.parent) for index in sorted(FOLDER.glob(f"*/{INDEX}")))
