"""Findings of a check: one pass or failure by rule, with place and fix."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one rule on one part of a plan; `hint` says how to fix a failure."""

    rule: str  # dotted, such as memory.capacity
    ok: bool
    what: str
    where: str = ""
    hint: str = ""
    approximate: bool = False  # holds by a mean-based model only
    skipped: bool = False  # could not be judged here; `what` says why, and `ok` stays true
