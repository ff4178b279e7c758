"""One engine check from start to verdict: launch, drive load, measure, compare, stop."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner.benchmark_reports.records import MeasuredRun
from planner.benchmark_reports.registry import read_measured
from planner.emit.loads.drive import drive_of
from planner.emit.loads.generators import GeneratorRun
from planner.engine_check.generators import Generator, find_generator
from planner.engine_check.judge import METRICS, judge
from planner.engine_check.processes import POLL_S, running, termination_as_interrupt
from planner.engine_check.server import NotReady, Server, answers, launched, scripts_of, wait_ready
from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem
from planner.problem.schema import Problem

SCHEMA = "planner.engine_check/1"
GRACE_S = 180.0  # a generator loads a tokenizer, makes prompts, lets the last requests end and writes its report


@dataclass(frozen=True, slots=True)
class Settings:
    """How to check: what to start or reach, what drives it, and how far predictions may be off."""

    url: str | None = None
    target: str | None = None  # that of the plan's engine when absent
    generator: str | None = None
    tokenizer: str | None = None  # the model's own when absent
    duration_s: float = 60.0
    ready_s: float = 1200.0  # large checkpoints load for many minutes
    tolerance: float = 0.30
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and the document to keep of it."""

    findings: list[Finding]
    result: dict[str, Any]


class _Failed(Exception):
    """The run ended without a report; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def judge_report(envelope: Envelope, report: str, tolerance: float) -> Verdict:
    """The verdict on a run that somebody else made with the plan's workload."""
    problem = _problem(envelope)
    workload = problem.workloads[0] if len(problem.workloads) == 1 else None
    runs = read_measured(report)
    if workload is None or len(runs) != 1:
        raise PlannerError(
            f"{len(runs)} runs in the report and {len(problem.workloads)} workloads in the plan, one of each is judged",
            where=report,
            hint="give the report of one run, and a plan of one workload",
        )
    load = workload.load
    rate = load.rate_per_s if load is not None else None
    clients = load.concurrency if load is not None else None
    return _verdict(
        envelope, problem, _Facts(workload.name, rate, clients, {"report": Path(report).name}), runs[0], tolerance
    )


def check_engine(envelope: Envelope, decision: Decision, settings: Settings) -> Verdict:
    """Starts the plan's engine (or takes the URL), drives it, stops it, and judges what was measured.

    An engine that does not start, ends early or refuses requests is a verdict. Raises PlannerError for plans that one
    machine cannot run, and where no load generator is installed.
    """
    problem = _problem(envelope)
    drive = drive_of(envelope, problem)
    generator = find_generator(settings.generator)
    facts: dict[str, Any] = {"engine": problem.engine.name, "launched": settings.url is None}
    facts |= {"generator": generator.name, "duration_s": settings.duration_s, "url": settings.url}
    with termination_as_interrupt(), tempfile.TemporaryDirectory(prefix="planner-engine-") as name:
        try:
            with _server(envelope, decision, settings, Path(name)) as server:
                facts["url"] = server.url
                run = GeneratorRun(
                    drive, server.url, settings.tokenizer or drive.model, settings.duration_s, Path(name)
                )
                measured = _measure(generator, run, server, settings.grace_s)
        except NotReady as error:
            finding = Finding("engine.ready", False, str(error), "engine", "read the engine's own log")
            return Verdict([finding], _document(envelope, facts, []))
        except _Failed as error:
            return Verdict([error.finding], _document(envelope, facts, []))
    facts_of = _Facts(drive.workload, drive.rate_per_s, drive.concurrency, facts)
    return _verdict(envelope, problem, facts_of, measured, settings.tolerance)


@contextmanager
def _server(envelope: Envelope, decision: Decision, settings: Settings, folder: Path) -> Iterator[Server]:
    if settings.url is not None:
        wait_ready([settings.url], [], time.monotonic() + settings.ready_s)
        yield Server(settings.url)
        return
    files = scripts_of(envelope, decision, settings.target or _problem(envelope).engine.name)
    with launched(files, decision, folder, settings.ready_s) as server:
        yield server


def _measure(generator: Generator, run: GeneratorRun, server: Server, grace_s: float) -> MeasuredRun:
    """The report of one run of the generator; raises _Failed when engine or generator end before it."""
    deadline = time.monotonic() + run.duration_s + grace_s
    with running(generator.name, generator.command(run), run.folder / "generator.log", {}) as program:
        while program.exit_code() is None and server.ended() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        _refuse_dead_engine(server)
        if program.exit_code() is None:
            what = f"{generator.name} did not end within {run.duration_s + grace_s:.0f} s: {program.last_words()}"
            raise _Failed(Finding("engine.generator", False, what, "engine", "measure for less long"))
    if program.exit_code() != 0:
        hint = "run the load generator by hand to see why"
        raise _Failed(Finding("engine.generator", False, program.fate(), "engine", hint))
    try:
        runs = read_measured(run.folder / generator.report)
    except PlannerError as error:
        what = f"{generator.name} left no report: {error.what}"
        raise _Failed(Finding("engine.generator", False, what, "engine", "try another load generator")) from None
    return runs[-1]


def _refuse_dead_engine(server: Server) -> None:
    """Raises _Failed when an engine of ours ended, or one of others no longer answers."""
    ended = server.ended()
    if ended is None and answers(server.url):
        return
    what = f"{ended.fate()} (under load)" if ended is not None else f"{server.url} stopped answering under load"
    raise _Failed(Finding("engine.alive", False, what, "engine", "read the engine's own log"))


@dataclass(frozen=True, slots=True)
class _Facts:
    """The workload that was driven and its load, and what the result says of the run."""

    workload: str
    rate_per_s: float | None
    concurrency: int | None
    run: Mapping[str, Any]


def _verdict(envelope: Envelope, problem: Problem, facts: _Facts, measured: MeasuredRun, tolerance: float) -> Verdict:
    slo = next(workload.slo for workload in problem.workloads if workload.name == facts.workload)
    findings = judge(measured, facts.rate_per_s, facts.workload, slo, envelope.predictions, tolerance)
    predicted: dict[str, dict[str, float]] = {}
    for prediction in envelope.predictions:
        if prediction.of == facts.workload and prediction.metric in METRICS:
            predicted.setdefault(prediction.metric, {})[prediction.statistic] = prediction.value
    entry = {
        "name": facts.workload,
        "rate_per_s": facts.rate_per_s,
        "concurrency": facts.concurrency,
        "completed": measured.completed,
        "failed": measured.failed,
        "requests_per_s": measured.requests_per_s,
        "measured": measured.times_s,
        "predicted": predicted,
    }
    return Verdict(findings, _document(envelope, {**facts.run, "tolerance": tolerance}, [entry]))


def _document(envelope: Envelope, facts: Mapping[str, Any], workloads: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "plan": envelope.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **facts,
        "workloads": workloads,
    }


def _problem(envelope: Envelope) -> Problem:
    problem = recorded_problem(envelope.inputs)
    if problem is None or envelope.kind != "serve":
        raise PlannerError(
            f"a plan of kind `{envelope.kind}` has no engine to drive"
            if problem is not None
            else "`inputs` is no problem",
            where="kind" if problem is not None else "inputs",
            hint="give a serving plan",
        )
    return problem
