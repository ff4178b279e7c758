"""Percentiles of the time per output token against simulated batches, and what must be true of any."""

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.arrays import Floats
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.solvers.stochastic.gap_averages import Answers, SteadySteps

ONE, NONE = np.ones(1), np.zeros(1)
EQUAL = Answers((101.0,), 0.0, 0.0, 1.0)


def steps(pace_s: float = 0.02, step_s: float = 0.03, sequences: float = 50.0, joining: float = 0.0) -> SteadySteps:
    return SteadySteps(pace_s * ONE, step_s * ONE, sequences * ONE, ONE, ONE, NONE, NONE, joining)


def test_a_full_batch_of_equal_requests_gives_all_of_them_the_mean() -> None:
    averages = steps().at_full_batch(EQUAL)
    for quantile in (0.001, 0.5, 0.999):
        assert averages.quantile_s(quantile)[0] == pytest.approx(0.03, rel=1e-9)
    assert averages.share_within(0.03 * (1 + 1e-9)) == pytest.approx(1.0)
    assert averages.share_within(0.03 * (1 - 1e-9)) == pytest.approx(0.0)


def test_one_more_step_before_the_first_token_matters_most_to_the_shortest_answers() -> None:
    """Of answers of 2, 11 and 101 tokens a step more makes 2, 1.1 and 1.01 of the gaps."""
    averages = steps(step_s=0.02, joining=1.0).at_full_batch(Answers((2.0, 11.0, 101.0), 0.0, 0.0, 1.0))
    assert [averages.quantile_s(q)[0] / 0.02 for q in (0.3, 0.6, 0.9)] == pytest.approx([1.01, 1.1, 2.0], rel=1e-9)


def test_prompts_of_spread_lengths_make_a_gaussian_of_their_number() -> None:
    """50 requests of 100 gaps of 101 steps: 5000 / 101 prompts, each 10 ms x 101 / 50 on average, with a CV of 0.5."""
    averages = steps().at_full_batch(Answers((101.0,), 0.0, 0.25, 1.0))
    prompts, each_s = 50 * 100 / 101, 0.01 * 101 / 50
    deviation_s = 0.5 * each_s * math.sqrt(prompts) / 100
    assert averages.quantile_s(0.99)[0] == pytest.approx(0.03 + 2.3263479 * deviation_s, rel=1e-6)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.999])
def test_a_quantile_is_where_its_share_is_within(quantile: float) -> None:
    spread = Answers(tuple(np.geomspace(2.0, 800.0, 40).tolist()), 1.0, 1.0, 4.0)
    for averages in (steps().at_full_batch(spread), steps().below_full_batch(spread, 1e-4 * ONE)):
        value_s = averages.quantile_s(quantile)
        assert averages.share_within(value_s)[0] == pytest.approx(quantile, abs=1e-9)
        assert averages.quantile_s(min(quantile + 0.0005, 0.9999))[0] > value_s[0]


def test_bursts_matter_below_the_full_batch_alone() -> None:
    calm, bursts = Answers((101.0,), 0.0, 0.25, 1.0), Answers((101.0,), 0.0, 0.25, 4.0)
    assert steps().at_full_batch(bursts).quantile_s(0.99) == steps().at_full_batch(calm).quantile_s(0.99)
    below = [steps().below_full_batch(answers, 1e-4 * ONE).quantile_s(0.99)[0] for answers in (calm, bursts)]
    assert below[1] > 1.05 * below[0]


def test_drafts_that_are_right_by_chance_spread_times_over_the_steps_of_an_answer() -> None:
    drafting = replace(steps(step_s=0.02), yielded=2.0 * ONE, yielded_cv2=0.25 * ONE)
    averages = drafting.at_full_batch(EQUAL)  # 50 steps of 20 ms, of half the time for each token
    assert averages.quantile_s(0.5)[0] == pytest.approx(0.01, rel=1e-6)
    assert averages.quantile_s(0.99)[0] == pytest.approx(0.01 * (1 + 2.3263479 * 0.5 / math.sqrt(50)), rel=1e-6)


