"""Findings of a check: one pass or failure by rule, with place and fix."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

OK, FAILED, NOT_JUDGED, UNVERIFIABLE = "ok", "failed", "not judged", "unverifiable"
CLOSE = "too close to call"
"""Verdicts: the rule holds, it does not, this level does not judge it, what it is judged by is not at hand, or the
interval of what was simulated holds the limit.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one rule on one part of a plan; `hint` says how to fix a failure."""

    rule: str  # dotted, such as memory.capacity
    ok: bool
    what: str
    where: str = ""
    hint: str = ""
    approximate: bool = False  # holds by a mean-based model only
    skipped: bool = False  # could not be judged here; `what` says why, and `ok`, which counts for nothing, stays true
    unverifiable: bool = False  # an input that the rule needs is not at hand; `ok` is false
    close: bool = False  # the limit lies within the error of what it is judged by

    @property
    def verdict(self) -> str:
        """One of the verdicts of this module."""
        if self.unverifiable:
            return UNVERIFIABLE
        if self.skipped:
            return NOT_JUDGED
        if self.close:
            return CLOSE
        return OK if self.ok else FAILED


def unverifiable(rule: str, why: str, where: str, hint: str = "") -> Finding:
    """The finding of a rule whose inputs are not at hand."""
    return Finding(rule, False, why, where, hint, unverifiable=True)


def first_failure(findings: Iterable[Finding]) -> Finding | None:
    """The first rule that does not hold; None where none was found not to."""
    return next((finding for finding in findings if finding.verdict == FAILED), None)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many rules have each verdict; those too close to call only where there are some."""
    verdicts = [finding.verdict for finding in findings]
    told = (OK, FAILED, NOT_JUDGED, UNVERIFIABLE, *([CLOSE] if CLOSE in verdicts else []))
    return {verdict: verdicts.count(verdict) for verdict in told}


def passed(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed and nothing was unverifiable; what was not judged or is close speaks neither way."""
    return all(finding.verdict in (OK, NOT_JUDGED, CLOSE) for finding in findings)


def undecided_fails(finding: Finding) -> Finding:
    """The finding, failed where it is too close to call."""
    return replace(finding, ok=False, close=False) if finding.verdict == CLOSE else finding


def as_row(finding: Finding) -> dict[str, Any]:
    """The finding as plain data; `ok` is true of rules that were judged and hold, and of no other."""
    row = {**asdict(finding), "ok": finding.verdict == OK, "verdict": finding.verdict}
    close = row.pop("close")
    return {**row, "close": True} if close else row
