"""The cheapest GPU mix against all mixes, with availability and failures; the published instance."""

import itertools
import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.placement.gpu_mix import Bucket, GpuMix, GpuType, cheapest_mix
from planner.solvers.result import Status

USES: tuple[Literal["whole", "prefill", "decode"], ...] = ("whole", "prefill", "decode")


def serves(problem: GpuMix, left: tuple[int, ...]) -> bool:
    """Whether these instances have room for every slice, on one type or one for each phase, by trying every way."""
    by_use = {use: [g for g, kind in enumerate(problem.types) if kind.use == use] for use in USES}
    homes = [(g,) for g in by_use["whole"]] + list(itertools.product(by_use["prefill"], by_use["decode"]))
    ways = []
    for bucket in problem.buckets:
        ways.append(list(itertools.combinations_with_replacement(homes, bucket.slices)))
    for chosen in itertools.product(*ways):
        work = [0.0] * len(problem.types)
        for b, placed in enumerate(chosen):
            for g in itertools.chain(*placed):
                rate = problem.types[g].rate_B[b]
                work[g] += problem.buckets[b].rate_per_s / rate if rate else math.inf
        if all(w <= count + 1e-9 for w, count in zip(work, left, strict=True)):
            return True
    return False


def least_cost(problem: GpuMix, most: int) -> float:
    best = math.inf
    for counts in itertools.product(range(most + 1), repeat=len(problem.types)):
        cost = sum(count * kind.cost for count, kind in zip(counts, problem.types, strict=True))
        pools: dict[str, int] = {}
        for count, kind in zip(counts, problem.types, strict=True):
            for pool in (kind.pool or kind.name, kind.market):
                pools[pool] = pools.get(pool, 0) + count
        if cost >= best or sum(counts) < problem.least:
            continue
        if any(pools.get(pool, 0) > count for pool, count in problem.available.items()):
            continue
        if any(pools.get(pool, 0) < count for pool, count in problem.at_least.items()):
            continue
        fails = itertools.combinations_with_replacement(range(len(counts)), problem.failures)
        left = {tuple(max(c - f.count(g), 0) for g, c in enumerate(counts)) for f in fails}
        left.add(tuple(c - math.ceil(kind.lost * c) for c, kind in zip(counts, problem.types, strict=True)))
        if all(serves(problem, each) for each in left):
            best = cost
    return best


def random_uses(seed: int) -> GpuMix:
    """Types for whole requests, for a phase and of spot prices, with least counts."""
    draws = np.random.default_rng(seed)
    buckets = tuple(Bucket(f"b{b}", int(draws.integers(1, 3)), float(draws.uniform(0.2, 1.2))) for b in range(2))
    kinds = []
    for g, use in enumerate((*USES, USES[0])):
        rates = tuple(float(rate) for rate in draws.uniform(0.5, 3.0, 2) * (draws.random(2) < 0.9))
        lost = float(draws.choice([0.25, 0.5, 1.0])) if g == 3 else 0.0
        market = "market" if g in (1, 3) else ""
        cost = float(draws.uniform(0.5, 3.0)) * (2.0 if use == "whole" and not lost else 1.0)
        kinds.append(GpuType(f"g{g}", cost, rates, "p" if g in (0, 3) else "", use, market, lost))
    kinds[0] = replace(kinds[0], rate_B=tuple(max(rate, 0.5) for rate in kinds[0].rate_B))
    return GpuMix(tuple(kinds), buckets, failures=int(draws.integers(0, 2)), at_least={"p": int(draws.integers(0, 3))})


@pytest.mark.parametrize("seed", range(100))
def test_phases_spot_prices_and_least_counts_are_the_cheapest_of_all(seed: int) -> None:
    problem = random_uses(seed)
    result, best = cheapest_mix(problem), least_cost(problem, 5)
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    if max(result.solution.instances) <= 5:
        assert result.objective == pytest.approx(best)
    assert result.objective is not None
    assert result.objective <= best + 1e-9
    assert result.bound == pytest.approx(result.objective)


def random_mix(seed: int) -> GpuMix:
    draws = np.random.default_rng(seed)
    types = int(draws.integers(2, 4))
    buckets = tuple(Bucket(f"b{b}", int(draws.integers(1, 3)), float(draws.uniform(0.2, 1.5))) for b in range(2))
    rates = draws.uniform(0.5, 3.0, (types, 2)) * (draws.random((types, 2)) < 0.8)
    rates[0] = np.maximum(rates[0], 0.5)
    pools = ["", "shared", "shared"] if draws.random() < 0.5 else [""] * 3
    kinds = tuple(
        GpuType(f"g{g}", float(draws.uniform(0.5, 4.0)), tuple(map(float, rates[g])), pools[g]) for g in range(types)
    )
    names = sorted({kind.pool or kind.name for kind in kinds})
    available = {name: int(draws.integers(0, 5)) for name in names if draws.random() < 0.6}
    return GpuMix(kinds, buckets, available, least=int(draws.integers(0, 3)), failures=int(draws.integers(0, 3)))


@pytest.mark.parametrize("seed", range(100))
def test_the_mix_is_the_cheapest_of_all(seed: int) -> None:
    problem = random_mix(seed)
    most = 9 if len(problem.types) == 2 else 6
    result, best = cheapest_mix(problem), least_cost(problem, most)
    if result.status is Status.INFEASIBLE:
        assert math.isinf(best)
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective is not None
    if max(result.solution.instances) <= most:
        assert result.objective == pytest.approx(best)
    assert result.objective <= best + 1e-9
    assert result.bound == pytest.approx(result.objective)


@settings(max_examples=15, deadline=None)
@given(st.integers(1_000, 2_000))
def test_a_failure_more_never_costs_less(seed: int) -> None:
    draws = np.random.default_rng(seed)
    types = tuple(GpuType(f"g{g}", float(draws.uniform(0.5, 4)), tuple(draws.uniform(0.5, 3, 2))) for g in range(3))
    buckets = (Bucket("a", 3, 0.7), Bucket("b", 2, 1.1))
    costs = [cheapest_mix(GpuMix(types, buckets, failures=k)).objective for k in range(3)]
    assert None not in costs
    assert costs == sorted(costs, key=lambda cost: cost or 0.0)


def test_bad_figures_are_named() -> None:
    kind = GpuType("L4", 0.7, (1.0, 0.0))
    with pytest.raises(PlannerError, match="no type serves bucket `long`"):
        GpuMix((kind,), (Bucket("short", 1, 1.0), Bucket("long", 1, 1.0)))
    with pytest.raises(PlannerError, match="has 2 rates for 1 buckets"):
        GpuMix((kind,), (Bucket("short", 1, 1.0),))
    with pytest.raises(PlannerError, match="-1 instances of `L4`"):
        GpuMix((kind,), (Bucket("short", 1, 1.0), Bucket("none", 0, 1.0)), {"L4": -1})
    with pytest.raises(PlannerError, match="costs -1"):
        GpuMix((GpuType("L4", -1.0, (1.0,)),), (Bucket("short", 1, 1.0),))
