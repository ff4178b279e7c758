"""`planner diff`: compares two plans and prints what changes."""

from typing import Annotated

import typer

from planner.cli.options import OUTPUT, Json, Output
from planner.cli.output import write_result
from planner.errors import PlannerError


def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A plan; `-` is stdin.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The plan to compare with it.")],
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every change, of long lists too.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say what changes from one plan to another.

    Decision, figures, inputs, and what the plans rest on; and how many GPUs keep their weights. Of many entries of a
    list that change alike, such as layers of expert layouts, their number is said. Exits 1 when the plans differ. Plans
    of different kinds are compared in what all kinds share.

    Examples:

      planner diff plan.json plan-fp8.json

      planner diff running.json new.json --json
    """
    from planner.cli.render.diff import diff_document, render_diff
    from planner.diff import diff_plans
    from planner.load.problems import load_plan

    if before == after == "-":
        raise PlannerError("only one of two plans can come from stdin", hint="give the other as a file")
    difference = diff_plans(load_plan(before), load_plan(after))
    write_result(diff_document(difference), lambda: render_diff(difference, verbose=verbose), output, as_json=as_json)
    return 0 if difference.same else 1
