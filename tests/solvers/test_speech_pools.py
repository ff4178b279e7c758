"""Pools of stages for speech against every combination, each simulated anew; bounds on replicas; bad input."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from first_come import starts

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.shared_gpus import Part
from planner.solvers.workflow.speech_pools import (
    DecodePool,
    RequestPool,
    Speech,
    SpeechPlan,
    SpeechPools,
    VocodePool,
    cheapest_pools,
    cost,
    heard,
    keeps,
    least_replicas,
)


def random_problem(seed: int) -> SpeechPools:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(3, 25))
    arrival_s_R = np.cumsum(draws.exponential(0.3, count))
    pools = [
        tuple(RequestPool(float(draws.integers(1, 6)), draws.uniform(0.05, 0.5, count)) for _ in range(2))
        for _ in range(2)
    ]
    speech = Speech(
        float(draws.uniform(0.5, 2.5)),
        float(draws.choice([0.5, 0.9])),
        float(draws.choice([0.0, 0.1])),
        (2, 5),
        4,
        3,
        10.0,
        0.05,
    )
    return SpeechPools(
        arrival_s_R,
        draws.integers(5, 20, count),
        pools[0],
        pools[1],
        tuple(
            DecodePool(float(draws.integers(1, 6)), int(draws.integers(1, 4)), float(draws.uniform(0.01, 0.08)))
            for _ in range(2)
        ),
        tuple(
            VocodePool(float(draws.integers(1, 6)), float(draws.uniform(0.0, 0.2)), float(draws.uniform(0.0, 0.02)))
            for _ in range(2)
        ),
        ((1, 2), (1, 2), (1, 2), (1, 2, 3)),
        speech,
    )


def reached(problem: SpeechPools, plan: SpeechPlan) -> tuple[float, float]:
    """First audio at the quantile, and the share of later chunks that are late."""
    ready = list(problem.arrival_s_R)
    for pools, (option, replicas) in zip((problem.encode, problem.prefill), plan.pools[:2], strict=True):
        service = list(pools[option].service_s_R)
        ready = [s + e for s, e in zip(starts(ready, service, replicas), service, strict=True)]
    decode, speech = problem.decode[plan.pools[2][0]], problem.speech
    held = [int(n) * decode.step_s for n in problem.reply_tokens_R]
    begin = starts(ready, held, plan.pools[2][1] * decode.slots)
    jobs = []
    for request, tokens in enumerate(problem.reply_tokens_R):
        done = 0
        while done < tokens:
            chunk = min(speech.chunk_tokens if done else plan.first_chunk, int(tokens) - done)
            jobs.append((begin[request] + (done + chunk) * decode.step_s, request, chunk, done))
            done += chunk
    vocode = problem.vocode[plan.pools[3][0]]
    service = [vocode.base_s + vocode.per_token_s * (c + (speech.context_tokens if d else 0)) for _, _, c, d in jobs]
    start = starts([job[0] for job in jobs], service, plan.pools[3][1])
    end = [s + e for s, e in zip(start, service, strict=True)]
    first = {job[1]: e for job, e in zip(jobs, end, strict=True) if not job[3]}
    late = [
        e > first[r] + d / speech.tokens_per_s + speech.slack_s for (_, r, _, d), e in zip(jobs, end, strict=True) if d
    ]
    waits = [first[r] - t for r, t in enumerate(problem.arrival_s_R)]
    return float(np.quantile(waits, speech.quantile)), float(np.mean(late)) if late else 0.0


def every_plan(problem: SpeechPools) -> list[SpeechPlan]:
    pools = [
        list(itertools.product(range(len(o)), range(1, m + 1)))
        for o, m in zip(problem.options, map(max, problem.replicas), strict=True)
    ]
    return [SpeechPlan(tuple(p), f) for p in itertools.product(*pools) for f in problem.speech.first_chunks]


def price(problem: SpeechPools, plan: SpeechPlan) -> float:
    return sum(options[o].cost * k for options, (o, k) in zip(problem.options, plan.pools, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_no_pools_that_keep_the_limits_are_cheaper(seed: int) -> None:
    problem = random_problem(seed)
    result = cheapest_pools(problem)
    if result.solution is not None:
        first_s, late = reached(problem, result.solution)
        assert (first_s, late) == pytest.approx(
            (heard(problem, result.solution).first_audio_s, heard(problem, result.solution).late_share)
        )
        assert first_s <= problem.speech.first_audio_s
        assert late <= problem.speech.late_share
    bound = result.objective if result.objective is not None else float("inf")
    for plan in sorted(every_plan(problem), key=lambda p: price(problem, p)):
        if price(problem, plan) >= bound - 1e-9:
            break
        first_s, late = reached(problem, plan)
        assert first_s > problem.speech.first_audio_s or late > problem.speech.late_share
    assert result.status is (Status.OPTIMAL if result.solution is not None else Status.INFEASIBLE)


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_that_keeps_the_limits_has_fewer_replicas_than_the_bounds(seed: int) -> None:
    problem = random_problem(seed)
    least = least_replicas(problem)
    plans = every_plan(problem)
    for plan in (plans[i] for i in np.random.default_rng(seed).choice(len(plans), 60, replace=False)):
        if any(k < least[s][o] for s, (o, k) in enumerate(plan.pools)):
            first_s, late = reached(problem, plan)
            assert first_s > problem.speech.first_audio_s or late > problem.speech.late_share


def test_first_chunks_longer_than_every_answer_and_stages_without_options_are_refused() -> None:
    problem = random_problem(0)
    with pytest.raises(PlannerError, match="first chunk of 50 tokens"):
        replace(problem, speech=replace(problem.speech, first_chunks=(5, 50)))
    with pytest.raises(PlannerError, match="stage vocode has 0 options"):
        replace(problem, vocode=())
    with pytest.raises(PlannerError, match="give every request both"):
        replace(problem, arrival_s_R=problem.arrival_s_R[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_pools_that_share_gpus_are_the_cheapest_of_all_and_all_are_accounted_for(seed: int) -> None:
    draws, problem = np.random.default_rng(seed), random_problem(seed)
    own: dict[str, Any] = {}
    for name, options in zip(("encode", "prefill", "decode", "vocode"), problem.options, strict=True):
        shares = [float(draws.choice((0.25, 0.3, 0.45, 0.6))) if draws.random() < 0.6 else None for _ in options]
        own[name] = tuple(
            option if share is None else replace(option, cost=3.0 * share, part=Part(0, share))
            for option, share in zip(options, shares, strict=True)
        )
    shared, cover = replace(problem, **own), Cover()
    kept = [cost(shared, plan.pools) for plan in every_plan(shared) if keeps(shared, heard(shared, plan))]
    result = cheapest_pools(shared, cover=cover)
    assert result.objective == (pytest.approx(min(kept)) if kept else None)
    if kept:
        assert cover.combinations == len(every_plan(shared))
        assert min(end.least for end in cover.ends.values() if end.least is not None) == pytest.approx(min(kept))
        assert cover.ends["chosen"].combinations == 1
