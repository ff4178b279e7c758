"""`planner check`: validates a plan, statically, by simulation, by running its shards, or on a real engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, Json, Output, Perfetto, PlanFile
from planner.cli.output import EXIT_NO, refuse_unwritable, say, write_data, write_json
from planner.cli.plans.at_hand import Inputs, inputs_at_hand, refuse_other_calibration
from planner.cli.plans.check_engine import (
    Duration,
    EngineTarget,
    EngineUrl,
    Generator,
    Ready,
    ReportFile,
    Tokenizer,
    check_on_engine,
)
from planner.cli.plans.check_execute import judged, keep_checks, make_options
from planner.cli.plans.check_levels import refuse_other_levels
from planner.cli.plans.check_simulate import Decisive, TraceFile, check_by_simulation
from planner.cli.plans.execute_options import (
    CalibrationFile,
    CutSteps,
    Device,
    ExecuteProfiles,
    Nproc,
    Roles,
    TimeLimit,
)
from planner.cli.render.findings import render_findings
from planner.cli.render.simulation import render_beside, render_stretches
from planner.errors import PlannerError, require_known
from planner.plan.findings import as_row, counts, passed

if TYPE_CHECKING:
    from planner.plan.findings import Finding
    from planner.problem.recorded import AtHand

Level = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        help="static: from the plan alone; proof: and its certificate; simulate: simulated; execute: its shards; "
        "engine: a running engine.",
        rich_help_panel=INPUT,
    ),
]
Tolerance = Annotated[
    str | None,
    typer.Option(metavar="SHARE", help="How far measured may be from predicted.", rich_help_panel=INPUT),
]
Refresh = Annotated[
    bool,
    typer.Option("--refresh", help="Price the same decision anew, and write the plan.", rich_help_panel=INPUT),
]

Judged = tuple[Sequence["Finding"], Mapping[str, Any] | None]
"""What a level has found, and the document of what it measured, with a `schema` of its own."""


def check(
    plan: PlanFile,
    level: Level = "static",
    tolerance: Tolerance = None,
    url: EngineUrl = None,
    target: EngineTarget = None,
    report: ReportFile = None,
    generator: Generator = None,
    tokenizer: Tokenizer = None,
    duration: Duration = None,
    ready: Ready = None,
    roles: Roles = None,
    device: Device = None,
    nproc: Nproc = None,
    cut: CutSteps = None,
    time_limit: TimeLimit = None,
    profiles: ExecuteProfiles = None,
    calibration: CalibrationFile = None,
    inputs: Inputs = None,
    refresh: Refresh = False,
    trace: TraceFile = None,
    decisive: Decisive = False,
    perfetto: Perfetto = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Check whether a plan is what it says it is.

    Level static prices the plan again from its problem and its own decision, by the code that makes plans, and holds
    every figure, name and digest against what comes out; SLOs are judged by what comes out. Files that the problem
    named (recorded loads, traces) are looked for beside the plan, here, and in --inputs; a calibration
    file and kernel tables are named by --calibration and --profiles. Without them the figures that rest on them are
    `unverifiable`, which is not ok. Level proof also judges every claim of the certificate, as
    `python planner/verify.py plan.json` does, derives bounds and next best plans again, and tells what it rests on.
    Level simulate simulates it on independent streams of its workload, as long as the verdict needs (of rows of the
    trace that its problem names, looked for likewise, with the memory that it buys for prefixes), or on a trace,
    and says of each limit whether it is kept, broken, or too close to call within the 95 % interval of what was
    simulated, which fails with --decisive alone. Level execute builds the shards of its roles
    with random weights, runs their steps on the devices at hand, and holds measured against predicted time. Level
    engine starts the plan's engine (or takes a URL), drives it with the plan's workload through a load generator, and
    holds TTFT and TPOT against prediction and SLO.

    With --refresh the decision is priced anew and written, to --output or over the plan, with new predictions, digests
    and version; nothing is proven of it any more.

    The result is also kept beside the plan, in `PLAN.checks.json`. Exits 1 when a rule fails or is unverifiable.

    Examples:

      planner check plan.json

      planner check plan.json --json -o report.json

      planner check plan.json --level simulate --trace conv.csv

      planner check plan.json --level execute --roles decode --tolerance 15%

      planner check plan.json --level engine --url http://127.0.0.1:8000
    """

    known = ("static", "proof", "simulate", "execute", "engine")
    require_known("level", level, known, listing="levels are", where="--level")
    refuse_other_levels(
        level, tolerance=tolerance, url=url, target=target, report=report, generator=generator, tokenizer=tokenizer,
        duration=duration, ready=ready, roles=roles, device=device, nproc=nproc, cut=cut, time_limit=time_limit,
        profiles=profiles or None, calibration=calibration, trace=trace, inputs=inputs or None, refresh=refresh or None,
        decisive=decisive or None, perfetto=perfetto,
    )  # fmt: skip
    for path in (perfetto, output):
        refuse_unwritable(path)
    if level == "execute":
        options = make_options(
            roles=roles, device=device, cut=cut, tolerance=tolerance, time_limit=time_limit, profiles=profiles,
            calibration=calibration, nproc=nproc,
        )  # fmt: skip
        return judged(plan, options, as_json=as_json, output=output, keep=True, perfetto=perfetto)
    if refresh:
        plan, output = _refresh(plan, output, inputs_at_hand(plan, inputs, profiles, calibration)), None
    verdict: Judged
    if level == "engine":
        verdict = check_on_engine(
            plan, tolerance=tolerance, url=url, target=target, report=report, generator=generator,
            tokenizer=tokenizer, duration=duration, ready=ready,
        )  # fmt: skip
    elif level == "simulate":
        verdict = check_by_simulation(
            plan, inputs=inputs, profiles=profiles, calibration=calibration, trace=trace, decisive=decisive,
            perfetto=perfetto,
        )  # fmt: skip
    else:
        verdict = _statically(plan, inputs, profiles, calibration, proof=level == "proof")
    return _hand_over(plan, level, verdict, as_json=as_json, output=output)


