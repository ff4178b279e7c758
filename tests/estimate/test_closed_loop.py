"""The closed loop of a benchmark, against cases that can be reckoned by hand and laws that always hold."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the replay is compiled by numba")

from plain_loops import PLAIN, plain_loop

from planner.estimate.closed_loop import ClosedLoops, MeanTimes, simulate_loops


def loop(**changes: float) -> ClosedLoops:
    """A plain loop with changes; answers are spread as prompts are."""
    alike = {"osl_spread": changes["spread"]} if "spread" in changes else {}
    return plain_loop(**{**alike, **changes})


def test_a_lone_client_pays_one_step_with_its_prompt_and_decodes_alone() -> None:
    times = simulate_loops(loop())
    assert times.ttft_s[0] == pytest.approx(0.01 + 2e-3 + 1000 * 1e-5)
    assert times.tpot_s[0] == pytest.approx(0.01 + 1e-4)


def test_prompts_beyond_a_step_take_several() -> None:
    times = simulate_loops(loop(step_tokens=400.0))
    assert times.ttft_s[0] == pytest.approx(3 * (0.01 + 2e-3) + 1000 * 1e-5)


@pytest.mark.parametrize(("whole", "cut"), [(1500.0, 1008.0), (400.0, 1008.0), (2500.0, 2008.0)])
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_prompts_that_are_not_cut_leave_room_in_a_step(apart: float, whole: float, cut: float) -> None:
    """As many of 1,000 tokens share a step as where it hardly has more than theirs; one too long has a step alone."""
    burst = {"clients": 9.0, "requests_per_client": 1.0, "osl": 20.0, "slope_s": 0.0, "token_s": 0.0}
    kept, alike, others = (
        simulate_loops(loop(**burst, disaggregated=apart, step_tokens=tokens, whole_prompts=own)).ttft_s[0]
        for tokens, own in ((whole, 1.0), (cut, 0.0), (whole, 0.0))
    )
    assert kept == pytest.approx(alike, rel=1e-9)
    assert abs(kept / others - 1.0) > 0.04


def test_a_first_burst_waits_for_its_turn() -> None:
    """Of eight requests that start together two fill a step, and none sends another."""
    times = simulate_loops(loop(clients=8.0, requests_per_client=1.0, isl=4096.0, slope_s=0.0, osl=1000.0))
    step = 0.01 + 2e-3 + 4096 * 1e-5
    assert times.ttft_s[0] > 2.5 * step
    assert times.ttft_s[0] < 8 * (0.01 + 2e-3) + 4096 * 8 * 1e-5


def test_what_an_engine_adds_adds_up() -> None:
    plain = simulate_loops(loop()).ttft_s[0]
    added = simulate_loops(loop(frontend_s=0.02, frontend_token_s=4e-6, output_steps=3.0)).ttft_s[0]
    assert added == pytest.approx(plain + 0.02 + 1000 * 4e-6 + 3 * 0.01)


@pytest.mark.parametrize(
    ("ranks", "together", "waits"), [(1.0, 0.0, 4.5), (4.0, 0.0, 4 * 4.5 - 3), (4.0, 1.0, 1.0)], ids=str
)
def test_prompts_are_tokenised_in_turn_or_together(ranks: float, together: float, waits: float) -> None:
    """Of eight clients a rank that start together each waits for the prompts before it, hardly for the device."""
    burst = {"clients": 8.0 * ranks, "decode_ranks": ranks, "requests_per_client": 1.0, "token_s": 1e-9}
    burst |= {"start_s": 0.0, "base_s": 1e-6, "tokenises_together": together}
    added = simulate_loops(loop(**burst, frontend_token_s=5e-6)).ttft_s[0] - simulate_loops(loop(**burst)).ttft_s[0]
    assert added == pytest.approx(waits * 1000 * 5e-6, rel=0.03)


def test_apart_a_prompt_takes_its_server_and_the_way() -> None:
    times = simulate_loops(loop(disaggregated=1.0, moved_s=0.05))
    assert times.ttft_s[0] == pytest.approx(2e-3 + 1000 * 1e-5 + 0.05)
    assert times.tpot_s[0] == pytest.approx(0.01 + 1e-4)


def test_sequences_that_do_not_fit_wait() -> None:
    free, full = simulate_loops(loop(clients=8.0)), simulate_loops(loop(clients=8.0, most_decoding=2.0))
    assert full.ttft_s[0] > free.ttft_s[0] + 100 * 0.01
    assert full.tpot_s[0] < free.tpot_s[0]


def test_clients_of_equal_lengths_stay_in_step_where_prompts_go_first() -> None:
    """Each waits for half of the others' prompts before its first token, and as long behind it."""
    many = {"clients": 32.0, "slope_s": 0.0, "start_s": 0.0, "step_tokens": 1000.0}
    first = simulate_loops(loop(prefill_first=1.0, **many))
    prompt = 0.01 + 1000 * 1e-5
    assert first.ttft_s[0] == pytest.approx(16.5 * prompt, rel=0.02)
    assert first.tpot_s[0] == pytest.approx(0.01 + 15.5 * prompt / 100, rel=0.02)
    assert simulate_loops(loop(**many)).ttft_s[0] < first.ttft_s[0]


