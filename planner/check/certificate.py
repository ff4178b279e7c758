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

_WHERE = "certificate"


def certificate_findings(envelope: Envelope, judged: tuple[str, ...] = ()) -> Iterator[Finding]:
    """One finding a rule: gap, claim, side of the bound, proof; proofs by `judged` methods are left to the kind."""
    certificate = envelope.certificate
    yield from _gap(certificate)
    yield from _claim(certificate)
    if certificate.proof.get("method") not in judged:
        yield from _proof(certificate)


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
        yield Finding("certificate.proof", True, f"not judged: proofs by `{method}`", _WHERE, skipped=True)


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
