"""Elastic sequence parallelism: its limit of one instance, conservation, and what elasticity is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.simulate.elastic import ElasticFleet, simulate_elastic
from planner.simulate.engine import simulate
from planner.simulate.fleet import Fleet, Instance
from planner.simulate.requests import Requests
from planner.simulate.step_grid import StepGrid

GRID = StepGrid.affine(4e-3, sequence_s=2e-5, context_s=3e-9, token_s=2e-5, pair_s=1e-9)


def poisson(seed: int, count: int, rate_per_s: float, longest: int = 400) -> Requests:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests.open_stream(arrival_s, rng.integers(1, longest, count), rng.integers(1, 60, count))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), rate=st.sampled_from([0.5, 1.0]))
def test_one_instance_without_overlap_is_the_engine_that_prefills_first(seed: int, rate: float) -> None:
    requests = poisson(seed, 60, rate)  # requests that seldom meet: no borrowing, no batches of several prompts
    alone = np.diff(requests.arrival_s, append=np.inf) > 1.0
    elastic = simulate_elastic(ElasticFleet(GRID, 1, 20_000, 512, borrows=False), requests)
    plain = simulate(
        Fleet((Instance(GRID, 20_000, policy="prefill-first", token_budget=512, reserves=True),), block_tokens=1),
        requests,
    )
    before = np.concatenate([[True], alone[:-1]])
    both = alone & before
    assert both.any()
    assert elastic.ttft_s[both] == pytest.approx(plain.ttft_s[both], rel=1e-9)
    assert elastic.finished_s[both] == pytest.approx(plain.finished_s[both], rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), instances=st.integers(1, 4), borrows=st.booleans())
def test_every_request_that_fits_is_answered_in_order_of_its_stages(seed: int, instances: int, borrows: bool) -> None:
    requests = poisson(seed, 80, 30.0)
    result = simulate_elastic(ElasticFleet(GRID, instances, 700, 512, borrows=borrows), requests)
    fits = requests.input_tokens + requests.output_tokens <= 700 * instances
    assert np.array_equal(~np.isnan(result.finished_s), fits)
    assert np.all(result.started_s[fits] >= requests.arrival_s[fits])
    assert np.all(result.first_token_s[fits] > result.started_s[fits])
    assert np.all(result.finished_s[fits] >= result.first_token_s[fits])
    assert np.array_equal(result.degrees > 0, fits)
    assert int(result.degrees.max(initial=0)) <= instances


def test_a_lone_long_prompt_is_prefilled_by_all_instances_and_short_ones_share_them() -> None:
    lone = Requests.open_stream([0.0], [50_000], [3])
    assert simulate_elastic(ElasticFleet(GRID, 4, 100_000, 512), lone).degrees.tolist() == [4]
    many = Requests.open_stream([0.0] * 4, [400] * 4, [3] * 4)
    assert int(simulate_elastic(ElasticFleet(GRID, 4, 100_000, 512), many).degrees.max()) < 4


def test_a_request_may_be_longer_than_an_instance_has_room_for() -> None:
    requests = Requests.open_stream([0.0], [1_000], [10])
    assert not np.isnan(simulate_elastic(ElasticFleet(GRID, 2, 600, 512), requests).finished_s[0])
    assert np.isnan(simulate_elastic(ElasticFleet(GRID, 1, 600, 512), requests).finished_s[0])


def test_slow_rings_and_exchanges_cost_time() -> None:
    requests = Requests.open_stream([0.0], [50_000], [30])
    plain = simulate_elastic(ElasticFleet(GRID, 4, 20_000, 512), requests)
    ring = simulate_elastic(ElasticFleet(GRID, 4, 20_000, 512, ring_tokens_per_s=1e4), requests)
    exchange = simulate_elastic(ElasticFleet(GRID, 4, 20_000, 512, exchange_s=1e-3), requests)
    assert float(ring.ttft_s[0]) == pytest.approx(0.75 * 50_000 / 1e4)
    assert float(exchange.finished_s[0] - plain.finished_s[0]) == pytest.approx(29e-3)


def test_closed_loops_and_impossible_fleets_are_refused() -> None:
    with pytest.raises(PlannerError, match="given times"):
        simulate_elastic(ElasticFleet(GRID, 1, 600, 512), Requests.closed_loop([5] * 3, [5] * 3, clients=1))
    with pytest.raises(PlannerError, match="at least 1"):
        ElasticFleet(GRID, 0, 600, 512)
