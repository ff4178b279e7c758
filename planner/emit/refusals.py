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


def raise_all(*rules: tuple[bool, PlannerError]) -> None:
    """Raises one error of all rules that apply, each reason and each remedy once, at the place of the first."""
    errors = [error for applies, error in rules if applies]
    if errors:
        what, hint = (
            "; ".join(dict.fromkeys(getattr(error, part) for error in errors if getattr(error, part)))
            for part in ("what", "hint")
        )
        raise PlannerError(what, where=errors[0].where, hint=hint)
