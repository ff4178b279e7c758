"""The whole loop on the CPU at hand: profile, solve, execute the plan's shards, calibrate, and execute them again."""

import json
import os
import subprocess
import sys
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import pytest
from rank_environment import HAS_TORCH
from rank_forks import FORKS

from planner.cli.main import main
from planner.execute import execution
from planner.execute.execution import ExecutionOptions
from planner.execute.ranks import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_TORCH, reason="profiling and execution need torch"),
]

BUDGETS = ("5s", "30s", "120s")  # of the profile, each taken where the one before was too short
STEP_BUDGET_S = 0.3  # of repeats of one step
ROUNDS = 3  # of steps run, calibrated to and run again: one may meet other work on the machine, and then proves nothing

# One core at the rates that its vector units and a memory channel are sold with, which no kernel reaches.
HARDWARE = """
accelerators:
  this_cpu:
    display_name: A core of this machine
    memory: 8GiB
    memory_bandwidth: 20GB/s
    peak: {bf16: 0.15TFLOPS, fp32: 0.15TFLOPS}
    launch_latency: 1us
    power: 10W
    compute_capability: "0.0"
nodes:
  this_machine:
    accelerator: this_cpu
    num_gpus: 1
    scale_up: {kind: pcie, size: 1, bandwidth: 1GB/s, latency: 20us}
    host: {link_bandwidth: 10GB/s, memory: 16GB}
    fabric: hdr200
"""
MODEL = """
tests/small:
  source: nowhere
  hidden_size: 128
  vocab_size: 1024
  tied_embeddings: false
  max_context_tokens: 4096
  blocks:
    dense:
      mixer: {grouped_query: {num_heads: 8, num_kv_heads: 4, head_dim: 16, v_head_dim: 16, qk_norm: true}}
      ffn: {dense: {intermediate_size: 384}}
  layers: [{times: 4, of: [dense]}]
"""
PROBLEM = {
    "kind": "serve",
    "models": {"small": {"name": "tests/small"}},
    "cluster": {"pools": [{"gpu": "this_machine", "gpus": 1}]},
    "workloads": [{"input_tokens": 96, "output_tokens": 32, "load": {"concurrency": 4}}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {"chunk_tokens": [512]},  # a processor takes seconds for one of 16,384
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verbs run: with a catalog that knows the CPU and the model, and ranks that have imported torch."""
    for section, text in (("hardware", HARDWARE), ("models", MODEL)):
        (tmp_path / "catalog" / section).mkdir(parents=True)
        (tmp_path / "catalog" / section / "here.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM), encoding="utf-8")
    for name in [name for name in os.environ if name.startswith("PLANNER_")]:
        monkeypatch.delenv(name)
    settings = {"PLANNER_CATALOG": str(tmp_path / "catalog"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_start", FORKS.start)
    monkeypatch.setattr(execution, "ExecutionOptions", partial(ExecutionOptions, step_budget_s=STEP_BUDGET_S))
    return tmp_path


def profile(*arguments: str) -> None:
    """`planner profile` in a process of its own: it measures on a thread that nothing else uses.

    On a busy machine a short budget may end before anything is measured.
    """
    for budget in BUDGETS:
        command = [sys.executable, "-m", "planner", "profile", *arguments, "--budget", budget]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if "give a larger `--budget`" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def executed_steps(folder: Path, calibration: str) -> list[dict[str, Any]]:
    """The plan's steps, run anew, with the times that these costs predict."""
    given = ["--level", "execute", "--device", "cpu", "--calibration", calibration]
    assert main(["check", "plan.json", *given]) in (0, 1)
    checks: dict[str, Any] = json.loads((folder / "plan.checks.json").read_text(encoding="utf-8"))
    return [step for step in checks["levels"]["execute"]["result"]["steps"] if step["claimed"]]


def errors_of_later_steps(folder: Path) -> tuple[list[float], list[float]]:
    """Of the shipped costs, and of those calibrated to steps that ran before: both judged by the same later runs.

    An error is the logarithm of predicted over measured: twice and half as long as measured are as wrong, so that other
    work on the machine weighs the same on either side.
    """
    earlier = executed_steps(folder, "default")
    assert main(["calibrate", "plan.checks.json", "-o", "calibration.yaml"]) == 0
    later = executed_steps(folder, "calibration.yaml")
    names = ("role", "step", "batch", "tokens", "context")
    assert [[step[name] for name in names] for step in earlier] == [[step[name] for name in names] for step in later]
    measured = [step["measured_s"] for step in later]
    shipped, calibrated = (
        [abs(log(step["predicted_s"] / time_s)) for step, time_s in zip(steps, measured, strict=True)]
        for steps in (earlier, later)
    )
    return shipped, calibrated


def test_calibration_on_executed_steps_betters_the_prediction_of_steps_run_later(folder: Path) -> None:
    measured = ["--device", "cpu", "--accelerator", "this_cpu", "--models", "tests/small", "--tp", "1", "--ep", "1"]
    profile(*measured, "-o", "profiles")
    assert main(["solve", "problem.json", "--profiles", "profiles", "-o", "plan.json"]) == 0
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert plan["evidence"]["basis"]["measured"] > 0, "the plan rests on what was profiled"

    tried = []
    for _ in range(ROUNDS):
        before, after = errors_of_later_steps(folder)
        assert len(before) == len(after) >= 3
        tried.append((before, after))
        if sum(after) < sum(before):
            return
    pytest.fail(f"no calibration predicts later steps better: {tried}")
