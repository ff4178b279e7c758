"""`planner check`: is this plan what it says it is?"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Json, Output


def check(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan; `-` is stdin.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Check whether a plan is what it says it is.

    The rules: schema, arithmetic, memory, placement, SLOs, and the certificate re-derived without a solver.

    The result is also kept beside the plan, in `PLAN.checks.json`. Exits 1 when a rule fails.

    Examples:

      planner check plan.json

      planner check plan.json --json -o report.json
    """
    from planner.check import check_plan
    from planner.cli.output import say, write_data, write_json
    from planner.cli.render import render_findings
    from planner.errors import PlannerError
    from planner.load import load_plan
    from planner.plan.store import checks_path, plan_digest, plan_json, write_checks

    envelope, decision = load_plan(plan)
    findings = check_plan(envelope, decision, base=Path(plan).parent if plan != "-" else None)
    holds = all(finding.ok for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        write_json({"schema": "planner.checks/1", "ok": holds, "findings": rows}, output)
    else:
        write_data(render_findings(findings), output)
    if plan != "-":
        digest = _file_digest(plan) or plan_digest(plan_json(envelope))
        try:
            note = write_checks(plan, digest, "static", findings)
        except PlannerError as error:
            note = f"warning: {checks_path(plan)} was not written: {error.what}"
        if note:
            say(note)
    return 0 if holds else 1


def _file_digest(path: str) -> str | None:
    """The digest of the bytes of the file, which need not be laid out as planner writes it."""
    from planner.plan.store import plan_digest

    try:
        with open(path, encoding="utf-8", newline="") as file:
            return plan_digest(file.read())
    except (OSError, UnicodeDecodeError):
        return None
