"""Shards on gloo ranks equal the whole model in logits, gradients and cached decoding; wrong layouts do not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("torch", reason="the executor needs torch: pip install 'planner[gpu]'")

from shard_models import CASES, Case

HERE = Path(__file__).parent
TIME_LIMIT_S = 120.0
CLOSE = 1e-4  # fp32, of logits around 1 and of gradients relative to the largest
FAR = 1e-2

Errors = Mapping[str, float]


@cache
def errors_of(world: int) -> dict[str, list[Errors]]:
    """What every rank found, by case; all cases of a world size share one start of its ranks."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(HERE / "run_shard_cases.py"), str(world), folder]
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        started = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )  # the ranks are forks in its process group, and go with it
        try:
            _, complaint = started.communicate(timeout=TIME_LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        assert started.returncode == 0, complaint[-2000:]
        ranks = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(world)]
    return {case.name: [found[case.name] for found in ranks] for case in CASES[world]}


def cases(faulty: bool) -> list[tuple[int, Case]]:
    return [(world, case) for world in WORLDS for case in CASES[world] if bool(case.fault) is faulty]


WORLDS = (2, 4, 8)


@pytest.mark.parametrize(("world", "case"), cases(faulty=False), ids=lambda value: getattr(value, "name", value))
def test_a_sharded_model_equals_the_whole_one(world: int, case: Case) -> None:
    for found in errors_of(world)[case.name]:
        assert max(found["logits"], found["gradients"], found["decoding"]) <= CLOSE, found


@pytest.mark.parametrize(("world", "case"), cases(faulty=True), ids=lambda value: getattr(value, "name", value))
def test_a_wrong_group_placement_or_split_is_seen(world: int, case: Case) -> None:
    worst = max(max(found["logits"], found["gradients"]) for found in errors_of(world)[case.name])
    assert worst >= FAR


READS_A_PLAN = """
import sys
for name in ("pydantic", "ortools", "pulp"):
    sys.modules[name] = None
from planner.execute import pipeline, reference, stage
from planner.execute.shards.spec import distinct_ranks, role_spec
from planner.plan.reader import read_plan
for rank in distinct_ranks(role_spec(read_plan(sys.argv[1]), sys.argv[2])):
    print(rank.rank, len(rank.stages))
"""


@pytest.mark.parametrize(("plan", "role", "jobs"), [("serve", "decode", ["0 1"]), ("train", "job", None)])
def test_shards_are_laid_out_without_pydantic_and_solvers(plan: str, role: str, jobs: list[str] | None) -> None:
    path = HERE.parent / "plans" / f"{plan}.json"
    command = [sys.executable, "-c", READS_A_PLAN, str(path), role]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    found = done.stdout.splitlines()
    assert found == jobs if jobs is not None else [line.split()[1] for line in found] == ["8"] * 3
