"""DistServe's two placement algorithms."""

import numpy as np
import pytest
from distserve_placement import Phase, Segment, high_affinity, low_affinity_units

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.run.attainment import Draws

SLO = SloSpec.model_validate({"ttft": {"p90_s": 0.3}, "tpot": {"p90_s": 0.05}, "attainment": 0.9})
SEGMENTS = [Segment(tp, pp) for tp in (1, 2, 4) for pp in (1, 2)]


def draws(count: int = 1200) -> Draws:
    rng = np.random.default_rng(5)
    return Draws.renewal(rng.integers(100, 800, count), rng.integers(20, 120, count), seed=6)


def phase(role: str, gpus: int, speed: float) -> Phase:
    grid = StepGrid.affine(
        5e-3 / speed, sequence_s=2e-4 / speed, context_s=1e-7 / speed, token_s=1e-4 / speed, most_sequences=128
    )
    engine = Instance(grid, 200_000, role=role, token_budget=2048, most_sequences=128)
    return Phase(f"{role} {gpus}", gpus, (engine,))


def test_units_of_low_affinity_fit_their_nodes_and_no_more() -> None:
    units = list(low_affinity_units(SEGMENTS, nodes=2, gpus_per_node=4))
    assert all(unit.prefill.gpus + unit.decode.gpus <= 4 for unit in units)
    assert {unit.cross for unit in units} == {1, 2}
    assert all(unit.gpus == unit.cross * (unit.prefill.gpus + unit.decode.gpus) for unit in units)
    pairs = {(first, second) for first in SEGMENTS for second in SEGMENTS if first.gpus + second.gpus <= 4}
    assert {(unit.prefill, unit.decode) for unit in units} == pairs


def test_high_affinity_takes_of_each_phase_what_yields_most_per_gpu() -> None:
    """Twice the speed on twice the GPUs loses to what one GPU does for decoding; more than twice wins for prefill."""
    prefill = [phase("prefill", 1, 1.0), phase("prefill", 2, 3.0)]
    decode = [phase("decode", 1, 1.0), phase("decode", 4, 1.5)]
    chosen = high_affinity(prefill, decode, draws(), SLO)
    assert chosen is not None
    assert (chosen.prefill.gpus, chosen.decode.gpus) == (2, 1)
    first, second = chosen.counts(2.5 * chosen.prefill_per_s)
    assert first == 3
    assert second == pytest.approx(2.5 * chosen.prefill_per_s / chosen.decode_per_s, abs=1.0)


def test_phases_that_keep_no_limit_leave_no_choice() -> None:
    slow = phase("prefill", 1, 0.01)
    assert high_affinity([slow], [phase("decode", 1, 1.0)], draws(300), SLO) is None