def simulated(places: int, load: float, cv: float, count: int = 12_000) -> Floats:
    """Times per output token: a full batch of answers of 200 tokens takes a second a step, two fifths for prompts."""
    rng = np.random.default_rng(3)
    deviation = math.sqrt(math.log1p(cv**2))
    prompts = np.rint(rng.lognormal(math.log(1000.0) - deviation**2 / 2.0, deviation, count)).astype(int) + 1
    prompt_s = 0.4 * 200 / places
    arrivals = np.cumsum(rng.exponential(200 / (load * places), count))
    grid = StepGrid.affine(0.3, sequence_s=0.3 / places, token_s=prompt_s / 1000.0, most_sequences=places)
    engine = Instance(grid, 10**9, token_budget=1000 + places, most_sequences=places)
    return simulate(Fleet((engine,)), Requests.open_stream(arrivals, prompts, np.full(count, 200))).tpot_s[1000:-500]


@pytest.mark.parametrize("cv", [0.0, 1.0])
def test_a_batch_that_is_always_full_spreads_as_the_formula_says(cv: float) -> None:
    full = SteadySteps(0.6 * ONE, ONE, 64.0 * ONE, ONE, ONE, NONE, NONE).at_full_batch(
        Answers((200.0,), 0.0, cv**2, 1.0)
    )
    times_s = simulated(64, 1.2, cv)
    for quantile in (0.5, 0.9, 0.99):
        assert float(full.quantile_s(quantile)[0]) == pytest.approx(float(np.quantile(times_s, quantile)), rel=0.03)


def test_a_batch_below_its_limit_spreads_as_the_formula_says() -> None:
    places, load = 256, 0.7
    freely = 1.0 - load * 0.4  # of time, without prompts
    held = load * places / freely  # requests, were a step of a second
    sequences = held * 0.3 / (1.0 - held * 0.3 / places)
    pace_s = 0.3 + 0.3 * sequences / places
    now = SteadySteps(pace_s * ONE, pace_s / freely * ONE, sequences * ONE, ONE, ONE, NONE, NONE)
    averages = now.below_full_batch(Answers((200.0,), 0.0, 1.0, 1.0), 0.3 / places * ONE)
    times_s = simulated(places, load, 1.0)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert float(averages.quantile_s(quantile)[0]) == pytest.approx(float(np.quantile(times_s, quantile)), rel=0.06)


def test_contexts_of_the_sequences_that_are_there_spread_a_full_batch_as_the_formula_says() -> None:
    """Two fifths of a step of 32 places attend to prompts of CV 1; answers of 200 tokens, prefilled elsewhere."""
    rng, places, count, mean = np.random.default_rng(5), 32, 8_000, 1000.0
    deviation = math.sqrt(math.log(2.0))
    prompts = np.rint(rng.lognormal(math.log(mean) - deviation**2 / 2.0, deviation, count)).astype(int) + 1
    grid = StepGrid.affine(0.6, context_s=0.4 / places / mean, most_sequences=places)
    decode = Instance(grid, 10**9, role="decode", most_sequences=places)
    arrivals = np.cumsum(rng.exponential(200 / (1.2 * places), count))
    fleet = Fleet((Instance(StepGrid.affine(1e-9), 10**9, role="prefill"), decode))
    times_s = simulate(fleet, Requests.open_stream(arrivals, prompts, np.full(count, 200))).tpot_s[1000:-500]
    answers = 0.4 * 100.0 / mean * ONE  # half of an answer is cached as well
    full = SteadySteps(ONE + answers, ONE + answers, places * ONE, ONE, ONE, NONE, 0.4 * ONE)
    averages = full.at_full_batch(Answers((200.0,), 0.0, 1.0, 1.0))
    for quantile in (0.1, 0.5, 0.9, 0.99):
        said = float(averages.quantile_s(quantile)[0])
        assert said == pytest.approx(float(np.quantile(times_s, quantile)), rel=0.04)
    assert float(averages.quantile_s(0.99)[0]) > 1.12 * float(averages.quantile_s(0.5)[0])
