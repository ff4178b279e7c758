"""Shards on gloo ranks equal the whole model in logits, gradients and cached decoding; wrong layouts do not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rank_environment import ENVIRONMENT, HAS_TORCH
from shard_models import CASES, Case

pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="the executor needs torch: the extra `gpu`")

HERE = Path(__file__).parent
TIME_LIMIT_S = 300.0
CLOSE = 1e-4  # fp32, of logits around 1 and of gradients relative to the largest
FAR = 1e-2

Errors = Mapping[str, float]


@cache
def all_errors() -> dict[int, dict[str, list[Errors]]]:
    """The errors of every rank by world size and case; all cases of a world size share one start of its ranks."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(HERE / "run_shard_cases.py"), folder]
        environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        started = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )  # the ranks are forks in its process group, and go with it
        try:
            _, complaint = started.communicate(timeout=TIME_LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        assert started.returncode == 0, complaint[-2000:]
        return {world: dict(_by_case(world, Path(folder))) for world in CASES}


def _by_case(world: int, folder: Path) -> Iterator[tuple[str, list[Errors]]]:
    ranks = [json.loads((folder / f"world{world}-rank{rank}.json").read_text()) for rank in range(world)]
    for case in CASES[world]:
        yield case.name, [errors[case.name] for errors in ranks]


def cases(faulty: bool) -> list[tuple[int, Case]]:
    return [(world, case) for world in CASES for case in CASES[world] if bool(case.fault) is faulty]


@pytest.mark.parametrize(("world", "case"), cases(faulty=False), ids=lambda value: getattr(value, "name", value))
def test_a_sharded_model_equals_the_whole_one(world: int, case: Case) -> None:
    for errors in all_errors()[world][case.name]:
        assert max(errors["logits"], errors["gradients"], errors["decoding"]) <= CLOSE, errors


@pytest.mark.parametrize(("world", "case"), cases(faulty=True), ids=lambda value: getattr(value, "name", value))
def test_a_wrong_group_placement_or_split_is_seen(world: int, case: Case) -> None:
    worst = max(max(errors["logits"], errors["gradients"]) for errors in all_errors()[world][case.name])
    assert worst >= FAR


READS_A_PLAN = """
import sys
for name in ("pydantic", "ortools", "pulp"):
    sys.modules[name] = None
from planner.execute.model import pipeline, stage
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
    lines = done.stdout.splitlines()
    assert lines == jobs if jobs is not None else [line.split()[1] for line in lines] == ["8"] * 3
