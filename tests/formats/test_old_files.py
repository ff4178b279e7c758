"""Files that earlier versions wrote are read, shown and compared by this one."""

import json
import re
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.load.problems import load_plan
from planner.sweep.files import read_table

ROOT = Path(__file__).parent.parent.parent
OLD = Path(__file__).parent / "0.1.0"
PLANS = sorted(path for path in OLD.glob("*.json") if json.loads(path.read_text())["schema"] == "planner.plan/1")
ID = re.compile(r"\bplanner\.([\w.-]+)/\d")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_old_plans_are_read_and_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envelope, _ = load_plan(str(path))
    assert main(["show", str(path)]) == 0
    assert envelope.kind in capsys.readouterr().out
    assert main(["diff", str(path), str(path)]) == 0


def test_there_is_an_old_plan_of_every_kind() -> None:
    from planner.kinds.registry import kind_names

    assert {load_plan(str(path))[0].kind for path in PLANS} == set(kind_names())


@pytest.mark.parametrize("name", ["sweep.json", "sweep.parquet"])
def test_old_results_of_sweeps_are_read(name: str) -> None:
    table = read_table(str(OLD / name))
    assert [row["slo.tpot_s"] for row in table.rows] == [0.02, 0.03]
    assert all(row["status"] == "ok" for row in table.rows)


@pytest.mark.parametrize("name", ["serve_solved.json", "serve_solved.checks.json", "sweep.json"])
def test_old_files_have_their_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(OLD / name), "-o", str(tmp_path / "report.html")]) == 0, capsys.readouterr().err
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_names_of_formats_have_one_spelling() -> None:
    for top in ("planner", "hardware", "models", "solvers", "cli", "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            for name in ID.findall(path.read_text()):
                assert re.fullmatch(r"[a-z_]+", name) or name == "sweep-results", f"{path}: {name}"
