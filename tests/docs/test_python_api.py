"""The page on the Python API runs from top to bottom and prints what it says."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import planner

ROOT = Path(__file__).parent.parent.parent

import python_reference  # noqa: E402

PAGE = ROOT / "docs" / "python-api.md"
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
EXAMPLE = ROOT / "examples" / "serve-qwen3-32b-h200.yaml"


def test_every_block_prints_what_stands_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    printed = ""
    for language, text in BLOCKS:
        if language == "text":
            assert printed == text
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, str(PAGE), "exec"), names)
        printed = out.getvalue()
    assert [language for language, _ in BLOCKS].count("text") >= 4


def test_the_reference_is_what_docstrings_say_of_every_public_name(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        python_reference.main([])
    assert python_reference.main(["--check"]) == 0
    text = python_reference.PAGE.read_text(encoding="utf-8")
    assert [name for name in planner.__all__ if not name.startswith("__") and f"### `planner.{name}`" not in text] == []
    assert all(getattr(planner, name) is not None for name in planner.__all__)


def test_a_path_a_mapping_and_a_resolved_problem_give_the_same_plan() -> None:
    import yaml

    overrides = ["options.tp=[2]", "options.pp=[1]", "options.modes=[colocated]"]
    resolved = planner.load_problem(EXAMPLE, overrides=overrides)
    texts = {
        planner.solve(resolved, level="static").to_json(),
        planner.solve(EXAMPLE, overrides=overrides, level="static").to_json(),
        planner.solve(str(EXAMPLE), overrides=overrides, level="static").to_json(),
        planner.solve(yaml.safe_load(EXAMPLE.read_text()), overrides=overrides, level="static").to_json(),
    }
    assert len(texts) == 1


def test_a_resolved_problem_takes_no_overrides() -> None:
    with pytest.raises(planner.PlannerError, match="neither overrides nor profiles"):
        planner.solve(planner.load_problem(EXAMPLE), overrides=["seed=1"])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"kind": "serve", "x": {1, 2}}, "is not plain data"),
        ({"kind": "serve", "seed": float("nan")}, "problem"),
        ({}, "is missing"),
        ({"kind": "serve", "modles": {}}, "unknown key `modles`"),
    ],
)
def test_a_mapping_is_refused_as_a_file_would_be(data: dict[str, Any], what: str) -> None:
    with pytest.raises(planner.PlannerError, match="problem") as caught:
        planner.solve(data)
    assert what in str(caught.value)
