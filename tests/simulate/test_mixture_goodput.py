"""Several workloads in a fixed mix: runs that keep the limits of each, and the rate that no run exceeds."""

import math

import numpy as np
import pytest
from goodput_cases import mixed_fleets, mixtures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance, RequestPath
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.mixture_bound import MixtureRateBound
from planner.simulate.goodput.rate import highest_kept
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.run.attainment import Draws, kept, required
from planner.simulate.run.engine import simulate
from planner.simulate.run.mixture import Mixture

GRID = StepGrid.affine(5e-3, sequence_s=1e-4, context_s=1e-7, token_s=2e-5, most_sequences=64)
FAST = SloSpec.model_validate({"ttft": {"p90_s": 0.4}, "tpot": {"p90_s": 0.02}, "attainment": 0.9})
SLOW = SloSpec.model_validate({"latency": {"p90_s": 8.0}})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mixed_fleets(), mixtures(), st.integers(-6, 6))
def test_no_run_keeps_the_limits_of_all_workloads_beyond_the_optimistic_rate(
    fleet: Fleet, mixture: Mixture, power: int
) -> None:
    most = MixtureRateBound(mixture).most_rate(fleet)
    rates = [2.0**power] + ([most * 1.001 + 1e-9, most * 2.0 + 1e-9] if math.isfinite(most) else [])
    for rate in rates:
        if rate > most * (1.0 + 1e-6):
            runs = mixture.simulate(fleet, rate)
            rows = zip(runs, mixture.slos, mixture.draws, strict=True)
            assert not all(kept(run, slo, draws.warm_up) for run, slo, draws in rows)


def drawn(count: int, seed: int, longest: int, share: float) -> Draws:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(50, longest, count), rng.integers(10, 80, count)
    draws = Draws.renewal(*lengths, seed=seed, warm_up=count // 10)
    return Draws(draws.arrival_s / share, draws.input_tokens, draws.output_tokens, draws.warm_up)


@pytest.fixture(scope="module")
def mixture() -> Mixture:
    return Mixture((drawn(900, 1, 600, 0.75), drawn(300, 2, 2000, 0.25)), (FAST, SLOW))


def shared(count: int) -> Fleet:
    instance = Instance(GRID, 50_000, token_budget=1024, most_sequences=64)
    return Fleet((instance,) * count, paths=((RequestPath(0, 0, 1.0),),) * 2)


def test_each_workload_has_its_share_of_the_rate(mixture: Mixture) -> None:
    requests = mixture.requests(10.0)
    assert requests.workload is not None
    assert np.all(np.diff(requests.arrival_s) >= 0.0)
    spans = [float(requests.arrival_s[requests.workload == workload][-1]) for workload in (0, 1)]
    assert [len(draws) / span for draws, span in zip(mixture.draws, spans, strict=True)] == pytest.approx(
        [7.5, 2.5], rel=0.2
    )


def test_a_run_keeps_the_limits_only_where_every_workload_does(mixture: Mixture) -> None:
    fleet = shared(2)
    rate = highest_kept(lambda per_s: mixture.keeps(fleet, per_s), most_per_s=200.0).rate_per_s
    beyond = mixture.simulate(fleet, rate * 1.03)
    each = [kept(run, slo, draws.warm_up) for run, slo, draws in zip(beyond, mixture.slos, mixture.draws, strict=True)]
    assert mixture.keeps(fleet, rate)
    assert not all(each)


def test_workloads_that_share_no_engine_run_as_if_alone(mixture: Mixture) -> None:
    first = Instance(GRID, 50_000, token_budget=1024, most_sequences=64)
    other = Instance(GRID, 50_000, token_budget=512, most_sequences=32, model=1)
    whole = Fleet((first, first, other), paths=((RequestPath(0, 0, 1.0),), (RequestPath(1, 1, 1.0),)))
    cells = (
        Fleet((first, first), paths=((RequestPath(0, 0, 1.0),),)),
        Fleet((other,), paths=((RequestPath(1, 1, 1.0),),)),
    )
    together = mixture.simulate(whole, 20.0)
    for workload, cell in enumerate(cells):
        (alone,) = mixture.of((workload,)).simulate(cell, 20.0)
        assert together[workload].first_token_s.tolist() == alone.first_token_s.tolist()
        assert together[workload].finished_s.tolist() == alone.finished_s.tolist()


def test_what_all_workloads_need_together_is_a_tighter_bound_than_each_alone() -> None:
    halves = Mixture((drawn(600, 1, 600, 0.5), drawn(600, 2, 600, 0.5)), (FAST, FAST))
    alone = min(RateBound(draws, required(FAST)).most_rate(shared(1)) for draws in halves.draws)
    most = MixtureRateBound(halves).most_rate(shared(1))
    assert most < 0.7 * alone
    assert highest_kept(lambda per_s: halves.keeps(shared(1), per_s), most_per_s=most).rate_per_s > 0.3 * most


def test_a_workload_without_limits_only_takes_its_work(mixture: Mixture) -> None:
    free = Mixture(mixture.draws, (FAST, SloSpec()))
    assert MixtureRateBound(free).most_rate(shared(1)) >= MixtureRateBound(mixture).most_rate(shared(1))
    assert simulate(shared(1), free.requests(1.0)).drained
