"""Kernel tables of the machine: looked up without an import, used where none are named, left out where unreadable."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.costs.rates.pricer import NO_TABLES, profile_paths, serving_tables
from planner.errors import PlannerError
from planner.hardware.profiles import installed
from planner.hardware.profiles.installed import installed_profiles, installed_tables
from planner.hardware.profiles.store import ProfileStore

Rows = dict[str, list[object]]
Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PLANNER_PROFILES")
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(installed, "PACKAGE", "tables-of-test")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """A package that cannot be imported, with a release, and the folder of its tables."""

    def put(release: str = "7.1") -> Path:
        package, facts = tmp_path / "site" / "tables_of_test", tmp_path / "site" / f"tables_of_test-{release}.dist-info"
        for folder in (package, facts):
            folder.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tables-of-test\nVersion: {release}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return package / "systems" / "data"

    return put


def test_without_the_package_nothing_serves_unasked() -> None:
    assert installed_tables() is None
    assert serving_tables(()) == ()


def test_tables_of_an_installed_package_serve_where_none_are_named(
    install: Install, write_table: Callable[..., Path], gemm_rows: Rows
) -> None:
    folder = install()
    folder.parent.mkdir()
    os.rename(write_table("gemm", gemm_rows), folder)
    known = installed_tables()
    assert known is not None
    assert (known.name, known.problem) == ("tables-of-test 7.1", "")
    assert serving_tables(()) == (str(folder),)
    assert profile_paths(()) == ()  # of training and runs: nothing unasked
    assert serving_tables(("own",)) == ("own",)
    assert serving_tables((NO_TABLES,)) == ()


def test_a_package_of_an_unknown_layout_is_named_and_does_not_serve(install: Install) -> None:
    folder = install("9.0")
    (folder / "h200_sxm").mkdir(parents=True)
    (folder / "h200_sxm" / "tables.db").write_text("")
    known = installed_tables()
    assert known is not None
    assert known.name == "tables-of-test 9.0"
    assert str(folder) in known.problem
    assert installed_profiles() == ()


def test_a_table_that_cannot_be_read_is_left_out_only_where_nobody_asked(
    write_table: Callable[..., Path], gemm_rows: Rows
) -> None:
    write_table("gemm", gemm_rows, version="0.9.0")
    root = write_table("gemm", gemm_rows)
    (root / "h200_sxm" / "family" / "vllm" / "0.24.0" / "gemm_perf.parquet").write_bytes(b"PAR2")

    def versions(store: ProfileStore) -> list[str]:
        tables = store.candidates(accelerator="h200_sxm", table="gemm", engine="vllm", version=None)
        return [table.identity.version for table in tables]

    with pytest.raises(PlannerError):
        versions(ProfileStore.open([root]))
    store = ProfileStore.open([root], lenient=True)
    for _ in range(2):
        assert versions(store) == ["0.9.0"]
    assert [line.partition(" cannot")[0] for line in store.left_out] == ["h200_sxm/vllm/0.24.0/gemm"]


@pytest.mark.parametrize(
    ("given", "environment", "taken"),
    [
        ((), "none", ()),
        (("none",), "tables", ()),
        (("tables",), "none", ("tables",)),
        (("tables",), "others", ("tables", "others")),
    ],
)
def test_none_switches_tables_off_and_flags_go_before_the_environment(
    given: tuple[str, ...], environment: str, taken: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_PROFILES", environment)
    assert profile_paths(given) == taken
    assert serving_tables(given) == taken


def test_none_beside_tables_is_refused() -> None:
    with pytest.raises(PlannerError, match="`own` beside `none`"):
        profile_paths(("none", "own"))
