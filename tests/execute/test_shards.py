"""Shards on gloo ranks equal the whole model in logits, gradients and cached decoding; wrong layouts do not."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rank_environment import ENVIRONMENT, HAS_TORCH
from rank_forks import FORKS
from shard_models import CASES, Case

from planner.execute.ranks import launch
from planner.execute.ranks.launch import TimeLimits, run_local

pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="the executor needs torch: the extra `gpu`")

HERE = Path(__file__).parent
TIME_LIMIT_S = 300.0
CLOSE = 1e-4  # fp32, of logits around 1 and of gradients relative to the largest
FAR = 1e-2

Errors = Mapping[str, float]
AllErrors = Mapping[int, Mapping[str, list[Errors]]]


@pytest.fixture(scope="module")
def all_errors(tmp_path_factory: pytest.TempPathFactory) -> AllErrors:
    """The errors of every rank by world size and case; all cases of a world size share one start of its ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_start", FORKS.start)
        return {world: dict(_by_case(world, tmp_path_factory.mktemp("world"))) for world in CASES}


def _by_case(world: int, folder: Path) -> Iterator[tuple[str, list[Errors]]]:
    limits = TimeLimits(total_s=TIME_LIMIT_S, stall_s=TIME_LIMIT_S, quiet_s=TIME_LIMIT_S)
    outcome = run_local({"entry": "run_shard_cases:run"}, world, folder, limits, ENVIRONMENT)
    assert not outcome.faults, outcome.faults
    ranks = [json.loads((folder / f"rank{rank}.errors.json").read_text()) for rank in range(world)]
    for case in CASES[world]:
        yield case.name, [errors[case.name] for errors in ranks]


def cases(faulty: bool) -> list[tuple[int, Case]]:
    return [(world, case) for world in CASES for case in CASES[world] if bool(case.fault) is faulty]


@pytest.mark.parametrize(("world", "case"), cases(faulty=False), ids=lambda value: getattr(value, "name", value))
def test_a_sharded_model_equals_the_whole_one(world: int, case: Case, all_errors: AllErrors) -> None:
    for errors in all_errors[world][case.name]:
        assert max(errors["logits"], errors["gradients"], errors["decoding"]) <= CLOSE, errors


@pytest.mark.parametrize(("world", "case"), cases(faulty=True), ids=lambda value: getattr(value, "name", value))
def test_a_wrong_group_placement_or_split_is_seen(world: int, case: Case, all_errors: AllErrors) -> None:
    worst = max(max(errors["logits"], errors["gradients"]) for errors in all_errors[world][case.name])
    assert worst >= FAR


READS_PLANS = """
import json, sys
for name in ("pydantic", "ortools", "pulp"):
    sys.modules[name] = None
from planner.execute.model import pipeline, stage
from planner.execute.shards.spec import distinct_ranks, role_spec
from planner.plan.reader import read_plan
roles = [role_spec(read_plan(path), name) for path, name in zip(sys.argv[1::2], sys.argv[2::2])]
print(json.dumps([[(rank.rank, len(rank.stages)) for rank in distinct_ranks(role)] for role in roles]))
"""


def test_shards_are_laid_out_without_pydantic_and_solvers() -> None:
    plans = [str(HERE.parent / "plans" / "serve.json"), "decode", str(HERE.parent / "plans" / "train.json"), "job"]
    done = subprocess.run([sys.executable, "-c", READS_PLANS, *plans], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    served, trained = json.loads(done.stdout)
    assert served == [[0, 1]]
    assert [stages for _, stages in trained] == [8, 8, 8]
