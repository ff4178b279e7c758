"""Pools of stages for images against every combination, each simulated request by request; bad input."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.image_pools import (
    NO_POOL,
    EncodePool,
    ImagePlan,
    ImagePools,
    PrefillPool,
    TokenLimits,
    cheapest_pools,
    served,
)
from planner.solvers.workflow.speech_pools import DecodePool


def drawn(seed: int, count: int = 20) -> ImagePools:
    rng = np.random.default_rng(seed)
    images_R = rng.integers(0, 5, count)

    def price() -> float:
        return float(rng.integers(1, 8))

    prefill = tuple(
        PrefillPool(
            price(),
            rng.uniform(0.01, 0.2, count),
            (0.01, float(rng.uniform(0.02, 0.1))) if rng.random() < 0.7 else None,
        )
        for _ in range(2)
    )
    return ImagePools(
        arrival_s_R=np.cumsum(rng.exponential(0.1, count)),
        images_R=images_R,
        output_tokens_R=rng.integers(1, 40, count),
        feature_move_s_R=np.asarray(0.003 * images_R, float),
        cache_move_s_R=rng.uniform(0.0, 0.01, count),
        encode=tuple(EncodePool(price(), 0.01, float(rng.uniform(0.02, 0.1))) for _ in range(rng.integers(1, 3))),
        prefill=prefill,
        decode=tuple(DecodePool(price(), int(rng.integers(1, 5)), float(rng.uniform(0.005, 0.02))) for _ in range(2)),
        replicas=((1, 2),) * 3,
        split=((True, False), (True,), (False,))[int(rng.integers(3))],
        limits=TokenLimits(float(rng.uniform(0.2, 0.8)), 0.9, float(rng.uniform(0.015, 0.06)), 0.8),
    )


def in_turn(jobs: list[tuple[float, float]], servers: int) -> list[float]:
    """Ends of jobs (ready, seconds), taken in the order in which they are ready."""
    free, end = [0.0] * servers, [0.0] * len(jobs)
    for job in sorted(range(len(jobs)), key=lambda number: jobs[number][0]):
        place = free.index(min(free))
        free[place] = end[job] = max(free[place], jobs[job][0]) + jobs[job][1]
    return end


def by_hand(problem: ImagePools, plan: ImagePlan) -> tuple[float, float]:
    (e, encoders), (p, prefills), (d, decodes) = plan.pools
    arrival, images = problem.arrival_s_R.tolist(), problem.images_R.tolist()
    prefill, decode = problem.prefill[p], problem.decode[d]
    service, ready = prefill.service_s_R.tolist(), list(arrival)
    if encoders:
        option = problem.encode[e]
        if plan.split_images:
            owners = [r for r, m in enumerate(images) for _ in range(m)]
            ends = in_turn([(arrival[r], option.base_s + option.image_s) for r in owners], encoders)
            for r, end in zip(owners, ends, strict=True):
                ready[r] = max(ready[r], end)
        else:
            work = [
                (t, (option.base_s if m else 0.0) + m * option.image_s) for t, m in zip(arrival, images, strict=True)
            ]
            ready = in_turn(work, encoders)
        ready = [end + move for end, move in zip(ready, problem.feature_move_s_R.tolist(), strict=True)]
    else:
        assert prefill.encodes_s is not None
        base_s, image_s = prefill.encodes_s
        service = [s + (base_s if m else 0.0) + m * image_s for s, m in zip(service, images, strict=True)]
    first = in_turn(list(zip(ready, service, strict=True)), prefills)
    tokens = problem.output_tokens_R.tolist()
    moved = [end + move for end, move in zip(first, problem.cache_move_s_R.tolist(), strict=True)]
    last = in_turn([(t, n * decode.step_s) for t, n in zip(moved, tokens, strict=True)], decodes * decode.slots)
    tpot = [(end - begin) / n for end, begin, n in zip(last, first, tokens, strict=True)]
    ttft = np.array(first) - problem.arrival_s_R
    return (
        float(np.quantile(ttft, problem.limits.ttft_quantile)),
        float(np.quantile(tpot, problem.limits.tpot_quantile)),
    )


def every_plan(problem: ImagePools) -> list[ImagePlan]:
    counts = problem.replicas[0]
    encode, prefill, decode = (
        list(itertools.product(range(count), counts))
        for count in (len(problem.encode), len(problem.prefill), len(problem.decode))
    )
    fronts = [(NO_POOL, False), *((pool, split) for pool in encode for split in problem.split)]
    plans = [ImagePlan((pool, p, d), split) for pool, split in fronts for p in prefill for d in decode]
    return [plan for plan in plans if plan.pools[0][1] or problem.prefill[plan.pools[1][0]].encodes_s is not None]


def price(problem: ImagePools, plan: ImagePlan) -> float:
    (e, k), (p, m), (d, n) = plan.pools
    return (k * problem.encode[e].cost if k else 0.0) + m * problem.prefill[p].cost + n * problem.decode[d].cost


@pytest.mark.parametrize("seed", range(100))
def test_the_cheapest_pools_are_those_of_all(seed: int) -> None:
    problem = drawn(seed)
    result = cheapest_pools(problem)
    if result.solution is not None:
        assert by_hand(problem, result.solution) == pytest.approx(served(problem, result.solution))
    best = None
    for plan in sorted(every_plan(problem), key=lambda plan: price(problem, plan)):
        ttft_s, tpot_s = by_hand(problem, plan)
        if ttft_s <= problem.limits.ttft_s and tpot_s <= problem.limits.tpot_s:
            best = price(problem, plan)
            break
    assert result.objective == result.bound == best
    assert result.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)


def test_instances_have_plans_with_and_without_encode_pools_and_none() -> None:
    solutions = [cheapest_pools(drawn(seed)).solution for seed in range(100)]
    kinds = {None if plan is None else (plan.pools[0][1] > 0, plan.split_images) for plan in solutions}
    assert kinds == {None, (False, False), (True, False), (True, True)}


def test_at_the_time_limit_there_is_a_bound_that_no_plan_crosses() -> None:
    problem = drawn(3)
    stopped = cheapest_pools(problem, time_limit_s=-1.0)
    assert stopped.status is Status.UNKNOWN
    assert stopped.bound is not None
    assert stopped.bound <= min(price(problem, plan) for plan in every_plan(problem))


def test_a_problem_whose_images_nothing_encodes_is_refused() -> None:
    problem = drawn(0)
    prefill = tuple(replace(option, encodes_s=None) for option in problem.prefill)
    with pytest.raises(PlannerError, match="no option encodes images"):
        replace(problem, encode=(), prefill=prefill)
    with pytest.raises(PlannerError, match="need an option"):
        replace(problem, decode=())


def test_every_combination_is_counted_once_where_prefill_encodes_or_not() -> None:
    for seed in range(12):
        problem, cover = drawn(seed), Cover()
        if cheapest_pools(problem, cover=cover).solution is not None:
            encodes = 1 + len(problem.encode) * len(problem.replicas[0]) * len(problem.split)
            rest = len(problem.prefill) * len(problem.decode) * len(problem.replicas[1]) * len(problem.replicas[2])
            assert cover.combinations == encodes * rest >= len(every_plan(problem))
