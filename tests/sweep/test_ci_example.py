"""The commands of the example workflow and of the action, run as they are written."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CACHE = TemporaryDirectory()  # shared by the tests, as by the runs of a workflow
WORKFLOW = ROOT / "examples" / "ci" / "planner-gate.yml"


def shell(command: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a step as GitHub does, with `planner` on the path."""
    tool = folder / "bin" / "planner"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner "$@"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    given = {
        **os.environ,
        **environment,
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "PLANNER_CACHE_DIR": CACHE.name,
        "PLANNER_WORKERS": "0",
        "GITHUB_STEP_SUMMARY": str(folder / "step-summary.md"),
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
        cwd=folder, env=given, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def planned_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first step of the workflow writes: the plans of the target branch, which all tests share."""
    folder = check_out(tmp_path_factory.mktemp("target"))
    done = shell(commands()["Plan the target branch"], folder)
    assert done.returncode == 0, done.stderr
    return folder / "main.parquet"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the same deployment checked out twice."""
    return check_out(tmp_path)


def check_out(tmp_path: Path) -> Path:
    """The deployment of the example as `base` and as `head`; fewer options make it quick."""
    for name in ("base", "head"):
        target = tmp_path / name / "capacity"
        target.mkdir(parents=True)
        for file in ("sweep.yaml", "problem.yaml"):
            shutil.copy(ROOT / "examples" / "ci" / file, target / file)
        with (target / "problem.yaml").open("a") as problem:
            problem.write("options: {modes: [colocated], tp: [1, 2], pp: [1], dp: [1]}\n")
    return tmp_path


def commands() -> dict[str, str]:
    """The shell commands of the example workflow by the name of their step."""
    steps: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["gate"]["steps"]
    return {step["name"]: step["run"] for step in steps if "run" in step}


def raise_price(checkout: Path, by: float) -> None:
    problem = checkout / "head" / "capacity" / "problem.yaml"
    text = problem.read_text()
    price = re.search(r"price: ([\d.]+)USD/h", text)
    assert price is not None
    problem.write_text(text.replace(price[0], f"price: {float(price[1]) * by:.4f}USD/h"))


def run_workflow(checkout: Path, planned_target: Path) -> list["subprocess.CompletedProcess[str]"]:
    """The steps of the workflow after the first, whose file is there."""
    shutil.copy(planned_target, checkout / "main.parquet")
    return [shell(command, checkout) for name, command in commands().items() if name != "Plan the target branch"]


def test_a_plan_five_percent_dearer_fails_the_gate_and_the_summary_says_why(
    checkout: Path, planned_target: Path
) -> None:
    raise_price(checkout, 1.05)
    gate, shown = run_workflow(checkout, planned_target)
    assert (gate.returncode, shown.returncode) == (1, 0)
    summary = (checkout / "step-summary.md").read_text()
    assert "4 of 4 points fail" in summary
    assert "cluster.pools.0.usd_per_gpu_hour: 3.5 -> 3.675" in summary
    assert "+5 %" in summary
    assert "`cost_per_mtok > +3%`" in summary
    assert gate.stderr.count("::error file=head/capacity/sweep.yaml") == 4
    suites = ElementTree.parse(checkout / "planner.xml").getroot()
    assert (suites.attrib["tests"], suites.attrib["failures"]) == ("4", "4")


def test_a_plan_two_percent_dearer_passes(checkout: Path, planned_target: Path) -> None:
    raise_price(checkout, 1.02)
    gate, _ = run_workflow(checkout, planned_target)
    assert gate.returncode == 0
    assert "all 4 points pass" in (checkout / "step-summary.md").read_text()


def test_a_plan_that_is_lost_fails_the_gate(checkout: Path, planned_target: Path) -> None:
    problem = checkout / "head" / "capacity" / "problem.yaml"
    problem.write_text(problem.read_text().replace("tpot: 30ms", "tpot: 1ms"))
    gate, _ = run_workflow(checkout, planned_target)
    assert gate.returncode == 1
    assert "no plan meets the limits any more" in (checkout / "step-summary.md").read_text()


def test_the_action_runs_its_sweep_and_ends_with_its_verdict(checkout: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = next(step for step in action["runs"]["steps"] if step["name"] == "Sweep")
    assert set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())) == set(action["inputs"])
    given = {"SWEEP": "head/capacity/sweep.yaml", "BASELINE": "", "FAIL_ON": "", "MORE": "--workers\n0\n"}
    given |= {"OUTPUT": "out.parquet", "JUNIT": "j.xml", "SUMMARY": "s.md", "CACHE": CACHE.name}
    assert set(given) == set(step["env"])
    first = shell(step["run"], checkout, **given)
    assert first.returncode == 0, first.stderr
    raise_price(checkout, 1.05)
    given |= {
        "BASELINE": "out.parquet",
        "FAIL_ON": "cost_per_mtok > +3%\npeak: ttft_s > +10%\n",
        "OUTPUT": "new.parquet",
    }
    second = shell(step["run"], checkout, **given)
    assert second.returncode == 1, second.stderr
    assert "4 of 4 points fail" in (checkout / "step-summary.md").read_text()
