"""`planner emit`: writes a plan as launch scripts and configuration files of an engine or framework."""

from typing import Annotated

import typer

from planner.cli.options import Json, Output
from planner.cli.output import write_data, write_folder, write_json


def emit(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan; `-` is stdin.")],
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="Such as vllm or sglang.")],
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Write the launch scripts of a plan.

    `--output` names a folder; without it the files go to stdout.

    Examples:

      planner emit plan.json --target vllm -o launch/

      planner emit plan.json --target sglang
    """
    from planner.emit.registry import emit as emit_files
    from planner.load.problems import load_plan

    envelope, decision = load_plan(plan)
    files = emit_files(envelope, decision, target)
    if output not in (None, "-"):
        write_folder(files, str(output))
    if as_json:
        write_json({"schema": "planner.emitted/1", "target": target, "files": files})
    elif output in (None, "-"):
        write_data("\n".join(f"==> {name} <==\n{text}" for name, text in files.items()))
    return 0
