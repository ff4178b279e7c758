"""`planner rl timeline`: draws which devices generate and which train during an iteration of an RL plan."""

from typing import Annotated

import typer

from planner.cli.options import Json, RlPlanFile
from planner.cli.output import say, write_data, write_json
from planner.documents.files import write_text_atomic
from planner.errors import PlannerError


def timeline(
    plan: RlPlanFile,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw two iterations as SVG.")] = None,
    as_json: Json = False,
) -> int:
    """Show the phases of one iteration on a time axis, device by device.

    Examples:

      planner rl timeline plan.json

      planner rl timeline plan.json --plot timeline.svg
    """
    from planner.load.problems import load_plan
    from planner.rl.timeline import as_svg, as_text, rows

    envelope, decision = load_plan(plan)
    predicted = {
        prediction.metric: prediction.value
        for prediction in envelope.predictions
        if prediction.statistic == "mean" and not prediction.of
    }
    iteration_s = predicted.get("iteration_time_s")
    if iteration_s is None or not decision.phases:
        raise PlannerError(
            "the plan has no timeline of an iteration",
            where="decision.phases",
            hint="give a plan of kind `rl` that was solved",
        )
    if plot is not None:
        write_text_atomic(plot, as_svg(decision, iteration_s, title=envelope.name))
        say(f"wrote {plot}")
    if as_json:
        phases = {row.label: [phase.model_dump(mode="json") for phase in row.phases] for row in rows(decision)}
        write_json({"schema": "planner.timeline/1", "iteration_time_s": iteration_s, "rows": phases})
    else:
        write_data(as_text(decision, iteration_s))
    return 0
