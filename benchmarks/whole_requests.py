"""Percentiles of whole requests and attainments that steady state states, beside simulated ones and the mean answer's.

    python benchmarks/whole_requests.py            those of the page
    python benchmarks/whole_requests.py --cells    times per output token of one engine that decodes, by load

Qwen3-8B on H100 on the roofline, fewest GPUs, prompts of 800 tokens (CV 1) and answers of 300 of several CVs; the plan
for them is simulated on 10,000 requests. The trivial answer gives every answer the mean length. A cell is one engine
with a batch limit, at a share of the most requests that it does, prompts of CV 0 and 1, answers of CV 0 and 0.7, and
gaps between requests of CV 1 and 2; nothing is fitted to any. The trivial answer to percentiles is the stated mean.
"""

import argparse
import copy
import itertools
from typing import Any

import numpy as np

import planner
from planner.arrays import Floats
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
        "objective": {"minimize": "gpus", "expected": False},
        "options": {"modes": [mode]},
    }


def cells() -> list[tuple[str, int, float, float, float, float]]:
    """Mode, batch limit, load over the most, CV of prompts, of answers, of gaps."""
    places = ((16, 0.8), (32, 0.7), (40, 0.9), (64, 0.5), (64, 0.75), (64, 0.95), (128, 0.6))
    varied = ((1.0, 0.0, 1.0), (0.0, 0.0, 1.0), (1.0, 0.7, 1.0), (1.0, 0.0, 2.0), (1.0, 0.7, 2.0))
    return [
        (mode, *place, *each) for mode, place, each in itertools.product(("colocated", "disaggregated"), places, varied)
    ]


def at_load(mode: str, batch: int, load: float, prompt_cv: float, answer_cv: float, gap_cv: float) -> Envelope:
    """The plan of a cell: one engine that decodes, and of its own requests so many a second."""
    given, gpus = problem(mode, "1/s", answer_cv), 1 if mode == "colocated" else 2
    given["cluster"]["pools"][0]["gpus"] = gpus
    given["options"] |= {"max_batch": [batch], "max_prefill_utilisation": 0.99, "max_decode_occupancy": 0.99}
    workload = given["workloads"][0]
    workload["input_tokens"]["cv"] = prompt_cv
    workload["slo"] = {"ttft": "9s", "tpot": dict.fromkeys(STATISTICS, "9s")}
    most = copy.deepcopy(given) | {"objective": {"maximize": "goodput_per_gpu"}}
    del most["workloads"][0]["load"]
    objective = planner.solve(most, level="static").envelope.certificate.objective
    assert objective.value is not None, "the problem has a plan"
    rate = gpus * objective.value
    workload["load"] = {"rate": f"{load * rate}/s", "arrival_cv": gap_cv}
    return planner.solve(given, level="static").envelope


def report_cells() -> None:
    """Errors of the time per output token, mean and largest, by mode and by bursts."""
    errors: dict[tuple[str, float], list[Floats]] = {}
    for cell in cells():
        plan = at_load(*cell)
        said = {(p.metric, p.statistic): p.value for p in plan.predictions}
        tpot_s = simulated(plan).tpot_s
        true = [float(np.nanmean(tpot_s)), *np.nanquantile(tpot_s, list(STATISTICS.values())).tolist()]
        stated = [said["tpot_s", name] for name in ("mean", *STATISTICS)]
        off = np.abs(np.array([stated, stated[:1] * len(stated)]) / np.array(true) - 1.0)
        errors.setdefault((cell[0], cell[-1]), []).append(off)
    print(f"{'time per output token':40s} mean          p50           p90           p99")
    for (mode, gap_cv), listed in errors.items():
        for name, kind in (("stated", 0), ("the stated mean", 1)):
            off = np.array(listed)[:, kind]
            shown = "  ".join(f"{m:5.1%} ({w:4.0%})" for m, w in zip(off.mean(0), off.max(0), strict=True))
            print(f"{f'{mode}, gaps of CV {gap_cv:g}, {len(off)}: {name}':54s} {shown}")


def simulated(plan: Envelope) -> SimulationResult:
    """The plan on its own requests."""
    return simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(), Policies()).result


def main() -> None:
    """Prints one of the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cells", action="store_true", help="times per output token of one engine, by load")
    if parser.parse_args().cells:
        report_cells()
        return
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
