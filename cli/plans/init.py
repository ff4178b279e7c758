"""`planner init`: writes a commented problem file to start from."""

import os
from typing import Annotated

import typer

from planner.cli.options import Json, Output
from planner.cli.output import write_result
from planner.errors import PlannerError


def init(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A kind of plan, such as serve; or sweep.")],
    output: Output = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> int:
    """Write a commented problem to start from.

    A file that is there is kept, unless --force is given.

    Examples:

      planner init serve -o problem.yaml

      planner init train > training.yaml
    """

    from planner.load.starters import starter

    text = starter(kind)
    if output not in (None, "-") and os.path.lexists(str(output)) and not force:
        raise PlannerError("is there already", where=str(output), hint="name another file, or give `--force`")
    write_result({"schema": "planner.starter/1", "kind": kind, "text": text}, lambda: text, output, as_json=as_json)
    return 0
