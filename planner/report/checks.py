"""The page of a check: how many rules hold, every failure with its hint, and what could not be judged."""

from typing import Any

from planner.errors import PlannerError
from planner.plan.findings import CLOSE, FAILED, NOT_JUDGED, OK, UNVERIFIABLE
from planner.report.marks import table
from planner.report.page import Page, Section

_ORDER = (FAILED, UNVERIFIABLE, CLOSE, NOT_JUDGED, OK)


def check_page(document: dict[str, Any], file: str) -> Page:
    """The page of a document of findings, or of the last of those kept beside a plan.

    Raises PlannerError where it holds no findings.
    """
    levels = _levels(document)
    if not levels:
        raise PlannerError(
            "holds no findings of a check", where=file, hint="write it with `planner check PLAN --json -o check.json`"
        )
    sections: list[Section] = []
    tiles: list[tuple[str, str]] = []
    lead: list[str] = []
    for level, findings in levels:
        counted = {verdict: sum(_verdict(row) == verdict for row in findings) for verdict in _ORDER}
        tiles += [
            (f"{level}: {verdict}" if level else verdict, str(count)) for verdict, count in counted.items() if count
        ]
        broken = counted[FAILED] + counted[UNVERIFIABLE]
        start = f"{level}: " if level else ""
        lead.append(f"{start}{counted[OK]} rules hold, {broken} do not or cannot be verified.")
        rows = sorted(findings, key=lambda row: _ORDER.index(_verdict(row)))
        cells = [
            (_verdict(row), row.get("rule", ""), row.get("where", ""), row.get("what", ""), row.get("hint", ""))
            for row in rows
        ]
        sections.append(
            Section(f"Findings {level}".strip(), table(("verdict", "rule", "where", "what", "hint"), cells))
        )
    return Page("check", file, " ".join(lead), tiles, sections)


def _levels(document: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Findings by level: one of a check that was printed, those of all levels of a file kept beside a plan."""
    if isinstance(document.get("findings"), list):
        return [("", document["findings"])]
    checks = document.get("checks") or document.get("levels") or {}
    entries = checks.items() if isinstance(checks, dict) else [(str(row.get("level", "")), row) for row in checks]
    return [
        (str(level), row["findings"])
        for level, row in entries
        if isinstance(row, dict) and isinstance(row.get("findings"), list)
    ]


def _verdict(row: dict[str, Any]) -> str:
    verdict = row.get("verdict")
    return str(verdict) if verdict in _ORDER else (OK if row.get("ok") else FAILED)
