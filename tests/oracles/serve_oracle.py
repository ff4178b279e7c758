"""Brute force for small serving problems: every number of every instance type, with its load worked out by hand.

Instance types are all points that keep the limits, the dominated ones included; only single-workload problems on one
pool are taken. Nothing of the search after the pricing of points is used. Prefill instances of a type wait together:
what each does depends on how many there are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from mix_oracle import can_place

from planner.arrays import Bools, Floats, Indices
from planner.engines.handover import NO_WAY
from planner.kinds.serve.steady.demand import Channel, Target, channels_of, handover, link_bytes_per_s
from planner.kinds.serve.steady.engine_rules import handover_rule, side_of
from planner.kinds.serve.steady.evaluate import StepTimes, judge_colocated, judge_decode, judge_prefill, time_points
from planner.kinds.serve.steady.points import Points, Tally, make_points
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.steady.units import Sides, UnitMemory, units_of
from planner.problem.resolve import Resolved


@dataclass(frozen=True)
class Type:
    """An instance type with what one of it does."""

    function: str
    degrees: str  # such as `tp2`
    channel: int
    devices: int
    rates_per_s: tuple[float, ...]  # of each of 1, 2, ... instances; the last for all more
    stays_s: tuple[float, ...]
    port_per_s: float  # requests whose cache its ports can move

    def rate_per_s(self, count: int) -> float:
        return self.rates_per_s[min(count, len(self.rates_per_s)) - 1]

    def stay_s(self, count: int) -> float:
        return self.stays_s[min(count, len(self.stays_s)) - 1]


def brute_force(resolved: Resolved) -> float | None:
    """The optimal objective of a problem in its own metric; None when no plan works."""
    best: float | None = None
    for value, _ in every_mix(resolved):
        best = value if best is None or _better(resolved, value, best) else best
    return best


def every_mix(resolved: Resolved) -> Iterator[tuple[float, frozenset[str]]]:
    """The objective of every mix that works, with the types of its instances, whatever their batch and chunk."""
    setting = prepare(resolved)
    (target,), (pool,), (model,) = setting.targets, resolved.pools, resolved.models
    types = list(_types(setting, target))
    nodes = [pool.node.num_gpus] * len(pool.healthy_nodes)
    most = resolved.problem.limits.gpus or sum(nodes)
    for counts in _mixes(types, min(most, sum(nodes))):
        groups = sorted((types[i].devices for i, count in counts.items() for _ in range(count)), reverse=True)
        devices = sum(groups)
        price = devices * (pool.usd_per_gpu_hour or 0.0)
        cap = resolved.problem.limits.usd_per_hour
        if not counts or (cap is not None and price > cap) or not can_place(nodes, groups):
            continue
        value = _value(resolved, target, types, counts, devices, price)
        if value is not None:
            yield value, frozenset(f"{types[i].function}/{model}/{types[i].degrees}/{pool.name}" for i in counts)


def _better(resolved: Resolved, value: float, best: float) -> bool:
    return value > best if resolved.problem.objective.minimize is None else value < best


def _value(
    resolved: Resolved, target: Target, types: list[Type], counts: dict[int, int], devices: int, price: float
) -> float | None:
    most, most_closed = _throughput(types, counts, target)
    goal, total = resolved.problem.objective, sum(pool.num_gpus for pool in resolved.pools)
    if goal.minimize is not None:
        assert target.rate_per_s is not None
        enough = most >= target.rate_per_s * (1 - 1e-9)
        return (devices if goal.minimize == "gpus" else price) if enough else None
    tokens = target.osl if goal.maximize == "tokens_per_s_per_gpu" else 1.0
    if target.rate_per_s is not None:  # what is asked for, by the GPUs in use
        return target.rate_per_s * tokens / devices if most >= target.rate_per_s * (1 - 1e-9) else None
    served = min(most, most_closed)
    return served * tokens / min(total, resolved.problem.limits.gpus or total) if served > 0 else None


def _together(target: Target, count: int) -> int:
    """How many of so many prefill instances count as waiting together: 1, 2, 3, 4, 6, 8, 12 and so on."""
    if target.clients is not None:
        return 1
    return max(n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= count)


def _throughput(types: list[Type], counts: dict[int, int], target: Target) -> tuple[float, float]:
    """Most requests per second of a mix, and the most when at most the clients' number is in the system.

    The latter fills the paths greedily by how short a request stays: linear, with one knapsack row, so greedy is exact
    where the paths are independent; a path is a colocated type, or the fastest prefill with the fastest decode left.
    """
    whole = [
        (types[i].stay_s(n), types[i].rate_per_s(n) * n) for i, n in counts.items() if types[i].function == "colocated"
    ]
    paths = whole
    for channel in {types[i].channel for i in counts if types[i].function != "colocated"}:
        sides = []
        for function in ("prefill", "decode"):
            rows = [
                (types[i], n) for i, n in counts.items() if (types[i].function, types[i].channel) == (function, channel)
            ]
            sides.append(sorted((t.stay_s(n), min(t.rate_per_s(n), t.port_per_s) * n) for t, n in rows))
        paths = paths + list(_paired(*sides))
    most = sum(rate for _, rate in paths)
    if target.clients is None:
        return most, most
    room, served = float(target.clients), 0.0
    for stay_s, rate in sorted(paths):
        taken = min(rate, room / stay_s)
        served, room = served + taken, room - taken * stay_s
    return most, served


def _paired(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Rates of two stages matched, shortest stays first on both sides."""
    left, right = [list(row) for row in first], [list(row) for row in second]
    while left and right:
        rate = min(left[0][1], right[0][1])
        if rate > 0:
            yield left[0][0] + right[0][0], rate
        for side in (left, right):
            side[0][1] -= rate
        left, right = [r for r in left if r[1] > 0], [r for r in right if r[1] > 0]


