"""A plan stated again from its inputs and from what it decides, beside which the plan itself is laid."""

from dataclasses import dataclass

from planner.plan.schema import Certificate, Envelope, Objective

SOLVED_AGAIN = "solved_again"  # the method of proof of a bound that the problem alone gives
UNPROVEN = "the decision was priced anew, and nothing is proven of it"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a plan that was taken over as it is stated: its dotted path, which holds all below it, and why."""

    path: str
    why: str
    unverifiable: bool = False  # for want of an input
    hint: str = "`planner check --level proof`"
    proven: bool = True  # whether the level `proof` judges it


@dataclass(frozen=True, slots=True)
class Restated:
    """The plan that inputs and decision give, and the parts of it that were taken over."""

    envelope: Envelope
    left_out: tuple[LeftOut, ...] = ()


def unproven(objective: Objective) -> Certificate:
    """The certificate of a decision that was priced anew: what it is worth, and no more."""
    return Certificate(claim=UNPROVEN, status="feasible", objective=objective)


def without_proof(envelope: Envelope) -> Envelope:
    """The plan as one that proves nothing, and that may be priced with any kernel tables."""
    digests = envelope.digests.model_copy(update={"profiles": ()})
    known = envelope.certificate
    certificate = unproven(known.objective).model_copy(update={"confidence": known.confidence})
    return envelope.model_copy(update={"certificate": certificate, "digests": digests})
