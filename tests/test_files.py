"""Files are written whole or not at all; canonical JSON is one text for equal values."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.files import canonical_json, digest, sha256_text, write_bytes_atomic, write_text_atomic
from planner.errors import PlannerError

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def test_a_file_is_written_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_text_atomic(path, "first ä\n")
    write_text_atomic(path, "second\n")
    assert path.read_text(encoding="utf-8") == "second\n"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlannerError, match="No space left on device") as caught:
        write_text_atomic(path, "new")
    assert caught.value.where == str(path)
    assert caught.value.hint
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_atomic(tmp_path / "plan.json", "new")
    assert os.listdir(tmp_path) == []


def test_unwritable_places_are_named_errors(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="there is no directory") as caught:
        write_text_atomic(tmp_path / "no" / "plan.json", "x")
    assert caught.value.where == str(tmp_path / "no" / "plan.json")
    with pytest.raises(PlannerError, match="it is a directory"):
        write_text_atomic(tmp_path, "x")
    with pytest.raises(PlannerError, match="cannot be written"):
        write_text_atomic("a\x00b", "x")
    (tmp_path / "file").touch()
    with pytest.raises(PlannerError, match="cannot be written"):
        write_text_atomic(tmp_path / "file" / "plan.json", "x")


def test_permissions_of_an_existing_file_stay_and_a_new_one_follows_the_umask(tmp_path: Path) -> None:
    kept, fresh, plain = tmp_path / "kept", tmp_path / "fresh", tmp_path / "plain"
    kept.touch()
    kept.chmod(0o640)
    write_text_atomic(kept, "x")
    write_text_atomic(fresh, "x")
    plain.write_text("x")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert fresh.stat().st_mode == plain.stat().st_mode


def test_a_link_is_followed_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    write_text_atomic(os.devnull, "gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_dash_writes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_bytes_atomic("-", b"\x00plan\n")
    assert capfdbinary.readouterr().out == b"\x00plan\n"


@given(_JSON)
def test_canonical_json_reads_back_and_is_a_fixed_point(value: object) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(max_size=5), st.integers(), min_size=2, max_size=6))
def test_the_order_of_entries_does_not_change_a_digest(value: dict[str, int]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


def test_a_digest_is_the_sha256_of_the_canonical_text() -> None:
    assert digest({"b": [1, 2.5], "a": None}) == sha256_text('{"a":null,"b":[1,2.5]}')
    # NIST FIPS 180-4 example: SHA-256 of "abc"
    assert sha256_text("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": {"b": float("-inf")}}])
def test_numbers_that_are_not_finite_have_no_canonical_text(value: object) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_json(value)


def test_keys_that_are_not_text_have_no_canonical_text() -> None:
    with pytest.raises(TypeError, match="must be text, found 1"):
        canonical_json([{"a": {1: 2}}])
