"""The split of newer measurements into open and sealed groups is that of its rule, and as it was first made."""

import hashlib

import pytest
import sealed_groups
import sealed_serving
import sealed_training


def test_groups_are_sealed_by_the_last_bit_of_their_name() -> None:
    for _, group, status in sealed_groups.frozen():
        odd = int(hashlib.sha256(group.encode("utf-8")).hexdigest(), 16) % 2 == 1
        assert status == ("sealed" if odd else "open"), group


def test_names_of_groups_hold_values_as_they_stand() -> None:
    row = {"family": "Llama-405B", "system": "h200_sxm", "backend": "trtllm", "weights": "", "group": "other"}
    assert sealed_groups.group_of(row, sealed_groups.SERVING) == "Llama-405B|h200_sxm|trtllm|"


def test_every_table_has_open_and_sealed_groups() -> None:
    for table in sealed_groups.TABLES:
        assert {status for name, _, status in sealed_groups.frozen() if name == table} == {"open", "sealed"}


def test_the_split_is_the_one_first_made() -> None:
    if not sealed_groups.DATA.exists():
        pytest.skip("needs the tables of ../shared")
    assert sealed_groups.split() == sealed_groups.frozen()


def test_groups_weigh_the_same_and_small_ones_nothing() -> None:
    large, other = [(1.1, 1.0)] * 90, [(1.5, 1.0)] * 10
    assert sealed_serving.errors({"a": other * 9, "b": large, "c": other, "d": [(9.0, 1.0)] * 9}) == "36.7 / 50.0"
    assert sealed_serving.bias({"a": large, "b": other, "c": [(9.0, 1.0)]}) == "+50.0"


def test_sealed_errors_are_compared_with_open_ones_by_resampled_groups() -> None:
    near, far = [(1.1, 1.0)] * 10, [(1.3, 1.0)] * 10
    assert sealed_serving.larger({"a": far, "b": far}, {"c": near, "d": near}) == "+20.0 (+20.0 to +20.0)"
    assert sealed_serving.larger({"a": near, "b": far}, {"c": near}) == "+10.0 (+0.0 to +20.0)"


def test_rows_of_training_are_scored_by_their_groups_alone() -> None:
    if not sealed_groups.DATA.exists():
        pytest.skip("needs the tables of ../shared")
    scored = sealed_training.Scored(sealed_training.chosen("open")[:3], lambda row: 2.0 * float(row["step_time_s"]))
    assert scored.figures.startswith("1 | 3 of 3 | ")
    assert "(100.0 / 100.0)" in scored.figures