def test_clients_that_start_one_after_the_other_wait_less() -> None:
    together, apart = (
        simulate_loops(loop(clients=32.0, requests_per_client=1.0, staggered=share)) for share in (0.0, 1.0)
    )
    assert apart.ttft_s[0] < 0.5 * together.ttft_s[0]


@pytest.mark.parametrize("disaggregated", [0.0, 1.0])
def test_a_client_that_has_its_answer_sends_again_before_others_have_started(disaggregated: float) -> None:
    """Steps of few sequences are far shorter here: the first answers come long before the last client starts."""
    steep = {"base_s": 1e-4, "slope_s": 1e-3, "token_s": 1e-6, "start_s": 1e-4, "disaggregated": disaggregated}
    alone = simulate_loops(loop(**steep)).ttft_s[0]
    many = simulate_loops(loop(clients=32.0, requests_per_client=3.0, staggered=1.0, **steep))
    assert many.ttft_s[0] < alone + 2 * 32 * 1e-3


def test_delayed_prompts_wait_for_as_many_decode_steps() -> None:
    """A prompt that finds another request decoding waits for company at most that long; a step full of prompts goes."""
    plain, delayed = (
        simulate_loops(loop(clients=4.0, spread=0.5, hold_steps=steps)).ttft_s[0] for steps in (0.0, 20.0)
    )
    assert plain + 5 * 0.01 < delayed < plain + 21 * 0.0104
    full, short = (
        simulate_loops(loop(clients=4.0, spread=0.5, hold_steps=steps, step_tokens=400.0)).ttft_s[0]
        for steps in (20.0, 0.0)
    )
    assert full == short


def test_a_step_with_prompts_takes_as_long_as_the_host_launches_it() -> None:
    assert simulate_loops(loop(least_s=0.08)).ttft_s[0] == pytest.approx(0.08)
    assert simulate_loops(loop(least_s=0.001)).ttft_s[0] == simulate_loops(loop()).ttft_s[0]
    assert simulate_loops(loop(disaggregated=1.0, least_s=0.08)).ttft_s[0] == pytest.approx(0.08)


def test_requests_wait_for_their_own_instance() -> None:
    """Two instances of one sequence each, in turn: with spread lengths one often waits while the other idles."""
    pair = {"clients": 2.0, "disaggregated": 1.0, "spread": 0.5, "requests_per_client": 200.0, "decode_ranks": 2.0}
    pooled = simulate_loops(loop(most_decoding=1.0, **pair))
    split = simulate_loops(loop(most_decoding=1.0, decode_instances=2.0, **pair))
    assert split.ttft_s[0] > 1.5 * pooled.ttft_s[0]


def test_requests_that_are_not_simulated_count_as_those_of_later_rounds() -> None:
    """A burst of all clients is one round of ten, however few of the ten are simulated."""
    shape = {"clients": 5000.0, "most_decoding": 1e5, "osl": 20_001.0, "slope_s": 0.0, "step_tokens": 14_000.0}
    short, burst = (simulate_loops(loop(**shape, requests_per_client=rounds)) for rounds in (10.0, 1.0))
    assert 0.1 * burst.ttft_s[0] <= short.ttft_s[0] < 0.3 * burst.ttft_s[0]


