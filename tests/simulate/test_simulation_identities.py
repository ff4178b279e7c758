"""What queueing theory and bookkeeping say of any run."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run import engine
from planner.simulate.run.engine import simulate, simulate_streams
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import attained
from planner.solvers.stochastic.queueing import mean_wait_s

GRID = StepGrid.affine(4e-3, sequence_s=2e-5, context_s=3e-9, token_s=2e-5, pair_s=1e-9)
ROOMY = Fleet((Instance(GRID, 2**50, token_budget=256, most_sequences=64),))
FEW = settings(max_examples=25, deadline=None)


def poisson(seed: int, count: int, rate_per_s: float, *, most: int = 400) -> Requests:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    return Requests.open_stream(arrival_s, rng.integers(1, most, count), rng.integers(1, most, count))


def equal_requests(count: int, isl: int, osl: int, *, clients: int) -> Requests:
    return Requests.closed_loop(np.full(count, isl), np.full(count, osl), clients=clients)


def fleet(*, replicas: int = 1, grid: StepGrid = GRID, kv_tokens: int = 20_000, **rules: object) -> Fleet:
    instance = Instance(grid, kv_tokens, most_sequences=32, token_budget=512)
    return replace(Fleet((instance,) * replicas), **rules)  # type: ignore[arg-type]  # fields by name


def test_one_server_obeys_lindleys_recursion_exactly() -> None:
    rng = np.random.default_rng(0)
    arrival_s, prompts = np.cumsum(rng.exponential(0.02, 5000)), rng.integers(1, 900, 5000)
    instance = Instance(GRID, 2**20, most_sequences=1, token_budget=1024)
    result = simulate(Fleet((instance,)), Requests.open_stream(arrival_s, prompts, np.ones(5000)))
    alone = Requests.open_stream([0.0], [1], [1])
    free_s, ends_s = 0.0, []
    for arrival, tokens in zip(arrival_s.tolist(), prompts.tolist(), strict=True):
        request = replace(alone, input_tokens=np.array([tokens]))
        free_s = max(free_s, arrival) + service_s(request, instance)
        ends_s.append(free_s)
    assert result.finished_s.tolist() == ends_s


def test_a_watched_run_ends_in_equal_bytes_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PIECE_EVENTS", 7)
    requests, calls = poisson(3, 300, 30.0), []
    watched = simulate(ROOMY, requests, watch=lambda: calls.append(1))
    whole = simulate(ROOMY, requests)
    assert watched.finished_s.tobytes() == whole.finished_s.tobytes()
    assert watched.num_events == whole.num_events
    assert len(calls) >= whole.num_events // 7
    assert simulate(ROOMY, requests, most_events=50, watch=lambda: None).num_events == 50

    def end() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        simulate(ROOMY, requests, watch=end)


def test_streams_side_by_side_have_equal_bytes_and_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_processors", lambda: 3)
    streams = [poisson(seed, 400, 60.0) for seed in range(7)]
    shared = fleet(replicas=2, kv_tokens=2_000)
    for beside, requests in zip(simulate_streams(shared, streams, seed=5), streams, strict=True):
        alone = simulate(shared, requests, seed=5)
        assert beside.finished_s.tobytes() == alone.finished_s.tobytes()
        assert beside.num_events == alone.num_events
    assert simulate_streams(shared, []) == []

    def end() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        simulate_streams(shared, streams, watch=end)


def service_s(request: Requests, instance: Instance, known: dict[int, float] = {}) -> float:  # noqa: B006 - a cache
    tokens = int(request.input_tokens[0])
    if tokens not in known:
        known[tokens] = float(simulate(Fleet((instance,)), request).finished_s[0])
    return known[tokens]


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "count"), [(0.3, 1_000_000), (0.6, 1_000_000), (0.8, 4_000_000)])
def test_mean_wait_of_millions_of_arrivals_is_that_of_m_d_1(rho: float, count: int) -> None:
    """Simulated as Lindley's recursion has it for a million arrivals; the mean of a long queue needs more of them."""
    service = 1.0
    arrival_s = np.cumsum(np.random.default_rng(1).exponential(service / rho, count))
    before_s = service * np.arange(count)
    started_s = before_s + np.maximum.accumulate(arrival_s - before_s)  # W(n+1) = max(0, W(n) + S - A), all at once
    waited = float(np.mean(started_s - arrival_s))
    assert waited == pytest.approx(float(mean_wait_s(rho, 1, service, cv2_service=0.0)), rel=0.01)
    grid = StepGrid.affine(service, most_sequences=1)
    instance = Instance(grid, 64, most_sequences=1, token_budget=8)
    first = np.ones(1_000_000)
    result = simulate(Fleet((instance,)), Requests.open_stream(arrival_s[: len(first)], first, first))
    np.testing.assert_allclose(result.started_s, started_s[: len(first)], rtol=0.0, atol=1e-5 * service)


