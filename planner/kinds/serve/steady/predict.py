"""Predictions of a chosen mix for each workload: TTFT and TPOT at its load, and SLO attainment.

A request takes a path: one colocated role, or a prefill role and a decode role of its channel. Times are those of the
slowest path.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.kinds.serve.steady.attained import Pace, least_time_s
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.formulate import Formulated
from planner.kinds.serve.steady.operate import Operation
from planner.kinds.serve.steady.points import PoolCosts
from planner.kinds.serve.steady.roles_in_use import RoleInUse, roles_in_use
from planner.kinds.serve.steady.time_limits import ATTAINMENT, MEAN, TimeLimit, strictest_s
from planner.plan.schema import Prediction
from planner.solvers.mix import MixProblem, MixSolution
from planner.solvers.result import SolveResult

BISECTIONS = 40
SHARES: Floats = 1.0 - np.concatenate([np.linspace(0.995, 0.1, 32)[:-1], np.geomspace(0.1, 1e-5, 32)])
"""At which the time to first token is known where answers differ, ascending."""

MOST_TIGHTENINGS = 12  # of the demand of clients, until all of them find room
ROOM_TOLERANCE = 1e-6

CostsOfPool = Mapping[tuple[str, int], PoolCosts]


@dataclass(frozen=True, slots=True)
class PathTimes:
    """What a request meets: a first stage, and those that may decode after it."""

    first: Operation
    decoding: tuple[Operation, ...]

    @property
    def pace(self) -> Pace:
        """How the time per output token spreads over requests, of the slowest."""
        pace = max(self.decoding, key=lambda run: run.tpot_s).pace
        assert pace is not None, "roles that decode have a pace"
        return pace

    @property
    def tpot_s(self) -> float:
        """The mean time per output token of the slowest."""
        return max((run.tpot_s for run in self.decoding), default=0.0)

    def tpot_quantile_s(self, quantile: float) -> float:
        """The time per output token at a quantile, of the slowest."""
        return max(run.tpot_quantile_s(quantile) for run in self.decoding)

    def itl_s(self, quantile: float | None) -> float:
        """The gap between tokens at a quantile of all gaps, or the mean one, of the slowest."""
        return max((run.itl_s(quantile) for run in self.decoding), default=0.0)

    def ttft_s(self, limit: TimeLimit, target: Target) -> float:
        """Time to first token at the statistic of `limit`."""
        return self.first.service_s + self.first.wait_s(limit, target)

    def latency_s(self, limit: TimeLimit, target: Target) -> float:
        """Time of the whole request at the statistic of `limit`."""
        mean_s = self.ttft_s(limit, target) + (target.osl - 1.0) * self.tpot_s
        if limit.quantile is None or math.isinf(mean_s):
            return mean_s
        first, pace = self.firsts(target), self.pace
        return least_time_s(
            lambda time_s: float(target.outputs.share_within(first, pace, time_s)[0]), limit.quantile, mean_s
        )

    def firsts(self, target: Target) -> Callable[[Floats], Floats]:
        """The share of first tokens that come within times [1, K]."""
        if self.first.first is not None:
            return self.first.first.share_within
        waits = [self.ttft_s(_at(share), target) for share in SHARES]

        def within(limit_s: Floats) -> Floats:
            if limit_s.size == 1:
                return np.full((1, 1), _share(lambda share: self.ttft_s(_at(share), target) <= limit_s[0, 0]))
            return np.interp(limit_s, waits, SHARES, left=0.0, right=1.0)

        return within

    def attainment(self, target: Target) -> float:
        """The share of requests that keep every limit on a quantile at once."""
        paced, bound_s = 1.0, strictest_s(target.tpot_limits)
        if math.isfinite(bound_s):
            paced = min((run.tpot_share_within(bound_s) for run in self.decoding), default=1.0)
        bounds_s = [strictest_s(limits) for limits in (target.ttft_limits, target.latency_limits)]
        kept = target.outputs.share_keeping(self.firsts(target), self.pace, *bounds_s)
        return paced * float(kept[0])


def paths_of(
    used: Sequence[RoleInUse], target: Target, costs_of_pool: CostsOfPool, scale: float = 1.0
) -> list[PathTimes]:
    """Every path of `target`, the slowest decode role of a channel standing for all of it."""
    operations = [
        (item, item.operation(target, costs_of_pool[item.candidate.model, item.candidate.pool], scale))
        for item in used
        if item.load_per_s[target.index] > 0.0
    ]
    decoding: dict[int, list[Operation]] = {}
    for item, run in operations:
        if item.candidate.channel is not None and item.candidate.decodes:
            decoding.setdefault(item.candidate.channel.index, []).append(run)
    return [
        PathTimes(
            run, (run,) if item.candidate.channel is None else tuple(decoding.get(item.candidate.channel.index, ()))
        )
        for item, run in operations
        if not item.candidate.decodes
    ]


def in_flight(used: Sequence[RoleInUse], target: Target, costs_of_pool: CostsOfPool, scale: float) -> float:
    """Requests of `target` in the system at `scale` times the load (Little's law)."""
    total = 0.0
    for item in used:
        load = item.load_per_s[target.index] * scale
        if load > 0.0:
            run = item.operation(target, costs_of_pool[item.candidate.model, item.candidate.pool], scale)
            total += load * (run.service_s + run.wait_s(MEAN, target) + (target.osl - 1.0) * run.tpot_s)
    return total


def most_scale(used: Sequence[RoleInUse], target: Target) -> float:
    """How far the load of `target` can grow before an instance type that serves it is at its limits."""
    return 1.0 / max((item.busy for item in used if item.load_per_s[target.index] > 0.0), default=1.0)


def resting_scale(used: Sequence[RoleInUse], target: Target, costs_of_pool: CostsOfPool) -> float:
    """The scale of the load at which a closed loop of the target's clients rests, by bisection; at most the limits'."""
    assert target.clients is not None
    low, high = 0.0, most_scale(used, target)
    if in_flight(used, target, costs_of_pool, high) <= target.clients:
        return high
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if in_flight(used, target, costs_of_pool, middle) < target.clients:
            low = middle
        else:
            high = middle
    return high


def times(used: Sequence[RoleInUse], target: Target, costs_of_pool: CostsOfPool, scale: float) -> list[Prediction]:
    """Predicted times of a workload, at every statistic that it limits, and the attainment where it asks for one."""
    paths = paths_of(used, target, costs_of_pool, scale)
    predictions: list[Prediction] = []

    def add(metric: str, statistic: str, value: float) -> None:
        predictions.append(
            Prediction(metric=metric, of=target.name, statistic=statistic, value=value, approximate=True)
        )

    for limit in target.ttft_limits:
        if limit.statistic != ATTAINMENT:
            fetch_s = target.fetch_s(limit.quantile)
            add("ttft_s", limit.statistic, fetch_s + max(path.ttft_s(limit, target) for path in paths))
    add("tpot_s", "mean", max(path.tpot_s for path in paths))
    for limit in target.tpot_limits:
        if limit.quantile is not None and limit.statistic != ATTAINMENT:
            add("tpot_s", limit.statistic, max(path.tpot_quantile_s(limit.quantile) for path in paths))
    for limit in target.itl_limits:
        add("itl_s", limit.statistic, max(path.itl_s(limit.quantile) for path in paths))
    for limit in (MEAN, *(item for item in target.latency_limits if item.statistic not in (ATTAINMENT, "mean"))):
        fetch_s = target.fetch_s(limit.quantile)
        add("latency_s", limit.statistic, fetch_s + max(path.latency_s(limit, target) for path in paths))
    if target.attainment is not None:
        add(ATTAINMENT, "mean", min(path.attainment(target) for path in paths))
    return predictions


def _share(keeps: Callable[[float], bool]) -> float:
    """The largest share that keeps something, by bisection; `keeps` is true up to it."""
    low, high = 0.0, 1.0 - 1e-9
    if keeps(high):
        return 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _at(share: float) -> TimeLimit:
    return TimeLimit(ATTAINMENT, share, math.inf)


def with_room(
    costs_of_pool: CostsOfPool,
    targets: Sequence[Target],
    formulated: Formulated,
    solve: Callable[[MixProblem], SolveResult[MixSolution]],
) -> tuple[MixProblem, SolveResult[MixSolution]]:
    """The mix that `solve` has, and the problem whose clients all find room in it.

    A mix that they do not find room in is solved for again, with as many more as would.
    """
    problem = formulated.problem
    result = solve(problem)
    for _ in range(MOST_TIGHTENINGS):
        short = _short_of_room(costs_of_pool, targets, formulated, result)
        if not short:
            break
        demands = tuple(
            replace(demand, clients=demand.clients and demand.clients * short.get(w, 1.0))
            for w, demand in enumerate(problem.demands)
        )
        problem = replace(problem, demands=demands)
        result = solve(problem)
    return problem, result


def _short_of_room(
    costs_of_pool: CostsOfPool, targets: Sequence[Target], formulated: Formulated, result: SolveResult[MixSolution]
) -> dict[int, float]:
    """By target, the factor by which the least cost for its clients must grow to hold them all within the limits.

    The mix counts every stay as long as at full load, a relaxation; here the stays are those at the load that the
    scarcest role allows.
    """
    if result.solution is None or formulated.problem.maximising:
        return {}
    used = roles_in_use(formulated.candidates, result.solution)
    short = {}
    for target in targets:
        if target.clients is not None:
            room = in_flight(used, target, costs_of_pool, most_scale(used, target))
            if room < target.clients * (1.0 - ROOM_TOLERANCE):
                short[target.index] = target.clients / room * (1.0 + ROOM_TOLERANCE)
    return short
