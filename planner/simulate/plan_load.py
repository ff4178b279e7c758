"""The requests that a serving plan is made for: its own workload drawn, or a trace at some rate."""

import math

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlannerError
from planner.plan.schema import Envelope
from planner.problem.schema import MomentLengths, Problem, TraceLengths, UniformLengths, WorkloadSpec
from planner.simulate.arrivals import arrivals
from planner.simulate.requests import Requests

ROUNDS = 20  # requests of each client of a closed loop, at least


def own_requests(envelope: Envelope, problem: Problem, count: int, seed: int) -> Requests:
    """`count` requests of the plan's one workload: at its rate (the one that the plan claims where the problem
    leaves it open), or of its clients.

    Raises PlannerError for several workloads, and for lengths that come from a trace, whose path a plan does not keep.
    """
    if len(problem.workloads) != 1:
        raise PlannerError("the plan serves several workloads", hint="give the requests: `--trace FILE`")
    workload = problem.workloads[0]
    rng = np.random.default_rng(seed)
    inputs, outputs = (drawn_lengths(workload, side, count, rng) for side in ("input_tokens", "output_tokens"))
    load = workload.load
    if load is not None and load.concurrency is not None:
        total = max(count, ROUNDS * load.concurrency)
        if total > count:
            inputs, outputs = (drawn_lengths(workload, side, total, rng) for side in ("input_tokens", "output_tokens"))
        return Requests.closed_loop(inputs, outputs, clients=load.concurrency)
    rate = load.rate_per_s if load is not None and load.rate_per_s is not None else claimed_rate(envelope, workload)
    cv = load.arrival_cv if load is not None else 1.0
    times = arrivals("gamma", rate, count, cv=cv, seed=seed + 1) if cv > 0 else np.arange(1, count + 1) / rate
    return Requests.open_stream(times, inputs, outputs)


def claimed_rate(envelope: Envelope, workload: WorkloadSpec) -> float:
    """Requests per second of the workload that the plan predicts."""
    for prediction in envelope.predictions:
        if prediction.metric == "requests_per_s" and prediction.of == workload.name:
            return prediction.value
    raise PlannerError("neither the problem nor the plan states a rate", hint="give the requests: `--trace FILE`")


def drawn_lengths(workload: WorkloadSpec, side: str, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` lengths of `input_tokens` or `output_tokens`; raises PlannerError for those of a trace."""
    spec = workload.input_tokens if side == "input_tokens" else workload.output_tokens
    if isinstance(spec, int):
        return np.full(count, spec, dtype=np.int64)
    if isinstance(spec, UniformLengths):
        return rng.integers(spec.low, spec.high + 1, count)
    if isinstance(spec, MomentLengths):
        variance = math.log1p(spec.cv**2)
        drawn = rng.lognormal(math.log(spec.mean) - variance / 2.0, math.sqrt(variance), count)
        longest = max(1, round(spec.mean * (1 + 4 * spec.cv)))  # as the schema says: lengths end there
        return np.clip(np.rint(drawn), 1, longest).astype(np.int64)
    assert isinstance(spec, TraceLengths)
    what = f"the {side} of `{workload.name}` come from the trace `{spec.trace}`, whose path the plan does not keep"
    raise PlannerError(what, hint="give it: `--trace FILE`")
