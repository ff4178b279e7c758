"""The closed formula for effective time: its limits, and the best interval against all intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.stochastic.checkpointing import (
    Hazard,
    Loss,
    Saving,
    best_interval,
    effective_share,
    time_shares,
)

_rates = st.floats(1e-7, 2e-3)
_hazards = st.lists(
    st.builds(Hazard, _rates, st.floats(0, 900), st.sampled_from(Loss), st.floats(0, 300)), min_size=1, max_size=4
)
_savings = st.builds(Saving, st.floats(0.5, 30.0), st.floats(0.01, 60.0), st.floats(0.0, 300.0))


@given(_hazards, _savings)
def test_the_best_interval_is_that_of_trying_all(hazards: list[Hazard], saving: Saving) -> None:
    most = saving.least_steps() + 3000
    result = best_interval(hazards, saving, most)
    everything = effective_share(hazards, saving, np.arange(saving.least_steps(), most + 1))
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(float(everything.max()), rel=1e-9)
    assert result.gap == 0.0


@given(_hazards, _savings, st.integers(0, 5000))
def test_shares_of_time_are_shares(hazards: list[Hazard], saving: Saving, more: int) -> None:
    shares = time_shares(hazards, saving, [saving.least_steps() + more])
    parts = [float(part[0]) for part in (shares.effective, shares.pause, shares.rework, shares.restart)]
    assert min(parts) >= 0.0
    assert sum(parts) == pytest.approx(1.0, abs=1e-9)


def test_one_hazard_and_blocking_saves_give_the_formula_of_daly() -> None:
    gap_s, restart_s, pause_s, step_s, steps = 7200.0, 300.0, 40.0, 2.0, 350
    work_s = steps * step_s
    whole_s = math.exp(restart_s / gap_s) * gap_s * math.expm1((work_s + pause_s) / gap_s)
    shares = effective_share([Hazard(1 / gap_s, restart_s)], Saving(step_s, pause_s), [steps])
    assert shares[0] == pytest.approx(work_s / whole_s, rel=1e-12)


def young_interval_s(pause_s: float, mean_gap_s: float) -> float:
    """The first-order best time of work between blocking saves (Young 1974)."""
    return math.sqrt(2.0 * pause_s * mean_gap_s)


def daly_interval_s(pause_s: float, mean_gap_s: float) -> float:
    """The higher-order best time of work between blocking saves (Daly 2006, eq. 37)."""
    ratio = pause_s / (2.0 * mean_gap_s)
    return young_interval_s(pause_s, mean_gap_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - pause_s


@pytest.mark.parametrize(("pause_s", "gap_s"), [(5.0, 86400.0), (60.0, 10800.0), (300.0, 7200.0)])
def test_the_best_blocking_interval_is_that_of_daly(pause_s: float, gap_s: float) -> None:
    best = best_interval([Hazard(1 / gap_s, 100.0)], Saving(0.1, pause_s), 10**7).solution
    assert best is not None
    assert best * 0.1 == pytest.approx(daly_interval_s(pause_s, gap_s), rel=2e-3)
    assert best * 0.1 == pytest.approx(young_interval_s(pause_s, gap_s), rel=0.2)


def test_saves_longer_than_the_gap_between_failures_are_made_once_a_gap() -> None:
    best = best_interval([Hazard(1 / 100.0, 0.0)], Saving(0.1, 300.0), 10**7).solution
    assert best is not None
    assert best * 0.1 == pytest.approx(100.0, rel=0.06)  # Daly: one mean gap where a save takes two or more


def test_a_snapshot_counts_when_nothing_takes_it_before_it_is_durable() -> None:
    hazards = [Hazard(2e-4, 60.0, Loss.UNDURABLE), Hazard(5e-4, 60.0)]
    at_once, later = (effective_share(hazards, Saving(1.0, 5.0, wait_s), [400])[0] for wait_s in (0.0, 300.0))
    assert later / at_once == pytest.approx(math.exp(-2e-4 * 300.0), rel=1e-12)


def test_a_save_at_a_failure_overtakes_a_snapshot_that_is_not_durable_yet() -> None:
    hazards = [Hazard(2e-4, 60.0, Loss.UNDURABLE), Hazard(5e-4, 60.0, Loss.STEP), Hazard(1e-4, 60.0)]
    whole, early, late = (
        effective_share(hazards, Saving(1.0, 5.0, wait_s), [400])[0] for wait_s in (0.0, 100.0, 300.0)
    )
    taken = [-math.expm1(-7e-4 * wait_s) for wait_s in (100.0, 300.0)]  # by one of the two, within that time
    assert (whole - early) / (whole - late) == pytest.approx(taken[0] / taken[1], rel=1e-9)


def test_without_failures_the_longest_interval_is_best() -> None:
    result = best_interval([], Saving(1.0, 10.0), 5000)
    assert result.solution == 5000
    assert result.objective == pytest.approx(5000 / 5010)


def test_where_every_failure_saves_the_state_snapshots_only_cost() -> None:
    hazards = [Hazard(1e-4, 60.0, Loss.STEP, 0.0)]
    assert best_interval(hazards, Saving(1.0, 5.0), 100_000).solution == 100_000


def test_a_snapshot_must_be_durable_before_the_next() -> None:
    saving = Saving(2.0, 1.0, durable_after_s=101.0)
    assert saving.least_steps() == 50
    with pytest.raises(PlannerError, match=r"leave at least 50 steps of 2 s between snapshots"):
        effective_share([Hazard(1e-4, 60.0)], saving, [49])
    assert best_interval([Hazard(1e-4, 60.0)], saving, 49).status is Status.INFEASIBLE


def test_negative_rates_are_refused() -> None:
    with pytest.raises(PlannerError, match="must be finite and not negative"):
        effective_share([Hazard(-1e-4, 60.0)], Saving(1.0), [10])


@given(_hazards, _savings, st.floats(1.1, 3.0))
def test_more_failures_that_take_work_never_help(hazards: list[Hazard], saving: Saving, factor: float) -> None:
    steps = [saving.least_steps() + 100]
    hazards = [Hazard(hazard.rate_per_s, hazard.restart_s, Loss.UNDURABLE) for hazard in hazards]
    worse = [Hazard(hazard.rate_per_s * factor, hazard.restart_s, hazard.loss) for hazard in hazards]
    assert effective_share(worse, saving, steps)[0] <= effective_share(hazards, saving, steps)[0] + 1e-12
