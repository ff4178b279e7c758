"""`planner audit`: whether what people run can run as it says, what it does, and what to change."""

from typing import Annotated

import typer

from planner.cli.artifacts.asked import Asked, of_artifacts
from planner.cli.artifacts.audit_text import audit_text
from planner.cli.options import OUTPUT, Json, Output
from planner.cli.output import (
    EXIT_NO,
    refuse_unwritable,
    say,
    write_data,
    write_folder,
    write_result,
)
from planner.cli.progress import progress


@of_artifacts
def audit(
    asked: Asked,
    changed: Annotated[
        str | None,
        typer.Option("--changed", metavar="FOLDER", help="Write the changed files here.", rich_help_panel=OUTPUT),
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option("--runs", metavar="FILE", help="Write the runs that would settle it.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say what contradicts itself in what people run, what it does under a load, and what to change.

    Without a load it is judged from the text alone. With one, memory, times and the rate within limits are predicted,
    and the same question is answered with few settings changed and with all of them free; the changed artifact is
    shown as a diff. Exits 1 when the artifact cannot run as it is written.

    Examples:

      planner audit deploy.yaml

      planner audit deploy.yaml --workload input=1500,output=300,rate=20/s --slo ttft.p99=2s,itl=50ms

      planner audit train.sh --cluster gpu=h100,nodes=16
    """
    from planner.audit.audit import audit as audited
    from planner.progress import Limits

    refuse_unwritable(output)
    refuse_unwritable(runs)
    question = asked.question()
    with progress() as tell:
        result = audited(asked.files, asked.variables, asked.given, question, Limits(tell=tell))
    write_result(result.document(), lambda: audit_text(result), output, as_json=as_json)
    if runs is not None:
        write_data("\n".join(["#!/bin/bash", "set -e", *result.runs]), runs)
    if changed is not None and result.changed:
        write_folder({_file_name(name): text for name, text in result.changed.items()}, changed)
    elif changed is not None:
        say("no file is changed")
    return 0 if result.runs_as_written else EXIT_NO


def _file_name(path: str) -> str:
    """The name of a changed file; that of standard input is `stdin`."""
    return path.replace("\\", "/").rpartition("/")[2].strip("<>")
