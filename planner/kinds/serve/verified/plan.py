"""Turns a verified mix into a plan: what simulation says of every limit, and what is proven of the rest: nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from planner.documents.units import format_si
from planner.kinds.serve.bounds.certified import with_bound
from planner.kinds.serve.plan.certificate import TOLERANCE, axes_of, objective
from planner.kinds.serve.plan.decode import envelope, whole_predictions
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.verified.shared_streams import SharedStreams
from planner.plan.schema import Certificate, Envelope, Prediction
from planner.problem.schema import SloSpec
from planner.simulate.judge.intervals import estimate
from planner.simulate.judge.limits import Judgement

ASSUMPTIONS = (
    "limits are judged by simulation of every step, on independent streams that the plan was not chosen on, with the "
    "step times that plans are costed with",
    "prefix caching and swapping are off",
    "plans are proposed by steady state, with what simulation found of the instance types that it simulated; a better "
    "plan that steady state ranks lower is not looked for",
)


@dataclass(frozen=True, slots=True)
class Verified:
    """A mix at the load that it claims, and what fresh streams say of it."""

    outcome: Outcome
    judgement: Judgement
    seed: int


def limits_of(slo: SloSpec) -> Iterator[tuple[str, str]]:
    """The limits of a workload, by time and in words."""
    for name, of, bound_s in slo.limits():
        yield name, f"{of} {name} <= {format_si(bound_s, 's')}"
    if slo.attainment is not None:
        yield "attainment", f"attainment >= {slo.attainment:.4g}"


def verified_plan(
    setting: ServeSetting, verified: Verified, evidence: Mapping[str, float | int | None], shared: SharedStreams
) -> Envelope:
    """The plan with simulated predictions; its certificate claims no bound."""
    outcome = verified.outcome
    value = outcome.objective
    assert value is not None
    metric = outcome.formulated.metric
    certificate = Certificate(
        claim=f"the plan keeps its limits in simulation; the bound on {metric} is not known",
        status="feasible",
        stop_reason="finished",
        objective=objective(outcome, value),
        bound=None,
        gap=None,
        tolerance=TOLERANCE,
        axes=axes_of(setting),
        candidates=outcome.tally.evaluated,
        pruned=dict(sorted(outcome.tally.pruned.items())),
        proof={"verified": {**evidence, "seed": verified.seed, "limits": list(_rows(setting, verified, shared))}},
    )
    predictions = tuple(_predictions(setting, verified, shared))
    plan = envelope(setting, outcome, certificate, predictions, (*ASSUMPTIONS, *setting.resolved.price_notes))
    return with_bound(setting, plan)


def _rows(setting: ServeSetting, verified: Verified, shared: SharedStreams) -> Iterator[JsonValue]:
    """Every limit with what judged it, its value, interval and margin."""
    for limit in verified.judgement.limits:
        simulated = limit.estimate
        yield {
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


def _predictions(setting: ServeSetting, verified: Verified, shared: SharedStreams) -> Iterator[Prediction]:
    """Figures by workload, times as simulated, then of the whole plan."""
    outcome, judgement = verified.outcome, verified.judgement
    requests = tokens = 0.0
    for target in setting.targets:
        rate = outcome.solution.served_per_s[target.index]
        requests += rate
        tokens += rate * target.osl
        yield Prediction(metric="requests_per_s", of=target.name, value=rate)
        yield Prediction(metric="output_tokens_per_s", of=target.name, value=rate * target.osl)
        slo = shared.slos[target.index]
        for time in ("ttft", "tpot", "latency"):
            limited = [of for name, of, _ in slo.limits() if name == time]
            for of in dict.fromkeys(["mean", *limited]):
                simulated = estimate(judgement.values(target.index, time), of)
                if simulated.count:
                    yield Prediction(
                        metric=f"{time}_s", of=target.name, statistic=of, value=simulated.value, approximate=True
                    )
        for limit in judgement.limits:
            if (limit.workload, limit.time) == (target.index, "attainment"):
                yield Prediction(metric="attainment", of=target.name, value=limit.estimate.value, approximate=True)
    yield from whole_predictions(setting, outcome.solution, requests, tokens)
