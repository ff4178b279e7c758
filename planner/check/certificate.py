"""Checks a plan's certificate: its arithmetic, and its optimality bound derived again without any solver."""

import math
from collections.abc import Iterator

from pydantic import JsonValue

from planner.check.figures import agree
from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope

PROOF_REL_TOL = 1e-6
"""Of a bound derived from multipliers that the plan stores rounded."""

STOP_REASONS = ("finished", "time_limit", "node_limit", "interrupted", "numerical", "stated")

_WHERE = "certificate"


def certificate_findings(envelope: Envelope, judged: tuple[str, ...] = (), *, proof: bool = False) -> Iterator[Finding]:
    """One finding a rule: gap, claim, side of the bound, counts, losses, proof.

    Proofs by `judged` methods are for the kind to derive again, where that is asked for (`proof`).
    """
    certificate = envelope.certificate
    yield from _gap(certificate)
    yield from _claim(certificate)
    yield from _stopped(certificate)
    yield from _counts(certificate)
    yield from _losses(certificate)
    if certificate.proof.get("method") not in judged:
        yield from _proof(certificate)
    elif not proof:
        what = "not judged: whether the bound holds, and what the next best plan loses"
        yield Finding("certificate.proof", True, what, _WHERE, "`planner check --level proof`", skipped=True)


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


def _proof(certificate: Certificate) -> Iterator[Finding]:
    method = certificate.proof.get("method")
    if certificate.bound is None or certificate.status == "stated":
        return
    if not certificate.proof:
        proven = certificate.status == "optimal"
        what = "the bound comes without a proof"
        yield Finding("certificate.proof", not proven, what, _WHERE, "solve again", skipped=not proven)
    elif method == "dual_tree":
        yield _derived(certificate, certificate.bound)
    else:
        yield Finding("certificate.proof", False, f"nobody derives proofs by `{method}` again", _WHERE, "solve again")


def _derived(certificate: Certificate, bound: float) -> Finding:
    hint = "the stated bound does not follow from the proof: solve again"
    try:
        proven = _dual_tree_bound(certificate.proof)
    except PlannerError as error:
        return Finding("certificate.proof", False, error.what, f"{_WHERE}.proof", hint)
    if proven is None:
        return Finding("certificate.proof", False, "the proof says that no plan exists", f"{_WHERE}.proof", hint)
    slack = bound - proven if certificate.objective.sense == "maximize" else proven - bound
    what = f"the proof gives {proven:.9g}, the certificate states {bound:.9g}"
    return Finding("certificate.proof", slack >= -PROOF_REL_TOL * max(abs(bound), 1e-9), what, f"{_WHERE}.proof", hint)


def _dual_tree_bound(proof: dict[str, JsonValue]) -> float | None:
    """The bound that the multipliers in `proof` give for the model in it, by weak duality at every leaf."""
    from planner.solvers.backends.model import LinearModel
    from planner.solvers.dualtree import DualTree, verify

    tree, model = proof.get("tree"), proof.get("model")
    if not isinstance(tree, dict) or not isinstance(model, dict):
        raise PlannerError("a proof by dual tree needs `tree` and `model`")
    proven = verify(DualTree.from_dict(tree), LinearModel.from_dict(model))
    return None if proven is None else proven * _unit(proof.get("objective_unit", 1.0))


def _unit(unit: JsonValue) -> float:
    """What one unit of the model's objective is in units of the plan's."""
    if not isinstance(unit, int | float) or not 0.0 < unit < math.inf:
        raise PlannerError(f"`objective_unit` must be positive, found {unit!r}")
    return float(unit)
