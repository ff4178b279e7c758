"""Gives verified plans the proven bound of their problem, and says over which space it is proven."""

from typing import Literal

from planner.kinds.serve.bounds.bound import SPACE, Bound, proven_bound
from planner.kinds.serve.plan.certificate import TOLERANCE
from planner.kinds.serve.steady.search import ServeSetting
from planner.plan.schema import Envelope

PROCESS = "by the expectations of a stationary process, where routers and queues look at nothing that tells lengths"


def with_bound(setting: ServeSetting, plan: Envelope, known: Bound | None = None) -> Envelope:
    """The plan with bound and gap, `optimal` where they meet and every limit is kept; as it is where none is known.

    The bound of its problem is worked out where it is not given.
    """
    certificate = plan.certificate
    value, metric = certificate.objective.value, certificate.objective.metric
    assert value is not None
    known = known or proven_bound(setting)
    bound, gap = known.beside(value, maximising=certificate.objective.sense == "maximize")
    verified = certificate.claim.partition(";")[0]
    closed = gap is not None and gap <= TOLERANCE
    if bound is None or gap is None or (closed and not _all_kept(plan)):
        why = known.why or "a limit is too close to call"
        claim = f"{verified}; the bound on {metric} is not known: {why}"
        return plan.model_copy(update={"certificate": certificate.model_copy(update={"claim": claim})})
    status: Literal["optimal", "feasible"] = "optimal" if closed else "feasible"
    worth = "is better" if closed else "is proven to beat the bound"
    space = SPACE if setting.resolved.cached is None else f"{SPACE}, and whatever memory for prefixes it buys"
    claim = f"{verified}; {space}, {worth} on {metric} {PROCESS}"
    proof = {**certificate.proof, **known.proof}
    update = {"claim": claim, "status": status, "bound": bound, "gap": gap, "proof": proof}
    return plan.model_copy(update={"certificate": certificate.model_copy(update=update)})


def _all_kept(plan: Envelope) -> bool:
    """Whether the intervals of all limits lie on the right side."""
    verified = plan.certificate.proof.get("verified")
    rows = verified.get("limits") if isinstance(verified, dict) else None
    return isinstance(rows, list) and all(isinstance(row, dict) and row.get("verdict") == "kept" for row in rows)
