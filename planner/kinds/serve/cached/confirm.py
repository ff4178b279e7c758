"""Whether a plan with memory for prefixes keeps its limits when its trace is simulated, and how much tighter if not."""

from dataclasses import dataclass

from pydantic import JsonValue

from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_problem
from planner.simulate.judge.limits import JudgedLimit, Judgement, Verdict
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan
from planner.simulate.plans.trace_streams import TraceRows, buys_memory
from planner.simulate.requests.traces import Trace

SEED = 350_000  # of streams that neither searches nor checks draw
MOST_REQUESTS = 200_000
FURTHER = 0.97  # times what a broken limit asks for: two steps of a mix are seldom equal
TIGHTEST = 0.6  # of one step
PREFILL = "prefill"  # how busy instances that prefill may be
ROOMIER = 0.75  # of one step, where waits grow: formulas know less work than there is


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What simulation says of every limit of a plan."""

    judgement: Judgement

    @property
    def broken(self) -> list[JudgedLimit]:
        """Limits that are not surely kept."""
        return [limit for limit in self.judgement.limits if limit.verdict is not Verdict.KEPT]

    @property
    def kept(self) -> bool:
        """Whether every limit is, and no waits grow."""
        return not self.broken and not self.judgement.saturated

    @property
    def evidence(self) -> dict[str, JsonValue]:
        """By limit, what was simulated."""
        return {
            "seed": SEED,
            "requests": sum(len(run.requests) for run in self.judgement.runs),
            "limits": [
                {
                    "time": limit.time,
                    "statistic": limit.statistic,
                    "limit": limit.limit,
                    "value": limit.estimate.value,
                    "margin": limit.margin,
                }
                for limit in self.judgement.limits
            ],
        }

    def tighter(self, tightened: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Factors on limits, or on how busy prefill may be, under which the next plan is sought."""
        factors = dict(tightened)
        for limit in self.broken:
            names = ("ttft", "tpot", "latency") if limit.time == "attainment" else (limit.time,)
            over = max(min(limit.limit / max(limit.estimate.value, limit.limit), 1.0), TIGHTEST)
            if limit.time == "attainment":
                over = 1.0
            for name in names:
                factors[name] = factors.get(name, 1.0) * min(over, 1.0) * FURTHER
        if self.judgement.saturated:
            factors = {**dict(tightened), PREFILL: dict(tightened).get(PREFILL, 1.0) * ROOMIER}
        return tuple(sorted(factors.items()))


def confirmation(plan: Envelope, trace: Trace) -> Confirmation:
    """The plan on independent streams of its trace, with its memory."""
    decision, problem = ServeDecision.model_validate(plan.decision), recorded_problem(plan.inputs)
    assert problem is not None
    assert problem.cache is not None
    rows = TraceRows.of(trace, problem.cache.block_tokens, shared=buys_memory(decision))
    told = judge_plan(plan, decision, Policies(), rows=rows, seed=SEED, most_requests=MOST_REQUESTS)
    return Confirmation(told.judgement)
