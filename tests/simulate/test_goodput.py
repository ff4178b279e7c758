"""Goodput by bisection, and the optimistic model that no simulation exceeds."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from goodput_cases import fleets, limits, streams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance, Speculation
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.placements import Placement, reversals, search_placements
from planner.simulate.goodput.rate import goodput, interval, keeps
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.run.attainment import Draws, attainment, kept, required
from planner.simulate.run.engine import simulate

SLO = SloSpec.model_validate({"ttft": {"p90_s": 0.4}, "tpot": {"p90_s": 0.02}, "attainment": 0.9})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets(), streams(), limits(), st.integers(-6, 6))
def test_no_run_keeps_its_limits_beyond_the_optimistic_rate(
    fleet: Fleet, draws: Draws, slo: SloSpec, power: int
) -> None:
    most = RateBound(draws, required(slo)).most_rate(fleet)
    rates = [2.0**power] + ([most * 1.001 + 1e-9, most * 2.0 + 1e-9] if math.isfinite(most) else [])
    for rate in rates:
        if rate > most * (1.0 + 1e-6):
            assert not kept(simulate(fleet, draws.requests(rate)), slo, draws.warm_up)


GRID = StepGrid.affine(5e-3, sequence_s=1e-4, context_s=1e-7, token_s=2e-5, most_sequences=64)


def stream(count: int = 600, seed: int = 3) -> Draws:
    rng = np.random.default_rng(seed)
    return Draws.renewal(rng.integers(50, 600, count), rng.integers(10, 80, count), seed=seed, warm_up=count // 10)


def colocated(count: int = 1) -> Fleet:
    return Fleet((Instance(GRID, 50_000, token_budget=1024, most_sequences=64),) * count)


def test_goodput_is_kept_and_a_little_more_is_not() -> None:
    draws, fleet = stream(), colocated()
    most = RateBound(draws, required(SLO)).most_rate(fleet)
    result = goodput(fleet, draws, SLO, most_per_s=most)
    assert 0.0 < result.rate_per_s < most
    assert keeps(fleet, draws, SLO, result.rate_per_s)
    assert not keeps(fleet, draws, SLO, result.rate_per_s * 1.02)


def test_goodput_grows_with_engines_and_with_looser_limits() -> None:
    draws = stream()
    single, double = (goodput(colocated(n), draws, SLO, most_per_s=math.inf).rate_per_s for n in (1, 2))
    looser = SLO.model_copy(update={"attainment": 0.5, "ttft": None, "tpot": SLO.tpot})
    assert double > 1.5 * single
    assert goodput(colocated(), draws, looser, most_per_s=math.inf).rate_per_s >= single


def test_goodput_of_time_twice_as_slow_is_half() -> None:
    draws, fleet = stream(), colocated()
    slow = StepGrid.affine(1e-2, sequence_s=2e-4, context_s=2e-7, token_s=4e-5, most_sequences=64)
    twice = Fleet((Instance(slow, 50_000, token_budget=1024, most_sequences=64),))
    wide = SloSpec.model_validate({"ttft": {"p90_s": 0.8}, "tpot": {"p90_s": 0.04}, "attainment": 0.9})
    fast = goodput(fleet, draws, SLO, most_per_s=64.0).rate_per_s
    assert goodput(twice, draws, wide, most_per_s=32.0).rate_per_s == pytest.approx(fast / 2.0)


def test_a_rate_that_must_be_kept_at_least_is_tried_first_and_ends_the_search() -> None:
    draws, fleet = stream(), colocated()
    result = goodput(fleet, draws, SLO, most_per_s=1000.0, least_per_s=900.0)
    assert (result.rate_per_s, result.runs) == (0.0, 1)


def test_limits_that_no_idle_engine_keeps_leave_no_goodput() -> None:
    slo = SloSpec.model_validate({"ttft": {"p90_s": 1e-3}})
    draws, fleet = stream(), colocated()
    assert RateBound(draws, required(slo)).most_rate(fleet) == 0.0
    assert goodput(fleet, draws, slo, most_per_s=50.0).rate_per_s == 0.0


def test_the_interval_holds_the_goodputs_of_other_streams() -> None:
    fleet, streams = colocated(), [stream(seed=seed) for seed in range(5)]
    near = goodput(fleet, streams[0], SLO, most_per_s=100.0).rate_per_s
    goods = [partial(keeps, fleet, draws, SLO) for draws in streams]
    low, high = interval(goods, near_per_s=near, most_per_s=100.0)
    each = [goodput(fleet, draws, SLO, most_per_s=100.0).rate_per_s for draws in streams]
    assert low < float(np.mean(each)) * 1.01
    assert high > float(np.mean(each)) * 0.99


def test_the_interval_has_no_end_where_a_stream_keeps_every_rate() -> None:
    ends = interval([lambda rate: rate < 5.0, lambda _: True], near_per_s=4.0, most_per_s=math.inf)
    assert ends == (0.0, math.inf)


def test_the_bound_comes_near_the_goodput_of_a_lone_engine_with_equal_requests() -> None:
    count = 4000
    draws = Draws.renewal(np.full(count, 400), np.full(count, 2), seed=1, warm_up=200)
    grid = StepGrid.affine(1e-9, token_s=1e-4, most_sequences=64)
    fleet = Fleet((Instance(grid, 10**7, token_budget=400, most_sequences=64),))
    slo = SloSpec.model_validate({"ttft": {"p90_s": 0.2}})
    most = RateBound(draws, required(slo)).most_rate(fleet)
    assert goodput(fleet, draws, slo, most_per_s=most).rate_per_s > 0.9 * most


def test_limits_on_nothing_are_refused() -> None:
    with pytest.raises(PlannerError, match="without limits"):
        required(SloSpec())


@pytest.mark.parametrize(
    ("rules", "speculation", "named"),
    [({"prefix_caching": True}, None, "prefix_caching"), ({"skew": (0.5,)}, None, "skew"), ({}, 2, "speculation")],
)
def test_fleets_that_may_save_work_have_no_optimistic_rate(
    rules: dict[str, Any], speculation: int | None, named: str
) -> None:
    drafts = None if speculation is None else Speculation(speculation, 0.5, GRID)
    instances = tuple(replace(instance, speculation=drafts) for instance in colocated().instances)
    with pytest.raises(PlannerError, match=named):
        RateBound(stream(60), required(SLO)).most_rate(Fleet(instances, **rules))


def test_attainment_is_the_share_that_keeps_all_limits_on_percentiles() -> None:
    draws, fleet = stream(), colocated()
    run = simulate(fleet, draws.requests(20.0))
    by_hand = (run.ttft_s <= 0.4) & (run.tpot_s <= 0.02)
    assert attainment(run, SLO, draws.warm_up) == pytest.approx(float(by_hand[draws.warm_up :].mean()))


def placements() -> list[Placement]:
    """Splits of six engines, and all of them alike; steady state is wrong about them on purpose."""

    def split(first: int) -> Fleet:
        prefill = Instance(GRID, 50_000, role="prefill", token_budget=1024, most_sequences=64)
        decode = Instance(GRID, 50_000, role="decode", most_sequences=64)
        return Fleet((prefill,) * first + (decode,) * (6 - first))

    splits = [Placement(f"{n} + {6 - n}", lambda n=n: split(n), 1.0, float(n)) for n in range(1, 6)]  # type: ignore[misc]
    return [*splits, Placement("6", lambda: colocated(6), 1.0, 0.5)]


def test_a_pruned_search_finds_what_simulating_everything_finds() -> None:
    draws = stream(1500)
    full = search_placements(placements(), draws, SLO, everything=True)
    pruned = search_placements(placements(), draws, SLO)
    assert pruned.worth >= full.worth * 0.98
    assert pruned.runs < full.runs
    assert full.worth <= full.bound
    assert pruned.bound == full.bound


def test_reversals_are_pairs_that_steady_state_orders_the_other_way() -> None:
    search = search_placements(placements(), stream(1500), SLO, everything=True)
    rates = [trial.goodput_per_s or 0.0 for trial in search.tried]
    steady = [placement.steady_per_s or 0.0 for placement in search.placements]
    pairs = reversals(search)
    assert pairs
    for a, b in pairs:
        assert rates[a] > rates[b]
        assert steady[a] < steady[b]


def test_a_search_that_may_try_little_says_what_it_left() -> None:
    search = search_placements(placements(), stream(600), SLO, most_tried=1, everything=True)
    assert search.count("simulated") == 1
    assert search.count("left") + search.count("excluded") == 5


def test_requests_of_a_single_token_keep_any_limit_on_the_time_per_token() -> None:
    draws = Draws.renewal(np.full(50, 100), np.full(50, 1), seed=2)
    slo = SloSpec.model_validate({"tpot": {"mean_s": 1e-6}})
    assert kept(simulate(colocated(), draws.requests(1.0)), slo)
