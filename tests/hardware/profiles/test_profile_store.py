import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.errors import PlannerError
from planner.hardware.profiles import cache as cache_module
from planner.hardware.profiles.cache import default_cache_dir
from planner.hardware.profiles.convert import Converted
from planner.hardware.profiles.importing import import_profiles
from planner.hardware.profiles.sources import Source
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiles.table import COLUMNS, HEADER, KernelTable

Rows = Mapping[str, Sequence[object]]
WriteTable = Callable[..., Path]

GEMM = {"accelerator": "h200_sxm", "table": "gemm", "engine": "vllm"}


def gemm_of(store: ProfileStore, version: str | None = None) -> KernelTable:
    chosen = store.select(**GEMM, version=version)
    assert chosen is not None
    return chosen


def latencies(store: ProfileStore) -> list[float]:
    grid = gemm_of(store).grid(gemm_dtype="bfloat16")
    assert grid is not None
    return [float(value) for value in grid.latency_s.ravel()]


@pytest.fixture
def raw(write_table: WriteTable, gemm_rows: Rows) -> Path:
    return write_table("gemm", gemm_rows)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files converted since the start of the test."""
    done: list[str] = []
    convert_source = cache_module.convert_source

    def counted(source: Source) -> Converted:
        done.append(source.table)
        return convert_source(source)

    monkeypatch.setattr(cache_module, "convert_source", counted)
    return done


def wheel_of(raw: Path, tmp_path: Path) -> Path:
    wheel = tmp_path / "aiconfigurator_core-0.12.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in raw.rglob("*.parquet"):
            archive.write(file, f"aiconfigurator_core/systems/data/{file.relative_to(raw)}")
        archive.writestr("aiconfigurator_core/__init__.py", "")
    return wheel


def test_directory_nested_package_wheel_and_imported_store_give_the_same_table(
    raw: Path, tmp_path: Path, cache: Path
) -> None:
    nested = tmp_path / "package" / "systems" / "data"
    nested.parent.mkdir(parents=True)
    nested.symlink_to(raw)
    import_profiles(raw, tmp_path / "store")
    paths = [raw, raw / "h200_sxm", nested, wheel_of(raw, tmp_path), tmp_path / "store"]
    stores = [ProfileStore.open([path], cache) for path in paths]
    assert len({gemm_of(store).identity for store in stores}) == 1
    assert len({tuple(latencies(store)) for store in stores}) == 1
    assert [store.identities() for store in stores] == [[gemm_of(stores[0]).identity]] * len(paths)


def test_a_table_is_converted_once_and_only_when_it_is_asked_for(
    raw: Path, write_table: WriteTable, gemm_rows: Rows, cache: Path, conversions: list[str]
) -> None:
    write_table("gemm", gemm_rows, version="0.19.0")
    store = ProfileStore.open([raw], cache)
    assert conversions == []
    first = latencies(store)
    assert latencies(ProfileStore.open([raw], cache)) == first
    assert conversions == ["gemm"]


def test_a_changed_file_is_converted_again_and_the_old_entry_goes(
    raw: Path, write_table: WriteTable, gemm_rows: Rows, cache: Path
) -> None:
    before = latencies(ProfileStore.open([raw], cache))
    write_table("gemm", {**gemm_rows, "latency": [2.0 * float(str(x)) for x in gemm_rows["latency"]]})
    os.utime(next(raw.rglob("*.parquet")), ns=(1, 1))
    assert latencies(ProfileStore.open([raw], cache)) == pytest.approx([2 * x for x in before])
    assert len(list(cache.rglob(HEADER))) == 1


@pytest.mark.parametrize("damage", ["cut columns", "cut header", "no columns", "other schema", "a file instead"])
def test_a_damaged_cache_entry_is_rebuilt(damage: str, raw: Path, cache: Path, conversions: list[str]) -> None:
    expected = latencies(ProfileStore.open([raw], cache))
    entry = next(cache.rglob(HEADER)).parent
    header, columns = entry / HEADER, entry / COLUMNS
    if damage == "cut columns":
        columns.write_bytes(columns.read_bytes()[:-8])
    elif damage == "cut header":
        header.write_bytes(header.read_bytes()[:40])
    elif damage == "other schema":
        header.write_text(json.dumps({**json.loads(header.read_text()), "schema": "planner.profile/0"}))
    else:
        columns.unlink()
    if damage == "a file instead":
        header.unlink()
        entry.rmdir()
        entry.write_text("")
    assert latencies(ProfileStore.open([raw], cache)) == expected
    assert conversions == ["gemm", "gemm"]
    assert latencies(ProfileStore.open([raw], cache)) == expected
    assert conversions == ["gemm", "gemm"]


def test_a_cache_that_cannot_be_written_is_done_without(raw: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    assert len(latencies(ProfileStore.open([raw], blocked))) == 12
    assert blocked.read_text() == "a file where the folder should be"


READ = """
import sys
from pathlib import Path
from planner.hardware.profiles.store import ProfileStore
store = ProfileStore.open([Path(sys.argv[1])], Path(sys.argv[2]))
grid = store.select(accelerator="h200_sxm", table="gemm", engine="vllm", version=None).grid()
print(grid.latency_s.ravel().tolist(), [name for name in ("pyarrow", "scipy") if name in sys.modules])
"""


def test_processes_that_convert_the_same_table_at_once_all_read_it_whole(raw: Path, cache: Path) -> None:
    command = [sys.executable, "-c", READ, str(raw), str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [json.loads(process.communicate(timeout=300)[0].split("] [")[0] + "]") for process in processes]
    assert answers == [latencies(ProfileStore.open([raw], cache))] * 4
    assert not list(cache.rglob(".*"))
    assert len(list(cache.rglob(HEADER))) == 1


def test_a_warm_cache_needs_neither_pyarrow_nor_scipy(raw: Path, cache: Path) -> None:
    latencies(ProfileStore.open([raw], cache))
    command = [sys.executable, "-c", READ, str(raw), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_the_nearest_version_of_the_same_engine_stands_in(
    raw: Path, write_table: WriteTable, gemm_rows: Rows, cache: Path
) -> None:
    write_table("gemm", gemm_rows, version="0.19.0")
    store = ProfileStore.open([raw], cache)
    near = store.select(**GEMM, version="0.20.0")
    exact = store.select(**GEMM, version="0.24.0")
    assert near is not None
    assert exact is not None
    assert (near.identity.version, exact.identity.version) == ("0.19.0", "0.24.0")
    assert gemm_of(store).identity.version == "0.24.0"
    assert [table.identity.version for table in store.candidates(**GEMM, version="0.18.0")] == ["0.19.0", "0.24.0"]


@pytest.mark.parametrize("other", [{"accelerator": "h9999"}, {"table": "moe"}, {"engine": "sglang"}])
def test_what_was_not_measured_is_not_found(other: dict[str, str], raw: Path, cache: Path) -> None:
    assert ProfileStore.open([raw], cache).select(**{**GEMM, **other}, version=None) is None


def test_the_earlier_of_two_paths_wins_and_a_store_without_paths_is_empty(
    raw: Path, tmp_path: Path, write_table: WriteTable, gemm_rows: Rows, cache: Path
) -> None:
    import_profiles(raw, tmp_path / "store")
    first = latencies(ProfileStore.open([raw], cache))
    write_table("gemm", {**gemm_rows, "latency": [9.0] * 12})
    assert latencies(ProfileStore.open([tmp_path / "store", raw], cache)) == first
    assert latencies(ProfileStore.open([raw, tmp_path / "store"], cache)) == pytest.approx([9e-3] * 12)
    assert ProfileStore.open([], cache).accelerators() == []


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PLANNER_CACHE_DIR", raising=False)
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "planner"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "planner"
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"


def test_import_reports_what_it_did_and_a_second_import_adds_to_the_store(
    raw: Path, tmp_path: Path, write_table: WriteTable, gemm_rows: Rows, cache: Path
) -> None:
    write_table("strange", {"colour": ["red"], "latency": [1.0]})
    report = import_profiles(raw, tmp_path / "store")
    assert [identity.table for identity in report.tables] == ["gemm"]
    assert [where.endswith("strange_perf.parquet") for where, _ in report.skipped] == [True]
    assert (report.rows_kept, report.rows_dropped) == (12, 0)
    other = write_table("gemm", gemm_rows, system="b200_sxm") / "b200_sxm"
    import_profiles(other, tmp_path / "store")
    assert ProfileStore.open([tmp_path / "store"], cache).accelerators() == ["b200_sxm", "h200_sxm"]
    assert not list((tmp_path / "store").glob(".*"))


def test_no_two_documents_about_profiles_have_the_same_schema(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store")
    schemas = []
    for arguments in (["import", str(raw), "-o", store], ["list", "--profiles", store], ["show", "h200_sxm"]):
        more = ["--profiles", store] if arguments[0] == "show" else []
        assert main(["profiles", *arguments, *more, "--json"]) == 0
        schemas.append(json.loads(capsys.readouterr().out)["schema"])
    written = [*Path(store).rglob("index.json"), *Path(store).rglob("header.json")]
    schemas += {json.loads(path.read_text())["schema"] for path in written}
    assert len(set(schemas)) == len(schemas) == 5


def assert_refused(path: Path, output: Path, match: str) -> None:
    before = sorted(output.parent.iterdir()) if output.parent.is_dir() else []
    with pytest.raises(PlannerError, match=match):
        import_profiles(path, output)
    assert (sorted(output.parent.iterdir()) if output.parent.is_dir() else []) == before


def test_bad_input_is_one_error_and_leaves_nothing_behind(raw: Path, tmp_path: Path) -> None:
    empty, output = tmp_path / "empty", tmp_path / "out" / "store"
    empty.mkdir()
    output.parent.mkdir()
    assert_refused(empty, output, "no kernel tables found")
    assert_refused(tmp_path / "absent", output, "file not found")
    no_zip = tmp_path / "core.whl"
    no_zip.write_text("not a zip")
    assert_refused(no_zip, output, "not a wheel")
    (tmp_path / "blocked").write_text("")
    assert_refused(raw, tmp_path / "blocked" / "store", "cannot write")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("precious")
    assert_refused(raw, tmp_path / "papers", "exists and is no profile store")
    file = next(raw.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:200])
    assert_refused(raw, output, "not a readable parquet file")


def test_a_store_of_unknown_layout_only_and_a_damaged_store_are_refused(
    raw: Path, tmp_path: Path, write_table: WriteTable, cache: Path
) -> None:
    import_profiles(raw, tmp_path / "store")
    next((tmp_path / "store").rglob(COLUMNS)).write_bytes(b"")
    with pytest.raises(PlannerError, match="stored table is damaged"):
        gemm_of(ProfileStore.open([tmp_path / "store"], cache))
    (tmp_path / "store" / "index.json").write_text('{"schema": "planner.profiles/9"}')
    with pytest.raises(PlannerError, match="schema must be"):
        ProfileStore.open([tmp_path / "store"], cache)
    next(raw.rglob("*.parquet")).unlink()
    write_table("strange", {"colour": ["red"], "latency": [1.0]})
    assert_refused(raw, tmp_path / "other", "no table could be read")


def test_a_stored_table_reads_the_numbers_of_its_source(raw: Path, cache: Path) -> None:
    grid = gemm_of(ProfileStore.open([raw], cache)).grid(gemm_dtype="bfloat16")
    assert grid is not None
    m, n, k = grid.points()
    np.testing.assert_allclose(grid.latency_s, (m + n / 10 + k / 100) / 1e3)
    assert not grid.latency_s.flags.writeable
