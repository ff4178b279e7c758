"""First tokens of engines that prefill and decode together: limits by hand, and the compiled simulator."""

from dataclasses import replace

import numpy as np
import pytest
from serve_problems import small

from planner.kinds.serve.steady.evaluate import time_points
from planner.kinds.serve.steady.points import Tally, make_points
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.steps.first_tokens import Engines, Variability, first_tokens
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

POISSON = Variability(1.0, 0.0, 0.25)
FIXED_S, SEQUENCE_S, MEAN_TOKENS, ANSWER = 0.15, 0.002, 1000, 100


def engine(places: int = 48, room: float = 4.0, **other: float) -> Engines:
    """One stage: a mean prompt takes 1 s, a step 150 ms and 2 ms a sequence."""
    pace_s = FIXED_S + SEQUENCE_S * places
    step_s = pace_s + places / ANSWER
    values = {
        "stages": 1.0, "places": places, "room": room - places / MEAN_TOKENS, "pace_s": pace_s, "step_s": step_s,
        "prompt_s": 1.0, "steps": ANSWER, "pace_slope_s": SEQUENCE_S, "step_slope_s": SEQUENCE_S + 1.0 / ANSWER,
        "sequence_room": 1.0 / MEAN_TOKENS, "later_s": 0.0, "front_s": 0.0, "front_ranks": 1.0,
    } | other  # fmt: skip
    return Engines(**{name: np.array([float(value)]) for name, value in values.items()})


def simulated_s(places: int, room: float, rate: float, cv: float) -> tuple[float, float]:
    """Mean and p90 of TTFT."""
    rng, count = np.random.default_rng(4), 6000
    deviation = np.sqrt(np.log1p(cv**2))
    inputs = np.rint(MEAN_TOKENS * rng.lognormal(-(deviation**2) / 2.0, deviation, count)).astype(np.int64)
    outputs = np.rint(ANSWER * rng.lognormal(-0.11, 0.47, count)).astype(np.int64)
    arrivals_s = np.cumsum(rng.exponential(1.0 / rate, count))
    grid = StepGrid.affine(FIXED_S, sequence_s=SEQUENCE_S, token_s=1.0 / MEAN_TOKENS, most_sequences=places)
    instance = Instance(grid, kv_tokens=10**9, token_budget=round(room * MEAN_TOKENS), most_sequences=places)
    requests = Requests.open_stream(arrivals_s, np.maximum(inputs, 1), np.maximum(outputs, 1))
    ttft_s = (simulate(Fleet((instance,)), requests).first_token_s - arrivals_s)[500:]
    return float(ttft_s.mean()), float(np.quantile(ttft_s, 0.9))


@pytest.mark.parametrize("cv", [0.0, 1.0])
@pytest.mark.parametrize(("room", "filled"), [(4.0, 0.3), (4.0, 0.6), (0.5, 0.5), (1.0, 0.6)])
def test_means_and_percentiles_come_near_the_simulator(room: float, filled: float, cv: float) -> None:
    own, varied = engine(room=room), Variability(1.0, cv**2, 0.25)
    predicted = first_tokens(own, np.array([filled]), varied)
    mean_s, p90_s = simulated_s(48, room, filled * float(own.capacity_per_s(cv**2)[0]), cv)
    assert predicted.quantile_s(None)[0] == pytest.approx(mean_s, rel=0.13)
    assert predicted.quantile_s(0.9)[0] == pytest.approx(p90_s, rel=0.3)


def test_an_idle_engine_takes_its_own_step_and_half_of_one_of_decoding() -> None:
    times = first_tokens(engine(), np.array([1e-6]), POISSON)
    assert times.mean_s[0] == pytest.approx(FIXED_S + 1.0 + FIXED_S / 2.0, rel=1e-3)
    assert times.quantile_s(0.0)[0] == pytest.approx(FIXED_S, rel=1e-3)
    pipelined = replace(engine(), stages=np.array([4.0]))
    assert first_tokens(pipelined, np.array([1e-6]), POISSON).mean_s[0] == pytest.approx(FIXED_S + 1.0, rel=1e-3)


def test_one_place_is_a_single_server() -> None:
    """Prompts of no length and exponential answers before one place: Pollaczek and Khinchine's wait."""
    alone = engine(1, prompt_s=1e-9, step_s=FIXED_S + SEQUENCE_S + 1e-9, step_slope_s=0.0, pace_slope_s=0.0)
    varied, filled = Variability(1.0, 0.0, 1.0), np.array([0.7])
    service_s = float(1.0 / alone.capacity_per_s(0.0)[0])
    times = [first_tokens(alone, filled, varied, waits_for_places=waits).mean_s[0] for waits in (True, False)]
    assert times[0] - times[1] == pytest.approx(0.7 / 0.3 * service_s, rel=0.05)


def test_requests_wait_for_the_front_end_of_their_ranks() -> None:
    """Pollaczek and Khinchine's wait of a server that takes the requests of four ranks."""
    varied, filled = Variability(1.0, 0.0, 0.25), np.array([0.8])
    rate = 0.8 * float(engine().capacity_per_s(0.0)[0])
    front_s = 0.6 / (4 * rate)
    alone, behind = engine(), engine(front_s=front_s, front_ranks=4.0)
    plain, late = (first_tokens(engines, filled, varied) for engines in (alone, behind))
    assert late.mean_s[0] - plain.mean_s[0] == pytest.approx(0.6 / 0.4 * front_s / 2.0)


def test_times_grow_with_load_bursts_and_share() -> None:
    filled = np.linspace(0.05, 0.97, 24)
    own = Engines(*(np.repeat(getattr(engine(), name), 24) for name in Engines.__dataclass_fields__))
    calm, bursts = (first_tokens(own, filled, Variability(cv2, 1.0, 0.25)) for cv2 in (1.0, 9.0))
    assert np.all(np.diff(calm.mean_s) > 0.0)
    assert np.all(bursts.mean_s > calm.mean_s)
    assert np.all(calm.quantile_s(0.99) > calm.quantile_s(0.5))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_prompts_that_lengthen_no_step_wait_for_the_one_under_way() -> None:
    free = engine(prompt_s=0.0, step_s=FIXED_S, pace_s=FIXED_S, pace_slope_s=0.0, step_slope_s=0.0)
    for stages in (1.0, 4.0):
        times = first_tokens(replace(free, stages=np.array([stages])), np.array([0.5]), POISSON)
        assert FIXED_S <= times.mean_s[0] < 3.0 * FIXED_S


@pytest.mark.parametrize("beside", [[3], [1, 2, 12, 13, 24], [12]])
def test_what_a_batch_takes_does_not_hang_on_the_batches_that_are_listed_beside_it(beside: list[int]) -> None:
    alone, among = full_engines([24]), full_engines(sorted({24, *beside}))
    rows = among.places == 24.0
    assert alone.pace_slope_s == pytest.approx(among.pace_slope_s[rows], rel=1e-12)
    assert (alone.pace_slope_s > 0.0).all()
    assert (full_engines([1]).pace_slope_s == 0.0).all()


def full_engines(batches: list[int]) -> Engines:
    setting = prepare(small({"options": {"modes": ["colocated"], "max_batch": batches}}))
    points = make_points(
        "colocated", setting.costs_of_pool["llama", 0], setting.spaces["llama", 0].shapes, setting.options,
        setting.targets, Tally(), copies=1, release=setting.release,
    )  # fmt: skip
    engines = time_points("colocated", setting.costs_of_pool["llama", 0], setting.targets[0], points).engines
    assert engines is not None
    return engines
