"""The option that says where the inputs of a plan are, and those inputs as `planner check` looks for them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, profile_paths
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope
    from planner.problem.recorded import AtHand

Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", metavar="FOLDER", help="Files of its problem; repeatable.", rich_help_panel=INPUT),
]


def inputs_at_hand(
    plan: str, folders: list[str] | None, profiles: list[str] | None = None, calibration: str | None = None
) -> "AtHand":
    """Folders named, that of the plan, and the working directory, in this order.

    Raises PlannerError for what is named and is no folder.
    """
    from planner.problem.recorded import AtHand

    missing = next((folder for folder in folders or () if not Path(folder).is_dir()), None)
    if missing is not None:
        raise PlannerError("is no folder", where=f"--inputs {missing}", hint="name the folder of the problem's files")
    beside = [Path(plan).parent] if plan != "-" else []
    places = dict.fromkeys([*(Path(folder) for folder in folders or ()), *beside, Path()])
    return AtHand(tuple(places), profile_paths(profiles), calibration)


def refuse_other_calibration(calibration: str | None, envelope: "Envelope", decision: "Decision") -> None:
    """Raises PlannerError for a calibration by which neither the plan nor a plan that it holds was priced."""
    from planner.problem.recorded import recorded_problem

    if calibration is None:
        return
    stated = (envelope.inputs, *(part.get("inputs") for part in decision.parts().values()))
    problems = (recorded_problem(inputs) for inputs in stated if isinstance(inputs, dict))
    named = {problem.costs.calibration for problem in problems if problem is not None}
    if calibration not in named and named <= {"default", "none"}:
        by = f"was priced with the calibration `{'`, `'.join(sorted(named))}`"
        what = f"the plan {by if named else 'carries no problem to price again'}"
        raise PlannerError(what, where=f"--calibration {calibration}", hint="leave it out, or solve again with it")
