"""Charts, compositions, later releases and loops: artifacts whose answers follow from the documentation of formats."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.importing.files import read_files
from planner.importing.registry import Artifact, read_artifact
from planner.importing.secrets import hidden


def read(text: str, **given: str) -> dict[str, Any]:
    return read_artifact(Artifact(text, "artifact", given)).summary()


MODEL_SERVICE = """
multinode: {multinode}
modelArtifacts: {{uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}}
decode:
  replicas: 2
  parallelism: {parallelism}
  containers:
  - {{name: vllm, modelCommand: vllmServe, args: [--max-num-seqs, "64"]}}
prefill: {prefill}
"""


def test_values_of_a_model_service_give_degrees_and_gpus() -> None:
    summary = read(MODEL_SERVICE.format(multinode="false", parallelism="{tensor: 4}", prefill="{create: false}"))
    (role,) = summary["roles"]
    assert (summary["model"], summary["gpus"]) == ("Qwen/Qwen3-32B", 8)
    assert [role[key] for key in ("role", "replicas", "tp", "gpus_per_replica", "max_num_seqs")] == [
        "colocated",
        2,
        4,
        4,
        64,
    ]


def test_ranks_of_a_model_service_over_nodes_are_one_replica() -> None:
    degrees = "{tensor: 1, data: 16, dataLocal: 8}"
    prefill = "{replicas: 1, parallelism: {tensor: 8}, containers: [{name: vllm, modelCommand: vllmServe}]}"
    summary = read(MODEL_SERVICE.format(multinode="true", parallelism=degrees, prefill=prefill))
    sides = [(r["role"], r["nodes_per_replica"], r["gpus_per_replica"], r["dp"]) for r in summary["roles"]]
    assert sides == [("prefill", 1, 8, 1), ("decode", 2, 16, 16)]


def test_a_composition_counts_the_devices_that_it_reserves() -> None:
    text = """
services:
  engine:
    image: vllm/vllm-openai:v0.10.2
    environment: ["HF_TOKEN=hf_abcdefgh123"]
    command: --model Qwen/Qwen3-32B --tensor-parallel-size 2 --enable-prefix-caching
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]}}}
"""
    summary = read(text)
    assert (summary["gpus"], summary["roles"][0]["tp"], summary["roles"][0]["prefix_caching"]) == (4, 2, True)
    assert "hf_abcdefgh123" not in str(summary)


def test_sides_of_ray_serve_are_told_apart() -> None:
    side = (
        "{model_loading_config: {model_id: m, model_source: org/m}, engine_kwargs: {tensor_parallel_size: %d}, "
        "deployment_config: {num_replicas: %d}}"
    )
    text = f"applications:\n- args: {{prefill_config: {side % (2, 3)}, decode_config: {side % (4, 1)}}}\n"
    assert [(r["role"], r["tp"], r["replicas"]) for r in read(text)["roles"]] == [("prefill", 2, 3), ("decode", 4, 1)]


@pytest.mark.parametrize(
    "loop",
    [
        "for ((i=0; i<N; i++)); do vllm serve org/m --port $((8000+i)) & done",
        "for i in $(seq 1 $N); do vllm serve org/m --port $i & done",
        "for i in 1 2 3; do vllm serve org/m --port $i & done",
    ],
)
def test_engines_that_a_loop_starts_are_replicas(loop: str) -> None:
    assert read(f"#!/bin/bash\nN=3\n{loop}\n")["roles"][0]["replicas"] == 3


def test_later_ranks_of_data_parallelism_are_no_replica() -> None:
    node = "vllm serve org/m --data-parallel-size 4 --data-parallel-size-local 2"
    summary = read(f"#!/bin/bash\n{node}\n{node} --headless --data-parallel-start-rank 2\n")
    assert [(r["replicas"], r["gpus_per_replica"], r["nodes_per_replica"]) for r in summary["roles"]] == [(1, 4, 2)]


def test_a_word_of_an_array_is_that_word() -> None:
    assert read('#!/bin/bash\nA=(2 4 8)\nvllm serve org/m --tensor-parallel-size "${A[1]}"\n')["roles"][0]["tp"] == 4


def test_flags_that_name_two_roles_are_refused() -> None:
    flags = "--is-prefill-worker --is-decode-worker"
    with pytest.raises(PlannerError, match="name two roles: --is-prefill-worker of prefill and --is-decode-worker"):
        read(f"#!/bin/bash\npython3 -m dynamo.vllm --model org/m {flags}\n")


def test_a_mapping_with_a_model_of_parts_is_no_configuration_of_an_engine() -> None:
    with pytest.raises(PlannerError, match="starts nothing"):
        read("model: {layers: 3}\ndata: {path: x}\n")


def test_models_beside_the_actor_have_gpus_of_their_own() -> None:
    one = " ".join(
        f"--{name}_num_nodes 1 --{name}_num_gpus_per_node 4" for name in ("actor", "critic", "ref", "reward")
    )
    script = f"python3 -m openrlhf.cli.train_ppo_ray {one} --vllm_num_engines 2 --vllm_tensor_parallel_size 2 {{}}\n"
    assert read(script.format(""))["gpus"] == 20
    assert read(script.format("--colocate_actor_ref --colocate_critic_reward"))["gpus"] == 12
    assert read(script.format("--colocate_all_models"))["gpus"] == 4


def test_megatron_engines_of_verl_are_told_by_their_overrides() -> None:
    words = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
    assert read(f"python3 -m verl.trainer.main_ppo {words}\n")["train"]["engine"] == "megatron"


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 64 --num-attention-heads 8 "
    "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --expert-model-parallel-size 4 "
    "--num-experts {experts} --micro-batch-size 1 --global-batch-size 16\n"
)


@pytest.mark.parametrize(
    ("layers", "experts", "says"),
    [(8, 8, []), (7, 8, ["7 layers do not divide by 2"]), (8, 6, ["6 experts do not divide by ep 4"])],
)
def test_layers_and_experts_that_do_not_divide_are_told(layers: int, experts: int, says: list[str]) -> None:
    findings = read(MEGATRON.format(layers=layers, experts=experts))["audit"]
    assert len(findings) == len(says)
    assert all(wanted in text for wanted, text in zip(says, findings, strict=True))


def test_files_of_a_folder_that_start_nothing_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("#!/bin/bash\ntrtllm-serve org/m --config settings.yaml\n")
    (tmp_path / "settings.yaml").write_text("max_batch_size: 8\nkv_cache_config: {dtype: fp8}\n")
    (tmp_path / "router.sh").write_text("#!/bin/bash\nrouter --port 8000\n")
    (role,) = read_files([str(tmp_path)], {}).fields["roles"]
    assert (role["max_num_seqs"], role["kv_dtype"]) == (8, "fp8")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("HF_TOKEN=hf_abcdefgh", "HF_TOKEN=***"),
        ("- name: WANDB_API_KEY\n  value: abc123xyz", "- name: WANDB_API_KEY\n  value: ***"),
        ("- {name: HF_TOKEN, value: abc}", "- {name: HF_TOKEN, value: ***}"),
        ("export OPENAI_API_KEY='sk-abcdefgh1234'", "export OPENAI_API_KEY='***'"),
        ("HF_TOKEN: $HF_TOKEN", "HF_TOKEN: $HF_TOKEN"),
        ("--max-num-batched-tokens 8192", "--max-num-batched-tokens 8192"),
        ("max_num_tokens: 8192", "max_num_tokens: 8192"),
    ],
)
def test_secrets_are_hidden_and_counts_of_tokens_are_not(line: str, shown: str) -> None:
    assert hidden(line) == shown
