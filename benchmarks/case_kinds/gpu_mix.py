"""GPU types for a bucketed workload (Mélange): the least cost of the instances."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.placement.gpu_mix import Bucket, GpuMix, GpuType, cheapest_mix


def problem_of(case: dict[str, Any]) -> GpuMix:
    """The buckets that have requests, in slices as the case states."""
    shares = case["workload_distribution"]
    cells = [(i, o) for i, row in enumerate(shares) for o, share in enumerate(row) if share > 0.0]
    slices, rate = int(case["slice_factor"]), float(case["total_request_rate"])
    buckets = tuple(Bucket(f"{i},{o}", slices, shares[i][o] * rate / slices) for i, o in cells)
    types = tuple(
        GpuType(name, figures["cost"], tuple(figures["tputs"][i][o] for i, o in cells))
        for name, figures in case["gpu_info"].items()
    )
    return GpuMix(types, buckets, available=case.get("availability", {}), failures=int(case.get("failures", 0)))


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The cheapest mix, proven."""
    problem = problem_of(case)
    result = cheapest_mix(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no mix of what is available serves {case['total_request_rate']:g} requests/s")
    counts = dict(zip((kind.name for kind in problem.types), result.solution.instances, strict=True))
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return CaseAnswer({"result": {**counts, "cost": result.objective}}, result.objective, result.bound, summary)
