"""The journal: what was written is found again, what was cut off is not taken for it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.sweep.journal import Journal, journal_path

RECORDS = [{"status": "ok", "objective": 0.1 * index, "plan": "1 x ü"} for index in range(4)]


def opened(path: Path, software: str = "s") -> Journal:
    journal = Journal(path, software)
    journal.load()
    return journal


def written(path: Path) -> bytes:
    journal = opened(path)
    for index, record in enumerate(RECORDS):
        journal.append(f"k{index}", record)
    journal.close()
    return path.read_bytes()


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    written(tmp_path / "j")
    journal = opened(tmp_path / "j")
    assert [journal.read(f"k{index}") for index in range(4)] == RECORDS
    assert (journal.damaged, journal.stale) == (0, 0)


@given(st.data())
def test_a_journal_cut_off_anywhere_loses_at_most_the_line_it_was_cut_in(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        whole = written(path)
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        journal = opened(path)
        lines = whole[:cut].count(b"\n")
        assert sorted(journal.keys()) == [f"k{index}" for index in range(lines)]
        journal.append("new", RECORDS[0])
        journal.close()
        again = opened(path)
        assert again.read("new") == RECORDS[0]
        lines += whole[cut : cut + 1] == b"\n"  # a line that lacks nothing but its end is whole again
        assert sorted(again.keys()) == sorted(["new", *(f"k{index}" for index in range(lines))])
        again.close()


@given(st.data())
def test_a_changed_byte_never_gives_another_record(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        content = bytearray(written(path))
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(bytes(content))
        journal = opened(path)
        assert all(journal.read(key) == RECORDS[int(key[1:])] for key in list(journal.keys()))
        journal.close()


def test_records_of_other_software_are_counted_and_left_alone(tmp_path: Path) -> None:
    written(tmp_path / "j")
    journal = opened(tmp_path / "j", "newer")
    assert (list(journal.keys()), journal.stale) == ([], 4)


@pytest.mark.parametrize("status", ["error", "stopped"])
def test_points_without_an_answer_are_tried_again(tmp_path: Path, status: str) -> None:
    journal = opened(tmp_path / "j")
    record: dict[str, Any] = {"status": status, "error": "no"}
    journal.append("k", record)
    assert journal.read("k") == record
    assert "k" not in opened(tmp_path / "j")


def test_a_journal_that_changed_under_a_reader_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "j")
    journal = opened(tmp_path / "j")
    (tmp_path / "j").write_bytes(b"x" * 1000)
    with pytest.raises(PlannerError, match="another program"):
        journal.read("k0")


def test_names_of_sweeps_never_leave_the_cache_and_never_meet() -> None:
    paths = [journal_path(name, "c") for name in ("a/b", "a-b", "../../etc", "..", "a b", "ü")]
    assert len(set(paths)) == len(paths)
    assert {path.parent for path in paths} == {Path("c/sweeps")}
