"""Which problems are verified, and why others are not: their answer is that of steady state, called an estimate."""

from planner.kinds.serve.steady.search import ServeSetting
from planner.plan.schema import Certificate, Envelope

ASKED = "the level `static` was asked for"
ESTIMATE = "limits are judged by formulas of steady state, and not simulated: "
TRADE_OFF = "a trade-off has many plans, and each would have to be simulated"
UNLIMITED = "no workload states a limit, so that there is none to simulate"


STOPPED = "the search was stopped before it had an answer to verify"
REPRICED = "the decision was priced anew"


class Unverified(Exception):
    """No plan was verified for want of work that may be done, not because none keeps its limits; says what ended it."""


def unverifiable(setting: ServeSetting) -> str | None:
    """Why the plans of a problem cannot be verified; None where they can be."""
    if setting.resolved.problem.objective.pareto is not None:
        return TRADE_OFF
    slos = (workload.spec.slo for workload in setting.resolved.workloads)
    if not any(slo.attainment is not None or slo.has_time_limits for slo in slos):
        return UNLIMITED
    return None


def estimated(plan: Envelope, why: str | None) -> Envelope:
    """The plan of steady state, called an estimate in its certificate."""
    said = f"{ESTIMATE}{why or STOPPED}"
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"estimate": said})})


def estimated_again(plan: Envelope, setting: ServeSetting, stated: Certificate) -> Envelope:
    """The plan priced again, called an estimate for the reason of its problem, or else for that which it states.

    What ended a simulation is told by no figure.
    """
    why = ASKED if setting.options.judged_by == "queueing" else unverifiable(setting)
    if not stated.proof:
        why = REPRICED
    if why is None and stated.estimate is not None and stated.estimate.startswith(ESTIMATE):
        why = stated.estimate.removeprefix(ESTIMATE)
    return estimated(plan, why)
