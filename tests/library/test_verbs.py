"""Verbs as functions: packages that are called by their names, and answers that are those of the command."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import planner
from planner.library import verbs

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "tests" / "benchmark_reports" / "vllm_bench.json"
FACTS: dict[str, object] = {"system": "h200_sxm", "backend": "vllm", "tp": 4, "model": "Qwen/Qwen3-32B"}
NAMES = ("audit", "calibrate", "estimate", "simulate", "sweep")


@pytest.mark.parametrize("name", NAMES)
def test_a_package_named_like_a_verb_is_called_as_the_function(name: str) -> None:
    package: Any = importlib.import_module(f"planner.{name}")
    assert isinstance(package, ModuleType)
    assert getattr(planner, name) is package
    assert inspect.signature(package) == inspect.signature(getattr(verbs, name))
    with pytest.raises(TypeError, match="wrong"):
        package("x", wrong=1)


def test_a_verb_is_called_whoever_imported_its_package_first() -> None:
    code = (
        "import planner.sweep.axes, planner; print(callable(planner.sweep), callable(planner.simulate), planner.costs)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "has no attribute `costs`" in done.stderr
    code = "import planner.sweep.axes, planner; print(callable(planner.sweep), callable(planner.simulate))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True True\n"


def test_calibrating_compares_reports_as_the_command_does() -> None:
    compared = planner.calibrate(REPORT, facts=FACTS, refit=False)
    assert compared.agreement is not None
    assert compared.agreement.taken == {"vllm bench serve": 1}
    assert (compared.document, compared.worse) == (None, False)
    with pytest.raises(planner.PlannerError, match="nothing was fitted"):
        compared.save("calibration.yaml")
    with pytest.raises(planner.PlannerError, match="`tp` must be a whole number"):
        planner.calibrate(REPORT, facts=FACTS | {"tp": 0})
    with pytest.raises(planner.PlannerError, match="completes benchmark reports"):
        planner.calibrate([], facts=FACTS)


def test_an_audit_takes_data_and_text_alike() -> None:
    script = ROOT / "examples" / "launch" / "serve.sh"
    plain = planner.audit(script)
    assert plain.now is None
    with pytest.raises(planner.PlannerError, match="--workload"):
        planner.audit(script, workload="input")
    with pytest.raises(planner.PlannerError, match="not plain data"):
        planner.audit(script, workload={"input": {1, 2}})
