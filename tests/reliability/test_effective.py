"""What long runs get out of their machines, as published runs did."""

from dataclasses import replace

import pytest

from planner.errors import PlannerError
from planner.reliability.effective import DAY_S, Job, at_scale, best_tier, outages
from planner.reliability.faults import DEFAULT, JobMachines, Stragglers
from planner.reliability.tiers import TIERS, State, Storage, Tier, require_tier

LLAMA = Job(
    JobMachines(16384, 8, nodes_per_rack=2),
    State(405e9 * 14, 3e9, node_loss_kept=0.9, rack_loss_kept=0.8, copies=2),
    Storage(1e12, 2e12, 25e9, 25e9),
    step_s=6.0,
    tokens_per_step=16e6,
)


def test_faults_of_the_run_of_llama_come_every_three_hours() -> None:
    run = at_scale(LLAMA, "asynchronous")
    assert run.mean_gap_s == pytest.approx(54 * DAY_S / 419, rel=1e-9)


@pytest.mark.parametrize("tier", TIERS)
def test_the_run_of_llama_is_effective_for_more_than_nine_tenths_of_its_time(tier: Tier) -> None:
    """The published figure (arXiv:2407.21783, section 3.3.4) is a lower bound."""
    assert 0.90 < at_scale(LLAMA, tier).effective_share < 0.97


@pytest.mark.parametrize("tier", TIERS)
def test_parts_of_the_time_sum_to_all_of_it(tier: Tier) -> None:
    job = replace(LLAMA, stragglers=Stragglers(1e-8, 0.8, 3600.0))
    run = at_scale(job, tier)
    lost = run.pause_share + run.rework_share + run.restart_share + run.waiting_share + run.slow_share
    assert run.effective_share + lost == pytest.approx(1.0)
    assert run.slow_share > 0.0


def test_no_tier_yields_more_than_the_best() -> None:
    best = best_tier(LLAMA)
    assert best.machine_yield == max(at_scale(LLAMA, tier).machine_yield for tier in TIERS)
    assert best_tier(LLAMA, ("synchronous",)).tier == "synchronous"


def test_no_number_of_spares_yields_more_than_the_best() -> None:
    best = at_scale(LLAMA, "asynchronous")
    tried = [at_scale(LLAMA, "asynchronous", spares=spares).machine_yield for spares in range(best.spares + 30)]
    assert best.machine_yield == pytest.approx(max(tried))
    assert 0 < best.spares < 30


def test_more_spares_make_waiting_rarer() -> None:
    waits = [at_scale(LLAMA, "asynchronous", spares=spares).waiting_share for spares in range(12)]
    assert waits == sorted(waits, reverse=True)


def test_without_faults_only_pauses_cost() -> None:
    run = at_scale(replace(LLAMA, faults=()), "synchronous", interval=100)
    assert run.effective_share == pytest.approx(600 / (600 + 405e9 * 14 / 1e12))
    assert (run.spares, run.mean_gap_s) == (0, None)


def test_days_to_a_number_of_tokens_follow_from_step_and_share() -> None:
    run = at_scale(LLAMA, "asynchronous")
    assert run.days_to(15.6e12) == pytest.approx(15.6e12 / 16e6 * 6.0 / run.effective_share / DAY_S)


def test_racks_take_all_their_nodes() -> None:
    assert [outage.units for outage in outages(DEFAULT, LLAMA.fleet)] == [1, 2]


def test_a_slow_store_lengthens_intervals() -> None:
    slow = replace(LLAMA, storage=Storage(1e10, 1e10, 25e9, 25e9))
    assert at_scale(slow, "synchronous").interval > 5 * at_scale(LLAMA, "synchronous").interval


def test_an_unknown_tier_is_refused_with_the_nearest() -> None:
    with pytest.raises(PlannerError, match="did you mean `asynchronous`"):
        require_tier("async")


@pytest.mark.parametrize("slowdown", [0.0, 0.02, 0.2])
def test_contention_of_saves_sets_an_interval_of_youngs(slowdown: float) -> None:
    """Snapshots come every sqrt(2 C M): the copy to the host, that over the network, and slower steps for 11 s."""
    storage = replace(LLAMA.storage, remote_write_bytes_per_s=5e11, save_slowdown=slowdown)
    run = at_scale(replace(LLAMA, storage=storage), "asynchronous")
    paused_s = 3e9 / 25e9 + 1.5e9 / 25e9 + slowdown * 405e9 * 14 / 5e11
    assert run.mean_gap_s is not None
    assert run.interval_s == pytest.approx((2.0 * paused_s * run.mean_gap_s) ** 0.5, rel=0.1)