def test_prompts_that_wait_share_the_start_of_a_step() -> None:
    alone = simulate_loops(loop(disaggregated=1.0, start_s=0.1)).ttft_s[0]
    many = simulate_loops(loop(disaggregated=1.0, start_s=0.1, clients=8.0, requests_per_client=1.0)).ttft_s[0]
    assert alone == pytest.approx(0.1 + 0.01)
    assert many < 0.1 + 8 * 0.01 + 4 * 0.1 * 1000 / 8192 + 1e-9


def test_apart_a_prompt_longer_than_a_step_takes_several() -> None:
    times = simulate_loops(loop(disaggregated=1.0, step_tokens=400.0))
    assert times.ttft_s[0] == pytest.approx(3 * 2e-3 + 1000 * 1e-5)


@pytest.mark.parametrize(("members", "waiting"), [(1.0, 0.0), (8.0, 7.0)])
def test_prompts_wait_for_a_step_that_other_ranks_began(members: float, waiting: float) -> None:
    """Of eight that come one after another to idle ranks all but the first find these ranks in its step."""
    way_s, prompt_s = 1e-3, 2e-3 + 1000 * 1e-5
    ranks = {"prefill_ranks": 8.0, "prefill_members": members, "disaggregated": 1.0}
    times = simulate_loops(loop(clients=8.0, requests_per_client=1.0, frontend_s=way_s, **ranks))
    joined_s = waiting * (way_s + 2 * prompt_s) + (way_s + prompt_s)
    alone_s = 36 * way_s + 8 * prompt_s
    assert 8 * times.ttft_s[0] == pytest.approx(joined_s if waiting else alone_s)


def test_a_step_of_ranks_lasts_as_long_as_the_fullest() -> None:
    """Of nine prompts on eight ranks two share one, whose step all wait for."""
    burst = {"clients": 9.0, "requests_per_client": 1.0, "disaggregated": 1.0, "prefill_ranks": 8.0}
    alone, joined = (simulate_loops(loop(**burst, prefill_members=members)).ttft_s[0] for members in (1.0, 8.0))
    assert 9 * alone == pytest.approx(7 * 12e-3 + 2 * 22e-3)
    assert joined == pytest.approx(22e-3)


@settings(deadline=None, max_examples=50)
@given(
    clients=st.integers(1, 60),
    apart=st.booleans(),
    spread=st.sampled_from([0.0, 0.2, 0.8]),
    poll=st.integers(1, 20),
    most=st.integers(1, 64),
    members=st.sampled_from([1.0, 2.0, 4.0]),
)
def test_times_are_at_least_those_of_an_idle_deployment(
    clients: int, apart: bool, spread: float, poll: int, most: int, members: float
) -> None:
    times = simulate_loops(
        loop(
            clients=float(clients),
            disaggregated=float(apart),
            spread=spread,
            poll_steps=float(poll),
            most_decoding=float(most),
            moved_s=0.01 if apart else 0.0,
            prefill_ranks=4.0,
            prefill_members=members,
        )
    )
    least = 2e-3 + (1.0 - spread) * 1000 * 1e-5
    assert times.ttft_s[0] >= least
    assert times.tpot_s[0] >= 0.01 * (1 - 1e-9)


@settings(deadline=None, max_examples=25)
@given(factor=st.floats(0.1, 10.0), clients=st.integers(1, 40))
def test_faster_hardware_scales_all_times(factor: float, clients: int) -> None:
    times = {name: PLAIN[name] for name in ("base_s", "slope_s", "start_s", "token_s")}
    scaled = {name: value * factor for name, value in times.items()}
    base, changed = simulate_loops(loop(clients=float(clients))), simulate_loops(loop(clients=float(clients), **scaled))
    assert changed.ttft_s[0] == pytest.approx(factor * base.ttft_s[0], rel=1e-6)
    assert changed.tpot_s[0] == pytest.approx(factor * base.tpot_s[0], rel=1e-6)


def test_equal_loops_give_equal_figures_whatever_stands_beside_them() -> None:
    alone = simulate_loops(loop(clients=16.0, spread=0.2, arrival_s=0.01))
    names = [field.name for field in fields(ClosedLoops)]
    both = ClosedLoops(
        *(np.array([PLAIN[n], getattr(loop(clients=16.0, spread=0.2, arrival_s=0.01), n)[0]]) for n in names)
    )
    beside: MeanTimes = simulate_loops(both)
    assert (beside.ttft_s[1], beside.tpot_s[1]) == (alone.ttft_s[0], alone.tpot_s[0])
