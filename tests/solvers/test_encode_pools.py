"""Encode, prefill and decode instances against every split, each simulated anew; bad input."""

from dataclasses import replace

import numpy as np
import pytest
from first_come import starts

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.encode_pools import EncodePools, EncodeSplit, ImageLimits, ImageRequests, highest_rate

RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)


def random_problem(seed: int) -> EncodePools:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(5, 30))
    gaps_R, images_R = draws.exponential(1.0, count), draws.integers(0, 4, count)
    tokens_R, move_s_R = images_R + draws.uniform(0.1, 2.0, count), np.asarray(0.01 * images_R, float)
    output_R = draws.integers(2, 12, count).astype(float)
    limits = ImageLimits(
        float(draws.uniform(0.4, 2.5)), float(draws.uniform(0.1, 0.5)), float(draws.choice([0.6, 0.9]))
    )

    def stream(rate_per_s: float) -> ImageRequests:
        arrival_s_R = np.cumsum(gaps_R) / rate_per_s
        return ImageRequests(arrival_s_R, images_R, 0.2 * tokens_R, move_s_R, 0.02 * tokens_R, output_R)

    return EncodePools(stream, RATES, int(draws.integers(2, 6)), (1, 2, 4), 0.02, 0.2, 0.03, 0.02, limits)


def attained(problem: EncodePools, split: EncodeSplit, rate_per_s: float) -> float:
    x = problem.stream_at(rate_per_s)
    requests = range(len(x.images_R))
    encode = [(problem.encode_base_s if m else 0.0) + problem.encode_image_s * m for m in x.images_R]
    prefill = list(x.prefill_s_R)
    if not split.encode:
        ready, prefill = list(x.arrival_s_R), [e + p for e, p in zip(encode, prefill, strict=True)]
    elif split.parallel_images:
        jobs = [r for r in requests for _ in range(x.images_R[r])]
        each = problem.encode_base_s + problem.encode_image_s
        start = starts([x.arrival_s_R[r] for r in jobs], [each] * len(jobs), split.encode)
        done = list(x.arrival_s_R)
        for r, s in zip(jobs, start, strict=True):
            done[r] = max(done[r], s + each)
        ready = [d + f for d, f in zip(done, x.feature_move_s_R, strict=True)]
    else:
        start = starts(list(x.arrival_s_R), encode, split.encode)
        ready = [s + e + f for s, e, f in zip(start, encode, x.feature_move_s_R, strict=True)]
    first = [s + p for s, p in zip(starts(ready, prefill, split.prefill), prefill, strict=True)]
    step = problem.decode_base_s + problem.decode_slot_s * split.slots
    held = [o * step for o in x.output_tokens_R]
    moved = [f + c for f, c in zip(first, x.cache_move_s_R, strict=True)]
    begin = starts(moved, held, split.decode * split.slots)
    kept = [
        first[r] - x.arrival_s_R[r] <= problem.limits.ttft_s
        and (begin[r] + held[r] - first[r]) / x.output_tokens_R[r] <= problem.limits.tpot_s
        for r in requests
    ]
    return float(np.mean(kept))


def rate_kept(problem: EncodePools, split: EncodeSplit) -> float:
    best = 0.0
    for rate in problem.rates_per_s:
        if attained(problem, split, rate) < problem.limits.attainment:
            break
        best = rate
    return best


def every_split(problem: EncodePools) -> list[EncodeSplit]:
    """Those that leave instances unused too."""
    count = problem.instances
    return [
        EncodeSplit(e, p, d, z, parallel)
        for e in range(count)
        for p in range(1, count)
        for d in range(1, count - e - p + 1)
        for z in problem.slots
        for parallel in ((True, False) if e else (False,))
    ]


@pytest.mark.parametrize("seed", range(100))
def test_no_split_keeps_a_higher_rate(seed: int) -> None:
    problem = random_problem(seed)
    result = highest_rate(problem)
    best = max(rate_kept(problem, split) for split in every_split(problem))
    if best == 0.0:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.objective == best
    assert result.solution is not None
    assert rate_kept(problem, result.solution) == best


def test_too_few_instances_and_rates_that_fall_are_refused() -> None:
    problem = random_problem(0)
    with pytest.raises(PlannerError, match="give at least 2"):
        replace(problem, instances=1)
    with pytest.raises(PlannerError, match="rates must rise"):
        replace(problem, rates_per_s=(2.0, 1.0))
    with pytest.raises(PlannerError, match="slots must be 1"):
        replace(problem, slots=(0,))
