"""Roles run whole under torchrun: on one node, on two, and started by the SLURM and Ray scripts, all on loopback."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rank_environment import ENVIRONMENT, free_port

from planner.cli.main import main
from planner.execute.ranks.launch import Rendezvous
from planner.execute.ranks.wrappers import ray_script, slurm_script

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")

LENIENT = ["--device", "cpu", "--cut", "layers=1,batch=1", "--tolerance", "99.9%"]
TIME_LIMIT_S = 300.0

BenchPlan = Callable[..., Path]


def start(arguments: list[str], more: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """A process of its own, as one node of a cluster is."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(more or {})}
    return subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit code and what was printed; the process is killed when it takes too long."""
    try:
        out, complaint = process.communicate(timeout=TIME_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, complaint


def planner(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "planner", *arguments]


def only_step(text: str, kind: str) -> dict[str, Any]:
    document = json.loads(text)
    assert document["faults"] == []
    (step,) = [step for step in document["steps"] if step["step"] == kind]
    assert isinstance(step, dict)
    return step


@needs_torch
def test_a_role_runs_whole_under_torchrun_on_one_node(
    bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"prefill": {}, "decode": {"tp": 2}})
    port = ["--master-port", str(free_port())]
    assert main(["execute", str(plan), "--nproc-per-node", "2", *port, *LENIENT, "--json"]) == 0
    printed = capsys.readouterr().out
    step = only_step(printed, "decode")
    assert json.loads(printed)["unexecuted"] == {
        "prefill": "role `prefill` has 1 ranks in a replica, torchrun starts 2"
    }
    assert step["executed_share"] == pytest.approx(1.0)
    assert "attention_all_reduce" in step["operators"]
    kept = json.loads(plan.with_name("plan.checks.json").read_text(encoding="utf-8"))
    assert kept["levels"]["execute"]["ok"]


@needs_torch
def test_two_nodes_run_a_role_together_and_each_judges_its_own_ranks(bench_plan: BenchPlan) -> None:
    plan = bench_plan("serve", {"prefill": {"pp": 2}})
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-port", str(free_port())]
    nodes = [
        start(planner("execute", str(plan), *meeting, "--node-rank", str(node), *LENIENT, "--json"))
        for node in range(2)
    ]
    results = [ended(node) for node in nodes]
    assert [code for code, _, _ in results] == [0, 0], [complaint[-2000:] for _, _, complaint in results]
    first, last = (only_step(out, "prefill") for _, out, _ in results)
    assert (first["rank"], last["rank"]) == (0, 1)
    assert "embedding" in first["operators"]
    assert "logits" in last["operators"]
    kept = json.loads(plan.with_name("plan.checks.json").read_text(encoding="utf-8"))["levels"]["execute"]["result"]
    assert {step["rank"] for step in kept["steps"]} == {0}


DOOMED_NODE = """
import sys
from planner.cli.main import main
from planner.execute import execution
execution.ENTRY = "injected_faults:run_rank_that_dies_in_its_second_step"
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@needs_torch
def test_a_rank_that_dies_on_one_node_ends_both(bench_plan: BenchPlan) -> None:
    plan = bench_plan("serve", {"prefill": {"pp": 2}})
    meeting = ["execute", str(plan), "--nnodes", "2", "--master-port", str(free_port()), *LENIENT, "--json"]
    begun = time.monotonic()
    healthy = start(planner(*meeting))
    doomed = start(
        [sys.executable, "-c", DOOMED_NODE, *meeting, "--node-rank", "1"],
        ENVIRONMENT,
    )
    results = [ended(node) for node in (healthy, doomed)]
    assert time.monotonic() - begun < TIME_LIMIT_S
    assert [code for code, _, _ in results] == [1, 1], [complaint[-2000:] for _, _, complaint in results]
    lost, died = (json.loads(out)["faults"][0] for _, out, _ in results)
    assert (died["kind"], died["rank"], died["step"]) == ("killed", 1, "kv_transfer")
    assert (lost["rank"], lost["step"]) == (0, "kv_transfer")
    assert lost["kind"] in ("collective", "killed", "hang", "raised")
    for _, out, _ in results:  # the step before the fault is kept on both
        assert [step["step"] for step in json.loads(out)["steps"]] == ["prefill"]


