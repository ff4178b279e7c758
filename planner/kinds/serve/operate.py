"""How a chosen instance runs at the load it gets, which is at most what its limits allow."""

from dataclasses import dataclass

import numpy as np

from planner.costs.shapes import Shards
from planner.kinds.serve.candidates import Candidate, Place, Served
from planner.kinds.serve.demand import Target
from planner.kinds.serve.steady import decode_step, pad_graph_batch

LEAST_LOAD = 1e-9


@dataclass(frozen=True, slots=True)
class Operation:
    """One instance at its load: time to first token by statistic (prefill roles), time per output token, batch."""

    ttft_s: dict[str, float]
    tpot_s: float
    batch: float  # decoding sequences per attention rank


def operate(candidate: Candidate, target: Target, place: Place, load_per_s: float) -> Operation:
    """One instance of `candidate` serving `load_per_s` requests of `target` alone."""
    served = candidate.served[target.index]
    assert served is not None
    if candidate.function == "prefill":
        busy = served.utilisation * load_per_s / max(served.rate_per_s, LEAST_LOAD)
        return Operation(_ttft(target, busy, served.busy_s, served.service_s), 0.0, 0.0)
    batch, tpot = _equilibrium(candidate, served, target, place, load_per_s / candidate.shape.dp)
    if candidate.function == "decode":
        return Operation({}, tpot, batch)
    latency = served.service_s - served.tpot_s / 2.0 - place.costs.engine.request_s
    busy = min(load_per_s / candidate.shape.dp * latency, served.utilisation)
    service = served.service_s - served.tpot_s / 2.0 + tpot / 2.0
    return Operation(_ttft(target, busy, latency, service), tpot, batch)


def _ttft(target: Target, busy: float, queue_s: float, service_s: float) -> dict[str, float]:
    found = {}
    for limit in target.ttft_limits:
        wait = limit.wait_s(np.array([busy]), np.array([queue_s]), target.arrival_cv2, target.service_cv2)
        found[limit.statistic] = service_s + float(wait[0])
    return found


def _equilibrium(
    candidate: Candidate, served: Served, target: Target, place: Place, rank_load_per_s: float
) -> tuple[float, float]:
    """Batch and time per output token at which a rank finishes as many requests as arrive.

    A rank at batch D finishes D / (osl TPOT(D)) requests a second, TPOT(D) = t_dec(D) + D / osl busy_s; this rate
    grows with D, so the batch is where it meets the load, interpolated between whole batches.
    """
    batches = np.unique(np.geomspace(1, max(candidate.max_batch, 1), 32).round())
    shape = candidate.shape
    shards = Shards.of(np.full(len(batches), shape.tp), shape.pp, shape.dp, shape.moe_tp, shape.ep)
    context = np.full(len(batches), target.context)
    step = decode_step(place.costs, shards, pad_graph_batch(batches), context).seconds
    tpot = step + batches / target.osl * served.busy_s
    rate = np.maximum.accumulate(batches / (target.osl * tpot))
    if rank_load_per_s <= rate[0]:  # fewer than one sequence on average: each runs alone
        return float(rank_load_per_s * target.osl * tpot[0]), float(tpot[0])
    batch = float(np.interp(rank_load_per_s, rate, batches))
    return batch, float(np.interp(batch, batches, tpot))
