"""Prices of steps against the definition: random steps, the best single batch, and monotony in the limit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kinds.serve.bounds.demands import contexts_below
from planner.kinds.serve.bounds.engines import EngineType, steps_of
from planner.kinds.serve.bounds.prices import PricedDemand, SequenceClass, StepPrices, step_prices
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.simulate.fleet.instances import Instance
from planner.simulate.fleet.step_grid import StepGrid

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
