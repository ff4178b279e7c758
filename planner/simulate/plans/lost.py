"""A serving plan until lost ranks stand elsewhere: simulated on its own workloads without the replicas that are hit."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.simulate.plans.failures import MOST_REQUESTS, without
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import findings, judge_plan

RATES = ("requests_per_s", "output_tokens_per_s", "attainment", "goodput_per_s")


@dataclass(frozen=True, slots=True)
class UntilThen:
    """Rates of the plan and of what is left, from runs on the same streams, and what is left against the limits."""

    planned: dict[str, float]
    left: dict[str, float]
    limits: tuple[Finding, ...]


def until_then(envelope: Envelope, decision: Decision, lost: Mapping[str, int]) -> UntilThen:
    """What a plan yields without so many replicas of its roles.

    Raises PlannerError for plans that are not simulated, and where no replica of a function is left.
    """
    if envelope.kind != "serve":
        what = f"plans of kind `{envelope.kind}` are not simulated request by request"
        raise PlannerError(what, where="--simulate", hint="leave it out: what runs on follows from replicas")
    hit = {name: count for name, count in lost.items() if count}
    left = without(decision, hit)
    gone = {role.function for role in decision.roles} - {role.function for role in left.roles}
    if gone:
        what = f"no replica of `{min(gone)}` is left: nothing is answered until the moves are done"
        raise PlannerError(what, where="--simulate", hint="leave it out, or name fewer nodes")
    runs = [judge_plan(envelope, each, Policies(), most_requests=MOST_REQUESTS) for each in (decision, left)]
    planned, then = ({name: _number(run.summary[name]) for name in RATES} for run in runs)
    return UntilThen(planned, then, tuple(findings(runs[1])))


def _number(value: object) -> float:
    assert isinstance(value, float | int)
    return float(value)
