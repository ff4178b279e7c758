"""`planner schema`: prints the JSON Schema of problems, plans and other documents."""

from typing import Annotated, Any

import typer

from planner.cli.options import Json, Output
from planner.cli.output import write_json
from planner.errors import PlannerError


def schema(
    document: Annotated[str, typer.Argument(metavar="problem|plan|sweep", help="Which document.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Print the JSON Schema of problems, plans or sweeps.

    The parts of every kind are included.

    Examples:

      planner schema problem > problem.schema.json

      planner schema plan -o plan.schema.json
    """
    from planner.load.json_schema import plan_schema, problem_schema
    from planner.sweep.schema import sweep_schema

    makers = {"problem": problem_schema, "plan": plan_schema, "sweep": sweep_schema}
    if document not in makers:
        raise PlannerError(
            f"there is no schema of `{document}`",
            hint=f"write {' or '.join(f'`planner schema {known}`' for known in makers)}",
        )
    made: dict[str, Any] = makers[document]()
    write_json({"schema": "planner.json_schema/1", **made} if as_json else made, output)
    return 0
