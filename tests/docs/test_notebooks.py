"""The notebooks run from top to bottom: their code cells in order, in one namespace, without a Jupyter kernel."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, place: str, names: dict[str, Any]) -> Any:  # noqa: ANN401 - what the cell shows
    """Runs a cell and returns the value of its last expression, as a notebook shows it; None without one."""
    tree = ast.parse(source)
    last = tree.body[-1]
    shown = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    if shown:
        tree.body.remove(last)
    exec(compile(tree, place, "exec"), names)
    return eval(compile(shown, place, "eval"), names) if shown else None


def run_notebook(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    names: dict[str, Any] = {}
    cells = enumerate(code_cells(notebook), 1)
    return names, [run_cell("".join(cell["source"]), f"{notebook.name}, cell {row}", names) for row, cell in cells]


def test_the_serving_notebook_solves_shows_and_sweeps() -> None:
    names, shown = run_notebook(NOTEBOOKS[0])
    plan = names["plan"]
    assert plan.status == "optimal"
    assert plan.objective == sum(role.replicas * role.parallelism.tp for role in plan.roles)
    assert shown[0] == ("optimal", plan.objective, plan.bound, 0.0)
    findings, all_kept = shown[4]
    assert (findings > 10, all_kept) == (True, True)
    gpus = list(shown[5]["gpus"])
    assert gpus[0] == plan.objective
    assert gpus == sorted(gpus)
    assert gpus[0] < gpus[-1]


def test_the_training_notebook_solves_explains_and_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    names, _ = run_notebook(NOTEBOOKS[1])
    assert names["plan"].bound <= names["plan"].objective < names["other"].objective
    steps = {answer["id"]: answer["prediction"]["step_time_s"] for answer in names["answers"]}
    assert 0 < steps["dp8"] < steps["tp4"]
    assert "memory" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_output_of_another_machine(notebook: Path) -> None:
    assert len(code_cells(notebook)) >= 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells(notebook))
