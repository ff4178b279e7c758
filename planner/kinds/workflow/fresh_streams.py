"""Judges workflow plans on streams that nothing was chosen on, and that no figure of the plan is of."""

import math
from typing import Any

import numpy as np

from planner.documents.units import format_si
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.graph import plan
from planner.kinds.workflow.graph.choose import CHECKED, Reached
from planner.kinds.workflow.graph.setting import GraphSetting
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.pools import plan as pools
from planner.kinds.workflow.pools.forms import read_form
from planner.kinds.workflow.schedules import plan as schedules
from planner.kinds.workflow.schedules.forms import read_schedule
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.solvers.workflow.simulated_graph import TimeLimit, quantile_s

T_95 = 2.365  # of Student's distribution with seven degrees of freedom: eight streams


def judged(envelope: Envelope, decision: WorkflowDecision, hand: AtHand) -> tuple[list[Finding], dict[str, Any]]:
    """One finding a limit, and the limits with what was simulated of them; raises as `restate` does."""
    resolved = resolved_again(envelope.inputs, WorkflowOptions, hand)
    schedule = read_schedule(resolved)
    if schedule is not None:
        return schedules.judged(schedule, decision)
    form = read_form(resolved)
    if form is not None:
        return pools.judged(form, envelope, decision)
    setting, by_stream = plan.simulated(resolved, decision, hand)
    rows = [_row(setting, limit, by_stream) for limit in setting.limits]
    findings = [_answered(by_stream), *(_finding(row) for row in rows)]
    stages = {
        stage.name: {
            "latency_s_mean": float(np.mean([np.mean(each.stages[index].end_s_R) for each in by_stream])),
            "latency_s_p95": float(np.mean([np.quantile(each.stages[index].end_s_R, 0.95) for each in by_stream])),
        }
        for index, stage in enumerate(setting.stages)
    }
    document = {
        "schema": "planner.simulation/1",
        "streams": len(CHECKED),
        "requests": len(by_stream) * len(by_stream[0].whole.end_s_R),
        "beside_stated": [_beside(envelope, row) for row in rows],
        "stages": stages,
    }
    return findings, document


def _row(setting: GraphSetting, limit: TimeLimit, by_stream: list[Reached]) -> dict[str, Any]:
    """The share in time, with the 95 % interval that streams give, and the quantile."""
    share, (low, high) = _mean([each.share(limit) for each in by_stream])
    time_s, interval_s = _mean([quantile_s(limit, each.whole) for each in by_stream])
    name = "ttft" if limit.of_first else "latency"
    interval = (max(low, 0.0), min(high, 1.0))
    verdict = "kept" if interval[0] >= limit.share else "broken" if interval[1] < limit.share else "too close to call"
    return {
        "workload": setting.workload.name,
        "time": name,
        "statistic": f"p{100 * limit.share:.10g}",
        "simulated_s": time_s,
        "interval_s": interval_s,
        "limit_s": limit.bound_s,
        "share": share,
        "share_interval": interval,
        "asked": limit.share,
        "margin": 1.0 - time_s / limit.bound_s,
        "verdict": verdict,
    }


def _mean(values: list[float]) -> tuple[float, tuple[float, float]]:
    """Of figures of independent streams, with the 95 % interval."""
    mean, half = float(np.mean(values)), T_95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, (mean - half, mean + half)


def _answered(by_stream: list[Reached]) -> Finding:
    left = sum(int((~np.isfinite(each.whole.end_s_R)).sum()) for each in by_stream)
    what = f"{left} requests were not answered" if left else "every request was answered"
    return Finding("simulate.drains", not left, what, "", "lower the rate, or plan for it")


def _finding(row: dict[str, Any]) -> Finding:
    low, high = row["share_interval"]
    what = f"{row['share']:.2%} ({low:.2%} to {high:.2%}) within the {row['time']} of {format_si(row['limit_s'], 's')}"
    what += f", wanted are {row['asked']:.2%}; {row['statistic']} is {format_si(row['simulated_s'], 's')}"
    close = row["verdict"] == "too close to call"
    hint = "the interval holds the limit: lower the rate a little where it must be kept for certain"
    hint = hint if close else "solve with a stricter limit, or lower the rate"
    return Finding(f"simulate.{row['time']}", row["verdict"] != "broken", what, row["statistic"], hint, close=close)


def _beside(envelope: Envelope, row: dict[str, Any]) -> dict[str, Any]:
    stated = [
        prediction.value
        for prediction in envelope.predictions
        if (prediction.metric, prediction.of, prediction.statistic)
        == (f"{row['time']}_s", row["workload"], row["statistic"])
    ]
    return {**row, "stated_s": stated[0] if stated else None}
