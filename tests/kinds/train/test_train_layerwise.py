"""Strategies mixed by layer: within memory, no slower than one strategy for all, and refused where nothing fits."""

import time

import pytest
from train_problems import job, problem

from planner.infeasible import Infeasible
from planner.kinds.train.layerwise import plan_layers, runs

QWEN = "Qwen/Qwen2.5-7B"


def test_a_mix_is_within_memory_and_faster_than_one_strategy_for_all_layers() -> None:
    tight = job(problem(QWEN, nodes=8, global_batch=256, sequence_tokens=8192, memory_utilisation=0.25))
    started_s = time.process_time()
    plan = plan_layers(tight)
    took_s = time.process_time() - started_s
    assert plan.memory_bytes <= tight.capacity_bytes
    assert plan.uniform_step_s is not None
    assert plan.step_s < plan.uniform_step_s
    assert sum(layers for layers, _ in runs(plan)) == tight.arch.num_layers == 28
    assert took_s < 5.0  # a second on a core of its own, told by benchmarks/training_search.py


def test_one_strategy_is_kept_where_memory_binds_nothing() -> None:
    wide = job(problem(QWEN, nodes=2, global_batch=16, sequence_tokens=2048))
    plan = plan_layers(wide)
    assert plan.step_s == pytest.approx(plan.uniform_step_s)
    assert len(runs(plan)) == 1


def test_a_model_that_fits_under_no_strategy_is_refused() -> None:
    with pytest.raises(Infeasible):
        plan_layers(job(problem(QWEN, nodes=1, global_batch=8, memory_utilisation=0.1)))
