"""`planner explain`: binding limits, shadow prices and alternatives of a plan, printed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, SOLVER, Json, Output, PlanFile, Profiles, profile_paths
from planner.cli.output import write_result
from planner.cli.progress import progress
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.explain import Explanation
    from planner.plan.schema import Decision, Envelope


def explain(
    plan: PlanFile,
    field: Annotated[
        str | None, typer.Argument(metavar="[FIELD]", help="Such as objective, ttft, or decode.replicas.")
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also solve again: each limit moved by 10 %, the recipe.", rich_help_panel=SOLVER),
    ] = False,
    other: Annotated[
        str | None,
        typer.Option(
            "--why-not",
            metavar="AXES",
            help="What another plan would lose, or what forbids it: 'tp=4,pp=1'.",
            rich_help_panel=SOLVER,
        ),
    ] = None,
    list_fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of the plan.", rich_help_panel=INPUT)
    ] = False,
    profiles: Profiles = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say why a plan, or one of its fields, is what it is.

    What binds it, what more of each limit is worth, what the next best evaluated loses, where the time goes and on what
    evidence, and what would change the decision.

    Examples:

      planner explain plan.json

      planner explain plan.json decode.max_batch --deep

      planner explain plan.json --why-not 'tp=4,pp=1'
    """
    from planner.cli.render.explanation import explanation_document, render_answer, render_explanation
    from planner.explain import field_names
    from planner.load.problems import load_plan

    envelope, decision = load_plan(plan)
    if list_fields:
        if field is not None or deep or other is not None:
            raise PlannerError("lists fields, and answers nothing of them", where="--fields", hint="give it alone")
        names = field_names(envelope, decision)
        write_result({"schema": "planner.fields/1", "fields": names}, lambda: "\n".join(names), output, as_json=as_json)
        return 0
    base, paths = Path() if plan == "-" else Path(plan).parent, profile_paths(profiles)
    if other is not None:
        if field is not None or deep:
            raise PlannerError("goes with neither a field nor `--deep`", where="--why-not", hint="leave those out")
        asked = _why_not(envelope, decision, other, paths, base)
        write_result(explanation_document(envelope, asked), lambda: render_answer(asked), output, as_json=as_json)
        return 0
    explanation = _explained(envelope, decision, field, paths, base, deep=deep)
    document = explanation_document(envelope, explanation)
    write_result(document, lambda: render_explanation(envelope, explanation), output, as_json=as_json)
    return 0


def _why_not(
    envelope: "Envelope", decision: "Decision", other: str, profiles: tuple[str, ...], base: Path
) -> "Explanation":
    """What another plan would lose, or what forbids it."""
    from planner.alternatives.why_not import why_not
    from planner.explain import Explanation

    with progress() as tell:
        facts = tuple(why_not(envelope, decision, other, profiles=profiles, base=base, tell=tell))
    return Explanation(f"why not {other}", "", facts)


def _explained(
    envelope: "Envelope",
    decision: "Decision",
    field: str | None,
    profiles: tuple[str, ...],
    base: Path,
    *,
    deep: bool,
) -> "Explanation":
    """Why the plan or its field is as it is; of a whole plan with the nearest public recipe."""
    from planner.alternatives.recipes.nearest import recipe_facts
    from planner.explain import explain_plan

    with progress() as tell:
        told = explain_plan(envelope, decision, field, deep=deep, profiles=profiles, base=base, tell=tell)
        if field is not None:
            return told
        others = recipe_facts(envelope, decision, priced=deep, profiles=profiles, base=base, tell=tell)
        return replace(told, facts=(*told.facts, *others))
