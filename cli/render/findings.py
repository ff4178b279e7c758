"""Renders what a check found, and answers that there is no plan, as text that reads the same without colour."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cli.errors import plain
from planner.errors import Infeasible
from planner.plan.findings import CLOSE, FAILED, NOT_JUDGED, OK, UNVERIFIABLE, counts

if TYPE_CHECKING:
    from planner.plan.findings import Finding

_WORDS = {FAILED: "FAIL", NOT_JUDGED: "note", UNVERIFIABLE: "unverifiable", CLOSE: "close"}


def render_findings(findings: "Sequence[Finding]") -> str:
    """How many of the rules that were judged hold, every failure with its hint, and what was not judged, by verdict."""
    number = counts(findings)
    judged = number[OK] + number[FAILED]
    approximate = sum(finding.verdict == OK and finding.approximate for finding in findings)
    notes = [f"{approximate} by mean-based models only"] if approximate else []
    notes += [f"{number[verdict]} {verdict}" for verdict in (NOT_JUDGED, UNVERIFIABLE, CLOSE) if number.get(verdict)]
    told = f" ({', '.join(notes)})" if notes else ""
    lines = [f"ok    {number[OK]} of {judged} rules{told}"]
    for finding in findings:
        if finding.verdict != OK:
            where = f"{finding.where}: " if finding.where else ""
            lines.append(f"{_WORDS[finding.verdict]:<5} {finding.rule}  {where}{finding.what}")
        if finding.hint and finding.verdict in (FAILED, UNVERIFIABLE, CLOSE):
            lines.append(f"      hint: {finding.hint}")
    return plain("\n".join(lines))


def render_infeasible(answer: "Infeasible") -> str:
    """The smallest set of limits that cannot hold together, or that no plan was found for; how far each must move."""
    lines = ["infeasible: no plan meets all limits (proved)"]
    if not answer.proved:
        lines = ["no plan was found that meets all limits, and none is proven impossible"]
    if answer.conflict:
        limits = ",  ".join(entry["limit"] for entry in answer.conflict)
        together = "this limit cannot hold" if len(answer.conflict) == 1 else "these cannot hold together"
        if not answer.proved:
            together = "not kept" if len(answer.conflict) == 1 else "not kept together"
        lines.append(f"  {together}:  {limits}")
    nearest = "   |   ".join(entry["nearest"] for entry in answer.conflict if entry["nearest"])
    return plain("\n".join([*lines, *([f"  nearest:  {nearest}"] if nearest else [])]))
