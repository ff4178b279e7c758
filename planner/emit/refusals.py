"""Refuses plans that a launcher cannot express: tables of conditions with their errors."""

from planner.errors import PlannerError


def refuse(what: str, where: str, hint: str) -> PlannerError:
    """An error at a place of the decision, to raise."""
    return PlannerError(what, where=f"decision.{where}", hint=hint)


def raise_first(*rules: tuple[bool, PlannerError]) -> None:
    """Raises the error of the first rule that applies."""
    for applies, error in rules:
        if applies:
            raise error
