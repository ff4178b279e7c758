"""Own runs of a calibration as a serving problem takes them for its layouts (`planner.costs.rates.near_runs`)."""

import math
from collections.abc import Iterable

from planner.costs.rates.calibration import Calibration
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.spread import group_of_runs
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.problem.schema import Problem


def near_runs(
    calibration: Calibration, arch: Architecture, pool: Pool, problem: Problem, model: str, pools: Iterable[Pool]
) -> NearRuns | None:
    """Those of a model on a pool; None where the calibration holds none one by one.

    Clients are those of its workloads, spread over all GPUs of `pools`; how many an instance has is not known of open
    loads, nor where GPUs are saved. Problems of other kinds take where the group lies.
    """
    bias = calibration.runs.get(group_of_runs(arch, pool.node.accelerator.name, problem.engine.name))
    if bias is None or not bias.seen or problem.kind != "serve":
        return None
    workloads = [workload for workload in problem.workloads if problem.model_of(workload) == model]
    loads = [workload.load for workload in workloads]
    clients = sum(load.concurrency or 0 for load in loads if load is not None and problem.objective.maximize)
    lengths = [(workload.input_tokens, workload.output_tokens) for workload in workloads]
    fixed = [(float(isl), float(osl)) for isl, osl in lengths if isinstance(isl, int) and isinstance(osl, int)]
    return NearRuns(
        bias,
        clients / sum(each.num_gpus for each in pools) if clients else math.nan,
        fixed[0] if len(fixed) == len(lengths) and len(set(fixed)) == 1 else (math.nan, math.nan),
    )
