"""Plans of workflows from what was chosen: their envelope, and a certificate that says what became of all choices."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from planner.kinds.workflow.decision import WorkflowDecision
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Certificate, Envelope, Evidence, Objective, Prediction
from planner.problem.envelope import plan_envelope
from planner.problem.resolve import Resolved
from planner.solvers.result import relative_gap
from planner.solvers.workflow.cover import Cover, End

METHOD = "covered"
TOLERANCE = 1e-6
BOUND = LeftOut("certificate.bound", "what became of all choices: whether none is better")


def envelope(
    resolved: Resolved,
    solver: str,
    decision: WorkflowDecision,
    predictions: Iterable[Prediction],
    certificate: Certificate,
    evidence: Evidence,
    assumptions: tuple[str, ...],
    *,
    calibration: str | None = None,
) -> Envelope:
    """The plan of a decision."""
    assumptions = (*assumptions, *resolved.price_notes)
    digests = {"calibration": calibration}
    return plan_envelope(
        resolved, decision, certificate, predictions, evidence, assumptions, solver=solver, digests=digests
    )


def certificate(
    claim: str,
    metric: str,
    value: float,
    bound: float | None,
    cover: Cover,
    axes: Mapping[str, list[JsonValue]],
    beside: Mapping[str, JsonValue] | None = None,
) -> Certificate:
    """Of a minimisation; `claim` has `{plan}` where it names what no choice is better than.

    `beside` is more evidence of the proof.
    """
    bound = None if bound is None else min(bound, value)
    gap = relative_gap(value, bound)
    closed = gap is not None and gap <= TOLERANCE
    groups: list[JsonValue] = [_group(name, end) for name, end in cover.ends.items()]
    return Certificate(
        claim=claim.format(plan="this plan" if closed else "the bound"),
        status="optimal" if closed else "feasible",
        objective=Objective(metric=metric, sense="minimize", value=value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=dict(axes),
        candidates=cover.combinations,
        proof={"method": METHOD, "groups": groups, **(beside or {})} if bound is not None else {},
    )


def _group(name: str, end: End) -> dict[str, JsonValue]:
    group: dict[str, JsonValue] = {"end": name, "combinations": end.combinations}
    return group if end.least is None else {**group, "least": end.least}


def cover_of(stated: Certificate) -> Cover:
    """What a certificate says became of all choices; empty where it says nothing that can be read."""
    rows: Any = stated.proof.get("groups")
    try:
        ends = {str(row["end"]): End(int(row["combinations"]), _least(row)) for row in rows or []}
    except (KeyError, TypeError, ValueError):
        return Cover()
    return Cover(ends)


def _least(row: Mapping[str, Any]) -> float | None:
    return None if row.get("least") is None else float(row["least"])


def restated(made: Envelope, stated: Certificate) -> Restated:
    """A plan that was made again, with the bound that was stated."""
    if stated.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def bound_findings(stated: Certificate, bound: float | None, cover: Cover) -> Iterator[Finding]:
    """Whether the bound, and what became of all choices, are those of the problem solved again."""
    if stated.bound is None:
        return
    again = "none" if bound is None else f"{bound:.9g}"
    right = bound is not None and abs(stated.bound - bound) <= TOLERANCE * max(abs(bound), 1e-9)
    what = f"states the bound {stated.bound:.9g}, solved again it is {again}"
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")
    own = {name: end.combinations for name, end in cover_of(stated).ends.items()}
    counted = {name: end.combinations for name, end in cover.ends.items()}
    what = "as many choices ended so as the search finds again"
    if own != counted:
        what = f"states that choices ended as {own}, solved again {counted}"
    yield Finding("certificate.counts", own == counted, what, "certificate.proof", "solve again")
