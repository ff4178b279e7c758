"""Whether plans with an availability keep their limits in simulation with each failure down, and what that costs.

python benchmarks/availability.py            eight problems, 20,000 requests a failure
python benchmarks/availability.py --quick    three problems, 5,000 requests a failure

Beside each plan the trivial answer: the plan for the same load of which nothing may be lost, one instance of its
largest role down. Kept are limits that are not broken (those too close to call among them), and no waits that grow;
`worst` is the largest share of a limit that is used.
"""

import argparse
import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.api import solve
from planner.documents.read import parse_document
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.simulate.judge.limits import Verdict
from planner.simulate.plans.failures import without
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan

BASE: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B", "weights": "fp8", "kv_cache": "fp8"}},
    "cluster": {"pools": [{"gpu": "h100", "gpus": 32}]},
    "objective": {"minimize": "gpus", "expected": False},
}
LENGTHS = {"fixed": (2000, 200), "spread": ({"mean": 2000, "cv": 0.5}, {"mean": 200, "cv": 0.5})}
CASES = (
    ("colocated", "fixed", 20, "role"),
    ("disaggregated", "fixed", 40, "role"),
    ("colocated", "spread", 20, "node"),
    ("disaggregated", "spread", 20, "role"),
    ("colocated", "spread", 60, "role"),
    ("disaggregated", "fixed", 60, "node"),
    ("colocated", "fixed", 60, "node"),
    ("disaggregated", "spread", 60, "role"),
)


def main() -> int:
    """Prints one row for each problem; 1 where a plan with an availability breaks a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three problems, 5,000 requests a failure")
    quick = parser.parse_args().quick
    requests, broken = (5_000, 0) if quick else (20_000, 0)
    print("mode           lengths  rate  per   GPUs  failures  kept  worst   trivial GPUs  kept  worst")
    for mode, lengths, rate, per in CASES[:3] if quick else CASES:
        spare, bare = planned(mode, lengths, rate, per), planned(mode, lengths, rate, None)
        decision = ServeDecision.model_validate(spare.decision)
        assert decision.availability is not None
        simulated = [used(spare, decision, failure.lost, requests) for failure in decision.availability.failures]
        alone = ServeDecision.model_validate(bare.decision)
        largest = max(alone.roles, key=lambda role: role.replicas)
        kept, worst = (False, math.inf)
        if largest.replicas > 1:
            kept, worst = used(bare, alone, {largest.name: 1}, requests)
        kept_failures = sum(right for right, _ in simulated)
        broken += len(simulated) - kept_failures
        text = f"{worst:.1%}" if math.isfinite(worst) else "waits grow" if largest.replicas > 1 else "nothing left"
        print(
            f"{mode:13}  {lengths:7}  {rate:4}  {per:4}  {gpus(spare):4.0f}  {len(simulated):8}  {kept_failures:4}  "
            f"{max(share for _, share in simulated):5.1%}  {gpus(bare):12.0f}  {'yes' if kept else 'no':4}  {text}"
        )
    return int(broken > 0)


def planned(mode: str, lengths: str, rate: int, per: str | None) -> Envelope:
    """The plan of fewest GPUs for a rate, with an availability or without."""
    inputs, outputs = LENGTHS[lengths]
    slo = {"ttft": "1s", "tpot": "25ms"}
    workload = {"input_tokens": inputs, "output_tokens": outputs, "load": {"rate": f"{rate}/s"}, "slo": slo}
    data = copy.deepcopy(BASE) | {"workloads": [workload], "options": {"modes": [mode]}}
    data |= {} if per is None else {"availability": {"per": per}}
    return solve(resolve_document(parse_document(json.dumps(data), "problem.json"), Path()), level="static")


def gpus(plan: Envelope) -> float:
    """GPUs in use."""
    return next(row.value for row in plan.predictions if row.metric == "gpus")


def used(plan: Envelope, decision: ServeDecision, lost: Mapping[str, int], requests: int) -> tuple[bool, float]:
    """Whether simulated requests keep every limit with instances lost, and the largest share of one that they use."""
    judgement = judge_plan(plan, without(decision, lost), Policies(), most_requests=requests).judgement
    if judgement.saturated:
        return False, math.inf
    kept = all(limit.verdict is not Verdict.BROKEN for limit in judgement.limits)
    return kept, max(limit.estimate.value / limit.limit for limit in judgement.limits)


if __name__ == "__main__":
    raise SystemExit(main())
