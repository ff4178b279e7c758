"""How near percentiles of `planner estimate` are to those of the simulator, on generated loads.

    python benchmarks/tails.py            20 loads
    python benchmarks/tails.py --quick    6 of them
    python benchmarks/tails.py --loads 80

A load is a deployment of a catalog model with lengths, clients that start at once or one after the other, luck of the
host, CUDA graphs of few sequences, and a cache at which sequences are preempted or not: drawn with a fixed seed, none
left out. Engines have no front end that requests queue at, look at new ones before every step and cut prompts, as those
of the simulator. That runs a load with the same step times, and lengths and luck of another draw. Judged are p99 over
the median of TPOT and of the gaps between tokens (ITL), beside the best constant ratio: the median of the simulated
ones themselves.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
from closed_loops import simulated_run

from planner.arrays import Floats
from planner.estimate.batches import batch_of, sizes_of
from planner.estimate.case import Case, Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.frame import Added, loop_of, pace_of, taken
from planner.estimate.requests import cases_of_lines
from planner.simulate.run.result import SimulationResult

LOADS, QUICK, SEED = 20, 6, 20
WITHIN = 0.15
DEPLOYMENTS = (
    ("meta-llama/Llama-3.1-8B-Instruct", "h100", 1), ("meta-llama/Llama-3.1-8B-Instruct", "a100", 1),
    ("meta-llama/Llama-3.3-70B-Instruct", "h200", 4), ("meta-llama/Llama-3.3-70B-Instruct", "h100", 8),
    ("Qwen/Qwen3-235B-A22B", "h200", 8), ("openai/gpt-oss-120b", "h100", 4),
)  # fmt: skip
ENGINES = ("vllm", "sglang", "trtllm")
METRICS = ("tpot_s", "itl_s")


def loads(count: int) -> Iterator[dict[str, object]]:
    """Requests of `planner estimate`, drawn one after another."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        model, gpu, tp = DEPLOYMENTS[random.integers(len(DEPLOYMENTS))]
        engine = ENGINES[random.integers(len(ENGINES))]
        lengths = {
            f"{side}_tokens": {
                "mean": int(random.choice(means)),
                "cv": round(float(random.choice((0.0, 0.15, 0.4))), 2),
            }
            for side, means in (("input", (256, 1024, 4096)), ("output", (128, 512, 1024)))
        }
        preempts = engine != "trtllm" and bool(random.random() < 0.4)
        settings: dict[str, object] = {
            "poll_steps": 1,
            "in_process": True,
            "chunked_prefill": True,
            "staggered": bool(random.random() < 0.5),
            "jitter": float(random.choice((0.0, 0.05, 0.15))),
            "preempts": preempts,
        }
        if random.random() < 0.4:
            settings["graph_batch"] = int(random.choice((8, 32, 128)))
        clients = int(random.choice((8, 32, 128, 512) if preempts else (4, 16, 64, 256)))
        yield {
            "id": f"load {number + 1}",
            "models": {"m": {"name": model}},
            "cluster": {"pools": [{"gpu": gpu, "nodes": 1}]},
            "engine": {"name": engine},
            "workloads": [{**lengths, "load": {"concurrency": clients}}],
            "decision": {"parallelism": {"tp": tp}, "settings": settings},
        }


def simulated(case: Case) -> SimulationResult:
    """The load of a case in the simulator, with the step times of the estimate."""
    batch = batch_of([case], None)
    sizes = sizes_of([batch])[0]
    frame, seconds = batch.priced(sizes, batch.memory(sizes))
    added = Added.of([batch.costs.engine])
    loop = taken(loop_of(frame, pace_of(frame, seconds, added), added), 0)
    return simulated_run({name: float(value) for name, value in asdict(loop).items()}, seed=1, delayed=True)


def ratio(estimate: Estimate, metric: str) -> float:
    """p99 over the median."""
    assert estimate.percentiles is not None
    high, middle = (estimate.percentiles[metric][level] for level in ("p99", "p50"))
    return high / middle if high is not None and middle else math.nan


def ratio_simulated(result: SimulationResult, metric: str) -> float:
    """p99 over the median."""
    if metric == "itl_s":
        return result.gaps.statistic_s(0.99) / result.gaps.statistic_s(0.5)
    high, middle = np.nanquantile(result.tpot_s, (0.99, 0.5))
    return float(high / middle)


def main() -> int:
    """Print every load and the errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--loads", type=int, default=LOADS, help="how many to draw; more go on behind the first")
    given = parser.parse_args()
    count = QUICK if given.quick else given.loads
    requests = list(loads(count))
    sound = list[Case]()
    for case in cases_of_lines(json.dumps(request) for request in requests):
        if isinstance(case, Refused):
            print(f"{case.id}: {case.reason}", file=sys.stderr)
        else:
            sound.append(case)
    begun = time.process_time()
    estimates = evaluate(sound, None, percentiles=True)
    estimated_s, begun = time.process_time() - begun, time.process_time()
    rows = []
    for own, estimate in zip(sound, estimates, strict=True):
        if not isinstance(estimate, Estimate):
            print(f"{own.id}: {estimate.reason}", file=sys.stderr)
            continue
        run = simulated(own)
        rows.append([(ratio(estimate, metric), ratio_simulated(run, metric)) for metric in METRICS])
        load = f"{own.arch.name} x{own.gpus} {own.engine}, {own.isl:.0f}+{own.osl:.0f}, {own.clients} clients"
        told_text = "   ".join(f"{told:6.2f} {other:6.2f}" for told, other in rows[-1])
        print(f"{own.id:8} {load:62} {told_text}   preempted {int(run.preemptions.sum())}")
    report(np.array(rows), count)
    print(f"CPU-s: estimates {estimated_s:.2f}, simulator {time.process_time() - begun:.2f}")
    return 0


def report(ratios_NMS: Floats, count: int) -> None:
    """Errors of p99 over the median, estimated and of the best constant."""
    print(f"{len(ratios_NMS)} of {count} loads; error of p99 over the median, mean / most, and within {WITHIN:.0%}")
    for metric, name in enumerate(METRICS):
        own, other = ratios_NMS[:, metric, 0], ratios_NMS[:, metric, 1]
        for title, told in (("estimate", own), ("one constant", np.full_like(own, np.median(other)))):
            error = np.abs(told / other - 1.0)
            inside = int(np.sum(error <= WITHIN))
            print(f"  {name:7} {title:13} {error.mean():6.1%} / {error.max():6.1%}   {inside} of {len(error)}")


if __name__ == "__main__":
    sys.exit(main())