@needs_torch
def test_a_node_whose_partner_never_comes_ends_at_the_time_limit(
    bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"prefill": {"pp": 2}})
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-port", str(free_port()), "--time-limit", "3s"]
    assert main(["execute", str(plan), *meeting, *LENIENT]) == 1
    assert "was not done after 3 s" in capsys.readouterr().out


@needs_torch
def test_torchrun_must_start_as_many_ranks_as_the_role_has(
    bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"decode": {"tp": 4}})
    assert main(["execute", str(plan), "--nproc-per-node", "2", *LENIENT]) == 2
    assert "has 4 ranks in a replica, torchrun starts 2" in capsys.readouterr().err


def test_a_node_rank_beyond_the_nodes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["execute", "plan.json", "--nnodes", "2", "--node-rank", "2"]) == 2
    assert "there is no node 2 of 2" in capsys.readouterr().err


# Stands for srun: runs the command once for each task, with the variables that SLURM sets.
FAKE_SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node SLURM_PROCID=$node "$@" || exit 1; done
"""
FAKE_SCONTROL = """#!/bin/bash
[[ "$1 $2 $3" == "show hostnames node-[a-b]" ]] || exit 3
printf 'node-a\\nnode-b\\n'
"""
FAKE_PLANNER = """#!/bin/bash
printf '%s|' "$@"; echo
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def test_the_slurm_script_starts_the_right_ranks_on_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_PROFILES")  # which the script would name to the ranks
    tools = tmp_path / "bin with space"
    tools.mkdir()
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL), ("planner", FAKE_PLANNER)):
        executable(tools / name, text)
    given = ["execute", "a plan's file.json", "--nnodes", "2", "--nproc-per-node", "4", "--master-port", "4000"]
    given += ["--roles", "pre fill", "--json"]
    assert main([*given, "--slurm", "-o", str(tmp_path / "job.sh")]) == 0
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node-[a-b]"}
    code, out, complaint = ended(start(["bash", str(tmp_path / "job.sh")], environment))
    assert (code, complaint) == (0, "")
    started = [line.removesuffix("|").split("|") for line in out.splitlines()]
    assert len(started) == 2
    for node, words in enumerate(started):
        assert sorted(words) == sorted([*given, "--node-rank", str(node), "--master-addr", "node-a"])
        assert words[words.index("--node-rank") + 1] == str(node)
        assert words[words.index("--master-addr") + 1] == "node-a"


def test_the_slurm_script_asks_for_what_the_role_needs() -> None:
    script = slurm_script("a plan's file.json", Rendezvous(3, 8), ["--roles", "decode"])
    asked = {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert {"nodes=3", "ntasks-per-node=1", "gpus-per-node=8"} <= asked
    assert "#SBATCH --cpus-per-task=8" in slurm_script("plan.json", Rendezvous(3, 8), [], device="cpu")
    read = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.slow
@needs_torch
@needs_ray
def test_the_ray_script_runs_a_role_on_a_node_of_a_local_cluster(bench_plan: BenchPlan, tmp_path: Path) -> None:
    executable(tmp_path / "planner", f'#!/bin/bash\nexec {sys.executable} -m planner "$@"\n')
    plan = bench_plan("serve", {"decode": {"tp": 2}})
    script, meeting = tmp_path / "job.py", ["--nproc-per-node", "2", "--master-port", str(free_port())]
    assert main(["execute", str(plan), *meeting, *LENIENT, "--ray", "-o", str(script)]) == 0
    more = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0"}
    code, out, complaint = ended(start([sys.executable, str(script)], more))
    assert code == 0, (out, complaint[-2000:])
    kept = json.loads(plan.with_name("plan.checks.json").read_text(encoding="utf-8"))["levels"]["execute"]
    assert kept["ok"]
    (step,) = [step for step in kept["result"]["steps"] if step["step"] == "decode"]
    assert step["executed_share"] == pytest.approx(1.0)


def test_the_ray_script_asks_for_what_the_role_needs() -> None:
    for device, wanted in (("cuda", "NODES, CPUS, GPUS = 3, 1, 8"), ("cpu", "NODES, CPUS, GPUS = 3, 8, 0")):
        script = ray_script("plan.json", Rendezvous(3, 8), [], device=device)
        assert wanted in script
        compile(script, "job.py", "exec")
