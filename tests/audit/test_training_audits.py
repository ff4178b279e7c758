"""Audits of training and RL runs."""

from pathlib import Path

from planner.audit.audit import audit
from planner.importing.plans.question import Question

TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8  # more than it takes
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""


def test_decisions_of_a_training_run_are_changed_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TITAN)
    question = Question.of(cluster="gpu=h100,nodes=1", model="meta-llama/Llama-3.1-8B")
    result = audit([str(file)], {}, {}, question)
    assert result.runs_as_written
    assert result.now is not None
    assert result.change is not None
    assert result.change.figures["step_time_s"] < result.now.figures["step_time_s"]
    (text,) = result.changed.values()
    removed = [line for line in TITAN.splitlines() if line not in text.splitlines()]
    assert len(removed) <= len(result.change.settings)


def test_a_training_run_that_does_not_fit_says_what_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(
        "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
        "--num-attention-heads 64 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16\n"
    )
    result = audit([str(file)], {}, {}, Question.of(cluster="gpu=h100"))
    assert not result.runs_as_written
    assert "memory of a GPU" in result.findings[0]


VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
  data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.n=4
"""


def test_the_length_of_an_rl_iteration_has_an_interval_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "verl.sh").write_text(VERL)
    question = Question.of("input=500,output={mean: 600, cv: 0.6}", cluster="gpu=h100")
    now = audit([str(tmp_path / "verl.sh")], {}, {}, question).now
    assert now is not None
    figures = now.figures
    low, high = figures["iteration_time_s_interval"]
    assert low <= figures["iteration_time_s"] < high
