"""`planner doctor`: diagnoses this installation (solvers, extras, GPUs, profiles, folders)."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import Json, Output, Profiles, profile_paths
from planner.cli.output import write_result
from planner.cli.render.columns import table

if TYPE_CHECKING:
    from planner.doctor import Diagnostic

_MARKS = {True: "ok", False: "FAIL", None: "note"}


def doctor(
    profiles: Profiles = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems alone.")] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say whether planner can work here.

    Looked at: Python, packages, every solver with a small model, optional extras, GPUs, kernel tables, and folders that
    are written to. Exits 1 when something is wrong.

    Examples:

      planner doctor

      planner doctor --profiles profiles/ --json
    """

    from planner.doctor import examine

    facts = examine(profile_paths(profiles))
    healthy = all(fact.ok is not False for fact in facts)
    rows = [asdict(fact) for fact in facts]
    write_result(
        {"schema": "planner.doctor/1", "healthy": healthy, "facts": rows},
        lambda: _text([fact for fact in facts if fact.ok is False or not quiet], healthy=healthy),
        output,
        as_json=as_json,
    )
    return 0 if healthy else 1


def _text(facts: "list[Diagnostic]", *, healthy: bool) -> str:

    rows = [(_MARKS[fact.ok], fact.part, fact.name, fact.what) for fact in facts]
    hints = [f"  hint: {fact.name}: {fact.hint}" for fact in facts if fact.hint and fact.ok is False]
    verdict = "healthy" if healthy else "not healthy"
    return "\n".join([*([table(("", "part", "name", "found"), rows)] if rows else []), *hints, verdict])
