"""`planner sweep`: solves many variations of one problem, and compares them with a baseline for CI gates."""

from typing import TYPE_CHECKING, Any

import typer

from planner.cli.options import (
    Backend,
    Json,
    Overrides,
    Profiles,
    fraction,
    profile_paths,
    refuse_variables,
    seconds,
)
from planner.cli.output import EXIT_NO, refuse_unwritable, say, write_data, write_json
from planner.cli.progress import progress
from planner.cli.what_if.sweep_options import (
    AlongLine,
    Annotate,
    BaselineFile,
    CacheFolder,
    CommentFile,
    EngineName,
    JunitFile,
    NoCache,
    PointTimeLimit,
    RayAddress,
    ResultsFile,
    Rules,
    SummaryFile,
    SweepGap,
    SweepPath,
    Workers,
)
from planner.errors import PlannerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.progress import Limits
    from planner.sweep.axes import SweepAxis, SweepPoint
    from planner.sweep.gate import Gate
    from planner.sweep.results import ResultTable
    from planner.sweep.rules import GateRule
    from planner.sweep.runner import FinishedSweep, SweepRunner
    from planner.sweep.schema import SweepFile

EXIT_BAD, EXIT_INTERRUPTED = 2, 130
ENGINES = ("local", "ray")


def sweep(
    file: SweepPath,
    output: ResultsFile = None,
    as_json: Json = False,
    overrides: Overrides = None,
    parametric: AlongLine = None,
    profiles: Profiles = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    cache: CacheFolder = None,
    no_cache: NoCache = False,
    gap: SweepGap = None,
    time_limit: PointTimeLimit = None,
    backend: Backend = None,
    baseline: BaselineFile = None,
    fail_on: Rules = None,
    junit: JunitFile = None,
    summary: SummaryFile = None,
    comment: CommentFile = None,
    annotate: Annotate = False,
) -> int:
    """Solve many variations of a problem; say where the decision changes, and gate on it.

    Solved points are kept: after a kill, the same command goes on where it was. Exits 1 when a rule of the gate fails,
    or when a point has no plan that has one in the baseline; 2 when a point is no valid problem.

    Examples:

      planner sweep examples/sweep-gpus-and-rate.yaml -o sweep.parquet

      planner sweep problem.yaml --parametric rate=5/s..50/s

      planner sweep sweep.yaml --baseline main.parquet --fail-on 'cost_per_mtok > +3%' --summary summary.md
    """
    from planner.progress import Limits
    from planner.sweep.gate import judge

    if parametric is not None:
        from planner.cli.what_if.parametric import breakpoints

        paths = profile_paths(profiles)
        return breakpoints(file, parametric, overrides or (), paths, Limits(backend=backend), output, as_json=as_json)
    if comment is not None and baseline is None:
        raise PlannerError("needs a baseline to tell what changed", where="--comment", hint="add `--baseline FILE`")
    given, rules, before = _read(file, fail_on or (), baseline, (output, junit, summary, comment))
    limits = Limits(time_limit_s=seconds(time_limit, "--time-limit"), gap=fraction(gap, "--gap"), backend=backend)
    options = _options(workers, engine, ray_address, cache, keep=not no_cache)
    swept, table, findings = _run(given, options, limits, tuple(overrides or ()), profile_paths(profiles))
    gate = judge(table, before, rules) if rules or before is not None or junit or summary or annotate else None
    _hand_over(table, findings, gate, output, as_json=as_json)
    if gate is not None:
        files = {"junit": junit, "summary": summary, "comment": comment}
        _report(gate, swept, findings, files, file if annotate else None)
    if _say_unsolved(table):
        return EXIT_BAD
    return EXIT_NO if gate is not None and not gate.ok else 0


def _read(
    file: str, fail_on: "Sequence[str]", baseline: str | None, written: tuple[str | None, ...]
) -> "tuple[SweepFile, list[GateRule], ResultTable | None]":
    """The sweep, the rules of its gate and the baseline, once what is to be `written`, results first, can be."""
    from planner.sweep.files import read_table, require_format
    from planner.sweep.rules import parse_rule, require_judgeable
    from planner.sweep.schema import load_sweep

    rules = [parse_rule(text) for text in fail_on]
    if written[0] is not None:
        require_format(written[0])
    for target in written:
        refuse_unwritable(target)
    before = read_table(baseline) if baseline is not None else None
    given = load_sweep(file)
    for rule in rules:
        require_judgeable(rule, given.scenarios, baseline=before is not None)
    refuse_variables("sweep", {"PLANNER_SEED": "--set seed=...", "PLANNER_THREADS": "--workers"})
    return given, rules, before