def test_littles_law_holds_for_a_closed_loop() -> None:
    result = simulate(ROOMY, equal_requests(24 * 40, 300, 200, clients=24))
    arrival_s, finished_s = result.arrival_s[240:], result.finished_s[240:]
    rate_per_s = len(arrival_s) / float(finished_s.max() - arrival_s.min())
    assert rate_per_s * float((finished_s - arrival_s).mean()) == pytest.approx(24, rel=0.03)


@FEW
@given(seed=st.integers(0, 2**16), kv_tokens=st.sampled_from([1_200, 4_000, 20_000]), replicas=st.integers(1, 3))
def test_requests_and_tokens_are_conserved_and_the_cache_never_overflows(
    seed: int, kv_tokens: int, replicas: int
) -> None:
    requests = poisson(seed, 300, 60.0)
    result = simulate(fleet(replicas=replicas, kv_tokens=kv_tokens), requests)
    assert result.drained
    assert np.all(result.complete | result.rejected)
    done = result.complete
    again = int(result.preempted.sum())
    by_prefill = int(requests.output_tokens[done].sum()) - int(result.decode_tokens.sum())
    assert int(done.sum()) <= by_prefill <= int(done.sum()) + again
    if again == 0:
        assert int(result.prefill_tokens.sum()) == int(requests.input_tokens[done].sum())
    assert np.all(result.peak_blocks <= result.capacity_blocks)
    assert_in_order(result)


def assert_in_order(result: SimulationResult) -> None:
    done = result.complete
    times = (result.arrival_s, result.started_s, result.prefilled_s, result.first_token_s, result.finished_s)
    for before, after in pairwise(times):
        assert np.all(before[done] <= after[done])


def test_an_instance_with_work_is_never_idle() -> None:
    requests = poisson(3, 400, 1e6)
    result = simulate(fleet(), requests)
    first, last = float(np.min(requests.arrival_s)), float(np.max(result.finished_s))
    assert float(result.busy_s[0]) == pytest.approx(last - first, rel=1e-9)


@FEW
@given(seed=st.integers(0, 2**16), power=st.integers(-3, 5))
def test_time_scales_exactly_by_powers_of_two(seed: int, power: int) -> None:
    scale, requests = 2.0**power, poisson(seed, 120, 40.0)
    slow = StepGrid(
        GRID.decode_s * scale, GRID.mixed_s * scale, GRID.batches, GRID.contexts, GRID.tokens, GRID.attended
    )
    base = simulate(fleet(), requests)
    scaled = simulate(fleet(grid=slow), replace(requests, arrival_s=requests.arrival_s * scale))
    assert (base.finished_s * scale).tolist() == scaled.finished_s.tolist()
    assert (base.ttft_s * scale).tolist() == scaled.ttft_s.tolist()


@FEW
@given(seed=st.integers(0, 2**16))
def test_equal_seeds_give_equal_bytes(seed: int) -> None:
    runs = [simulate(fleet(replicas=3, routing="power-of-two"), poisson(seed, 150, 80.0), seed=seed) for _ in range(2)]
    assert runs[0].finished_s.tobytes() == runs[1].finished_s.tobytes()
    assert runs[0].home.tobytes() == runs[1].home.tobytes()


@FEW
@given(seed=st.integers(0, 2**16))
def test_more_instances_lower_rates_and_faster_kernels_do_not_hurt(seed: int) -> None:
    requests = poisson(seed, 400, 60.0)
    base = float(np.nanmean(simulate(fleet(), requests).e2e_s))
    calm = replace(requests, arrival_s=requests.arrival_s * 4.0)
    fast = StepGrid(GRID.decode_s / 2, GRID.mixed_s / 2, GRID.batches, GRID.contexts, GRID.tokens, GRID.attended)
    assert float(np.nanmean(simulate(fleet(replicas=4), requests).e2e_s)) <= base
    assert float(np.nanmean(simulate(fleet(), calm).e2e_s)) <= base
    assert float(np.nanmean(simulate(fleet(grid=fast), requests).e2e_s)) <= base


