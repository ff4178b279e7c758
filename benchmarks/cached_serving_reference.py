"""The example with memory for prefixes under the slow reference simulator, request by request, prefix caching on.

`python benchmarks/cached_serving_reference.py [--plan FILE] [--requests N] [--quick]`: solves the example, or reads the
plan of it that `planner solve examples/serve-cache-conversations.yaml -o FILE` wrote. The stream is one that no plan is
chosen or judged on. Beside it stand the compiled loop, and the same engines without the memory.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))
from ahead_simulator import AheadSimulator
from small_fleets import draw

from planner.api import solve
from planner.arrays import Floats
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_plan
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, recorded_problem
from planner.simulate.plans.fleet import PlannedFleet, fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import slos_of
from planner.simulate.plans.trace_streams import rows_of_plan
from planner.simulate.plans.workload import own_requests
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "serve-cache-conversations.yaml"
SEED = 77_000_077  # of the stream: neither of the search nor of the judgement


def stream_of(plan: Envelope, count: int) -> tuple[PlannedFleet, Requests]:
    """The plan's engines with its memory, and so many requests of its workload."""
    decision, problem = ServeDecision.model_validate(plan.decision), recorded_problem(plan.inputs)
    assert problem is not None
    rows = rows_of_plan(problem, decision, AtHand((EXAMPLE.parent,)))
    requests = own_requests(plan, problem, count, SEED, rows)
    return fleet_of_plan(plan, decision, requests, Policies(prefix_caching=True)), requests


def row(name: str, ttft_s: Floats, tpot_s: Floats, hits: float, spent_s: float) -> str:
    """What the limits are set on, hits of prompts, and CPU seconds."""
    return f"| {name} | {np.quantile(ttft_s, 0.95):.3f} | {tpot_s.mean():.5f} | {hits:.1%} | {spent_s:.1f} |"


def main() -> None:
    """A row a simulator, then what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    plan = solve(EXAMPLE) if given.plan is None else load_plan(given.plan)[0]
    planned, requests = stream_of(plan, 200 if given.quick else given.requests)
    problem = recorded_problem(plan.inputs)
    assert problem is not None
    limits = [f"{name} {statistic} {most_s:g} s" for name, statistic, most_s in slos_of(problem)[0].limits()]
    print(f"{len(requests)} requests; limits: {', '.join(limits)}")
    print("| simulator | TTFT p95, s | TPOT mean, s | tokens of prompts that hit | CPU-s |\n|---|---|---|---|---|")
    started_s = time.process_time()
    reference = AheadSimulator(planned.fleet, requests, draw)
    reference.run()
    spent_s = time.process_time() - started_s
    ttft_s = np.array([request.first_s - request.arrival_s for request in reference.requests])
    tpot_s = np.array([(r.finished_s - r.first_s) / (r.output - 1) for r in reference.requests if r.output > 1])
    cached = np.array([request.cached for request in reference.requests])
    total = float(requests.input_tokens.sum())
    print(row("slow reference", ttft_s, tpot_s, float(cached.sum()) / total, spent_s), flush=True)
    for name, tiers in (("compiled", planned.fleet.tiers), ("compiled, without the memory", ())):
        started_s = time.process_time()
        run = simulate(replace(planned.fleet, tiers=tiers), requests, seed=7)
        spent_s = time.process_time() - started_s
        several = requests.output_tokens > 1
        between = (run.finished_s - run.first_token_s)[several] / (requests.output_tokens[several] - 1)
        hits = float(run.cached_tokens.sum()) / total
        print(row(name, run.first_token_s - requests.arrival_s, between, hits, spent_s), flush=True)
        if tiers:
            finished_s = np.array([request.finished_s for request in reference.requests])
            print(
                f"cached tokens differ in {int((cached != run.cached_tokens).sum())} requests, ends by at most "
                f"{np.abs(finished_s - run.finished_s).max():.2g} s",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
