"""Kernel tables of an installed package: verbs say that they serve, plans name them, and `none` goes without."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Run = Callable[..., Any]
ROW = {
    "id": "one", "model": "Qwen/Qwen3-32B", "weights": "", "system": "h200_sxm", "backend": "vllm", "mode": "agg",
    "backend_version": "", "isl": "1000", "osl": "100", "concurrency": "8", "gpus": "1",
    "tp": "1", "pp": "1", "dp": "1", "moe_tp": "1", "moe_ep": "1",
}  # fmt: skip


@pytest.fixture
def installed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one table, of slow bf16 products, where `run` finds it."""
    folder = tmp_path / "site" / "tables_of_test" / "systems" / "data" / "h200_sxm" / "gemm" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    sizes = [(m, n, k) for m in (1, 64, 4096) for n in (128, 65536) for k in (128, 65536)]
    columns = {name: [size[place] for size in sizes] for place, name in enumerate("mnk")}
    count = len(sizes)
    fixed = {"framework": ["VLLM"] * count, "gemm_dtype": ["bfloat16"] * count, "kernel_source": ["own"] * count}
    latency = [0.5 + m * n * k / 1e9 for m, n, k in sizes]
    pq.write_table(pa.table({**fixed, **columns, "latency": latency}), folder / "gemm_perf.parquet")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("planner.hardware.profiles.installed.PACKAGE", "tables-of-test")
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def test_estimates_take_them_unasked_and_say_so(run: Run, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(",".join(ROW) + "\n" + ",".join(ROW.values()) + "\n")
    served = run("estimate", "--measured", "rows.csv")
    without = run("estimate", "--measured", "rows.csv", "--profiles", "none")
    assert "kernel tables of tables-of-test of no stated release, which is installed, price serving" in served.err
    assert "kernel tables" not in without.err
    tpot = [json.loads(done.out)["prediction"]["tpot_s"] for done in (served, without)]
    assert tpot[0] > 1.001 * tpot[1]
    (installed / "gemm_perf.parquet").unlink()
    nothing = run("estimate", "--measured", "rows.csv")
    assert nothing.out == without.out
    assert "costs go on without its tables" in nothing.err


def test_plans_name_them_and_are_checked_with_them(run: Run, installed: Path, problem: Path) -> None:
    solve = (
        "solve",
        "problem.yaml",
        "--level",
        "static",
        "--set",
        "options.tp=[1]",
        "--set",
        "options.modes=[colocated]",
    )
    served = run(*solve, "-o", "plan.json")
    assert served.code == 0, served.err
    assert "which is installed, price serving" in served.err
    plan = json.loads((problem.parent / "plan.json").read_text())
    assert len(plan["digests"]["profiles"]) == 1
    assert any("tables-of-test" in note for note in plan["evidence"]["notes"])
    without = run(*solve, "--profiles", "none", "-o", "without.json")
    assert "price serving" not in without.err
    assert json.loads((problem.parent / "without.json").read_text())["digests"]["profiles"] == []
    for name in ("plan.json", "without.json"):
        checked = run("check", name, "--level", "proof", "--json")
        verdict = json.loads(checked.out)
        assert checked.code == 0, checked.out
        assert not [finding for finding in verdict["findings"] if "not at hand" in finding["what"]]


def test_the_diagnosis_names_them(run: Run, installed: Path) -> None:
    done = run("doctor", "--json")
    facts = {fact["name"]: fact for fact in json.loads(done.out)["facts"] if fact["part"] == "profiles"}
    assert facts["tables-of-test of no stated release, installed"]["what"] == "1 tables of h200_sxm"
    off = run("doctor", "--profiles", "none")
    assert "`none`: times come from data sheets" in off.out
    (installed / "gemm_perf.parquet").unlink()
    unknown = run("doctor")
    assert unknown.code == 0
    assert "costs go on without" in unknown.out
