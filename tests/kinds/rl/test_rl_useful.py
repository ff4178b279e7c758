"""Prompts without a signal are dropped (DAPO): by definition, in the search, as an option, launched and refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_written
from broken_rl_plans import failed
from rl_enumerated import least_of_one_group
from rl_problems import random_problem

from planner.api import solve
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.interchange.rl_problem import read_problem
from planner.kinds.rl.decision import RlDecision
from planner.rl.search.search import solve as search
from planner.rl.training import rollout_of
from planner.rl.trajectories import SampleBatch

PROBLEM: dict[str, Any] = {
    "kind": "rl",
    "models": {"actor": {"name": "Qwen/Qwen2.5-7B"}},
    "engine": {"name": "sglang"},
    "cluster": {"pools": [{"gpu": "h800_sxm", "nodes": 1}]},
    "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 600, "cv": 1.0}}],
    "objective": {"minimize": "iteration_time"},
    "options": {
        "algorithm": "dapo",
        "prompts": 16,
        "samples_per_prompt": 8,
        "arrangements": ["colocated"],
        "training_pp": [1],
        "over_sampling": 2.0,
        "useful_share": 0.7,
    },
}


def planned(folder: Path, **options: Any) -> Any:  # noqa: ANN401
    return solve(rl_written.written(PROBLEM, folder, **options))


@pytest.mark.parametrize("seed", range(20))
def test_an_iteration_ends_when_enough_useful_prompts_are_whole(seed: int) -> None:
    draw = np.random.default_rng(seed)
    prompts, each = int(draw.integers(2, 9)), int(draw.integers(1, 5))
    useful = [prompt for prompt in range(prompts) if draw.random() < 0.7] or [0]
    of_N = np.repeat(np.arange(prompts), each)
    prompt_N = np.where(np.isin(of_N, useful), of_N, -1)
    batch = SampleBatch(np.ones(len(of_N), np.int64), draw.integers(1, 99, len(of_N)), prompt_N=prompt_N)
    done_s_N = draw.random(len(of_N))
    wanted = int(draw.integers(1, len(useful) + 1))
    whole = sorted((max(done_s_N[of_N == prompt]), prompt) for prompt in useful)[:wanted]
    rollout = rollout_of((batch,), [done_s_N], 1, wanted * each)
    assert rollout.generation_s_B[0] == whole[-1][0]
    assert rollout.tokens_BK[0, 0] == sum(int(batch.tokens_N[of_N == prompt].sum()) for _, prompt in whole)


@pytest.mark.parametrize("seed", range(3))
def test_the_search_equals_enumeration_where_prompts_are_dropped(seed: int) -> None:
    problem = read_problem(given_document(random_problem(seed, "sync"), "problem"))
    size = min(batch.size for batch in problem.batches)
    of_N = np.where(np.arange(size) // 2 % 3 > 0, np.arange(size) // 2, -1)
    samples = max(problem.minibatches, int((of_N >= 0).sum()) // 2)
    batches = tuple(replace(batch, prompt_N=of_N) for batch in problem.batches if batch.size == size)
    problem = replace(problem, batches=batches, samples=samples, max_groups=1)
    assert search(problem).objective == pytest.approx(least_of_one_group(problem))


def test_dropped_prompts_take_time_and_the_launcher_drops_them(tmp_path: Path) -> None:
    plan, all_taken = planned(tmp_path), planned(tmp_path, useful_share=1.0)
    assert plan.certificate.status == "optimal"
    assert not failed(plan.model_dump(mode="json", by_alias=True))
    assert plan.certificate.objective.value > all_taken.certificate.objective.value
    files = emit(plan, RlDecision.model_validate(plan.decision), "slime")
    assert "check_reward_nonzero_std" in "".join(files.values())
    taken = "".join(emit(all_taken, RlDecision.model_validate(all_taken.decision), "slime").values())
    assert "check_reward_nonzero_std" not in taken


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"over_sampling": 1.0}, "over_sampling: 1.71"),
        ({"over_sampling": 1.2}, "write `over_sampling: "),
        ({"partial_rollouts": True, "max_staleness": 3}, "`useful_share`"),
    ],
)
def test_too_few_prompts_and_what_is_carried_over_are_refused(
    tmp_path: Path, options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(PlannerError) as caught:
        planned(tmp_path, **options)
    assert hint in caught.value.hint
