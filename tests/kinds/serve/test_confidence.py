"""Limits that are kept with a stated confidence, by how far predictions err."""

import re

import numpy as np
import pytest
from serve_problems import broken_rules, objective_of, small, value_of
from static_level import solve

from planner.costs.rates.calibration import load_calibration
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.steady.demand import Margins

SPREADS = load_calibration().spreads
TIGHT = {"workloads.0.slo": {"ttft": "400ms", "tpot": "9ms"}}


def test_ninety_percent_is_the_upper_end_of_the_intervals() -> None:
    margins = Margins.of(0.9, SPREADS)
    row = [[1.0, 0.0, 0.0]]
    for name, margin in (("ttft", margins.ttft), ("tpot", margins.tpot)):
        assert SPREADS[name].bounds(np.ones(1), np.array(row))[1][0] == pytest.approx(margin)
        assert margin > 1.0
    assert Margins.of(0.5, SPREADS) == Margins()
    assert Margins.of(None, {}) == Margins()


def test_a_plan_leaves_room_for_the_error_of_its_predictions() -> None:
    plain, sure = solve(small(TIGHT)), solve(small(TIGHT | {"workloads.0.slo.confidence": "90%"}))
    calibration, group = load_calibration(), "32x4096x128256 fp8/bf16 h100_sxm vllm"  # of the one pool
    assert group not in calibration.groups
    margins = Margins.of(0.9, calibration.spreads_of((group,)))
    fitted = Margins.of(0.9, calibration.spreads)
    assert (margins.ttft > fitted.ttft, margins.tpot > fitted.tpot) == (True, True)
    assert not broken_rules(sure)
    assert value_of(sure, "ttft_s", "chat", "p95") <= 0.4 / margins.ttft * (1 + 1e-9)
    assert value_of(sure, "tpot_s", "chat") <= 0.009 / margins.tpot * (1 + 1e-9)
    assert objective_of(sure) < objective_of(plain)
    assert any("for a confidence of 0.9" in text for text in sure.assumptions)
    assert not any("for a confidence" in text for text in plain.assumptions)


def test_what_is_in_conflict_is_told_in_the_units_of_the_problem() -> None:
    slo = {"ttft": "2s", "tpot": "2ms", "confidence": "90%"}
    with pytest.raises(Infeasible) as told:
        solve(small({"workloads.0.slo": slo}))
    (tight,) = (row for row in told.value.conflict if "tpot" in row["limit"])
    assert "tpot <= 2.00 ms" in tight["limit"]
    nearest = re.search(r"tpot ([\d.]+) ms", tight["nearest"])
    assert nearest is not None
    works = {"ttft": "2s", "tpot": f"{nearest[1]}ms", "confidence": "90%"}
    assert not broken_rules(solve(small({"workloads.0.slo": works})))


def test_a_calibration_without_intervals_keeps_no_confidence() -> None:
    edits = {"workloads.0.slo.confidence": 0.9, "costs": {"calibration": "none"}}
    with pytest.raises(PlannerError, match="no confidence can be kept"):
        solve(small(edits))
