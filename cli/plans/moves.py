"""`planner solve --from PLAN`: the moves from the plan that runs, told and written."""

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, OUTPUT, fraction
from planner.cli.output import write_data, write_json
from planner.cli.render.moves import render_moves
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.moves.replan import Replan
    from planner.problem.resolve import Resolved
    from planner.progress import Limits


Running = Annotated[
    str | None,
    typer.Option("--from", metavar="PLAN", help="The plan that runs: move little, in an order.", rich_help_panel=INPUT),
]
Loss = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="Of requests on time, given up to move less.", rich_help_panel=INPUT),
]
MovesFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write the moves here, as JSON.", rich_help_panel=OUTPUT)
]


def require_running(running: str | None, loss: str | None, moves: str | None, most: int | None) -> None:
    """Losses and moves are of a plan that runs, and lead to one plan."""
    for flag, value in (("--loss", loss), ("--moves", moves)):
        if value is not None and running is None:
            raise PlannerError("there are no moves without a plan that runs", where=flag, hint="add `--from PLAN`")
    if running is not None and most is not None:
        raise PlannerError("moves lead to one plan", where="--alternatives", hint="leave it out, or `--from`")


def replanned_from(resolved: "Resolved", limits: "Limits", running: str | None, loss: str | None) -> "Replan | None":
    """The plan and the moves that lead to it; None where no plan runs."""
    if running is None:
        return None
    from planner.load.problems import load_plan
    from planner.moves.replan import replanned

    return replanned(resolved, limits, *load_plan(running), fraction(loss, "--loss"))


def hand_over_moves(replan: "Replan | None", path: str | None, *, told: bool) -> None:
    """Writes the moves to `path`, and tells them where that is asked for."""
    if replan is None:
        return
    if path is not None:
        write_json(replan.document(), path)
    if told:
        write_data(render_moves(replan.document()))
