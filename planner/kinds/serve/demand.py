"""A workload as the numbers that decide: lengths, limits, what moves between prefill and decode."""

import math
from dataclasses import dataclass

import numpy as np

from planner.costs.shapes import FloatArray, Shards
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.problem.resolve import Workload
from planner.problem.schema import Limit
from planner.solvers.queueing import mean_wait_s, utilisation_for_wait, wait_quantile_s

_QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
DEFAULT_STATISTIC = "p95"


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A limit on one statistic of a time; `quantile` is None for the mean."""

    statistic: str
    quantile: float | None
    limit_s: float

    def wait_s(self, busy: FloatArray, service_s: FloatArray, arrival_cv2: float, service_cv2: float) -> FloatArray:
        """Waiting at this statistic before a server that is `busy` (one server, M/G/1 or G/G/1)."""
        if self.quantile is None:
            return mean_wait_s(busy, 1.0, service_s, cv2_arrival=arrival_cv2, cv2_service=service_cv2)
        return wait_quantile_s(busy, 1.0, service_s, self.quantile, cv2_arrival=arrival_cv2, cv2_service=service_cv2)

    def utilisation(
        self, wait_s: FloatArray, service_s: FloatArray, arrival_cv2: float, service_cv2: float
    ) -> FloatArray:
        """The largest utilisation at which this statistic of the wait stays within `wait_s`."""
        if self.quantile is None:
            spread = service_s * (arrival_cv2 + service_cv2) / 2.0
            return wait_s / np.maximum(wait_s + spread, 1e-12)
        return utilisation_for_wait(
            wait_s, 1.0, service_s, self.quantile, cv2_arrival=arrival_cv2, cv2_service=service_cv2
        )


@dataclass(frozen=True, slots=True)
class Target:
    """One workload on its model: lengths, limits and variability as plain numbers."""

    name: str
    index: int
    isl: float
    osl: float
    longest_tokens: int
    ttft_limits: tuple[TimeLimit, ...]  # at least one; infinite when the problem sets none
    tpot_limit_s: float
    latency_limit_s: float
    arrival_cv2: float
    service_cv2: float
    transfer_bytes: float
    rate_per_s: float | None
    concurrency: int | None
    share: float

    @property
    def context(self) -> float:
        """Mean cached tokens of a decoding sequence."""
        return self.isl + self.osl / 2.0

    @property
    def held_tokens(self) -> float:
        """Cache reserved for a sequence: its whole length, so that none is ever preempted."""
        return self.isl + self.osl

    def transfer_s(self, pool: Pool, shards: Shards) -> FloatArray:
        """Moving the cache of one prompt to a decode instance, over the links of the ranks that hold it."""
        return self.transfer_bytes / (shards.tp * link_bytes_per_s(pool)) + pool.node.nic_latency_s

    def required_rate_per_s(self) -> float | None:
        """The rate to sustain: the one given, or what the clients of a closed loop ask at the limits.

        Clients that wait as long as the limits allow send concurrency / (ttft + (osl - 1) tpot) requests a second; a
        plan that sustains that rate within the limits keeps them, since latency grows with load, and none that
        cannot sustain it does.
        """
        if self.concurrency is None:
            return self.rate_per_s
        slowest = self.ttft_limits[0].limit_s + (self.osl - 1.0) * self.tpot_limit_s
        slowest = min(slowest, self.latency_limit_s)
        return self.concurrency / slowest if math.isfinite(slowest) else None


def link_bytes_per_s(pool: Pool) -> float:
    """Bandwidth of one device to devices of other instances: the fabric, or the scale-up links of a lone domain."""
    alone = pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size
    if alone:
        return pool.node.scale_up_bandwidth_bytes_per_s
    return pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription


def make_target(workload: Workload, index: int, arch: Architecture) -> Target:
    """The target of one resolved workload."""
    slo, load = workload.spec.slo, workload.spec.load
    isl, osl = workload.input.mean_tokens, workload.output.mean_tokens
    moved = kv_bytes(arch, np.array([isl])) + state_bytes_per_sequence(arch, np.array([1.0]))
    return Target(
        name=workload.spec.name,
        index=index,
        isl=isl,
        osl=osl,
        longest_tokens=workload.input.max_tokens + workload.output.max_tokens,
        ttft_limits=_limits(slo.ttft, slo.attainment),
        tpot_limit_s=min((limit.limit_s for limit in _limits(slo.tpot, None)), default=math.inf),
        latency_limit_s=min((limit.limit_s for limit in _limits(slo.latency, None)), default=math.inf),
        arrival_cv2=1.0 if load is None or load.rate_per_s is None else load.arrival_cv**2,
        service_cv2=workload.input.cv**2,
        transfer_bytes=float(moved[0]),
        rate_per_s=None if load is None else load.rate_per_s,
        concurrency=None if load is None else load.concurrency,
        share=workload.spec.share,
    )


def _limits(limit: Limit | None, attainment: float | None) -> tuple[TimeLimit, ...]:
    """Limits by statistic, strictest quantile first; an attainment above a limit's quantile replaces it."""
    if limit is None:
        return (TimeLimit(DEFAULT_STATISTIC, _QUANTILES[DEFAULT_STATISTIC], math.inf),)
    found = []
    for statistic, value in limit.statistics().items():
        quantile = _QUANTILES.get(statistic)
        if quantile is not None and attainment is not None:
            quantile = min(max(quantile, attainment), 0.9999)
        found.append(TimeLimit(statistic, quantile, value))
    return tuple(sorted(found, key=lambda item: -(item.quantile or 0.0)))
