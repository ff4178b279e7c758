"""`planner sweep PROBLEM --parametric rate=5/s..50/s`: the exact breakpoints of the decision along a line."""

import time
from collections.abc import Sequence

from planner.cli.output import say, write_result
from planner.cli.progress import progress
from planner.cli.render.columns import fitted, wrapped
from planner.documents.units import PER_S, TIME_S, figure, parse_quantity, significant
from planner.errors import PlannerError
from planner.progress import Limits

FLAG = "--parametric"
_METRICS = {"cost": "usd_per_hour", "gpus": "gpus"}


def breakpoints(
    file: str,
    text: str,
    overrides: Sequence[str],
    profiles: Sequence[str],
    limits: Limits,
    output: str | None,
    *,
    as_json: bool,
) -> int:
    """Solves along the line, prints or writes its segments; the exit code. Raises PlannerError for what is no line."""
    from planner.alternatives.breakpoints import segments, with_reasons
    from planner.kinds.registry import find_kind
    from planner.load.problems import load_problem

    axis, ends = _line(text)
    resolved = load_problem(file, overrides=overrides, profiles=profiles)
    started = time.process_time()
    with progress() as tell:
        line = find_kind(resolved.problem.kind).along(resolved, axis, limits)
        low, high = (_number(axis, end) for end in ends)
        told = with_reasons(line, segments(line, low, high, tell))
    metric = _METRICS.get(str(resolved.problem.objective.minimize), "objective")
    document = {
        "schema": "planner.parametric/1",
        "axis": axis,
        "metric": metric,
        "segments": [
            {"low": row.low, "high": row.high, "objective": row.objective, "decision": row.decision} for row in told
        ],
    }
    rows = [
        (f"{significant(row.low, 6)} to {significant(row.high, 6)}", figure(metric, row.objective), row.decision)
        for row in told
    ]

    def rendered() -> str:
        changes = len(told) - 1
        head = f"{resolved.problem.name}: along {axis} the best {metric} changes {changes} times"
        if changes == 0:
            head += ": the axis changes nothing between these ends"
        gone = next((row for row in told if row.objective is None), None)
        if gone is not None:
            no_plan = gone.decision.partition(":")[0]
            head += f"; {no_plan} from {significant(gone.low, 6)} to {significant(gone.high, 6)}"
        return f"{wrapped(head, indent=0)}\n\n{fitted((axis, metric, 'decision'), rows)}"

    write_result(document, rendered, output, as_json=as_json or output is not None)
    say(f"solved in {time.process_time() - started:.2f} CPU-s")
    return 0


def _line(text: str) -> tuple[str, tuple[str, str]]:
    axis, equals, ends = text.partition("=")
    low, dots, high = ends.partition("..")
    if not equals or not dots:
        raise PlannerError(f"`{text}` is no line", where=FLAG, hint=f"write for example `{FLAG} rate=5/s..50/s`")
    return axis.strip(), (low, high)


def _number(axis: str, text: str) -> float:
    units = PER_S if axis == "rate" else TIME_S
    if axis != "gpus":
        try:
            return parse_quantity(text.strip(), units, where=FLAG, key=axis)
        except PlannerError as error:
            shown = "rate=5/s..50/s" if axis == "rate" else f"{axis}=20ms..200ms"
            raise PlannerError(error.what, where=FLAG, hint=f"write for example `{FLAG} {shown}`") from None
    if not text.strip().isdigit():
        raise PlannerError(f"must be a whole number, found `{text}`", where=FLAG, hint=f"write `{FLAG} gpus=4..32`")
    return float(text)
