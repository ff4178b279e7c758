"""`planner calibrate`: refits the cost model to measured steps or benchmark reports, and prints its errors on them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, Json, Output, Profiles, profile_paths
from planner.cli.output import say, write_data, write_json, write_result
from planner.errors import PlannerError

RUNS = "Runs to make"

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from planner.calibrate.agreement import Agreement
    from planner.calibrate.serving import ServingRecords
    from planner.costs.rates.calibration import Calibration


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
    from planner.calibrate.serving import is_executed
    from planner.costs.rates.calibration import load_calibration

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
    start, day, tables = load_calibration(base), _day(date), profile_paths(profiles)
    checks = [path for path in measured if is_executed(path)]
    serving = [path for path in measured if path not in checks]
    if serving:
        records = _serving(serving, fact or [], plan)
        compared = _compared(records, base, tables)
        if not checks:
            return _answered(compared, records, base, tables, day, output, as_json=as_json)
        _say_all(compared.lines)
    elif fact or plan:
        raise PlannerError(
            "completes benchmark reports, and none is given",
            where="--fact" if fact else "--plan",
            hint="leave it out, or add a report",
        )
    return _refitted(checks, start, day, tables, output, as_json=as_json)


def _refuse(given: "Mapping[str, bool]") -> None:
    """Raises PlannerError for the first option that is given though nothing is fitted."""
    for name in (name for name, told in given.items() if told):
        raise PlannerError(
            "is of no use with `--propose`",
            where=name,
            hint="leave it out; the problem tells its calibration as `costs.calibration`",
        )


def _refitted(
    checks: list[str],
    start: "Calibration",
    day: str | None,
    profiles: tuple[str, ...],
    output: str | None,
    *,
    as_json: bool,
) -> int:
    """The calibration file of executed checks, written unless predictions would get worse."""
    from planner.calibrate.fit import fit
    from planner.calibrate.history import document_of, summary, text_of
    from planner.calibrate.records import read_records

    records = read_records(checks, start, profiles=profiles)
    _say_all([f"note: left out {line}" for line in records.left_out])
    fitted = fit(records.steps, start.efficiencies)
    _say_all(summary(fitted, start.efficiencies))
    if fitted.worse:
        say(f"predictions would not get better: {output or 'nothing'} was not written")
        return 1
    document = document_of(fitted, start, date=day or records.date, sources=_names(checks))
    write_result(document, lambda: text_of(document), output, as_json=as_json)
    return 0


def _serving(paths: list[str], facts: list[str], plan: str | None) -> "ServingRecords":
    """The rows of reports and tables; what was left out is said."""
    from planner.calibrate.facts import read_facts
    from planner.calibrate.planned import deploy_planned
    from planner.calibrate.serving import read_serving

    given = read_facts(facts)
    records = read_serving(paths, given, deploy_planned(plan, given) if plan is not None else None)
    _say_all([f"note: left out {line}" for line in records.left_out])
    if not records.rows:
        raise PlannerError("no measured deployment is usable", where=paths[0], hint="see what was left out, and why")
    return records


def _compared(records: "ServingRecords", base: str, profiles: tuple[str, ...]) -> "Agreement":
    from planner.calibrate.agreement import agreement
    from planner.costs.rates.pricer import open_store, profile_paths

    compared = agreement(records, base, open_store(profile_paths(profiles)))
    _say_all([f"note: not predicted {line}" for line in compared.refused])
    return compared


def _answered(
    compared: "Agreement",
    records: "ServingRecords",
    base: str,
    tables: tuple[str, ...],
    day: str | None,
    output: str | None,
    *,
    as_json: bool,
) -> int:
    """Reports and tables alone: how far the calibration is from them, or with `-o` the calibration refitted on them."""

    if output in (None, "-"):
        if as_json:
            write_json(compared.as_json(), output)
        else:
            write_data("\n".join(compared.lines))
        return 0
    from datetime import date

    from planner.calibrate.deployments import FEWEST
    from planner.calibrate.history import text_of
    from planner.calibrate.refit import refit
    from planner.costs.rates.calibration import load_calibration

    if len(records.rows) < FEWEST:
        return _believed(records, base, tables, day, output, as_json=as_json)
    fitted = refit(records.rows, load_calibration(base))
    _say_all(fitted.lines)
    if fitted.worse:
        say(f"predictions would not get better: {output} was not written")
        return 1
    document = fitted.document(load_calibration(base), records.rows, day or records.date or date.today().isoformat())
    write_result(document, lambda: text_of(document), output, as_json=as_json)
    return 0


def _believed(
    records: "ServingRecords",
    base: str,
    profiles: tuple[str, ...],
    day: str | None,
    output: str | None,
    *,
    as_json: bool,
) -> int:
    """Fewer rows than a fit needs: the base with what they tell of their groups."""
    from datetime import date

    from planner.calibrate.history import text_of
    from planner.calibrate.own_runs import believe, document_of
    from planner.costs.rates.pricer import open_store, serving_tables

    told = believe(records.rows, base, open_store(serving_tables(profiles)))
    _say_all([f"note: left out {line}" for line in told.left_out])
    _say_all(told.lines)
    sources = list(dict.fromkeys(row.source for row in records.rows))
    document = document_of(told, base, date=day or records.date or date.today().isoformat(), sources=sources)
    write_result(document, lambda: text_of(document), output, as_json=as_json)
    return 0


def _say_all(lines: "Iterable[str]") -> None:

    for line in lines:
        say(line)


def _names(paths: list[str]) -> tuple[str, ...]:

    return tuple(Path(path).name for path in paths)


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
