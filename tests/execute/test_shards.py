"""Shards on gloo ranks equal the whole model in logits, gradients and cached decoding; wrong layouts do not."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("torch", reason="the executor needs torch: pip install 'planner[gpu]'")

from shard_models import CASES, Case

HERE = Path(__file__).parent
TIME_LIMIT_S = 240.0
CLOSE = 1e-4  # fp32, of logits around 1 and of gradients relative to the largest
FAR = 1e-2

Errors = Mapping[str, float]


@cache
def errors_of(world: int) -> dict[str, list[Errors]]:
    """What every rank found, by case; all cases of a world size share one start of its ranks."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(HERE / "run_shard_cases.py"), str(world), folder]
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, timeout=TIME_LIMIT_S, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        ranks = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(world)]
    return {case.name: [found[case.name] for found in ranks] for case in CASES[world]}


def cases(faulty: bool) -> list[tuple[int, Case]]:
    return [(world, case) for world in WORLDS for case in CASES[world] if bool(case.fault) is faulty]


WORLDS = (2, 4)


@pytest.mark.parametrize(("world", "case"), cases(faulty=False), ids=lambda value: getattr(value, "name", value))
def test_a_sharded_model_equals_the_whole_one(world: int, case: Case) -> None:
    for found in errors_of(world)[case.name]:
        assert max(found["logits"], found["gradients"], found["decoding"]) <= CLOSE, found


@pytest.mark.parametrize(("world", "case"), cases(faulty=True), ids=lambda value: getattr(value, "name", value))
def test_a_wrong_group_placement_or_split_is_seen(world: int, case: Case) -> None:
    worst = max(max(found["logits"], found["gradients"]) for found in errors_of(world)[case.name])
    assert worst >= FAR
