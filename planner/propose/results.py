"""Reads results of proposed runs, from load generators' reports and tables of measured deployments."""

from collections.abc import Sequence
from pathlib import Path

from planner.benchmark_reports.records import MeasuredRun
from planner.calibrate.serving import TABLE, Deploy, read_serving
from planner.errors import PlannerError, did_you_mean
from planner.estimate.case import Case
from planner.propose.alternative import Result
from planner.propose.deployments import Question, same_deployments

MOST_APART = 1.5  # factor between mean lengths: generators count tokens in their own ways


def read_results(given: Sequence[str], question: Question) -> tuple[list[Result], list[str]]:
    """Results of `[NAME=]FILE` texts, and what was left out.

    A report belongs to the alternative NAME, else to the one that the file or its folder is called by; the rows of a
    table to those that they equal. Raises PlannerError for a file of no alternative.
    """
    results: list[Result] = []
    left_out: list[str] = []
    for text in given:
        name, path = _split(text, question)
        records = read_serving([path], {}, _deploy(name, path, question))
        left_out += records.left_out
        for row in records.rows:
            names = same_deployments(question, row.case) if row.reader == TABLE else [row.case.id]
            if not names or row.ttft_s is None or row.tpot_s is None:
                what = "TTFT or TPOT is not stated" if names else "is a run of no alternative"
                left_out.append(f"{path}: {row.case.id}: {what}")
                continue
            results.append(Result(names[0], row.ttft_s, row.tpot_s))
    return results, left_out


def _split(text: str, question: Question) -> tuple[str | None, str]:
    """NAME and FILE; without a name, that of the file or its folder where an alternative is called so."""
    known = {name.name for name in question.alternatives}
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        if name not in known:
            raise PlannerError(
                f"no alternative is called `{name}`",
                where="--results",
                hint=did_you_mean(name, sorted(known), otherwise="`--propose` without results names the runs"),
            )
        return name, path
    file = Path(text)
    names = (file.name.split(".", 1)[0], file.stem, file.parent.name)
    return next((known_name for known_name in names if known_name in known), None), text


def _deploy(name: str | None, path: str, question: Question) -> Deploy:
    def case_of(run: MeasuredRun, source: str, label: str) -> Case:
        if name is None:
            raise PlannerError(
                "this report does not tell which run it is of",
                where=path,
                hint=f"write `--results NAME={path}` with the name of the run",
            )
        case = question.alternative(name).case
        for side, told, wanted in (("input", run.input_tokens, case.isl), ("output", run.output_tokens, case.osl)):
            mean = told.get("mean")
            if mean and not wanted / MOST_APART <= mean <= wanted * MOST_APART:
                raise PlannerError(
                    f"the report is of {mean:.6g} {side} tokens a request, the problem of {wanted:.6g}",
                    where=path,
                    hint="run the load that was proposed",
                )
        if run.load.concurrency is not None and run.load.concurrency != case.clients:
            raise PlannerError(
                f"the report is of {run.load.concurrency} clients, `{name}` of {case.clients}",
                where=path,
                hint="give the report of the run that was proposed",
            )
        return case

    return case_of
