"""What memory tiers evict and how routers choose, on Mooncake's conversations: hits, first tokens, and loads.

`make bench-cache`, or `python benchmarks/tier_policies.py`. The engines of a plan without memory share a store too
small for the trace: one round of it, as it comes, at the rate of the problem. The farthest next use knows requests to
come: it is a measure, not a policy. What does without any of this is the first row, in turn, least recently used.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from inputs import SHARED, required

from planner.documents.read import given_document
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.solve import solve_by_formulas
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.engine import simulate

ROOT = Path(__file__).resolve().parent.parent
MOONCAKE = SHARED / "traces" / "mooncake_fast25_conversation.jsonl.gz"
RATE_PER_S, STORE = 3.4, "500GB"
ROUTINGS, EVICTIONS = ("round-robin", "least-loaded", "cache-aware"), ("lru", "pgdsf", "farthest")


def plan(path: Path) -> Envelope:
    """The cheapest colocated plan of formulas for the trace at `path`, each engine of two GPUs."""
    sides = {f"{side}_tokens": {"trace": str(path), "column": f"{side}_length"} for side in ("input", "output")}
    data: dict[str, Any] = {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"qwen3": {"name": "Qwen/Qwen3-32B", "weights": "fp8", "kv_cache": "fp8"}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": 4, "price": "2USD/h"}]},
        "workloads": [{**sides, "load": {"rate": f"{RATE_PER_S}/s"}, "slo": {"ttft": {"p95": "30s"}}}],
        "objective": {"minimize": "cost"},
        "options": {"modes": ["colocated"], "tp": [2], "pp": [1]},
    }
    return solve_by_formulas(resolve_document(given_document(data, "problem"), ROOT), Limits())


def main() -> None:
    """A row a routing and policy."""
    path = required(MOONCAKE)
    trace = read_trace(str(path))
    known = trace.at_rate(RATE_PER_S * float(trace.arrival_s[-1]) / (len(trace) - 1)).requests()
    envelope = plan(path)
    decision = ServeDecision.model_validate(envelope.decision)
    print(f"{decision.roles[0].replicas} engines of {decision.roles[0].parallelism.devices} GPUs, a store of {STORE}")
    print("| routing | evicts | tokens of prompts that hit | TTFT p95 [s] | most requests of an engine over the mean |")
    print("|---|---|---|---|---|")
    for routing in ROUTINGS:
        for eviction in EVICTIONS:
            store = {"size": STORE, "bandwidth": "25GB/s"}
            operation = OperationSpec.model_validate({"prefix_store": store, "prefix_eviction": eviction})
            policies = Policies(routing=routing, prefix_caching=True, operation=operation)
            planned = fleet_of_plan(envelope, decision, known, policies)
            result = simulate(replace(planned.fleet, paths=()), known)
            done = result.entry[result.entry >= 0]
            load = np.bincount(done, minlength=len(planned.fleet.instances))
            hits = float(result.cached_tokens.sum()) / float(known.input_tokens[result.complete].sum())
            ttft_s = float(np.nanquantile(result.ttft_s, 0.95))
            print(
                f"| {routing} | {eviction} | {hits:.3f} | {ttft_s:.2f} | {load.max() / load.mean():.3f} |", flush=True
            )


if __name__ == "__main__":
    main()
