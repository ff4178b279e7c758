"""Which levels of `planner check` a plan has, and which read a flag; all else is refused."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope

READ_AT = {
    **dict.fromkeys(("url", "target", "report", "generator", "tokenizer", "duration", "ready"), ("engine",)),
    **dict.fromkeys(("roles", "device", "nproc", "cut", "time_limit"), ("execute",)),
    **dict.fromkeys(("profiles", "calibration"), ("static", "proof", "simulate", "execute")),
    "tolerance": ("execute", "engine"),
    "trace": ("simulate",),
    "decisive": ("simulate",),
    "perfetto": ("simulate", "execute"),
    "inputs": ("static", "proof", "simulate"),
    "refresh": ("static",),
}
"""Levels by the name of a parameter."""


def refuse_other_levels(level: str, **given: object) -> None:
    """Raises PlannerError for the first flag that is given and that `level` does not read."""
    for name, value in given.items():
        if value is not None and level not in READ_AT[name]:
            flag, levels = f"--{name.replace('_', '-')}", " or ".join(f"`--level {other}`" for other in READ_AT[name])
            raise PlannerError(
                f"level {level} does not read `{flag}`", where=flag, hint=f"leave it out, or check with {levels}"
            )


def require_level(level: str, envelope: "Envelope", decision: "Decision") -> None:
    """Raises PlannerError for a level that plans of this kind do not have."""
    levels = tuple(_levels(envelope.kind, decision))
    if level not in levels:
        what = f"plans of kind `{envelope.kind}` have no level `{level}`"
        known = ", ".join(f"`{each}`" for each in levels)
        raise PlannerError(what, where="--level", hint=f"they have {known}")


def _levels(kind: str, decision: "Decision") -> Iterator[str]:
    """Those of a plan; `execute` where some role of it can be."""
    from planner.execute.shards.cases import STEPS
    from planner.kinds.registry import find_kind

    yield from ("static", "proof")
    if kind == "serve" or find_kind(kind).simulates:
        yield "simulate"
    if any(role.function in STEPS for role in decision.roles):
        yield "execute"
    if kind == "serve":
        yield "engine"


def refuse_serving_alone(kind: str, **given: object) -> None:
    """Raises PlannerError for the first flag that is given and that simulations of serving plans alone read."""
    for name, value in given.items():
        if value is not None:
            what = f"plans of kind `{kind}` are simulated on streams of their own, without `--{name}`"
            raise PlannerError(what, where=f"--{name}", hint="leave it out")
