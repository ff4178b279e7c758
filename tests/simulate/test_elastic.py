"""Elastic sequence parallelism: its limit of one instance, conservation, what elasticity is for, what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import for_models

from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, Instance, Speculation
from planner.simulate.fleet.operation import Change, ElasticEngines
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

GRID = StepGrid.affine(4e-3, sequence_s=2e-5, context_s=3e-9, token_s=2e-5, pair_s=1e-9)
ONE = Instance(GRID, 20_000, token_budget=512)


def poisson(seed: int, count: int, rate_per_s: float, longest: int = 400) -> Requests:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests.open_stream(arrival_s, rng.integers(1, longest, count), rng.integers(1, 60, count))


def elastic(instances: int, kv_tokens: int, rules: ElasticEngines | None = None) -> Fleet:
    instance = replace(ONE, kv_tokens=kv_tokens)
    return Fleet((instance,) * instances, block_tokens=1, elastic=rules or ElasticEngines())


def elastic_run(
    requests: Requests, instances: int, kv_tokens: int, rules: ElasticEngines | None = None
) -> SimulationResult:
    return simulate(elastic(instances, kv_tokens, rules), requests)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), rate=st.sampled_from([0.5, 1.0]))
def test_one_instance_without_overlap_is_the_engine_that_prefills_first(seed: int, rate: float) -> None:
    requests = poisson(seed, 60, rate)  # requests that seldom meet: no borrowing, no batches of several prompts
    apart = np.diff(requests.arrival_s, append=np.inf) > 1.0
    apart &= np.concatenate([[True], apart[:-1]])
    assert apart.any()
    plain = replace(ONE, policy="prefill-first", reserves=True)
    whole = simulate(Fleet((plain,), block_tokens=1), requests)
    shared = elastic_run(requests, 1, 20_000, ElasticEngines(borrows=False))
    assert shared.ttft_s[apart] == pytest.approx(whole.ttft_s[apart], rel=1e-12)
    assert shared.finished_s[apart] == pytest.approx(whole.finished_s[apart], rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    instances=st.integers(1, 4),
    borrows=st.booleans(),
    above=st.sampled_from([None, 1, 8]),
)
def test_requests_and_tokens_are_conserved_and_the_cache_holds_them(
    seed: int, instances: int, borrows: bool, above: int | None
) -> None:
    requests = poisson(seed, 80, 30.0)
    result = elastic_run(requests, instances, 700, ElasticEngines(borrows=borrows, scale_up_above=above))
    fits = requests.input_tokens + requests.output_tokens <= 700 * instances
    assert result.drained
    assert np.array_equal(result.complete, fits)
    assert np.all(result.started_s[fits] >= requests.arrival_s[fits])
    assert np.all(result.first_token_s[fits] > result.started_s[fits])
    assert np.all(result.finished_s[fits] >= result.first_token_s[fits])
    assert np.array_equal(result.degree > 0, fits)
    assert int(result.degree.max(initial=0)) <= instances
    assert int(result.prefill_tokens.sum()) == int(requests.input_tokens[fits].sum())
    assert int(result.decode_tokens.sum()) == int((requests.output_tokens[fits] - 1).sum())
    assert np.all(result.peak_blocks <= result.capacity_blocks)
    assert np.all(result.busy_s <= result.end_s * (1 + 1e-12))


def test_a_lone_long_prompt_is_prefilled_by_all_instances_and_short_ones_share_them() -> None:
    lone = Requests.open_stream([0.0], [50_000], [3])
    assert elastic_run(lone, 4, 100_000).degree.tolist() == [4]
    many = Requests.open_stream([0.0] * 4, [400] * 4, [3] * 4)
    assert int(elastic_run(many, 4, 100_000).degree.max()) < 4


def test_a_request_may_be_longer_than_an_instance_has_room_for() -> None:
    requests = Requests.open_stream([0.0], [1_000], [10])
    assert elastic_run(requests, 2, 600).complete.all()
    assert elastic_run(requests, 1, 600).rejected.all()


def test_slow_rings_and_exchanges_cost_time() -> None:
    requests = Requests.open_stream([0.0], [50_000], [30])
    plain = elastic_run(requests, 4, 20_000)
    ring = elastic_run(requests, 4, 20_000, ElasticEngines(ring_tokens_per_s=1e4))
    exchange = elastic_run(requests, 4, 20_000, ElasticEngines(exchange_s=1e-3))
    assert float(ring.ttft_s[0]) == pytest.approx(0.75 * 50_000 / 1e4)
    assert float(exchange.finished_s[0] - plain.finished_s[0]) == pytest.approx(29e-3)


def test_an_instance_that_becomes_idle_takes_its_share_of_many_sequences() -> None:
    requests = Requests.open_stream([0.0] * 12, [5_000] + [3] * 11, [1] + [1_000] * 11)  # the first ends after 0.5 s
    instance = Instance(StepGrid.affine(4e-3, sequence_s=1e-3, token_s=1e-4), 20_000)
    fleets = (Fleet((instance, instance), elastic=ElasticEngines(scale_up_above=above)) for above in (11, 10))
    alone, joined = (simulate(fleet, requests) for fleet in fleets)
    assert alone.degree.tolist() == joined.degree.tolist() == [1] * 12
    assert alone.tpot_s[1:] == pytest.approx(4e-3 + 11 * 1e-3)
    assert 4e-3 + 6 * 1e-3 < float(joined.tpot_s[1]) < 4e-3 + 7 * 1e-3
    assert joined.busy_s[0] == pytest.approx(joined.busy_s[1], rel=0.05)


def test_clients_that_wait_are_served_as_their_answers_come() -> None:
    loop = Requests.closed_loop([200] * 12, [20] * 12, clients=3, think_s=0.1)
    result = elastic_run(loop, 2, 5_000)
    assert result.complete.all()
    assert result.arrival_s[3] == pytest.approx(np.sort(result.finished_s)[0] + 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instances": (ONE, replace(ONE, kv_tokens=10))}, "equal"),
        ({"instances": (ONE,) * 63}, "62"),
        ({"instances": (replace(ONE, speculation=Speculation(2, 0.5, GRID)),)}, "speculative"),
        ({"instances": (replace(ONE, role="prefill"), replace(ONE, role="decode"))}, "equal"),
        ({"groups": (2,)}, "experts"),
        ({"changes": (Change(1.0, 0, "fail"),)}, "changes"),
        ({"prefix_caching": True}, "prefix caching"),
        ({"queueing": "feedback"}, "feedback"),
        ({"routing": "freeness"}, "routing"),
    ],
)
def test_what_elastic_instances_do_not_do_is_refused(change: dict[str, object], message: str) -> None:
    plain = Fleet((ONE, ONE), elastic=ElasticEngines())
    with pytest.raises(PlannerError, match=message):
        replace(plain, **change)  # type: ignore[arg-type]  # one field of the fleet


def test_impossible_rings_and_requests_for_others_are_refused() -> None:
    with pytest.raises(PlannerError, match="ring"):
        ElasticEngines(ring_tokens_per_s=0.0)
    with pytest.raises(PlannerError, match="scale_up_above"):
        ElasticEngines(scale_up_above=0)
    with pytest.raises(PlannerError, match="which no instance serves"):
        simulate(elastic(2, 700), for_models(poisson(0, 5, 1.0), [0, 0, 1, 0, 0]))
    with pytest.raises(PlannerError, match="adapters"):
        simulate(elastic(2, 700), for_models(poisson(0, 5, 1.0), 0, 3))
