"""Closed formulas of every checkpoint tier against the run simulated on a trace of faults."""

import pytest

from planner.reliability.faults import DEFAULT, FaultClass, JobMachines, Takes, scaled
from planner.reliability.simulation import Policy, RunShares, simulate_run
from planner.reliability.tiers import TIERS, State, Storage, Tier, hazards, saving
from planner.reliability.traces import Fault, generate
from planner.solvers.stochastic.availability import Outage, best_spares
from planner.solvers.stochastic.checkpointing import Saving, best_interval, time_shares

FLEET = JobMachines(16384, 8, nodes_per_rack=2)
STATE = State(5.67e12, 1.4e9, node_loss_kept=0.95, rack_loss_kept=0.8, copies=4)
STORAGE = Storage(50e9, 100e9, 25e9, 25e9)
FAULTS = 25_000  # of a trace; the effective share then has a standard error below 0.05 points


def _both(
    tier: Tier, faults: tuple[FaultClass, ...], factor: float, shape: float = 1.0
) -> tuple[list[float], RunShares]:
    """Shares of the formula at `factor` times the best interval, and of the run simulated."""
    classes, how = hazards(tier, faults, FLEET, STATE, STORAGE), saving(tier, STATE, STORAGE, 6.0)
    best = best_interval(classes, how, 10**6).solution
    assert best is not None
    steps = max(how.least_steps(), round(best * factor))
    shares = time_shares(classes, how, [steps])
    duration_s = FAULTS / sum(hazard.rate_per_s for hazard in classes)
    trace = generate(faults, FLEET, STATE, duration_s, seed=11, shape=shape)
    simulated = simulate_run(trace, duration_s, Policy(tier, how, steps), STATE, STORAGE)
    return [float(fault[0]) for fault in (shares.effective, shares.pause, shares.rework, shares.restart)], simulated


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_the_formula_of_each_tier_matches_the_simulated_run_within_a_fifth_of_a_point(
    tier: Tier, factor: float
) -> None:
    shares, simulated = _both(tier, DEFAULT, factor)
    classes = (simulated.effective, simulated.pause, simulated.rework, simulated.restart)
    assert classes == pytest.approx(shares, abs=0.002)


@pytest.mark.parametrize("tier", TIERS)
def test_the_formula_holds_where_faults_of_many_nodes_come_in_bursts(tier: Tier) -> None:
    shares, simulated = _both(tier, DEFAULT, 1.0, shape=0.7)
    assert simulated.effective == pytest.approx(shares[0], abs=0.004)


def test_waiting_for_spares_is_the_share_of_time_short_of_nodes() -> None:
    faults = tuple(FaultClass(fault.name, fault.takes, fault.rate_per_gpu_s, 100.0, 8000.0) for fault in DEFAULT)
    classes, how = hazards("synchronous", faults, FLEET, STATE, STORAGE), saving("synchronous", STATE, STORAGE, 6.0)
    duration_s = FAULTS / sum(hazard.rate_per_s for hazard in classes)
    trace = generate(faults, FLEET, STATE, duration_s, seed=5)
    out = [
        Outage(fault.rate_per_gpu_s * FLEET.num_gpus, fault.repair_s, FLEET.nodes_taken(fault.takes))
        for fault in faults
        if fault.takes is not Takes.PROCESS
    ]
    for spares in (1, 3):
        short = best_spares(out, lambda number, _: number, spares).solution
        assert short is not None
        missing = short[1]
        simulated = simulate_run(trace, duration_s, Policy("synchronous", how, 300, spares), STATE, STORAGE)
        assert simulated.waiting == pytest.approx(missing, abs=0.004)
        expected = (1 - missing) * float(time_shares(classes, how, [300]).effective[0])
        assert simulated.effective == pytest.approx(expected, abs=0.004)


def _fault(time_s: float, takes: Takes, *, copied: bool = False) -> Fault:
    return Fault(time_s, "x", takes, 0 if takes is Takes.PROCESS else 1, copied, 0.0, 0.0)


_SLOW = Storage(1.0, 1.0, 1.0, 1.0, start_s=0.0)  # a state of 4 bytes takes 4 s to write, 1 s to the host
_SMALL = State(4.0, 1.0, copies=2)


def _steps(tier: Tier, faults: list[Fault], duration_s: float) -> float:
    """Steps of 1 s done, with a snapshot every 5 of them; counted by hand in the tests below."""
    how = Saving(1.0, 4.0 if tier == "synchronous" else 1.0, 4.0)
    return simulate_run(faults, duration_s, Policy(tier, how, 5), _SMALL, _SLOW).effective * duration_s


def test_a_synchronous_save_keeps_what_lay_before_it() -> None:
    assert _steps("synchronous", [_fault(12.0, Takes.NODE)], 20.0) == pytest.approx(5 + 4)  # 12 + 4 to read, 4 left


def test_a_process_fault_keeps_the_snapshot_in_host_memory() -> None:
    assert _steps("asynchronous", [_fault(8.5, Takes.PROCESS)], 12.5) == pytest.approx(5 + 3)  # 1 s to read


def test_a_lost_node_takes_the_snapshot_that_had_not_arrived() -> None:
    assert _steps("asynchronous", [_fault(8.5, Takes.NODE)], 15.5) == pytest.approx(0 + 3)
    assert _steps("asynchronous", [_fault(10.5, Takes.NODE)], 17.5) == pytest.approx(5 + 3)


def test_a_save_at_the_failure_loses_the_step_in_progress_only() -> None:
    assert _steps("on_failure", [_fault(9.5, Takes.NODE, copied=True)], 21.5) == pytest.approx(8 + 4)


def test_a_save_at_the_failure_is_lost_with_a_second_node() -> None:
    faults = [_fault(9.5, Takes.NODE, copied=True), _fault(11.5, Takes.NODE)]
    assert _steps("on_failure", faults, 18.5) == pytest.approx(5 + 3)  # the snapshot had arrived at 10 s


def test_a_mix_of_faults_can_be_set_by_the_mean_gap_between_them() -> None:
    faults = scaled(DEFAULT, 3600.0, FLEET)
    assert sum(fault.rate_per_gpu_s for fault in faults) * FLEET.num_gpus == pytest.approx(1 / 3600.0)