def _statically(
    plan: str, inputs: list[str] | None, profiles: list[str] | None, calibration: str | None, *, proof: bool
) -> Judged:
    """From the plan alone, and with `proof` from a search made again."""
    from planner.check import check_plan
    from planner.load.problems import load_plan

    envelope, decision = load_plan(plan)
    refuse_other_calibration(calibration, envelope, decision)
    hand = inputs_at_hand(plan, inputs, profiles, calibration)
    base = Path(plan).parent if plan != "-" else None
    return check_plan(envelope, decision, base=base, hand=hand, proof=proof), None


def _refresh(plan: str, output: str | None, hand: "AtHand") -> str:
    """Writes the plan priced anew; the file that it is in then."""
    from planner.check.refresh import refreshed
    from planner.documents.files import write_text_atomic
    from planner.load.problems import load_plan
    from planner.plan.store import plan_json

    path = output or plan
    if path == "-":
        raise PlannerError("needs a file to write", where="--refresh", hint="name it with `-o plan.json`")
    envelope, decision = load_plan(plan)
    refuse_other_calibration(hand.calibration, envelope, decision)
    write_text_atomic(path, plan_json(refreshed(envelope, decision, hand)))
    say(f"wrote {path}")
    return path


def _hand_over(plan: str, level: str, verdict: Judged, *, as_json: bool, output: str | None) -> int:
    """Prints what was found, keeps it beside the plan, and says by the exit code whether the plan holds."""
    findings, result = verdict
    _print(findings, result, as_json=as_json, output=output)
    if plan != "-":
        keep_checks(plan, _digest(plan), level, findings, result)
    return 0 if passed(findings) else EXIT_NO


def _print(
    findings: Sequence["Finding"], result: Mapping[str, Any] | None, *, as_json: bool, output: str | None
) -> None:

    if not as_json:
        beside = result.get("beside_stated") if result is not None else None
        parts = [render_beside(beside), ""] if beside else []
        parts += [render_stretches(result), ""] if result is not None and result.get("stretches") else []
        write_data("\n".join([*parts, render_findings(list(findings))]), output)
        return
    document: dict[str, Any] = {"schema": "planner.checks/1", "ok": passed(findings), "counts": counts(findings)}
    document |= {"findings": [as_row(finding) for finding in findings]}
    write_json(document if result is None else document | {"result": dict(result)}, output)


def _digest(path: str) -> str:
    """The digest of the bytes of the file, which need not be laid out as planner writes it."""
    from planner.load.problems import load_plan
    from planner.plan.store import plan_digest, plan_json

    try:
        with open(path, encoding="utf-8", newline="") as file:
            return plan_digest(file.read())
    except (OSError, UnicodeDecodeError):
        return plan_digest(plan_json(load_plan(path)[0]))
