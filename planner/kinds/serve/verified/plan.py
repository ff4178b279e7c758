"""Turns a verified mix into a plan: what simulation says of every limit, and what is proven of the rest: nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from pydantic import JsonValue

from planner.documents.units import format_si
from planner.kinds.serve.bounds.bound import Bound
from planner.kinds.serve.bounds.certified import with_bound
from planner.kinds.serve.plan.certificate import TOLERANCE, axes_of, objective
from planner.kinds.serve.plan.context import beyond_predictions, context_assumptions
from planner.kinds.serve.plan.decode import envelope, whole_predictions
from planner.kinds.serve.plan.encoded import encoding_predictions
from planner.kinds.serve.plan.memory import memory_assumptions
from planner.kinds.serve.plan.own_runs import margin_assumptions
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.verified.confirm import Confirmed
from planner.plan.schema import Certificate, Envelope, Prediction
from planner.problem.slo import SloSpec
from planner.simulate.judge.limits import Judgement

JUDGED = (
    "limits are judged by simulation of every step, on independent streams that the plan was not chosen on, with the "
    "step times that plans are costed with"
)
NO_MEMORY = "prefixes are cached only where hits are stated, and nothing is swapped"
BESIDE_MEMORY = "instances keep prefixes of their own beside, nothing is swapped, and writes to tiers take no time"
PROPOSED = (
    "plans are proposed by steady state, with what simulation found of the instance types that it simulated, and "
    "varied on one axis at a time; a better plan that no such step leads to is not looked for"
)


Evidence: TypeAlias = dict[str, float | int | None]
"""What was simulated for a plan."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A mix at the load that it claims, and what fresh streams say of it."""

    outcome: Outcome
    confirmed: Confirmed

    @property
    def judgement(self) -> Judgement:
        """With all instances up."""
        return self.confirmed.judgements[0]

    @property
    def value(self) -> float:
        """In the unit of the mix problem."""
        value = self.outcome.result.objective
        assert value is not None
        return value


def answered_per_s(judgement: Judgement, workload: int) -> float:
    """Requests of a workload that clients send, and so have answered, per second of the judged parts of runs."""
    rates = []
    for run, part in zip(judgement.runs, judgement.parts[workload], strict=True):
        own = run if run.requests.workload is None else run.of_workload(workload)
        sent_s = own.arrival_s[part]
        sent_s = sent_s[~np.isnan(sent_s)]
        rates.append((len(sent_s) - 1) / max(float(sent_s.max() - sent_s.min()), 1e-12))
    return float(np.mean(rates))


def limits_of(slo: SloSpec) -> Iterator[tuple[str, str]]:
    """The limits of a workload, by time and in words."""
    for name, of, bound_s in slo.limits():
        yield name, f"{of} {name} <= {format_si(bound_s, 's')}"
    if slo.attainment is not None:
        yield "attainment", f"attainment >= {slo.attainment:.4g}"


def verified_plan(
    setting: ServeSetting,
    verified: Verified,
    evidence: Evidence,
    bound: Bound,
) -> Envelope:
    """The plan with simulated predictions; its certificate has the bound of its problem."""
    outcome = verified.outcome
    value = outcome.objective
    assert value is not None
    unknown = f"the bound on {outcome.formulated.metric} is not known"
    certificate = Certificate(
        claim=f"the plan keeps its limits in simulation, on requests that it was not chosen on; {unknown}",
        status="feasible",
        stop_reason="finished",
        objective=objective(outcome, value),
        tolerance=TOLERANCE,
        axes=axes_of(setting),
        candidates=outcome.tally.evaluated,
        pruned=dict(sorted(outcome.tally.pruned.items())),
        proof={"verified": {**evidence, **_told(verified, evidence), "limits": list(_rows(setting, verified))}},
    )
    predictions = (*_predictions(setting, verified), *beyond_predictions(setting, outcome))
    kept = list(memory_assumptions(setting.resolved, BESIDE_MEMORY)) or [NO_MEMORY]
    assumed = (
        JUDGED,
        *kept,
        PROPOSED,
        *context_assumptions(setting, outcome),
        *setting.resolved.price_notes,
        *margin_assumptions(setting, outcome.roles),
    )
    plan = envelope(setting, outcome, certificate, predictions, assumed)
    return with_bound(setting, plan, bound)


def _told(verified: Verified, evidence: Evidence) -> dict[str, JsonValue]:
    """How the load was verified, and how far above it what steady state hopes for of mixes not simulated is."""
    confirmed, value, hoped_for = verified.confirmed, verified.outcome.objective, evidence["hoped_for_unsimulated"]
    assert value is not None
    return {
        "seed": confirmed.seed,
        "tries": confirmed.tries,
        "confidence": confirmed.confidence,
        "optimistic_gap": None if hoped_for is None else abs(hoped_for - value) / max(abs(value), 1e-9),
    }


def _rows(setting: ServeSetting, verified: Verified) -> Iterator[JsonValue]:
    """Every limit with what judged it, its value, interval and margin; with all up, then with each failure down."""
    confirmed = verified.confirmed
    pairs = [
        (lost, limit) for lost, each in zip(confirmed.lost, confirmed.judgements, strict=True) for limit in each.limits
    ]
    for lost, limit in pairs:
        simulated = limit.estimate
        yield {
            **({"down": dict(lost)} if lost else {}),
            "workload": setting.targets[limit.workload].name,
            "time": limit.time,
            "statistic": limit.statistic,
            "limit": limit.limit,
            "value": simulated.value,
            "interval_95": None if simulated.interval is None else list(simulated.interval),
            "margin": limit.margin,
            "requests": simulated.count,
            "verdict": limit.verdict.value,
            "judged_by": f"simulation of {len(verified.judgement.runs)} streams",
        }


def _predictions(setting: ServeSetting, verified: Verified) -> Iterator[Prediction]:
    """Figures by workload, times as simulated, then of the whole plan."""
    outcome, judgement = verified.outcome, verified.judgement
    requests = tokens = 0.0
    for target in setting.targets:
        rate = outcome.solution.served_per_s[target.index]
        requests += rate
        tokens += rate * target.osl
        yield Prediction(metric="requests_per_s", of=target.name, value=rate)
        yield Prediction(metric="output_tokens_per_s", of=target.name, value=rate * target.osl)
        yield from encoding_predictions(setting, outcome, target)
        slo = setting.resolved.workloads[target.index].spec.slo
        for time in ("ttft", "tpot", "itl", "latency"):
            limited = [of for name, of, _ in slo.limits() if name == time]
            for of in dict.fromkeys(["mean", *limited] if limited or time != "itl" else ()):
                simulated = judgement.estimate(target.index, time, of)
                if simulated.count:
                    yield Prediction(
                        metric=f"{time}_s", of=target.name, statistic=of, value=simulated.value, approximate=True
                    )
        for limit in judgement.limits:
            if (limit.workload, limit.time) == (target.index, "attainment"):
                yield Prediction(metric="attainment", of=target.name, value=limit.estimate.value, approximate=True)
    yield from whole_predictions(setting, outcome.solution, requests, tokens)
