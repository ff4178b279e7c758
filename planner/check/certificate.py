"""Checks a plan's certificate: its arithmetic, and its proof by `planner.verify`, which needs no solver."""

import json
from collections.abc import Iterator

from planner import verify
from planner.check.figures import agree
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope
from planner.plan.store import plan_json

PROOF_REL_TOL = 1e-6
"""By which an objective may be beyond its bound, of rounding."""

STOP_REASONS = ("finished", "time_limit", "node_limit", "interrupted", "numerical", "stated")

_WHERE = "certificate"
_HINT = "the proof is not one for this certificate: solve again"


def certificate_findings(envelope: Envelope, judged: tuple[str, ...] = (), *, proof: bool = False) -> Iterator[Finding]:
    """One finding a claim: of a plan with a proof those of `planner.verify`, else gap, side of the bound, status.

    What proofs by `judged` methods rest on is for the kind to derive again, where that is asked for (`proof`).
    """
    certificate = envelope.certificate
    if certificate.proof:
        yield from _verified(envelope)
        if certificate.proof.get("method") in judged and not proof:
            what = "not judged: what the bound rests on, and what the next best plan evaluated loses"
            yield Finding("certificate.search", True, what, _WHERE, "`planner check --level proof`", skipped=True)
        return
    yield from _gap(certificate)
    yield from _claim(certificate)
    yield from _stopped(certificate)
    if certificate.bound is not None and certificate.status == "optimal":
        yield Finding("certificate.proof", False, "the bound comes without a proof", _WHERE, "solve again")


def _verified(envelope: Envelope) -> Iterator[Finding]:
    """What `planner.verify` says of the certificate, from the plan's JSON alone."""
    for line in verify.judge(json.loads(plan_json(envelope))):
        skipped = line.verdict == verify.NOTHING
        if line.verdict != verify.STATED:  # what a proof rests on is priced again by other rules
            what = f"{line.verdict}: {line.what}" if line.verdict in (verify.MISSING, verify.NOTHING) else line.what
            right = skipped or line.verdict == verify.VERIFIED
            yield Finding(line.rule, right, what, _WHERE, _HINT, skipped=skipped)


def _gap(certificate: Certificate) -> Iterator[Finding]:
    value, bound, gap = certificate.objective.value, certificate.bound, certificate.gap
    if value is None or bound is None:
        what = "no gap is stated where objective or bound is missing"
        yield Finding("certificate.gap", gap is None, what, _WHERE, "drop `gap`, or state objective and bound")
        return
    derived = abs(value - bound) / max(abs(value), 1e-9)
    right = gap is not None and agree(gap, derived)
    stated = "none" if gap is None else f"{gap:.6g}"
    what = f"states the gap {stated}, |objective - bound| / |objective| is {derived:.6g}"
    yield Finding("certificate.gap", right, what, _WHERE, "state the gap that objective and bound give")
    maximising = certificate.objective.sense == "maximize"
    excess = (value - bound if maximising else bound - value) / max(abs(value), 1e-9)
    what = f"objective {value:.6g}, bound {bound:.6g} ({certificate.objective.sense})"
    hint = "a bound that the plan beats is none: solve again"
    yield Finding("certificate.bound", excess <= PROOF_REL_TOL, what, _WHERE, hint)


def _claim(certificate: Certificate) -> Iterator[Finding]:
    status = certificate.status
    present = certificate.objective.value is not None
    if status in ("infeasible", "unknown"):
        what = f"a plan cannot be `{status}`"
        yield Finding("certificate.status", False, what, _WHERE, "a plan is optimal, feasible or stated")
    elif status == "optimal":
        gap = certificate.gap
        right = present and gap is not None and gap <= certificate.tolerance
        what = f"claims `optimal` with gap {gap} and tolerance {certificate.tolerance}"
        yield Finding("certificate.status", right, what, _WHERE, "claim `feasible`, or give the bound that proves it")
    else:
        yield Finding("certificate.status", True, f"claims `{status}`", _WHERE)


def _stopped(certificate: Certificate) -> Iterator[Finding]:
    right = certificate.stop_reason in STOP_REASONS
    what = f"the search stopped by `{certificate.stop_reason}`"
    hint = f"it is one of {', '.join(STOP_REASONS)}"
    yield Finding("certificate.stop_reason", right, what, f"{_WHERE}.stop_reason", hint)
