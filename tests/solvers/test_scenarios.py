"""Groups balanced under many weights at once: swaps never worsen, and few suffice where few are needed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.compiled.scenarios import balance


def group_loads(weight_ME: np.ndarray, group_E: np.ndarray, groups: int) -> np.ndarray:
    """[M, G] load of every group in every scenario."""
    return np.stack([np.bincount(group_E, weights=weight_E, minlength=groups) for weight_E in weight_ME])


def _spread(weight_ME: np.ndarray, group_E: np.ndarray, groups: int) -> float:
    load_MG = group_loads(weight_ME, group_E, groups)
    return float(((load_MG / load_MG.mean(axis=1, keepdims=True)) ** 2).sum())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([2, 4]))
def test_swaps_keep_group_sizes_and_only_ever_balance(seed: int, scenarios: int, groups: int) -> None:
    weight_ME = np.random.default_rng(seed).lognormal(0, 1, (scenarios, 16))
    group_E = np.arange(16) // (16 // groups)
    before = _spread(weight_ME, group_E, groups)
    swaps = balance(weight_ME, group_E, groups, 1e-9, 1000)
    assert (np.bincount(group_E) == 16 // groups).all()
    after = _spread(weight_ME, group_E, groups)
    assert after <= before + 1e-9
    assert (after < before) == (swaps > 0)


def test_a_limit_on_swaps_is_kept() -> None:
    weight_ME = np.random.default_rng(0).lognormal(0, 1, (3, 32))
    assert balance(weight_ME, np.arange(32) // 16, 2, 1e-9, 2) == 2


def test_no_scenario_is_balanced_at_the_cost_of_another() -> None:
    """Items heavy in one scenario each: halves that balance the sum would leave either scenario lopsided."""
    weight_ME = np.array([[4.0, 4, 0, 0, 1, 1, 1, 1], [0.0, 0, 4, 4, 1, 1, 1, 1]])
    group_E = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    balance(weight_ME, group_E, 2, 1e-9, 100)
    assert (group_loads(weight_ME, group_E, 2) == 6.0).all()
