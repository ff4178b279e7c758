"""Servers that score samples: their queue as its definition says, and the search over them against every plan."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rl_enumerated import least_of_one_group
from rl_problems import random_problem

from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.coupled.servers import whole_batch_s
from planner.rl.curves import Scoring, Service
from planner.rl.plan import RlMode, Sync
from planner.rl.problem import RlProblem
from planner.rl.search.search import solve
from planner.rl.search.verify import derive_bound
from planner.rl.services import bound_s, busy_s, handed_bound_s, handed_s, passed_s, scored_s, scorers
from planner.rl.training import ahead_s, iteration_s, rollout_of
from planner.rl.trajectories import SampleBatch


def served(ready_s: list[float], tokens: list[int], service: Service) -> list[float]:
    """When samples are scored, clock by clock: at every moment a free server takes all that waits, up to a batch."""
    waiting = sorted(range(len(ready_s)), key=lambda sample: ready_s[sample])
    free_s, done_s = [0.0] * service.servers, [0.0] * len(ready_s)
    while waiting:
        moments = sorted({ready_s[sample] for sample in waiting} | set(free_s))
        now = next(at for at in moments if min(free_s) <= at and ready_s[waiting[0]] <= at)
        there = [sample for sample in waiting if ready_s[sample] <= now][: service.batch]
        waiting = waiting[len(there) :]
        ends = now + service.step_s + service.token_s * sum(tokens[sample] for sample in there)
        free_s[free_s.index(min(free_s))] = ends
        for sample in there:
            done_s[sample] = ends
    return done_s


def drawn_service(draw: random.Random, **stated: Any) -> Service:  # noqa: ANN401
    drawn = Service(
        "reference", "a", 1, draw.randint(1, 3), draw.randint(1, 4), draw.uniform(0.0, 2.0), draw.uniform(0.0, 0.3)
    )
    return replace(drawn, **stated)


@pytest.mark.parametrize("seed", range(100))
def test_servers_take_what_waits_in_its_order(seed: int) -> None:
    draw = random.Random(seed)
    count, service = draw.randint(1, 12), drawn_service(draw)
    ready_s, tokens = [draw.uniform(0.0, 9.0) for _ in range(count)], [draw.randint(1, 20) for _ in range(count)]
    passed_at_s = passed_s(service, np.array(ready_s), np.array(tokens))
    assert passed_at_s.tolist() == pytest.approx(served(ready_s, tokens, service))
    batch = SampleBatch(np.zeros(count, np.int64), np.array(tokens))
    needed = draw.randint(1, count)
    generated_s = np.array([np.partition(ready_s, needed - 1)[needed - 1]])
    enough_s = np.partition(passed_at_s, needed - 1)[needed - 1]
    assert bound_s((service,), batch, needed, generated_s)[0] <= enough_s + 1e-9
    assert busy_s((service,), np.array(tokens)) <= passed_at_s.max() + 1e-9


def test_jobs_that_share_servers_are_served_before_this_one() -> None:
    service = Service("reference", "a", 1, 1, 1, 1.0, 0.0, shared_by=3)
    assert passed_s(service, np.array([0.0, 0.0]), np.array([5, 5])).tolist() == [3.0, 6.0]


def test_a_sample_is_scored_when_all_parts_have_scored_it() -> None:
    slow, quick = (Service(part, "", 0, 9, 1, seconds, 0.0) for part, seconds in (("rule", 5.0), ("reward", 1.0)))
    assert scored_s((slow, quick), np.array([0.0, 2.0]), np.array([1, 1])).tolist() == [5.0, 7.0]


@pytest.mark.parametrize(("generation", "scored", "train"), [(4, 9, 3), (4, 4, 6), (2, 12, 1)])
def test_generators_go_on_while_their_batch_is_scored(generation: int, scored: int, train: int) -> None:
    for staleness in (1, 2, 3):
        generated, trained, ends = 0, [0] * (staleness + 1), []
        for _ in range(1680):
            begins = max(generated, trained[-1 - staleness] + 1)
            generated = begins + generation
            trained.append(max(begins + scored, trained[-1]) + train)
            ends.append(trained[-1])
        mean_s = ahead_s(
            np.array([generation]), np.array([[train]]), np.array([1]), staleness, np.zeros(1), np.array([scored])
        )
        assert mean_s == pytest.approx((ends[-1] - ends[839]) / 840)


def with_services(seed: int) -> RlProblem:
    """A drawn problem whose reference may be served, of two kinds of servers, and whose rewards a sandbox finds."""
    draw = random.Random(seed)
    problem = read_problem(given_document(random_problem(seed, "async" if seed % 2 else "cost"), "problem"))
    pool = draw.choice([pool.name for pool in problem.pools])
    services = (
        drawn_service(draw, pool=pool),
        drawn_service(draw, pool=pool, servers=1, shared_by=2),
        drawn_service(draw, part="sandbox", pool="", gpus=0, token_s=0.0),
    )
    relieved = (
        replace(option, apart="reference", forward_tokens_per_s=2.0 * option.forward_tokens_per_s)
        for option in problem.training[:2]
    )
    return replace(problem, services=services, training=(*problem.training[:2], *relieved), max_groups=1)


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_handed_over_takes_what_it_takes_clock_by_clock_and_no_less_than_its_bound(seed: int) -> None:
    draw = random.Random(seed)
    services = tuple(drawn_service(draw, whole=whole, shared_by=1 + seed % 2) for whole in (True, False, True))
    tokens = [draw.randint(1, 20) for _ in range(draw.randint(1, 12))]
    jobs = [each for each in tokens for _ in range(1 + seed % 2)]
    taken_s = [max(served([0.0] * len(jobs), jobs, service)) for service in services if service.whole]
    assert handed_s(services, np.array(tokens)) == pytest.approx(sum(taken_s))
    assert [whole_batch_s(service, tokens) for service in services[::2]] == pytest.approx(taken_s)
    batch, needed = SampleBatch(np.zeros(len(tokens), np.int64), np.array(tokens)), draw.randint(1, len(tokens))
    chosen = np.array(draw.sample(tokens, needed))
    assert handed_bound_s(services, batch.tokens_N, needed) <= handed_s(services, chosen) + 1e-9


@pytest.mark.parametrize("sync", ["sync", "stream_sync", "one_step_async", "k_step_async"])
def test_training_waits_for_a_batch_that_servers_take_whole(sync: Sync) -> None:
    batches = tuple(SampleBatch(np.ones(4, np.int64), np.array(lengths)) for lengths in ([3, 9, 4, 4], [2, 2, 2, 2]))
    finish_s, sent = [np.array([5.0, 9.0, 7.0, 8.0]), np.full(4, 3.0)], Service("reward", "", 0, 1, 4, 1.0, 0.0)
    services = (sent, replace(sent, part="reference", batch=2, token_s=0.1, whole=True))
    mode, work, none = RlMode("disaggregated", sync, 1), np.full((1, 2, 2), 2.5), np.zeros(1)
    rollout = rollout_of(batches, finish_s, 2, services=services)
    alone = rollout_of(batches, finish_s, 2, services=services[:1])
    assert rollout.handed_s_B == pytest.approx([2.0 + 2.4, 2.0 + 1.2])
    longer = iteration_s(mode, rollout, work, none)[0]
    if sync == "sync":
        assert longer == pytest.approx(iteration_s(mode, alone, work, none)[0] + 3.8)
    if sync == "stream_sync":  # nothing is trained before all is scored
        assert longer == pytest.approx(((10.0 + 4.4) + (4.0 + 3.2)) / 2 + 5.0)
    if sync == "one_step_async":
        assert longer == pytest.approx((max(4.0, 4.4 + 5.0) + max(10.0, 3.2 + 5.0)) / 2)
    if sync == "k_step_async":
        assert longer == pytest.approx((10.0 + 4.4 + 5.0) / 2)  # generation of every second batch waits for it


def where_samples_flow(seed: int) -> RlProblem:
    """The same where weights are updated in flight, at times sent behind generation."""
    modes = tuple(RlMode("disaggregated", "k_step_async", staleness, True, True) for staleness in (1, 2))
    problem = replace(with_services(seed), modes=modes, samples_per_prompt=2, dispatch="fifo")
    return replace(problem, weight_sync_overlapped=seed % 2 == 0)


def some_take_whole(problem: RlProblem) -> RlProblem:
    """One of the kinds of servers of each part takes batches whole."""
    changed = (replace(service, whole=place != 1) for place, service in enumerate(scorers(problem.services)))
    return replace(problem, services=tuple(changed))


def where_samples_are_carried_over(seed: int) -> RlProblem:
    """The same where the samples that an iteration does not train on go on in the next."""
    problem = with_services(seed)
    samples = max(problem.minibatches, min(batch.size for batch in problem.batches) - 2)
    return replace(problem, dispatch="fifo", batches=problem.batches * 3, samples=samples, partial=True)


def where_scoring_is_fused(seed: int, *, whole: bool) -> RlProblem:
    """A drawn problem that scores on replicas set free, but for a sandbox and a reference that is always served, or
    only where that pays, and then with batches handed over `whole`."""
    draw = random.Random(seed)
    problem = read_problem(given_document(random_problem(seed, "sync"), "problem"))
    beside = tuple(
        replace(option, score_gpu_s=0.8 * option.gpus / option.forward_tokens_per_s) for option in problem.training
    )
    relieved = tuple(
        replace(
            option,
            apart="reference",
            score_gpu_s=0.4 * option.score_gpu_s,
            forward_tokens_per_s=2.0 * option.forward_tokens_per_s,
        )
        for option in beside
    )
    rows = [Scoring(each.score_gpu_s, 0.05, 0.01, 1e-4, each.apart) for each in (beside[0], relieved[0])]
    served = drawn_service(draw, pool=problem.pools[0].name, whole=whole, step_s=0.2, token_s=0.01)
    return replace(
        problem,
        training=(*(beside if whole else ()), *relieved),
        generation=tuple(replace(each, curve=replace(each.curve, max_running=8)) for each in problem.generation),
        scoring={pool.name: tuple(rows) for pool in problem.pools},
        services=(served, drawn_service(draw, part="sandbox", pool="", gpus=0, step_s=0.1, token_s=0.0)),
        fusion_thresholds=(0.2, 0.5),
        modes=(RlMode("colocated", "sync"), RlMode("hybrid", "sync")),
        max_groups=1,
    )


DRAWN = (
    *(where_scoring_is_fused(seed, whole=seed % 2 == 0) for seed in (1, 4, 7)),
    *(with_services(seed) for seed in (0, 2, 3)),
    *(some_take_whole(with_services(seed)) for seed in (1, 2)),
    where_samples_flow(3),
    some_take_whole(where_samples_flow(2)),
    where_samples_are_carried_over(3),
    some_take_whole(where_samples_are_carried_over(5)),
)


@pytest.mark.parametrize("problem", DRAWN)
def test_the_search_over_servers_finds_what_pricing_every_plan_finds(problem: RlProblem) -> None:
    solution = solve(problem)
    best = least_of_one_group(problem)
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert derive_bound(problem, best, 1e-9).least == pytest.approx(best)
    assert derive_bound(problem, 1.1 * best, 1e-9).least == pytest.approx(best)
