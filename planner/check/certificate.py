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
    """One finding a rule: gap, claim, side of the bound, counts, losses, proof.

    Proofs by `judged` methods are for the kind to derive again, where that is asked for (`proof`). Then every claim of
    the certificate is judged from the plan's JSON alone too, by `planner.verify`.
    """
    certificate = envelope.certificate
    yield from _gap(certificate)
    yield from _claim(certificate)
    yield from _stopped(certificate)
    yield from _counts(certificate)
    yield from _losses(certificate)
    if proof and certificate.proof:
        yield from _verified(envelope)
    elif certificate.proof.get("method") not in judged:
        yield from _proof(envelope)
    else:
        what = "not judged: whether the bound holds, and what the next best plan loses"
        yield Finding("certificate.proof", True, what, _WHERE, "`planner check --level proof`", skipped=True)


def _verified(envelope: Envelope, *, statement: bool = True) -> Iterator[Finding]:
    """What `planner.verify` says of the certificate, or without `statement` of its proof."""
    for line in verify.judge(json.loads(plan_json(envelope)), statement=statement):
        skipped = line.verdict == verify.NOTHING
        if line.verdict != verify.STATED:  # what a proof rests on is priced again by other rules
            what = f"{line.verdict}: {line.what}" if line.verdict in (verify.MISSING, verify.NOTHING) else line.what
            right = skipped or line.verdict == verify.VERIFIED
            yield Finding(line.rule, right, what, f"{_WHERE}.proof", _HINT, skipped=skipped)


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


def _counts(certificate: Certificate) -> Iterator[Finding]:
    """Candidates are those that were priced and those that bounds and memory left out, where a proof counts them."""
    proof, pruned = certificate.proof, certificate.pruned
    if "priced_exactly" in proof:
        left, priced, excluded = sum(pruned.values()), proof["priced_exactly"], proof.get("excluded_by_bound")
        right = excluded == left
    elif "evaluated" in proof:
        left = sum(count for name, count in pruned.items() if not name.startswith("illegal: "))
        priced, right = proof["evaluated"], True
    else:
        return
    right = right and isinstance(priced, int) and priced + left == certificate.candidates
    what = f"{priced} candidates priced and {left} left out, {certificate.candidates} in all"
    yield Finding("certificate.counts", right, what, f"{_WHERE}.candidates", "solve again: the counts do not add up")


def _losses(certificate: Certificate) -> Iterator[Finding]:
    """What other plans lose, of the objectives stated; but for those of simulations."""
    others = certificate.next_best if isinstance(certificate.next_best, list) else [certificate.next_best]
    value, maximising = certificate.objective.value, certificate.objective.sense == "maximize"
    rows = [(row.get("objective"), row.get("loss")) for row in others if isinstance(row, dict)]
    numbers = [(o, loss) for o, loss in rows if isinstance(o, int | float) and isinstance(loss, int | float)]
    if not value or "reversals" in certificate.proof:
        return
    for other, loss in numbers:
        of_value = abs(other - value) / max(abs(value), 1e-9)
        of_other = value / other - 1.0 if maximising and other else of_value
        right = any(abs(loss - derived) <= PROOF_REL_TOL * max(abs(derived), 1e-6) for derived in (of_value, of_other))
        what = f"a plan worth {other:.6g} beside {value:.6g} loses {of_value:.6g}, stated {loss:.6g}"
        yield Finding("certificate.next_best", right, what, f"{_WHERE}.next_best", "solve again")


def _proof(envelope: Envelope) -> Iterator[Finding]:
    certificate = envelope.certificate
    if certificate.bound is None or certificate.status == "stated":
        return
    if certificate.proof:
        yield from _verified(envelope, statement=False)
        return
    proven = certificate.status == "optimal"
    what = "the bound comes without a proof"
    yield Finding("certificate.proof", not proven, what, _WHERE, "solve again", skipped=not proven)