def _say_unsolved(table: "ResultTable") -> bool:
    """Names the first point that could not be judged, and says whether there is one."""

    unsolved = [row for row in table.rows if row["status"] in ("error", "stopped")]
    if unsolved:
        say(f"error: {unsolved[0]['error']}")
        say(f"  hint: {len(unsolved):,} of {len(table.rows):,} points have no answer; fix their values or limits")
    return bool(unsolved)


def _options(
    workers: int | None, engine: str, ray_address: str | None, cache: str | None, *, keep: bool
) -> dict[str, Any]:
    if engine not in ENGINES:
        raise PlannerError(f"there is no engine `{engine}`", where="--engine", hint="write `local` or `ray`")
    if ray_address is not None and engine != "ray":
        raise PlannerError("needs `--engine ray`", where="--ray-address", hint="add `--engine ray`")
    if cache is not None and not keep:
        raise PlannerError("`--cache` and `--no-cache` exclude each other", where="--cache", hint="keep one of them")
    given: dict[str, Any] = {"engine": engine, "ray_address": ray_address, "cache": cache, "keep": keep}
    return given | ({"workers": workers} if workers is not None else {})


def _run(
    given: "SweepFile",
    settings: dict[str, Any],
    limits: "Limits",
    overrides: tuple[str, ...],
    profiles: tuple[str, ...],
) -> "tuple[FinishedSweep, ResultTable, dict[str, Any]]":
    """The solved sweep, its table, and what was found in it."""
    from planner.sweep.runner import SweepOptions, start_sweep

    with progress() as tell:
        options = SweepOptions(tell=tell, note=say, **settings)
        runner, axes, points = start_sweep(given, options, limits=limits, overrides=overrides, profiles=profiles)
        try:
            return _finish(runner, axes, points, given)
        except KeyboardInterrupt:
            resume = "; run the same command again to go on" if settings["keep"] else ""
            say(f"interrupted: {runner.solved:,} points were solved{resume}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            runner.close()


def _finish(
    runner: "SweepRunner", axes: "tuple[SweepAxis, ...]", points: "list[SweepPoint]", given: "SweepFile"
) -> "tuple[FinishedSweep, ResultTable, dict[str, Any]]":
    from planner.sweep.breakeven import break_even_rows, break_evens
    from planner.sweep.results import make_table
    from planner.sweep.runner import finish_sweep
    from planner.sweep.sensitivity import sensitivity

    swept = finish_sweep(runner, axes, points)
    table = make_table(swept)
    changes = break_evens(swept, narrow=given.spec.breakeven, tolerance=given.spec.tolerance)
    findings = {"break_evens": break_even_rows(swept, changes), "sensitivity": sensitivity(swept)}
    runner.tell_kept()
    return swept, table, findings


def _hand_over(
    table: "ResultTable", findings: dict[str, Any], gate: "Gate | None", output: str | None, *, as_json: bool
) -> None:
    from planner.cli.render.sweep import render_gate, render_sweep
    from planner.sweep.files import json_document, write_table

    if not as_json and output != "-":
        write_data(render_sweep(table, findings))
        if gate is not None:
            write_data(render_gate(gate))
    if output is not None:
        write_table(table, output, findings)
        if output != "-":
            say(f"wrote {output}")
    if as_json and output != "-":
        verdict = {} if gate is None else {"gate": _verdict(gate)}
        write_json(json_document(table, {**findings, **verdict}))


def _verdict(gate: "Gate") -> dict[str, Any]:
    uncompared = [verdict.row["point"] for verdict in gate.uncompared]
    notes = [*gate.notes, *gate.remarks]
    return {"ok": gate.ok, "failed": _failed(gate), "not_compared": uncompared, "notes": notes}


def _failed(gate: "Gate") -> list[dict[str, Any]]:
    return [
        {"point": verdict.row["point"], "rule": breach.rule, "why": breach.why}
        for verdict in gate.failed
        for breach in verdict.breaches
    ]


def _report(
    gate: "Gate", swept: "FinishedSweep", findings: dict[str, Any], files: dict[str, str | None], annotated: str | None
) -> None:
    from planner.sweep.reports import annotations, comment, junit_xml, markdown_summary

    name = swept.sweep.name
    if files["junit"] is not None:
        write_data(junit_xml(gate, name), files["junit"])
    if files["summary"] is not None:
        write_data(markdown_summary(gate, name, findings["break_evens"]), files["summary"])
    if files["comment"] is not None:
        told = comment(gate, name)
        if told is None:
            say("nothing changed: no comment is written")
        else:
            write_data(told, files["comment"])
    if annotated is not None:
        for line in annotations(gate, annotated):
            say(line)
