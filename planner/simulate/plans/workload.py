"""Requests for the simulation of a plan: sampled from its workload, or a trace at some rate."""

import math
from dataclasses import replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.plan.schema import Envelope
from planner.problem.recorded import media_by_workload
from planner.problem.schema import MomentLengths, Problem, ShapeLengths, TraceLengths, UniformLengths, WorkloadSpec
from planner.problem.shapes import find_shape
from planner.simulate.plans.trace_streams import TraceRows
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.stream import Requests, together

ROUNDS = 20  # requests of each client of a closed loop, at least
SEEDS = 7919  # between those of two workloads
MOST_TOKENS = 2**31  # of a drawn length: no context comes near it


def own_requests(
    envelope: Envelope, problem: Problem, count: int, seed: int, rows: TraceRows | None = None
) -> Requests:
    """`count` requests of the plan's workloads: at their rates (those that the plan claims where the problem leaves
    them open), or of their clients.

    Raises PlannerError for lengths of a trace, whose path a plan does not keep, unless its `rows` are given.
    """
    media = media_by_workload(problem)
    if len(problem.workloads) == 1:
        (workload,) = problem.workloads
        clients, hits = _clients(workload), workload.prefix_hits or 0.0
        if rows is not None and not clients:
            stream = rows.requests(_times(workload, _rate(envelope, workload), count, seed), seed)
            return stream.with_hits(hits).with_media(media[0])
        inputs, outputs = lengths_of(workload, max(count, ROUNDS * clients), seed)
        if clients:
            stream = Requests.closed_loop(inputs, outputs, clients=clients)
        else:
            stream = Requests.open_stream(_times(workload, _rate(envelope, workload), count, seed), inputs, outputs)
        return stream.with_hits(hits).with_media(media[0])
    rates = [0.0 if _clients(workload) else _rate(envelope, workload) for workload in problem.workloads]
    return together(
        [_stream(workload, rate, count * rate / max(sum(rates), 1e-12), seed + SEEDS * index)
             .with_hits(workload.prefix_hits or 0.0).with_media(media[index])
         for index, (workload, rate) in enumerate(zip(problem.workloads, rates, strict=True))]
    )  # fmt: skip


def _clients(workload: WorkloadSpec) -> int:
    return (workload.load.concurrency or 0) if workload.load is not None else 0


def _rate(envelope: Envelope, workload: WorkloadSpec) -> float:
    """What the plan serves of it: all that is stated, or what a plan for the most throughput claims."""
    stated = workload.load.rate_per_s if workload.load is not None else None
    claimed = [p.value for p in envelope.predictions if (p.metric, p.of) == ("requests_per_s", workload.name)]
    return claimed_rate(envelope, workload) if stated is None else min([stated, *claimed])


def lengths_of(workload: WorkloadSpec, count: int, seed: int) -> tuple[Ints, Ints]:
    """Tokens of prompts and of answers, drawn as the workload says."""
    rng = np.random.default_rng(seed)
    return drawn_lengths(workload, "input_tokens", count, rng), drawn_lengths(workload, "output_tokens", count, rng)


def _times(workload: WorkloadSpec, rate_per_s: float, count: int, seed: int) -> Floats:
    cv = workload.load.arrival_cv if workload.load is not None else 1.0
    if cv > 0.0:
        return arrivals("gamma", rate_per_s, count, cv=cv, seed=seed + 1)
    return np.arange(1, count + 1) / rate_per_s


def _stream(workload: WorkloadSpec, rate_per_s: float, share: float, seed: int) -> Requests:
    """One of several workloads: so many requests at a rate, or a session of `ROUNDS` requests of each client."""
    clients = _clients(workload)
    count = ROUNDS * clients or max(round(share), 1)
    inputs, outputs = lengths_of(workload, count, seed)
    if not clients:
        return Requests.open_stream(_times(workload, rate_per_s, count, seed), inputs, outputs)
    after = np.arange(count) + clients
    sessions = Requests.open_stream(np.zeros(count), inputs, outputs)
    return replace(sessions, successor=np.where(after < count, after, -1), num_open=clients)


def claimed_rate(envelope: Envelope, workload: WorkloadSpec) -> float:
    """Requests per second of the workload that the plan predicts."""
    for prediction in envelope.predictions:
        if prediction.metric == "requests_per_s" and prediction.of == workload.name:
            return prediction.value
    raise PlannerError("neither the problem nor the plan states a rate", hint="give the requests: `--trace FILE`")


def drawn_lengths(workload: WorkloadSpec, side: str, count: int, rng: np.random.Generator) -> Ints:
    """`count` lengths of `input_tokens` or `output_tokens`, tails and all; raises PlannerError for those of a trace."""
    spec = workload.input_tokens if side == "input_tokens" else workload.output_tokens
    if isinstance(spec, int):
        return np.full(count, spec, dtype=np.int64)
    if isinstance(spec, UniformLengths):
        return rng.integers(spec.low, spec.high + 1, count)
    if isinstance(spec, MomentLengths):
        variance = math.log1p(spec.cv**2)
        drawn = rng.lognormal(math.log(spec.mean) - variance / 2.0, math.sqrt(variance), count)
        return np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.int64)
    if isinstance(spec, ShapeLengths):
        return rng.choice(np.array(find_shape(spec.shape).lengths(side), dtype=np.int64), count)
    assert isinstance(spec, TraceLengths)
    raise PlannerError(
        f"the {side} of `{workload.name}` come from the trace `{spec.trace}`, whose path the plan does not keep",
        hint="give it: `--trace FILE`",
    )