def _mixes(types: list[Type], most: int) -> Iterator[dict[int, int]]:
    """Every vector of counts on at most `most` devices."""

    def extend(index: int, left: int, counts: dict[int, int]) -> Iterator[dict[int, int]]:
        if index == len(types):
            yield dict(counts)
            return
        for count in range(left // types[index].devices + 1):
            yield from extend(
                index + 1, left - count * types[index].devices, {**counts, **({index: count} if count else {})}
            )

    return extend(0, most, {})


def _types(setting: ServeSetting, target: Target) -> Iterator[Type]:
    options, (pool,) = setting.options, setting.resolved.pools
    ((key, pool_costs),) = setting.costs_of_pool.items()
    release = setting.release
    busy, route = options.max_prefill_utilisation, handover(pool, pool, None)
    filled = options.filled(target.clients)
    functions = [*(["colocated"] if "colocated" in options.modes else [])]
    functions += ["prefill"] if {"disaggregated", "attention-ffn"} & set(options.modes) else []
    functions += ["decode"] if "disaggregated" in options.modes else []
    if "attention-ffn" in options.modes:
        yield from _units(setting, target)
    for function in functions:
        shapes = [
            s for s in setting.spaces[key].shapes if not handover_rule(function, s, pool_costs.costs.arch, release)
        ]
        points = make_points(function, pool_costs, shapes, options, [target], Tally(), copies=1, release=release)
        timed = time_points(function, pool_costs, target, points)
        channels: list[Channel | None] = (
            [None]
            if function == "colocated"
            else list(channels_of([target], 1, ways=setting.ways[key[0]] or (NO_WAY,)))
        )
        for channel in channels:
            if channel is None:
                fast = points.fits[0] & _fast(target, points, timed)
                by_count = [judge_colocated(_means_alone(target), points, fast, timed, busy, filled, Tally())]
            elif function == "prefill":
                own = target.for_first_stage(channel.share)
                by_count = [
                    judge_prefill(
                        own,
                        points,
                        points.fits[0],
                        timed,
                        route,
                        busy,
                        Tally(),
                        servers=_queues(shapes, points.shape, _together(target, n)),
                        routing=setting.routing,
                    )
                    for n in range(1, pool.num_gpus + 1)
                ]
            else:
                split = target.for_second_stage(channel.share)
                fast = points.fits[0] & _fast(split, points, timed)
                by_count = [judge_decode(_means_alone(split), points, fast, timed, filled, Tally())]
            for i in np.flatnonzero(np.logical_or.reduce([judged.good for judged in by_count])):
                way = None if channel is None else channel.way
                if way is not None and not way.takes(function, side_of(shapes[points.shape[i]])):
                    continue
                devices = shapes[points.shape[i]].devices
                port = devices * link_bytes_per_s(pool) / target.transfer_bytes
                yield Type(
                    function,
                    shapes[points.shape[i]].label,
                    -1 if channel is None else channel.index,
                    devices,
                    tuple(float(judged.rate_per_s[i] * judged.good[i]) for judged in by_count),
                    tuple(float(judged.stay_s[i]) for judged in by_count),
                    port,
                )


def _means_alone(target: Target) -> Target:
    return replace(target, tpot_limits=tuple(limit for limit in target.tpot_limits if limit.quantile is None))


def _fast(target: Target, points: Points, timed: StepTimes) -> Bools:
    """Points of a dense model without drafts that keep every limit on a percentile of the time per output token."""
    full = timed.decoding
    if full is None or not any(limit.quantile is not None for limit in target.tpot_limits):
        return np.ones(len(points), dtype=np.bool_)
    rows = zip(full.pace_s.tolist(), timed.tpot_s.tolist(), points.batch.tolist(), strict=True)
    return np.array([_keeps_percentiles(target, *row, full.joining) for row in rows])


def _keeps_percentiles(target: Target, pace_s: float, tpot_s: float, batch: float, joining: float) -> bool:
    """A batch of D: of y tokens, y - 1 gaps; a prompt comes when an answer ends, D a mean answer, and stretches one."""
    shares, osl = [1.0], sum(target.answers.tokens) / len(target.answers.tokens)
    for limit in target.tpot_limits:
        if limit.quantile is None:
            continue
        within = 0.0
        for tokens in target.answers.tokens:
            gaps = tokens - 1.0
            prompts = batch * gaps / osl
            each_s = (tpot_s - pace_s) * gaps / prompts
            spread_s = each_s * math.sqrt(prompts * (target.answers.prompt_cv2 + target.answers.cv2)) / gaps
            room_s = limit.limit_s * (1.0 + 1e-9) - tpot_s * (1.0 + joining / gaps)
            if spread_s < 1e-12 * tpot_s:
                within += 1.0 if room_s >= 0.0 else 0.0
            else:
                within += 0.5 * math.erfc(-room_s / spread_s / math.sqrt(2.0))
        shares.append(within / len(target.answers.tokens) - limit.quantile)
    return min(shares) >= -1e-9


def _queues(shapes: list[InstanceShape], rows: Indices, count: int) -> Floats:
    """One for every attention rank of so many instances of a dense model, but for pipelines."""
    return np.array([count * shapes[row].dp if shapes[row].pp == 1 else 1.0 for row in rows])


def _units(setting: ServeSetting, target: Target) -> Iterator[Type]:
    """Every unit with attention and feed-forward apart that keeps the limits, one batch after the other."""
    options, (pool_costs,) = setting.options, setting.costs_of_pool.values()
    sides = Sides(pool_costs, pool_costs)
    for unit in units_of(sides, options):
        units = sides.units(unit.attention, unit.ffn, unit.micro_batches)
        for batch in options.max_batch or ():
            full = np.array([float(batch)])
            fits = bool(UnitMemory.of(sides, units, full, [target.resident_tokens]).fits[0][0])
            tpot_s = float(sides.tpot_s(units, full, target.context)[0])
            for channel in channels_of([target], 1) if fits else ():
                own = target.for_second_stage(channel.share)
                means = [limit.limit_s for limit in own.tpot_limits if limit.quantile is None]
                if tpot_s <= min(means, default=math.inf) and _keeps_percentiles(own, tpot_s, tpot_s, batch, 1.0):
                    rate = options.filled(target.clients) * batch * unit.attention.dp / (target.osl * tpot_s)
                    port = unit.attention.devices * link_bytes_per_s(pool_costs.pool) / target.transfer_bytes
                    devices = unit.attention.devices + unit.ffn.devices
                    yield Type(
                        "decode",
                        unit.attention.label,
                        channel.index,
                        devices,
                        (rate,),
                        ((target.osl - 1.0) * tpot_s,),
                        port,
                    )
