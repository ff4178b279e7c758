"""The whole loop on the CPU at hand: profile, solve, execute the plan's shards, calibrate, and execute them again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="profiling and execution need torch")

pytestmark = pytest.mark.slow

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
  hidden_size: 256
  vocab_size: 2048
  tied_embeddings: false
  max_context_tokens: 4096
  blocks:
    dense:
      mixer: {grouped_query: {num_heads: 8, num_kv_heads: 4, head_dim: 32, v_head_dim: 32, qk_norm: true}}
      ffn: {dense: {intermediate_size: 768}}
  layers: [{times: 4, of: [dense]}]
"""
PROBLEM = {
    "kind": "serve",
    "models": {"small": {"name": "tests/small"}},
    "cluster": {"pools": [{"gpu": "this_machine", "gpus": 1}]},
    "workloads": [{"input_tokens": 96, "output_tokens": 32, "load": {"concurrency": 4}}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
}


def planner(folder: Path, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Runs a verb in `folder` with a catalog that knows the CPU and the model; its standard output."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PLANNER_")}
    settings = {"PLANNER_CATALOG": str(folder / "catalog"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "planner", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**plain, **settings}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in codes, done.stderr
    return done.stdout


def executed_errors(folder: Path, calibration: str) -> list[float]:
    """Absolute errors of the predicted time of every step of the plan, which is run anew."""
    given = ["--level", "execute", "--device", "cpu", "--calibration", calibration]
    planner(folder, "check", "plan.json", *given, codes=(0, 1))
    checks: dict[str, Any] = json.loads((folder / "plan.checks.json").read_text(encoding="utf-8"))
    steps = checks["levels"]["execute"]["result"]["steps"]
    return [abs(step["error"]) for step in steps if step["claimed"]]


def test_calibration_on_executed_steps_betters_the_prediction_of_steps_run_later(tmp_path: Path) -> None:
    for section, text in (("hardware", HARDWARE), ("models", MODEL)):
        (tmp_path / "catalog" / section).mkdir(parents=True)
        (tmp_path / "catalog" / section / "here.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM), encoding="utf-8")

    measured = ["--device", "cpu", "--accelerator", "this_cpu", "--models", "tests/small", "--tp", "1", "--ep", "1"]
    planner(tmp_path, "profile", *measured, "--budget", "5s", "-o", "profiles")
    planner(tmp_path, "solve", "problem.json", "--profiles", "profiles", "-o", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["evidence"]["basis"]["measured"] > 0, "the plan rests on what was profiled"

    before = executed_errors(tmp_path, "default")
    planner(tmp_path, "calibrate", "plan.checks.json", "-o", "calibration.yaml")
    after = executed_errors(tmp_path, "calibration.yaml")
    assert len(before) == len(after) >= 3
    assert sum(after) < sum(before), (before, after)
