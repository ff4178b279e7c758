"""Every mechanism of the simulator that costs and gives nothing leaves the run as it is without it, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import for_models

from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, Instance, MemoryTier, Speculation
from planner.simulate.fleet.operation import Change, Control, PoolLink
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

GRID = StepGrid.affine(4e-3, sequence_s=2e-5, context_s=3e-9, token_s=2e-5, pair_s=1e-9)
TIGHT = Instance(GRID, 3_000, most_sequences=32, token_budget=512)
ROOMY = replace(TIGHT, kv_tokens=20_000)
PREFILL, DECODE = replace(ROOMY, role="prefill"), replace(ROOMY, role="decode", link_tokens_per_s=1e5)
FEW = settings(max_examples=15, deadline=None)


def poisson(seed: int, count: int = 200, rate_per_s: float = 60.0) -> Requests:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests.open_stream(arrival_s, rng.integers(1, 400, count), rng.integers(1, 400, count))


def times(fleet: Fleet, requests: Requests) -> bytes:
    result = simulate(fleet, requests)
    assert result.drained
    return result.first_token_s.tobytes() + result.finished_s.tobytes()


@FEW
@given(seed=st.integers(0, 2**16))
def test_mechanisms_of_engines_that_cost_and_give_nothing_change_no_bit(seed: int) -> None:
    requests = poisson(seed)
    plain, roomy = times(Fleet((TIGHT,)), requests), times(Fleet((ROOMY,)), requests)
    never = requests.with_prefixes([[("own", r)] for r in range(len(requests))], block_tokens=16)
    assert times(Fleet((replace(TIGHT, preemption="swap", host_kv_tokens=0),)), requests) == plain
    assert times(Fleet((TIGHT,), queueing="priority"), requests) == plain
    assert times(Fleet((TIGHT,), routing="freeness"), requests) == plain
    assert times(Fleet((ROOMY,), prefix_caching=True), never) == roomy
    assert times(Fleet((ROOMY,), prefix_caching=True, tiers=(MemoryTier(10**6),)), never) == roomy
    for speculation in (Speculation(0, 0.9, GRID), Speculation(4, 0.0, GRID)):
        assert times(Fleet((replace(TIGHT, speculation=speculation),)), requests) == plain
    adapters = for_models(requests, 0, np.arange(len(requests)) % 7)
    assert times(Fleet((TIGHT,)), adapters) == plain
    assert times(Fleet((replace(TIGHT, adapter_slots=7),)), adapters) == plain


@FEW
@given(seed=st.integers(0, 2**16))
def test_mechanisms_of_fleets_that_cost_and_give_nothing_change_no_bit(seed: int) -> None:
    requests = poisson(seed)
    pair = (TIGHT, TIGHT)
    plain = times(Fleet(pair), requests)
    assert times(Fleet(pair, groups=(1, 1)), requests) == plain
    assert times(Fleet(pair, migration_period_s=0.1, crowded_below=-1e9), requests) == plain
    assert times(Fleet(pair, control=Control(0.5)), requests) == plain
    never = (Change(1e6, 0, "fail"), Change(0.0, 1, "start"))
    assert times(Fleet(pair, changes=never), requests) == plain
    assert times(Fleet((*pair, replace(TIGHT, up=False))), requests) == plain
    assert times(Fleet((*pair, replace(TIGHT, model=1))), requests) == plain
    apart = Fleet((PREFILL, DECODE))
    wide = replace(apart, instances=(PREFILL, replace(DECODE, pool=1)), pool_links=(PoolLink(0, 1, float("inf")),))
    assert times(wide, requests) == times(apart, requests)


def test_equal_ranks_with_equal_requests_wait_for_nobody() -> None:
    twice = np.repeat(np.cumsum(np.random.default_rng(0).exponential(0.1, 60)), 2)
    requests = Requests.open_stream(twice, np.full(120, 50), np.full(120, 30))
    alone, together = (Fleet((ROOMY, ROOMY), routing="round-robin", groups=groups) for groups in ((), (2,)))
    assert times(alone, requests) == times(together, requests)


def test_ranks_that_step_together_are_as_slow_as_the_slowest_and_skew_makes_them_slower() -> None:
    requests = poisson(1)
    means = [
        float(np.mean(simulate(Fleet((ROOMY, ROOMY), **rules), requests).e2e_s))
        for rules in ({}, {"groups": (2,)}, {"groups": (2,), "skew": (1.0, 1.6)})
    ]
    assert means[0] < means[1] < means[2]


def test_right_drafts_save_steps_as_their_chance_says() -> None:
    requests = Requests.open_stream(np.arange(40) * 20.0, np.full(40, 10), np.full(40, 401))
    alone = replace(ROOMY, speculation=Speculation(3, 0.7, GRID))
    result = simulate(Fleet((alone,)), requests)
    expected = 1 + 0.7 + 0.7**2 + 0.7**3  # tokens a step: Leviathan et al., arXiv:2211.17192, eq. (1)
    assert 400 * 40 / (int(result.steps[0]) - 40) == pytest.approx(expected, rel=0.02)
    assert int(result.decode_tokens[0]) == 400 * 40
    assert int(result.accepted_tokens[0]) == 400 * 40 - (int(result.steps[0]) - 40)


def test_a_failed_instance_loses_no_request_and_no_token() -> None:
    requests = poisson(2)
    changes = (Change(1.0, 0, "fail"), Change(2.0, 0, "start"), Change(2.5, 1, "fail"), Change(3.0, 1, "start"))
    result = simulate(Fleet((ROOMY, ROOMY), changes=changes), requests)
    assert result.drained
    assert np.all(result.complete)
    assert int(result.preempted.sum()) > 0
    assert result.up_s.tolist() == pytest.approx([result.end_s - 1.0, result.end_s - 0.5])
    assert_slower(result, simulate(Fleet((ROOMY, ROOMY)), requests))


def assert_slower(slow: SimulationResult, fast: SimulationResult) -> None:
    assert float(np.mean(slow.e2e_s)) > float(np.mean(fast.e2e_s))


def test_requests_wait_for_an_instance_to_start_and_are_left_where_none_does() -> None:
    requests = poisson(3, 20)
    off = replace(ROOMY, up=False)
    late = simulate(Fleet((off,), changes=(Change(30.0, 0, "start"),)), requests)
    assert late.drained
    assert float(late.started_s.min()) == 30.0
    assert not simulate(Fleet((off,), changes=(Change(30.0, 0, "drain"),)), requests).drained


def test_autoscaling_pays_for_fewer_instances_and_keeps_every_request() -> None:
    rng = np.random.default_rng(4)
    calm, busy = np.sort(rng.uniform(0, 100, 100)), np.sort(rng.uniform(100, 130, 4500))
    requests = Requests.open_stream(np.concatenate([calm, busy]), np.full(4600, 200), np.full(4600, 100))
    fleet = Fleet((ROOMY, *[replace(ROOMY, up=False)] * 5))
    single, scaled, all_up = (
        simulate(candidate, requests)
        for candidate in (
            Fleet((ROOMY,)),
            replace(fleet, control=Control(1.0, crowded_above=20.0, idle_below=4.0, start_s=3.0)),
            Fleet((ROOMY,) * 6),
        )
    )
    assert scaled.drained
    assert float(scaled.up_s.sum()) < 0.6 * float(all_up.up_s.sum())
    assert float(np.quantile(scaled.ttft_s, 0.99)) < 0.5 * float(np.quantile(single.ttft_s, 0.99))


def test_roles_flip_to_where_requests_wait() -> None:
    requests = Requests.open_stream(np.arange(400) * 0.02, np.full(400, 1500), np.full(400, 4))
    fleet = Fleet((PREFILL, DECODE, DECODE, DECODE))
    fixed = simulate(fleet, requests)
    flipping = simulate(replace(fleet, control=Control(0.5, flip_above=4.0)), requests)
    assert flipping.drained
    assert float(np.mean(flipping.ttft_s)) < 0.7 * float(np.mean(fixed.ttft_s))


def test_a_shared_link_between_pools_slows_what_moves_over_it() -> None:
    requests = poisson(5)
    goal = replace(DECODE, pool=1)
    rates = (float("inf"), 3e4, 1.2e4)
    fleets = [Fleet((PREFILL, PREFILL, goal, goal), pool_links=(PoolLink(0, 1, rate),)) for rate in rates]
    means = [float(np.mean(simulate(fleet, requests).ttft_s)) for fleet in fleets]
    assert means[0] < means[1] < means[2]


def test_a_store_that_instances_share_saves_what_each_would_compute_for_itself() -> None:
    count, shared = 120, [("system", block) for block in range(20)]
    blocks = [[*shared, *(("own", r, block) for block in range(5))] for r in range(count)]
    base = Requests.open_stream(np.arange(count) * 0.5, np.full(count, 400), np.full(count, 5))
    requests = base.with_prefixes(blocks, block_tokens=16)
    apart = Fleet((ROOMY,) * 6, routing="round-robin", prefix_caching=True)
    pooled = replace(apart, tiers=(MemoryTier(10_000),))
    computed = [int(simulate(fleet, requests).prefill_tokens.sum()) for fleet in (apart, pooled)]
    assert computed == [400 * count - 320 * (count - 6), 400 * count - 320 * (count - 1)]
    slow = simulate(replace(apart, tiers=(MemoryTier(10_000, request_tokens_per_s=1e3),)), requests)
    assert float(slow.ttft_s.max()) > 0.32


def test_each_model_has_its_instances_and_each_adapter_its_slot() -> None:
    requests = for_models(poisson(6), np.arange(200) % 2, np.arange(200) % 5 - 1)
    few = replace(ROOMY, adapter_slots=2, adapter_load_s=0.05)
    result = simulate(Fleet((few, replace(few, model=1))), requests)
    assert result.drained
    assert result.home.tolist() == (np.arange(200) % 2).tolist()
    assert int(result.adapter_loads.min()) > 4


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"groups": (3,)}, "groups of 3 for 2 instances"),
        ({"skew": (1.0, 0.0)}, "not above 0"),
        ({"changes": (Change(1.0, 2, "fail"),)}, "a change of instance 2"),
        ({"pool_links": (PoolLink(0, 1, 5.0),)}, "from pool 0 to pool 1"),
    ],
)
def test_an_operation_that_the_fleet_does_not_have_is_refused(rules: dict[str, object], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        Fleet((ROOMY, ROOMY), **rules)  # type: ignore[arg-type]  # fields by name


def test_actions_rates_and_models_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlannerError, match="unknown action `stop`"):
        Change(1.0, 0, "stop")
    with pytest.raises(PlannerError, match="at -1 s"):
        Change(-1.0, 0, "fail")
    with pytest.raises(PlannerError, match="period_s"):
        Control(0.0)
    with pytest.raises(PlannerError, match=r"acceptance of 1\.5"):
        Speculation(2, 1.5, GRID)
    with pytest.raises(PlannerError, match="request 0 is for model 1"):
        simulate(Fleet((ROOMY,)), for_models(poisson(0), 1))


def test_an_instance_takes_caches_from_slow_senders_at_once() -> None:
    senders = (replace(PREFILL, link_tokens_per_s=1e3),) * 4
    requests = Requests.open_stream(np.zeros(4), [500] * 4, [2] * 4)
    fleet = Fleet((*senders, replace(DECODE, link_tokens_per_s=1e6)), routing="round-robin")
    moved_s = (result := simulate(fleet, requests)).first_token_s - result.prefilled_s
    assert moved_s == pytest.approx([0.5] * 4, rel=1e-9)
    narrow = replace(fleet, instances=(*senders, replace(DECODE, link_tokens_per_s=1e3)))
    waits_s = np.sort(simulate(narrow, requests).first_token_s - result.prefilled_s)
    assert waits_s == pytest.approx([0.5, 1.0, 1.5, 2.0], rel=1e-9)


def test_a_request_is_handed_over_before_it_waits_for_a_place_and_its_cache_moves() -> None:
    """Two prompts at once, one place: the second waits for the end of the first, in which it is handed over as well."""
    narrow = replace(DECODE, most_sequences=1, link_latency_s=0.1)
    requests = Requests.open_stream([0.0, 0.0, 9.0], [64] * 3, [50, 50, 1])
    at_once = Fleet((PREFILL, narrow))
    late = replace(at_once, handover_s=0.2)
    (plain, run), moves_s = (simulate(fleet, requests) for fleet in (at_once, late)), 64 / 1e5 + 0.1
    assert run.first_token_s[0] - run.prefilled_s[0] == pytest.approx(0.2 + moves_s, rel=1e-9)
    assert run.first_token_s[1] - run.finished_s[0] == pytest.approx(moves_s, rel=1e-9)
    assert run.first_token_s[2] == run.prefilled_s[2]  # its only token: nothing is handed over
    assert run.finished_s[:2] - plain.finished_s[:2] == pytest.approx([0.2] * 2, rel=1e-9)
    seen = simulate(replace(late, first_token_from="prefill"), requests)
    assert seen.first_token_s.tolist() == run.prefilled_s.tolist()
    assert seen.finished_s.tolist() == run.finished_s.tolist()
