"""`planner completion`: shell completion scripts for bash, zsh and fish."""

from typing import Annotated

import typer

from planner.cli.options import Json, Output
from planner.cli.output import write_result
from planner.errors import PlannerError, did_you_mean

COMPLETE = "_PLANNER_COMPLETE"  # the variable through which a shell asks
SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Which shell.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Print the completion script of a shell.

    Examples:

      planner completion bash > ~/.local/share/bash-completion/completions/planner

      planner completion zsh -o ~/.zfunc/_planner

      planner completion fish | source
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer does not say that it exports it

    if shell not in SHELLS:
        listing = f"the shells are {', '.join(f'`{name}`' for name in SHELLS)}"
        raise PlannerError(f"no completion for `{shell}`", hint=did_you_mean(shell, list(SHELLS), otherwise=listing))
    script = get_completion_script(prog_name="planner", complete_var=COMPLETE, shell=shell)
    write_result(
        {"schema": "planner.completion/1", "shell": shell, "script": script}, lambda: script, output, as_json=as_json
    )
    return 0
