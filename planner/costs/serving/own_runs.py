"""Own runs of a calibration as a serving problem takes them for its layouts (`planner.costs.rates.near_runs`)."""

import math
from collections.abc import Sequence

from planner.costs.rates.calibration import Calibration
from planner.costs.rates.near_runs import NearRuns, in_flight
from planner.costs.rates.spread import group_of_runs
from planner.models.architecture import Architecture
from planner.problem.resolve import lengths_facts
from planner.problem.schema import Lengths, Problem, TraceLengths, WorkloadSpec

SIDES = ("input_tokens", "output_tokens")


def near_runs(
    calibration: Calibration,
    arch: Architecture,
    accelerator: str,
    problem: Problem,
    model: str,
    gpus: float | None,
    traced_tokens: Sequence[float],
) -> NearRuns | None:
    """Those of a model on an accelerator; None where the calibration holds none one by one.

    Clients are the requests in flight of its workloads, spread over so many GPUs; how many an instance has is not known
    without a load, nor of GPUs that nobody knows yet. Problems of other kinds take runs at any load
    (`planner.costs.rates.pricer`). `traced_tokens` are the mean answers of its workloads, for those of a trace.
    """
    bias = calibration.runs.get(group_of_runs(arch, accelerator, problem.engine.name))
    if bias is None or not bias.seen or problem.kind != "serve":
        return None
    told = zip(problem.workloads, traced_tokens, strict=True)
    own = [(workload, tokens) for workload, tokens in told if problem.model_of(workload) == model]
    workloads, clients = [workload for workload, _ in own], sum(_in_flight(*each) for each in own)
    lengths = {tuple(_mean_tokens(getattr(each, side), side) for side in SIDES) for each in workloads}
    return NearRuns(
        bias,
        clients / gpus if gpus else math.nan,
        lengths.pop() if len(lengths) == 1 else (math.nan, math.nan),
    )


def _in_flight(workload: WorkloadSpec, traced_tokens: float) -> float:
    load, traced = workload.load, isinstance(workload.output_tokens, TraceLengths)
    tokens = traced_tokens if traced else _mean_tokens(workload.output_tokens, SIDES[1])
    return math.nan if load is None else in_flight(load.concurrency, load.rate_per_s, tokens)


def _mean_tokens(lengths: Lengths, side: str) -> float:
    """Of prompts or answers; NaN of a trace, which no run of a load generator repeats."""
    return math.nan if isinstance(lengths, TraceLengths) else lengths_facts(lengths, side, side).mean_tokens
