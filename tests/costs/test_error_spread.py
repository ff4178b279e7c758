"""Intervals of estimates, and rates that no fit gave, by hand."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.spread import MOST_QUEUE, WIDEST, ErrorSpread, features_of
from planner.costs.training.rates import COLUMNS, Rates
from planner.errors import PlannerError


def test_bounds_are_logarithms_linear_in_features_and_hold_the_estimate() -> None:
    spread = ErrorSpread(low=(-0.1, -0.2, 0.0), high=(0.1, 0.0, 0.3))
    features_NF = np.array([[1.0, 0.0, 0.0], [1.0, 2.0, 4.0], [1.0, -9.0, 99.0]])
    low, high = spread.bounds(np.array([2.0, 4.0, 1.0]), features_NF)
    assert low == pytest.approx([2.0 * math.exp(-0.1), 4.0 * math.exp(-0.5), 1.0])
    assert high == pytest.approx([2.0 * math.exp(0.1), 4.0 * math.exp(1.3), math.exp(WIDEST)])
    unfitted = ErrorSpread().bounds(np.array([3.0]), np.array([[1.0, 2.0, 4.0]]))
    assert [float(bound[0]) for bound in unfitted] == [3.0, 3.0]


def test_bounds_of_a_group_that_no_fit_has_seen_are_wider_by_what_lies_between_groups() -> None:
    spread = ErrorSpread(low=(-0.3, 0.0, 0.0), high=(0.3, 0.0, 0.0), between=(0.0, 0.4))
    row = np.array([[1.0, 0.0, 0.0]])
    assert [bound[0] for bound in spread.bounds(np.ones(1), row)] == pytest.approx([math.exp(-0.3), math.exp(0.3)])
    wide = spread.elsewhere()
    assert [bound[0] for bound in wide.bounds(np.ones(1), row)] == pytest.approx([math.exp(-0.3), math.exp(0.5)])
    assert (spread.sides[1], wide.sides[1]) == pytest.approx((0.3, 0.5))
    assert ErrorSpread(high=(-0.2, 0.0, 0.0), between=(0.0, 0.4)).elsewhere().sides[1] == pytest.approx(0.4)


def test_both_times_of_a_group_that_was_not_fitted_to_lie_apart(tmp_path: Path) -> None:
    interval = {"low": [0, 0, 0], "high": [0, 0, 0]}
    apart = {"ttft": interval | {"between": [0.0, 0.5]}, "tpot": interval | {"between": [0.1, 0.3]}}
    known = _calibration(tmp_path, {"groups": ["2x64x9 bf16/bf16 h100 vllm"], **apart})
    assert known.spreads_of(known.groups) == known.spreads
    for group in ("2x64x9 bf16/bf16 h200 vllm", "4x64x9 bf16/bf16 h100 vllm"):
        spreads = known.spreads_of([group])
        assert (spreads["ttft"].sides, spreads["tpot"].sides) == ((0.0, 0.5), (0.1, 0.3))


@pytest.mark.parametrize(
    "wrong", [{"between": [0.1]}, {"between": [0.1, -0.2]}, {"between": "wide"}, {"families": [0.1, 0.2]}]
)
def test_what_cannot_lie_between_groups_is_refused_at_its_line(wrong: dict[str, object], tmp_path: Path) -> None:
    intervals = {"tpot": {"low": [0, 0, 0], "high": [0, 0, 0], **wrong}}
    with pytest.raises(PlannerError, match="`tpot` is no interval") as refused:
        _calibration(tmp_path, intervals)
    assert refused.value.where.endswith("calibration.yaml:2")
    assert "`between` as two of at least 0" in refused.value.hint


def test_groups_that_are_no_list_are_refused_at_their_line(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="`groups` is no list of names") as refused:
        _calibration(tmp_path, {"groups": "all"})
    assert refused.value.where.endswith("calibration.yaml:2")


def _calibration(folder: Path, intervals: Mapping[str, object]) -> Calibration:
    path = folder / "calibration.yaml"
    path.write_text(yaml.safe_dump({"intervals": intervals, "schema": "planner.calibration/1"}))
    return load_calibration(str(path))


def test_features_are_one_the_logarithm_of_what_waiting_adds_and_its_square() -> None:
    features = features_of(np.array([1.0, math.e, 0.5, 1e30]), np.array([1.0, 1.0, 1.0, 1.0]))
    most = math.log(MOST_QUEUE)
    assert features == pytest.approx(np.array([[1, 0, 0], [1, 1, 1], [1, 0, 0], [1, most, most**2]]))


def test_what_no_fit_gave_neither_slows_nor_starts() -> None:
    assert COLUMNS == ("flop", "move", "link", "fabric", "start", "exposed")
    assert Rates({}).of(("gemm",), "hopper")[:, 0].tolist() == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    known = Rates({"flop": 0.5, "flop.gemm.hopper": 0.8, "move.gemm": 0.7})
    assert known.of(("gemm.wide", "norm"), "hopper")[:2].tolist() == [[0.8, 0.5], [0.7, 1.0]]
