"""Estimates replay benchmarks with a loop of their own; what both it and the simulator can run, they time alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="both loops are compiled by numba")

from closed_loops import simulated
from plain_loops import plain_loop

from planner.estimate.closed_loop import simulate_loops

STEPS_S = (0.0, 1e-4, 2e-3)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 24),
    rounds=st.integers(1, 6),
    isl=st.integers(1, 3000),
    osl=st.integers(2, 60),
    chunk=st.sampled_from([256, 2048, 8192]),
    most=st.sampled_from([2, 9, 64]),
    slope_s=st.sampled_from(STEPS_S),
    start_s=st.sampled_from(STEPS_S),
    least_s=st.sampled_from([0.0, 0.03]),
    first=st.sampled_from([0.0, 1.0]),
)
def test_a_colocated_rank_has_the_same_times_in_both(
    clients: int, rounds: int, isl: int, osl: int, chunk: int, most: int, slope_s: float, start_s: float,
    least_s: float, first: float,
) -> None:  # fmt: skip
    loop = plain_loop(
        clients=clients, requests_per_client=rounds + 8, isl=isl, osl=osl, step_tokens=chunk, most_decoding=most,
        slope_s=slope_s, start_s=start_s, least_s=least_s, prefill_first=first,
    )  # fmt: skip
    replay, run = simulate_loops(loop), simulated(loop)
    assert replay.ttft_s[0] == pytest.approx(run.ttft_s[0], rel=1e-9)
    assert replay.tpot_s[0] == pytest.approx(run.tpot_s[0], rel=1e-9)


def test_a_lone_client_of_prefill_and_decode_apart_has_the_same_times_in_both() -> None:
    loop = plain_loop(requests_per_client=20, isl=1000, osl=200, step_tokens=1000, disaggregated=1.0, moved_s=0.02)
    replay, run = simulate_loops(loop), simulated(loop)
    assert replay.ttft_s[0] == pytest.approx(run.ttft_s[0], rel=1e-9)
    assert replay.tpot_s[0] == pytest.approx(run.tpot_s[0], rel=1e-9)


@pytest.mark.parametrize("clients", [8, 40])
def test_apart_clients_decode_alike_in_both_and_stay_in_step_in_the_simulator_alone(clients: int) -> None:
    """In the replay a sequence joins a step that has begun, so that equal clients spread; whole steps keep them
    together, and more of their prompts wait for each other.
    """
    loop = plain_loop(
        clients=clients, requests_per_client=20, isl=1000, osl=200, step_tokens=1000, disaggregated=1.0, moved_s=0.02
    )
    replay, run = simulate_loops(loop), simulated(loop)
    assert replay.tpot_s[0] == pytest.approx(run.tpot_s[0], rel=0.03)
    assert replay.ttft_s[0] <= run.ttft_s[0]


@pytest.mark.parametrize("members", [1, 2, 4])
@pytest.mark.parametrize("clients", [6, 24, 64])
def test_ranks_that_prefill_together_have_nearly_the_same_times_in_both(members: int, clients: int) -> None:
    loop = plain_loop(
        clients=clients, requests_per_client=10, isl=1000, osl=200, step_tokens=2000, disaggregated=1.0, moved_s=0.02,
        prefill_ranks=4, prefill_members=members, token_s=1e-4, start_s=5e-3, spread=0.2, osl_spread=0.2,
    )  # fmt: skip
    replay, run = simulate_loops(loop), simulated(loop)
    assert replay.ttft_s[0] == pytest.approx(run.ttft_s[0], rel=0.08)
    assert replay.tpot_s[0] == pytest.approx(run.tpot_s[0], rel=0.01)


@pytest.mark.parametrize(("clients", "most"), [(3, 1), (8, 4), (40, 30)])
def test_clients_are_handed_over_before_they_wait_for_a_place_in_both(clients: int, most: int) -> None:
    loop = plain_loop(
        clients=clients, requests_per_client=20, isl=1000, osl=200, step_tokens=1000, disaggregated=1.0, moved_s=0.3,
        most_decoding=most,
    )  # fmt: skip
    replay, run = simulate_loops(loop), simulated(loop)
    assert replay.ttft_s[0] == pytest.approx(run.ttft_s[0], rel=0.01)
    assert replay.tpot_s[0] == pytest.approx(run.tpot_s[0], rel=0.01)


def test_steps_of_the_simulator_are_those_of_the_loop() -> None:
    loop = plain_loop(clients=1, isl=500, osl=11, requests_per_client=8, slope_s=1e-3, start_s=0.05)
    run = simulated(loop)
    assert run.ttft_s[0] == pytest.approx(0.01 + 0.05 + 500 * 1e-5)
    assert run.tpot_s[0] == pytest.approx(0.01 + 1e-3)
