"""Opportunistic jobs on production GPUs: against every way to share, and bad data."""

import itertools

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.placement.opportunistic import Sharing, share_gpus
from planner.solvers.result import Status


def problem_of(seed: int) -> Sharing:
    draws = np.random.default_rng(seed)
    jobs, gpus, rates = int(draws.integers(1, 4)), int(draws.integers(2, 5)), int(draws.integers(1, 4))
    rate_R = np.arange(1, rates + 1) / rates
    speed = draws.uniform(0.3, 1.0, (jobs, gpus, 1)) * rate_R * np.maximum(1.2 - rate_R, 0.0)
    loss = draws.uniform(0.0, 0.1, (jobs, gpus, 1)) * rate_R
    gangs = tuple(draws.integers(1, 3, jobs).tolist())
    return Sharing(gangs, tuple(draws.uniform(0.5, 3.0, jobs).tolist()), speed, loss, 0.05)


def best_of_all(problem: Sharing) -> float:
    """Over every rate and every set of GPUs of every job, one job after the other."""
    gpus, rates = problem.speed_OPR.shape[1:]

    def worth(o: int, free: frozenset[int]) -> float:
        if o == len(problem.gangs):
            return 0.0
        best = worth(o + 1, free)
        for taken, r in itertools.product(itertools.combinations(sorted(free), problem.gangs[o]), range(rates)):
            if all(problem.loss_OPR[o, p, r] <= problem.most_loss for p in taken):
                slowest = min(problem.speed_OPR[o, p, r] for p in taken)
                own = problem.worths[o] * problem.gangs[o] * slowest
                best = max(best, own + worth(o + 1, free - set(taken)))
        return best

    return float(worth(0, frozenset(range(gpus))))


def test_jobs_are_worth_what_the_best_of_all_ways_to_share_gives() -> None:
    for seed in range(100):
        problem = problem_of(seed)
        result = share_gpus(problem)
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert result.objective == pytest.approx(best_of_all(problem), rel=1e-7, abs=1e-9)
        assert result.bound is not None
        assert result.objective is not None
        assert result.objective <= result.bound <= result.objective * (1 + 1e-6) + 1e-6
        taken = [p for shared in result.solution if shared is not None for p in shared.gpus]
        assert len(taken) == len(set(taken))


def test_kinds_of_gpus_that_are_alike_are_worth_what_each_gpu_by_itself_is() -> None:
    for seed in range(40):
        kinds = problem_of(seed)
        draws = np.random.default_rng(seed)
        there = tuple(int(draws.integers(0, 3)) for _ in range(kinds.speed_OPR.shape[1]))
        counted = Sharing(kinds.gangs, kinds.worths, kinds.speed_OPR, kinds.loss_OPR, kinds.most_loss, there)
        each = np.repeat(np.arange(len(there)), there)
        apart = Sharing(kinds.gangs, kinds.worths, kinds.speed_OPR[:, each], kinds.loss_OPR[:, each], kinds.most_loss)
        together, separate = share_gpus(counted), share_gpus(apart)
        assert together.solution is not None
        assert together.objective == pytest.approx(separate.objective, rel=1e-7, abs=1e-9)
        taken = [p for shared in together.solution if shared is not None for p in shared.gpus]
        assert all(taken.count(p) <= number for p, number in enumerate(there))


def test_jobs_of_no_gpu_and_tables_that_do_not_match_are_named() -> None:
    with pytest.raises(PlannerError, match="runs on 0 GPUs"):
        Sharing((0,), (1.0,), np.ones((1, 1, 1)), np.ones((1, 1, 1)), 0.1)
    with pytest.raises(PlannerError, match="speeds of"):
        Sharing((1,), (1.0,), np.ones((1, 1, 1)), np.ones((1, 2, 1)), 0.1)


def test_jobs_that_harm_every_production_job_wait() -> None:
    result = share_gpus(Sharing((1,), (1.0,), np.ones((1, 2, 1)), np.ones((1, 2, 1)), 0.1))
    assert result.solution == (None,)
    assert result.objective == 0.0
