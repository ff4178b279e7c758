"""Refuses plans that a launcher cannot express: tables of conditions with their errors."""

from planner.errors import PlannerError


def raise_first(*rules: tuple[bool, PlannerError]) -> None:
    """Raises the error of the first rule that applies."""
    for applies, error in rules:
        if applies:
            raise error
