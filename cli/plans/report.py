"""`planner report`: one self-contained page of a plan, a sweep or a check."""

from typing import Annotated

import typer

from planner.cli.options import Json
from planner.cli.output import refuse_unwritable, write_data, write_json
from planner.errors import PlannerError


def report(
    document: Annotated[str, typer.Argument(metavar="PLAN|SWEEP|CHECK", help="JSON that planner wrote.")],
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MORE]...", help="A sweep, a line, a simulation or a check to put below."),
    ] = None,
    *,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write here; `-` is stdout.")],
    as_json: Json = False,
) -> int:
    """Write a page to attach to a ticket: decision, limits, what else, map, time and memory, proof, sources.

    One HTML file with its own pictures, style and script; it asks nothing of any network, and prints. Documents named
    after the first add their sections: results of a sweep, an answer along a line, a simulation, a check.

    Examples:

      planner report plan.json -o report.html

      planner report plan.json line.json run.json -o report.html

      planner report results.json -o what-if.html
    """
    from planner.report.documents import report as page

    if output != "-" and not output.endswith((".html", ".htm")):
        raise PlannerError("is no name of a page", where=f"--output {output}", hint="write `-o report.html`")
    refuse_unwritable(output)
    if as_json and output == "-":
        raise PlannerError(
            "stdout takes the page or the document", where="--json", hint="name a file: `-o report.html`"
        )
    text = page(document, *(others or ()))
    write_data(text, output)
    if as_json:
        write_json({"schema": "planner.report/1", "page": output, "bytes": len(text.encode())})
    return 0
