"""The option that says where the inputs of a plan are, and those inputs as `planner check` looks for them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, profile_paths

if TYPE_CHECKING:
    from planner.problem.recorded import AtHand

Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", metavar="FOLDER", help="Files of its problem; repeatable.", rich_help_panel=INPUT),
]


def inputs_at_hand(
    plan: str, folders: list[str] | None, profiles: list[str] | None = None, calibration: str | None = None
) -> "AtHand":
    """Folders named, that of the plan, and the working directory, in this order."""
    from planner.problem.recorded import AtHand

    beside = [Path(plan).parent] if plan != "-" else []
    places = dict.fromkeys([*(Path(folder) for folder in folders or ()), *beside, Path()])
    return AtHand(tuple(places), profile_paths(profiles), calibration)
