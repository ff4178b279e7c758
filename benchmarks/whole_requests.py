"""Percentiles of whole requests and attainments that steady state states, beside simulated ones and the mean answer's.

    python benchmarks/whole_requests.py

Qwen3-8B on four H100 on the roofline, fewest GPUs, prompts of 800 tokens (CV 1) and answers of 300 of several CVs; the
plan for them is simulated on 10,000 requests. The trivial answer gives every answer the mean length.
"""

from typing import Any

import numpy as np

import planner
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan
from planner.simulate.run.result import SimulationResult

STATISTICS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
TTFT_S, TPOT_S = 0.5, 0.0125  # of every request, for the attainment


def problem(mode: str, rate: str, answer_cv: float) -> dict[str, Any]:
    """One row of the table."""
    slo = {
        "latency": dict.fromkeys(STATISTICS, "60s"),
        "ttft": {"p50": f"{TTFT_S}s"},
        "tpot": {"p50": f"{TPOT_S}s"},
        "attainment": 0.5,
    }
    lengths = {"input_tokens": {"mean": 800, "cv": 1.0}, "output_tokens": {"mean": 300, "cv": answer_cv}}
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 4}]},
        "workloads": [{**lengths, "load": {"rate": rate}, "slo": slo}],
        "costs": {"profiles": ["none"]},
        "objective": {"minimize": "gpus"},
        "options": {"modes": [mode]},
    }


def simulated(plan: Envelope) -> SimulationResult:
    """The plan on its own requests."""
    return simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(), Policies()).result


def main() -> None:
    """Prints the table."""
    print(f"{'mode':14s} {'CV':>4s}   p50, p90, p99 of latency in s: stated; simulated; mean answer    attainment")
    for mode, rate in (("colocated", "8/s"), ("disaggregated", "16/s")):
        for answer_cv in (0.0, 0.7, 1.5):
            plan = planner.solve(problem(mode, rate, answer_cv), level="static").envelope
            said = {(p.metric, p.statistic): p.value for p in plan.predictions}
            run = simulated(plan)
            kept = (run.ttft_s <= TTFT_S) & (np.nan_to_num(run.tpot_s) <= TPOT_S)
            rows = (
                [said["latency_s", name] for name in STATISTICS],
                np.quantile(run.e2e_s, list(STATISTICS.values())).tolist(),
                [said["latency_s", "mean"]] * len(STATISTICS),
            )
            shown = "; ".join(", ".join(f"{value:5.2f}" for value in row) for row in rows)
            share = f"{said['attainment', 'mean']:.4f} stated, {float(np.mean(kept)):.4f} simulated"
            print(f"{mode:14s} {answer_cv:4.1f}   {shown}   {share}")


if __name__ == "__main__":
    main()
