"""`planner check --level execute`: runs the shards of a plan; parts shared with `planner execute`."""

from typing import TYPE_CHECKING, Any

from planner.cli.options import fraction, profile_paths, seconds
from planner.cli.output import say, write_result, write_spans
from planner.errors import PlannerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.execute.execution import ExecutionOptions
    from planner.execute.ranks.launch import Rendezvous
    from planner.plan.findings import Finding


def make_options(
    *,
    roles: str | None,
    device: str | None,
    cut: str | None,
    tolerance: str | None,
    time_limit: str | None,
    profiles: list[str] | None,
    calibration: str | None,
    nproc: int | None = None,
    meeting: "Rendezvous | None" = None,
) -> "ExecutionOptions":
    """The flags of the command line as options of a run; raises PlannerError for those that make no sense."""
    from planner.execute.execution import ExecutionOptions
    from planner.execute.ranks.launch import TimeLimits
    from planner.execute.shards.cases import parse_cut

    limit_s = seconds(time_limit, "--time-limit")
    return ExecutionOptions(
        roles=tuple(name.strip() for name in roles.split(",") if name.strip()) if roles else (),
        device=device or "",
        num_processes=nproc or 0,
        tolerance=fraction(tolerance, "--tolerance") if tolerance is not None else ExecutionOptions().tolerance,
        cut=parse_cut(cut),
        limits=TimeLimits(total_s=limit_s) if limit_s is not None else TimeLimits(),
        profiles=profile_paths(profiles),
        calibration=calibration,
        meeting=meeting,
    )


def judged(
    plan: str,
    options: "ExecutionOptions",
    *,
    as_json: bool,
    output: str | None,
    keep: bool,
    perfetto: str | None = None,
) -> int:
    """Runs the plan, prints what came of it, keeps it beside the plan, and says by the exit code whether it holds."""
    from planner.cli.render.execution import render_execution
    from planner.execute.execution import execute_plan
    from planner.timelines.shards import execution_spans

    execution = execute_plan(plan, options)
    write_spans(perfetto, lambda: execution_spans(execution))
    document: dict[str, Any] = execution.as_json()
    write_result(document, lambda: render_execution(execution), output, as_json=as_json)
    if keep:
        keep_checks(plan, execution.plan, "execute", execution.findings(), document)
    return 0 if execution.ok else 1


def keep_checks(
    plan: str, digest: str, level: str, findings: "Sequence[Finding]", result: "Mapping[str, Any] | None"
) -> None:
    """Writes the level into the checks beside the plan; a folder that cannot be written to is worth a warning."""
    from planner.plan.store import checks_path, write_checks

    try:
        note = write_checks(plan, digest, level, findings, result)
    except PlannerError as error:
        note = f"warning: {checks_path(plan)} was not written: {error.what}"
    if note:
        say(note)
