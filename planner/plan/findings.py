"""Findings of a check: one pass or failure by rule, with place and fix."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

OK, FAILED, NOT_JUDGED, UNVERIFIABLE = "ok", "failed", "not judged", "unverifiable"
"""Verdicts: the rule holds, it does not, this level does not judge it, or what it is judged by is not at hand."""


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

    @property
    def verdict(self) -> str:
        """One of the verdicts of this module."""
        if self.unverifiable:
            return UNVERIFIABLE
        if self.skipped:
            return NOT_JUDGED
        return OK if self.ok else FAILED


def unverifiable(rule: str, why: str, where: str, hint: str = "") -> Finding:
    """The finding of a rule whose inputs are not at hand."""
    return Finding(rule, False, why, where, hint, unverifiable=True)


def first_failure(findings: Iterable[Finding]) -> Finding | None:
    """The first rule that does not hold; None where none was found not to."""
    return next((finding for finding in findings if finding.verdict == FAILED), None)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many rules have each verdict."""
    verdicts = [finding.verdict for finding in findings]
    return {verdict: verdicts.count(verdict) for verdict in (OK, FAILED, NOT_JUDGED, UNVERIFIABLE)}


def passed(findings: Iterable[Finding]) -> bool:
    """Whether nothing failed and nothing was unverifiable; what was not judged speaks neither way."""
    return all(finding.verdict in (OK, NOT_JUDGED) for finding in findings)


def as_row(finding: Finding) -> dict[str, Any]:
    """The finding as plain data; `ok` is true of rules that were judged and hold, and of no other."""
    return {**asdict(finding), "ok": finding.verdict == OK, "verdict": finding.verdict}
