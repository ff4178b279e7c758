"""`planner calibrate`: refits the cost model to measured steps or benchmark reports, and prints its errors on them."""

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, Json, Output, Profiles, profile_paths
from planner.cli.output import say, write_data, write_json, write_result
from planner.errors import PlannerError

RUNS = "Runs to make"

if TYPE_CHECKING:
    from collections.abc import Mapping


def calibrate(
    measured: Annotated[
        list[str],
        typer.Argument(
            metavar="MEASURED...",
            help="Checks of executed plans, benchmark reports, tables; with `--propose` a problem or a plan.",
        ),
    ],
    base: Annotated[
        str, typer.Option(metavar="FILE", help="Calibration to start from.", rich_help_panel=INPUT)
    ] = "default",
    date: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Day of the data, such as 2026-01-31.", rich_help_panel=INPUT),
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="What reports do not tell, such as tp=8; repeatable.", rich_help_panel=INPUT
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(metavar="PLAN", help="The plan whose deployment the reports are of.", rich_help_panel=INPUT),
    ] = None,
    propose: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Name the N runs that would settle a decision.", rich_help_panel=RUNS),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[RUN=]FILE", help="Report or table of runs that were made; repeatable.", rich_help_panel=RUNS
        ),
    ] = None,
    profiles: Profiles = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Refit the cost model on what was executed, and hold it against measured deployments.

    Takes the PLAN.checks.json that `planner check PLAN --level execute` wrote, with the plans beside them. Only
    parameters that the executed steps say something about move; the file keeps what it replaced. Exits 1, and writes
    nothing, when predictions would get worse.

    Reports of vllm bench serve, aiperf, genai-perf, guidellm, inference-perf and llm-d, and tables of measured
    deployments, are told apart by content; the calibration is compared with their TTFT and TPOT, and with `-o` refitted
    on them where there are a dozen rows. Of fewer the file carries where their groups lie.

    With `--propose N` it names the N benchmark runs that would most reduce the expected loss of a serving decision,
    as commands; with `--results` it takes what they measured, and says which deployment is best now. `-o` names a
    folder for the plans of the runs.

    Examples:

      planner calibrate plan.checks.json -o calibration.yaml

      planner calibrate --propose 3 problem.yaml -o runs/

      planner calibrate --propose 1 problem.yaml --results runs/tp4-c32/report.json -o runs/

      planner calibrate result.json --fact system=h200_sxm --fact backend=vllm --fact tp=8

      planner calibrate plan.checks.json guidellm.json --plan plan.json --base calibration.yaml -o newer.yaml
    """
    if propose is not None:
        from planner.cli.measured.calibrate_runs import propose_runs

        _refuse({"--base": base != "default", "--date": date is not None, "--fact": bool(fact), "--plan": bool(plan)})
        return propose_runs(measured, propose, results or [], profile_paths(profiles), output, as_json=as_json)
    if results:
        raise PlannerError(
            "completes `--propose`, and that is not given",
            where="--results",
            hint="add `--propose 1`, or give the reports as MEASURED",
        )
    from planner.calibrate.refitted import calibrated

    answer = calibrated(
        measured,
        base,
        fact or [],
        plan,
        day=_day(date),
        profiles=profile_paths(profiles),
        refits=output not in (None, "-"),
        tell=say,
    )
    if answer.worse:
        say(f"predictions would not get better: {output or 'nothing'} was not written")
        return 1
    if answer.document is not None:
        write_result(dict(answer.document), answer.text, output, as_json=as_json)
    elif answer.agreement is not None and as_json:
        write_json(answer.agreement.as_json(), output)
    elif answer.agreement is not None:
        write_data("\n".join(answer.agreement.lines))
    return 0


def _refuse(given: "Mapping[str, bool]") -> None:
    """Raises PlannerError for the first option that is given though nothing is fitted."""
    for name in (name for name, told in given.items() if told):
        raise PlannerError(
            "is of no use with `--propose`",
            where=name,
            hint="leave it out; the problem tells its calibration as `costs.calibration`",
        )


def _day(text: str | None) -> str | None:
    from datetime import date

    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise PlannerError(
            f"must be a day, found `{text}`", where="--date", hint="write for example `--date 2026-01-31`"
        ) from None
