"""Lengths of training data from files: rows, shares, groups, and lines that are none."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.importing.formats.lengths import recorded_lengths
from planner.kinds.train.options import InputLength
from planner.kinds.train.samples import Sample


def written(folder: Path, lines: list[object]) -> Path:
    path = folder / "lengths.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """Of which hypothesis may ask for many in one test."""
    return tmp_path_factory


def test_equal_records_are_one_row_with_their_number(tmp_path: Path) -> None:
    read = recorded_lengths(written(tmp_path, [{"tokens": 9}, {"tokens": 4}, {"tokens": 9}]))
    assert read.option == "documents"
    assert read.rows == ({"share": 1, "tokens": 4}, {"share": 2, "tokens": 9})
    assert [InputLength.model_validate(row).tokens for row in read.rows] == [4, 9]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200), st.integers(2, 12))
def test_rows_keep_number_longest_and_mean(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], rows: int
) -> None:
    read = recorded_lengths(written(tmp_path_factory.mktemp("lengths"), [{"tokens": size} for size in sizes]), rows)
    assert len(read.rows) <= rows
    assert sum(row["share"] for row in read.rows) == len(sizes)
    assert max(row["tokens"] for row in read.rows) == max(sizes)
    assert read.rows_mean_size == pytest.approx(np.mean(sizes), abs=1.0)


def test_sequences_become_samples_of_the_problem(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines: list[object] = [
        {"images": [{"width": int(w), "height": int(h)}]} for w, h in draws.integers(64, 2048, (300, 2))
    ]
    read = recorded_lengths(written(tmp_path, [*lines, {}, {"audio_s": [1.5, 2]}]), 8)
    assert read.option == "samples"
    assert len(read.rows) <= 8
    assert sum(Sample.model_validate(row).share for row in read.rows) == 302
    assert read.rows_mean_size == pytest.approx(read.mean_size, rel=0.02)


def test_sounds_alone_are_grouped_by_their_seconds(tmp_path: Path) -> None:
    read = recorded_lengths(written(tmp_path, [{"audio_s": [0.5 * n]} for n in range(1, 101)]), 5)
    assert len(read.rows) == 5
    assert read.rows_mean_size == pytest.approx(read.mean_size, rel=0.02)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no records"),
        (["{"], "lengths.jsonl:1: not valid JSON"),
        (["", "5"], "lengths.jsonl:2: `5` is no object"),
        ([{"tokens": 0}], "tokens"),
        ([{"token": 4}], "token"),
        ([{"tokens": 4, "images": [{"width": 1, "height": 1}]}], "a document with images"),
        ([{"tokens": 4}, {}], "documents and sequences in one file"),
        ([{"audio_s": [-1]}], "audio_s"),
        (['{"tokens": NaN}'], "finite"),
    ],
)
def test_a_line_that_is_none_is_one_clear_error(tmp_path: Path, lines: list[object], says: str) -> None:
    with pytest.raises(PlannerError) as raised:
        recorded_lengths(written(tmp_path, lines))
    assert says in str(raised.value)
    assert "hint" in str(raised.value)
