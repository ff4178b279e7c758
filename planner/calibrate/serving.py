"""Measured serving deployments as rows for a fit: a case to estimate, with its measured TTFT, TPOT and throughput."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.benchmark_reports.records import SPREAD, MeasuredRun
from planner.benchmark_reports.registry import report_text, runs_of
from planner.calibrate.facts import LOAD, completed_row, missing, require_fitting
from planner.errors import PlannerError
from planner.estimate.case import Case
from planner.estimate.measured import REQUIRED, case_of_row, rows_of_table

TABLE = "table of measured deployments"
OTHERS = (f"{TABLE} (CSV)", "checks of executed plans")
MOST_FAILED = 0.05  # requests that fail are load that the engine did not have
KEPT_UP = 0.9  # of the asked rate; a run that completes less is bound by its cap on requests at a time
LEAST_S, MOST_S = 1e-5, 1e6  # of a measured time
SATURATED = 0.3  # of the latency is time to first token: queueing, in the table's own words


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One measured deployment; times are medians where the source tells them, else means, None where it tells none."""

    case: Case
    ttft_s: float | None
    tpot_s: float | None
    saturated: bool  # time to first token is queueing
    reader: str
    source: str  # the file
    requests_per_client: float | None = None  # of a closed loop, where told: few make its opening burst weigh more


@dataclass(frozen=True, slots=True)
class ServingRecords:
    """All rows of some files, what each reader took, and why others were left out."""

    rows: tuple[ServingRow, ...]
    left_out: tuple[str, ...]
    date: str = ""

    @property
    def by_reader(self) -> dict[str, int]:
        """Rows taken by each reader."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.reader] = counts.get(row.reader, 0) + 1
        return counts


Deploy = Callable[[MeasuredRun, str, str], Case]
"""The case of a run, given the file and a name for it: from the run's own facts, or from a plan."""


@dataclass(slots=True)
class _Found:
    rows: list[ServingRow]
    left_out: list[str]
    dates: list[str]


def is_executed(path: str) -> bool:
    """Whether the file is one of ours (executed checks), and no measured deployment."""
    if path == "-":
        return False
    text = report_text(path)
    if not text.lstrip().startswith("{"):
        return text.startswith("schema: planner.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema")).startswith("planner.")


def read_serving(paths: Sequence[str], facts: Mapping[str, str], deploy: Deploy | None = None) -> ServingRecords:
    """The rows of tables and benchmark reports, told apart by content.

    `facts` complete what reports leave out, and go before what they tell; `deploy`, where given, makes the cases of
    reports instead (`planner.calibrate.planned`). Tables hold all of it themselves. Raises PlannerError for a file that
    no reader knows, and for a fact that nobody tells.
    """
    records = _Found([], [], [])
    for path in paths:
        text = report_text(path)
        if _is_table(text):
            _read_table(text, path, records)
        else:
            _read_report(text, path, deploy or _deploy_by(facts), facts, records)
    return ServingRecords(tuple(records.rows), tuple(records.left_out), max(records.dates, default=""))


def _is_table(text: str) -> bool:
    names = {name.strip() for name in text.lstrip().split("\n", 1)[0].split(",")}
    return len(names & {*REQUIRED, "ttft_ms", "tpot_ms"}) >= 3


def _read_table(text: str, path: str, records: _Found) -> None:
    for row in rows_of_table(io.StringIO(text, newline=""), path):
        try:
            case = case_of_row(row)
            times = [_milliseconds(row, name) for name in ("ttft_ms", "tpot_ms")]
        except PlannerError as error:
            records.left_out.append(f"{path}: {row.get('id') or ''}: {error.what}")
            continue
        if case.draft_tokens:
            records.left_out.append(f"{path}: {case.id}: it speculates, and drafts are no part of the fit")
            continue
        records.rows.append(ServingRow(case, times[0], times[1], row.get("saturated") == "1", TABLE, path))
        if row.get("measured"):
            records.dates.append(row["measured"])


def _milliseconds(row: Mapping[str, str], name: str) -> float | None:
    """Seconds of a column; None where it is empty. Raises PlannerError for what no run can have taken."""
    text = row.get(name)
    if not text:
        return None
    try:
        value = float(text) / 1e3
    except ValueError:
        raise PlannerError(f"`{name}` is no number: {text}") from None
    if not LEAST_S <= value < MOST_S:
        raise PlannerError(f"`{name}` is {text}, which no run takes: write milliseconds, or leave it empty")
    return value


