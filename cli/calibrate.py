"""`planner calibrate`: the parameters of the step-time model refitted on executed checks."""

from typing import Annotated

import typer

from planner.cli.options import INPUT, Json, Output, Profiles, profile_paths
from planner.errors import PlannerError


def calibrate(
    checks: Annotated[list[str], typer.Argument(metavar="CHECKS...", help="Checks files of executed plans.")],
    base: Annotated[
        str, typer.Option(metavar="FILE", help="Calibration to start from.", rich_help_panel=INPUT)
    ] = "default",
    date: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Day of the data, such as 2026-01-31.", rich_help_panel=INPUT),
    ] = None,
    profiles: Profiles = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Refit the cost model on what was executed.

    Takes the PLAN.checks.json that `planner check PLAN --level execute` wrote, with the plans beside them. Only
    parameters that the executed steps say something about move; the file keeps what it replaced. Exits 1, and writes
    nothing, when predictions would get worse.

    Examples:

      planner calibrate plan.checks.json -o calibration.yaml

      planner calibrate a.checks.json b.checks.json --base calibration.yaml -o newer.yaml
    """
    from planner.calibrate.fit import fit
    from planner.calibrate.history import document_of, summary, text_of
    from planner.calibrate.records import read_records
    from planner.cli.output import say, write_data, write_json
    from planner.costs.parameters import load_calibration

    start = load_calibration(base)
    day = _day(date)
    records = read_records(checks, start, profiles=profile_paths(profiles))
    for line in records.left_out:
        say(f"note: left out {line}")
    found = fit(records.steps, start.efficiencies)
    for line in summary(found, start.efficiencies):
        say(line)
    if found.worse:
        say(f"predictions would not get better: {output or 'nothing'} was not written")
        return 1
    document = document_of(found, start, date=day or records.date, sources=_names(checks))
    if as_json:
        write_json(document, output)
    else:
        write_data(text_of(document), output)
    return 0


def _names(paths: list[str]) -> tuple[str, ...]:
    from pathlib import Path

    return tuple(Path(path).name for path in paths)


def _day(text: str | None) -> str | None:
    from datetime import date

    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        what = f"must be a day, found `{text}`"
        raise PlannerError(what, where="--date", hint="write for example `--date 2026-01-31`") from None
