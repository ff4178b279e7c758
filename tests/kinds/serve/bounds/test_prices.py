"""Prices of steps against the definition: random steps, the best single batch, and monotony in the limit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kinds.serve.bounds.demands import contexts_below
from planner.kinds.serve.bounds.engines import EngineType, concave_floors, in_rows, steps_of
from planner.kinds.serve.bounds.prices import PricedDemand, SequenceClass, StepPrices, step_prices
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.simulate.fleet.instances import Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.step_prices import least_grid

BASE_S, SEQUENCE_S, CONTEXT_S, TOKEN_S, PAIR_S = 0.008, 4e-5, 2e-8, 1.5e-5, 4e-10
INPUT, STEPS = 500.0, 100.0
THRESHOLDS = (512.0, 600.0)
LOADS = (
    STEPS,
    STEPS * INPUT + STEPS * (STEPS + 1) / 2,
    INPUT,
    INPUT * (INPUT + 1) / 2,
    *(float(contexts_below(np.array([INPUT]), np.array([STEPS + 1]), each)[0]) for each in THRESHOLDS),
)


def seconds(n: float, c: float, t: float, m: float) -> float:
    return BASE_S + n * (SEQUENCE_S + CONTEXT_S * c) + t * (TOKEN_S + PAIR_S * m)


DECODED = (*LOADS[:2], 0.0, 0.0, *LOADS[4:])


def table(most: int = 512) -> StepGrid:
    batches, contexts = np.unique([0.0, 1, 4, 16, 64, 256, most]), np.array([1.0, 512, 600, 8192])
    tokens, attended = np.array([0.0, 1, 64, 1024, 4096]), np.array([1.0, 256, 8192])
    n, c, t, m = np.meshgrid(batches, contexts, tokens, attended, indexing="ij")
    mixed = BASE_S + n * (SEQUENCE_S + CONTEXT_S * c) + t * (TOKEN_S + PAIR_S * m)
    counts = np.arange(most + 1.0)[:, None]
    decode = BASE_S + counts * (SEQUENCE_S + CONTEXT_S * contexts)
    return StepGrid(decode, mixed, batches, contexts, tokens, attended)


def engine(role: str, most: int = 512, kv_tokens: int = 10**7, policy: str = "mixed") -> EngineType:
    instance = Instance(table(most), kv_tokens, role=role, policy=policy, token_budget=4096, most_sequences=most)
    return EngineType(role, "m", 0, InstanceShape(1, 1, 1, 1, 1), instance, 1)


def limited(limit_s: float, share: float = 1.0) -> PricedDemand:
    """All of equal length: the class has that share of the steps."""
    return PricedDemand(1.0, LOADS, (SequenceClass(share * STEPS, 1.0, limit_s),))


def worth(prices: StepPrices, demand: PricedDemand) -> float:
    return prices.base_s(demand) + sum(
        price * each.steps for price, each in zip(prices.of_classes[0], demand.classes, strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 512), st.floats(1, 8000), st.integers(0, 4096), st.floats(1, 4000), st.integers(0, 512),
    st.sampled_from((0.012, 0.02, 0.05)),
)  # fmt: skip
def test_no_step_undercuts_its_price(n: int, c: float, t: int, m: float, good: int, limit_s: float) -> None:
    prices, good = PRICES[limit_s], min(good, n)
    a, b, p, e, *below = prices.of_loads
    phi = a + b * c + sum(price * min(c, each) for price, each in zip(below, THRESHOLDS, strict=True))
    f, (g,), (u,) = seconds(n, c, t, m), prices.of_classes[0], prices.of_limits
    assert n * phi + p * t + e * t * m + g * good <= (f + u * (f - limit_s) * good) * (1 + 1e-9) + 1e-15


PRICES = {
    limit_s: step_prices(steps_of(engine("colocated"), THRESHOLDS), [limited(limit_s)])
    for limit_s in (0.012, 0.02, 0.05)
}


MEMBERS = 4
RANK_TOKENS = np.array([0.0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4608])
JOINT_S = np.array([0.0, 2, 3, 4.5, 6, 7, 7.2, 7.3, 7.4, 7.5, 9, 15, 30, 70]) * 1e-3


def together(role: str, most: int) -> EngineType:
    """One of four that share experts: concave up to where all are read, flat, then as many tokens are computed."""
    alone = engine(role, most)
    own = replace(alone.instance.grid, joint_s=JOINT_S, rank_tokens=RANK_TOKENS, least_s=np.zeros(len(JOINT_S)))
    return replace(alone, instance=replace(alone.instance, grid=least_grid(own, MEMBERS)), own=own)


TOGETHER = step_prices(steps_of(together("colocated", 256), THRESHOLDS), [limited(0.02)])
RANKS = st.tuples(
    st.integers(0, 256), st.floats(1, 8000), st.integers(0, 4096), st.floats(1, 4000), st.integers(0, 256)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(RANKS, min_size=MEMBERS, max_size=MEMBERS))
def test_engines_that_step_together_are_busy_for_what_their_steps_are_charged(
    ranks: list[tuple[int, float, int, float, int]],
) -> None:
    """By definition: all are busy until the slowest is done, and for what they do together for their mean tokens."""
    asked, kept = 0.0, 0
    a, b, p, e, *below = TOGETHER.of_loads
    (g,), (u,) = TOGETHER.of_classes[0], TOGETHER.of_limits
    for n, c, t, m, good in ranks:
        phi = a + b * c + sum(price * min(c, each) for price, each in zip(below, THRESHOLDS, strict=True))
        asked, kept = asked + n * phi + p * t + e * t * m + g * min(good, n), kept + min(good, n)
    mean = sum(n + t for n, _, t, _, _ in ranks) / MEMBERS
    slowest = max((seconds(n, c, t, m) for n, c, t, m, _ in ranks if n + t > 0), default=0.0)
    f = slowest + float(np.interp(mean, RANK_TOKENS, JOINT_S))
    assert asked <= (MEMBERS * f + u * (f - 0.02) * kept) * (1 + 1e-9) + 1e-15


def test_what_engines_do_together_is_charged_in_full_where_all_do_the_same() -> None:
    """Decoding alone without a limit: the bound is next to what four equal full batches take."""
    decoding, demand = together("decode", 16), PricedDemand(1.0, DECODED)
    priced_s = worth(step_prices(steps_of(decoding, THRESHOLDS), [demand]), demand)
    context = LOADS[1] / STEPS
    best = min((seconds(n, context, 0, 0) + float(np.interp(n, RANK_TOKENS, JOINT_S))) / n for n in range(1, 17))
    assert 0.97 * STEPS * best <= priced_s <= STEPS * best * (1 + 1e-6)
    charged_once = worth(step_prices(steps_of(replace(decoding, own=None), THRESHOLDS), [demand]), demand)
    assert charged_once < 0.9 * priced_s


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-4, 0.1), min_size=4, max_size=20))
def test_floors_are_concave_and_nowhere_above_what_is_done_together(joint: list[float]) -> None:
    tokens = np.concatenate([[0.0], 2.0 ** np.arange(len(joint))])
    grid = replace(table(), joint_s=np.array([0.0, *joint]), rank_tokens=tokens, least_s=np.zeros(len(tokens)))
    fine = np.linspace(0.0, tokens[-1], 500)
    for floor in concave_floors(grid):
        assert floor[0] == 0.0
        assert (floor >= -1e-15).all()
        slopes = np.diff(floor) / np.diff(tokens)
        assert (np.diff(slopes) <= 1e-12).all()
        assert (np.interp(fine, tokens, floor) <= np.interp(fine, tokens, grid.joint_s) + 1e-12).all()


@pytest.mark.parametrize("limit_s", [0.012, 0.016, 0.03])
def test_decoding_costs_no_more_than_its_best_batch(limit_s: float) -> None:
    """With equal requests the best is the largest batch whose step is no longer than the limit."""
    demand = PricedDemand(1.0, DECODED, limited(limit_s).classes)
    priced_s = worth(step_prices(steps_of(engine("decode"), THRESHOLDS), [demand]), demand)
    context = LOADS[1] / STEPS
    best = min(seconds(n, context, 0, 0) / n for n in range(1, 513) if seconds(n, context, 0, 0) <= limit_s)
    assert 0.97 * STEPS * best <= priced_s <= STEPS * best * (1 + 1e-6)


def test_a_cache_that_holds_few_sequences_is_a_small_batch() -> None:
    demand = PricedDemand(1.0, DECODED)
    context = LOADS[1] / STEPS
    priced_s = worth(
        step_prices(steps_of(engine("decode", kv_tokens=round(20 * context)), THRESHOLDS), [demand]), demand
    )
    best = seconds(20, context, 0, 0) / 20
    assert 0.8 * STEPS * best <= priced_s <= STEPS * best * (1 + 1e-6)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 0.05), st.floats(1.05, 2.0), st.floats(0.5, 1.0))
def test_a_looser_limit_never_costs_more(limit_s: float, looser: float, share: float) -> None:
    steps = steps_of(engine("decode", most=128), THRESHOLDS)
    demands = [PricedDemand(1.0, DECODED, limited(limit_s * factor, share).classes) for factor in (1.0, looser)]
    strict_s, loose_s = (worth(step_prices(steps, [demand]), demand) for demand in demands)
    assert loose_s <= strict_s * 1.005


def test_engines_that_never_do_both_pay_for_both() -> None:
    demand = limited(0.02)
    apart = worth(step_prices(steps_of(engine("colocated", policy="prefill-first"), THRESHOLDS), [demand]), demand)
    prompt = PricedDemand(1.0, (0.0, 0.0, *LOADS[2:4]))
    prompt_s = step_prices(steps_of(engine("prefill"), ()), [prompt]).base_s(prompt)
    together = worth(PRICES[0.02], demand)
    assert together <= apart * 1.005
    assert apart >= prompt_s * 0.99


def test_prices_of_a_mean_limit_by_classes_of_length() -> None:
    """Short and long answers, half each: the mean of their steps is what the limit bounds."""
    steps = steps_of(engine("decode"), THRESHOLDS)
    lengths, limit_s = np.array([20.0, 180.0]), 0.014
    classes = tuple(SequenceClass(0.5 * float(own), 1.0 / float(own), 0.0) for own in lengths)
    demand = PricedDemand(1.0, DECODED, classes, limit_s, all_classed=True)
    prices = step_prices(steps, [demand])
    priced_s = worth(prices, demand) - prices.of_limits[0] * limit_s
    context = LOADS[1] / STEPS
    batches = range(1, 513, 3)
    each = [(seconds(n, context, 0, 0), seconds(n, context, 0, 0) / n) for n in batches]
    best = min(
        0.5 * (lengths[0] * short[1] + lengths[1] * long[1])
        for short in each
        for long in each
        if 0.5 * (short[0] + long[0]) <= limit_s
    )
    assert 0.95 * best <= priced_s <= best * (1 + 1e-6)


@pytest.mark.parametrize("limit_s", [0.012, 0.014])
def test_what_a_limit_on_the_mean_asks_for_is_no_price_of_the_loads_alone(limit_s: float) -> None:
    """Where others keep the mean of all, an engine may decode in the best of batches."""
    steps, free = steps_of(engine("decode"), THRESHOLDS), PricedDemand(1.0, DECODED)
    classes = (SequenceClass(STEPS, 1.0 / STEPS, 0.0),)
    demand = PricedDemand(1.0, DECODED, classes, limit_s, all_classed=True)
    prices, least_s = step_prices(steps, [demand]), step_prices(steps, [free]).base_s(free)
    assert prices.base_s(demand) > 1.1 * least_s
    assert 0.0 < prices.unlimited * prices.base_s(demand) <= least_s * 1.005


def test_steps_of_every_batch_are_those_of_numpy_to_the_last_bit() -> None:
    rng = np.random.default_rng(3)
    axis = np.array([1.0, 64.0, 100.0, 4096.0])
    values, points = rng.random((40, 4)), np.concatenate([rng.uniform(1.0, 4096.0, (40, 6)), [axis] * 40], axis=1)
    expected = [np.interp(row, axis, own) for row, own in zip(points, values, strict=True)]
    assert (in_rows(axis, values, points) == expected).all()