def _read_report(text: str, path: str, deploy: Deploy, facts: Mapping[str, str], records: _Found) -> None:
    runs = runs_of(text, path, OTHERS)
    for number, run in enumerate(runs, 1):
        name = path if len(runs) == 1 else f"{path} run {number}"
        reason = _unusable(run)
        if reason is None and len(runs) > 1 and run.load.concurrency is None and run.load.rate_per_s is None:
            reason = "neither requests at a time nor a second are stated" if not _has_load(facts) else None
        if reason is not None:
            records.left_out.append(f"{name}: {reason}")
            continue
        case = deploy(run, path, name)
        ttft_s, tpot_s = (_typical(run, metric) for metric in ("ttft_s", "tpot_s"))
        saturated = ttft_s is not None and ttft_s > SATURATED * (ttft_s + (tpot_s or 0.0) * max(case.osl - 1.0, 0.0))
        each = (run.completed + run.failed) / case.clients if case.clients else None
        records.rows.append(ServingRow(case, ttft_s, tpot_s, saturated, run.generator, path, each))
        if run.date is not None:
            records.dates.append(run.date)


def _has_load(facts: Mapping[str, str]) -> bool:
    return "concurrency" in facts or "rate_per_s" in facts


def _unusable(run: MeasuredRun) -> str | None:
    """Why a run says nothing of its deployment."""
    if run.completed == 0:
        return "no request completed"
    if run.failed_share > MOST_FAILED:
        return f"{run.failed} of {run.completed + run.failed} requests failed"
    if _typical(run, "ttft_s") is None and _typical(run, "tpot_s") is None:
        return "neither TTFT nor TPOT is stated (it takes a streamed run)"
    return None


def _typical(run: MeasuredRun, metric: str) -> float | None:
    """The median as most tables state it, else the mean; None for none, and for a time of zero."""
    statistics = run.times_s.get(metric, {})
    return statistics.get("p50") or statistics.get("mean") or None


def _deploy_by(facts: Mapping[str, str]) -> Deploy:
    """Cases from what runs tell of their deployment, completed by `facts`."""

    def case_of(run: MeasuredRun, source: str, name: str) -> Case:
        told = {"model": run.model, "backend": run.engine, "backend_version": run.engine_version}
        known = {key: value for key, value in told.items() if value is not None} | dict(run.deployment)
        for key, value in known.items():
            if key not in facts:
                require_fitting(key, value, source)
        given = {key: value for key, value in facts.items() if key not in LOAD}
        row = completed_row(known | given, source, run.generator) | load_row(run, facts, source)
        try:
            return case_of_row(row | {"id": name})
        except PlannerError as error:
            hint = error.hint + "; `--fact NAME=VALUE` goes before what the report tells"
            raise PlannerError(error.what, where=source, hint=hint.removeprefix("; ")) from None

    return case_of


def load_row(run: MeasuredRun, facts: Mapping[str, str], source: str) -> dict[str, str]:
    """Lengths and load of a run as columns, `facts` first; raises PlannerError naming what nobody tells."""
    row = {name: facts[name] for name in ("isl", "osl", "isl_cv") if name in facts}
    for name, lengths in (("isl", run.input_tokens), ("osl", run.output_tokens)):
        mean = lengths.get("mean")
        if name not in row and not mean:
            raise missing(name, source, run.generator)
        row.setdefault(name, repr(mean))
    mean, spread = run.input_tokens.get("mean"), run.input_tokens.get(SPREAD)
    if mean and spread is not None:
        row.setdefault("isl_cv", repr(spread / mean))
    return row | _loop(run, facts, source)


def _loop(run: MeasuredRun, facts: Mapping[str, str], source: str) -> dict[str, str]:
    """Requests at a time (a closed loop) or a second (an open one), as columns of which one is empty."""
    if _has_load(facts):
        return {name: facts.get(name, "") for name in ("concurrency", "rate_per_s")}
    clients, rate_per_s = run.load.concurrency, run.load.rate_per_s
    if clients is None and rate_per_s is None:
        raise missing("concurrency", source, run.generator)
    if clients is not None and rate_per_s is not None:
        kept_up = run.requests_per_s is None or run.requests_per_s >= KEPT_UP * rate_per_s
        clients, rate_per_s = (None, rate_per_s) if kept_up else (clients, None)
    return {
        "concurrency": str(clients) if clients is not None else "",
        "rate_per_s": repr(rate_per_s) if rate_per_s is not None else "",
    }