def test_looser_limits_are_kept_by_no_fewer_requests() -> None:
    result = simulate(fleet(), poisson(7, 400, 60.0))
    shares = [
        float(attained(result, (SloSpec.model_validate({"ttft": {"p99": limit}, "tpot": {"p99": "20ms"}}),)).mean())
        for limit in ("20ms", "100ms", "400ms", "5s")
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_a_prompt_beyond_the_cache_is_rejected_and_counted() -> None:
    requests = Requests.open_stream([0.0, 1.0, 2.0], [100, 30_000, 100], [10, 10, 10])
    result = simulate(fleet(), requests)
    assert result.rejected.tolist() == [False, True, False]
    assert result.complete.tolist() == [True, False, True]


def test_a_run_that_is_cut_says_that_it_has_not_drained() -> None:
    result = simulate(fleet(), poisson(0, 200, 40.0), limit_s=1.0)
    assert not result.drained
    assert 0 < result.num_unfinished < 200


@pytest.mark.parametrize(
    ("arrival_s", "tokens", "message"),
    [([0.0, -1.0], [1, 1], "-1 s"), ([2.0, 1.0], [1, 1], "after one at 2 s"), ([0.0, 1.0], [1, 0], "input_tokens 0")],
)
def test_bad_requests_are_refused_by_number(arrival_s: list[float], tokens: list[int], message: str) -> None:
    with pytest.raises(PlannerError, match=f"request 1: .*{message}"):
        Requests.open_stream(arrival_s, tokens, [1, 1])


def test_an_unknown_policy_is_refused_with_the_nearest() -> None:
    with pytest.raises(PlannerError, match="least-loaded"):
        fleet(routing="least-load")


def test_a_lone_client_is_answered_time_after_time_as_fast_as_a_single_request() -> None:
    single = simulate(ROOMY, equal_requests(1, 120, 40, clients=1))
    result = simulate(ROOMY, equal_requests(61, 120, 40, clients=1))
    assert result.arrival_s.tolist() == [0.0, *result.finished_s[:-1].tolist()]
    assert result.ttft_s == pytest.approx(float(single.ttft_s[0]))
    assert result.tpot_s == pytest.approx(float(single.tpot_s[0]))
    assert float(result.finished_s[-1]) == pytest.approx(61 * float(single.finished_s[0]))


def test_a_closed_loop_that_cannot_be_is_refused_and_one_that_finds_no_room_goes_on() -> None:
    with pytest.raises(PlannerError, match="input_tokens 0"):
        equal_requests(61, 0, 40, clients=12)
    with pytest.raises(PlannerError, match="at least 1 client"):
        equal_requests(61, 80, 40, clients=0)
    tight = Fleet((replace(ROOMY.instances[0], kv_tokens=100),))
    result = simulate(tight, equal_requests(61, 80, 40, clients=12))
    assert result.rejected.all()


def test_the_feedback_queue_answers_short_requests_before_long_ones_that_came_first() -> None:
    outputs = np.array([400] * 4 + [4] * 8)
    requests = Requests.open_stream(np.arange(12) * 0.01, np.full(12, 20), outputs)
    instance = Instance(GRID, 20_000, most_sequences=4, token_budget=512, preemption="swap", host_kv_tokens=20_000)
    queued = simulate(Fleet((instance,)), requests)
    fed_back = simulate(Fleet((instance,), queueing="feedback", quantum_s=0.05), requests)
    assert float(queued.e2e_s[4:].min()) > 1.0
    assert float(fed_back.e2e_s[4:].max()) < 0.5
    assert fed_back.drained


def test_requests_beyond_the_step_times_are_refused() -> None:
    few = StepGrid(
        np.zeros((9, 2)), np.zeros((2, 2, 2, 2)), *(np.array([0.0, most]) for most in (8.0, 99.0, 64.0, 99.0))
    )
    instance = Instance(few, 1000, most_sequences=8, token_budget=64)
    with pytest.raises(PlannerError, match="end at a context of 99 tokens, the longest request has 149"):
        simulate(Fleet((instance,)), Requests.open_stream([0.0], [50], [100]))
    with pytest.raises(PlannerError, match="end at 64 tokens of prefill, a step may have 100"):
        simulate(Fleet((replace(instance, token_budget=100),)), Requests.open_stream([0.0], [50], [10]))
    with pytest.raises(PlannerError, match="step times end at 8 sequences, the instance runs 9"):
        replace(instance, most_sequences=9)


def test_migration_saves_preemptions_where_load_is_uneven() -> None:
    rng = np.random.default_rng(5)
    outputs = np.where(np.arange(240) % 4 == 0, 900, rng.integers(10, 60, 240))  # every fourth is long: all to one
    requests = Requests.open_stream(np.arange(240) * 0.05, np.full(240, 60), outputs)
    instance = Instance(GRID, 6_000, most_sequences=64, token_budget=512, link_tokens_per_s=1e5)
    still = simulate(Fleet((instance,) * 4, routing="round-robin"), requests)
    moving = simulate(Fleet((instance,) * 4, routing="round-robin", migration_period_s=0.2), requests)
    assert int(still.preemptions.sum()) > 20
    assert int(moving.preemptions.sum()) < int(still.preemptions.sum()) / 2
    assert float(np.quantile(moving.e2e_s, 0.99)) < float(np.quantile(still.e2e_s, 0.99))
    assert int(moving.migrations.sum()) > 0
    assert moving.drained
