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
    flags = " ".join(
        f"--{name}_num_nodes 1 --{name}_num_gpus_per_node 4" for name in ("actor", "critic", "ref", "reward")
    )
    script = f"python3 -m openrlhf.cli.train_ppo_ray {flags} --vllm_num_engines 2 --vllm_tensor_parallel_size 2 {{}}\n"
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


def test_places_of_a_template_are_open_or_given() -> None:
    script = "#!/bin/bash\nvllm serve {{ model }} -tp {{ tp | default(4) }} --max-num-seqs {{seqs}}\n"
    summary = read(script, seqs="8")
    assert (summary["unresolved"], summary["roles"][0]["tp"], summary["roles"][0]["max_num_seqs"]) == (["model"], 4, 8)
    with pytest.raises(PlannerError, match="Jinja template that is not rendered"):
        read(f"{script}{{% if x %}}\n{{% endif %}}\n")


POD = """
apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  template:
    spec:
      containers:
      - name: m
        image: vllm/vllm-openai:v1
        {command}
        resources: {{limits: {{nvidia.com/gpu: {gpus}}}, requests: {{nvidia.com/gpu: 8}}}}
"""


def pod(command: str, kind: str = "Deployment", name: str = "m", replicas: int = 2, gpus: int = 8) -> str:
    return POD.format(kind=kind, name=name, replicas=replicas, gpus=gpus, command=command)


def test_pods_that_are_nodes_of_one_replica_are_one() -> None:
    flags = "--model-path, org/m, --tp, '16', --nnodes, '2', --node-rank, $(POD_INDEX)"
    summary = read(pod(f"command: [python3, -m, sglang.launch_server, {flags}]", "StatefulSet", replicas=4))
    (role,) = summary["roles"]
    assert [role[key] for key in ("replicas", "nodes_per_replica", "gpus_per_replica")] == [2, 2, 16]
    assert summary["audit"] == []


def test_arguments_of_a_patch_tell_its_engine_as_a_guess() -> None:
    patch = pod("args: ['--model=org/m', '--tensor-parallel-size=8']").replace("vllm/vllm-openai:v1", "base")
    summary = read(patch)
    assert (summary["engine"], summary["roles"][0]["tp"]) == ("vllm", 8)
    assert summary["guesses"] == ["engine vllm is taken from its flags"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (pod("args: [--model, org/m, -tp, '8']", gpus=4), "requests 8 GPUs and is limited to 4"),
        (
            pod("command: [python3, -m, sglang.launch_server, --model-path, org/m, --tp, '8', --dp, '8']"),
            "tp 8 x dp 8 without data-parallel attention needs 64 GPUs",
        ),
        (
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --pipeline-model-parallel-size 4 "
            "--expert-model-parallel-size 8 --num-experts 8",
            "ep 8 x pp 4 needs 32 GPUs, the script starts 8",
        ),
        (
            "python3 -m verl.trainer.main_ppo data.train_batch_size=100 actor_rollout_ref.rollout.n=5 trainer.nnodes=2",
            "500 samples of 100 prompts do not divide over 16 GPUs",
        ),
        (
            '{"zero_optimization": {"stage": 1}, "train_batch_size": 64, "train_micro_batch_size_per_gpu": 3}',
            "train batch 64 does not divide by micro batch 3",
        ),
        (
            "resources: {gpus_per_node: 8, prefill_nodes: 1, prefill_workers: 2, gpus_per_prefill: 8}\n"
            "backend: {type: sglang, sglang_config: {prefill: {tensor-parallel-size: 8}}}\n",
            "2 workers of 8 GPUs need 16, 1 nodes of 8 have 8",
        ),
    ],
)
def test_what_contradicts_itself_is_told(text: str, says: str) -> None:
    assert any(says in finding for finding in read(text)["audit"])


def test_servers_of_both_sides_in_one_configuration_are_roles() -> None:
    text = (
        "model: org/m\ncontext_servers: {num_instances: 2, tensor_parallel_size: 2, urls: [a]}\n"
        "generation_servers: {num_instances: 1, tensor_parallel_size: 4, max_batch_size: 64}\n"
    )
    roles = read(text)["roles"]
    assert [(r["role"], r["replicas"], r["tp"], r["max_num_seqs"]) for r in roles] == [
        ("prefill", 2, 2, None),
        ("decode", 1, 4, 64),
    ]


def test_settings_in_json_go_before_those_of_a_file() -> None:
    script = (
        "#!/bin/bash\ncat > c.yaml <<EOF\ntensor_parallel_size: 2\nmax_batch_size: 8\nEOF\n"
        "python3 -m dynamo.trtllm --model-path org/m --extra-engine-args c.yaml "
        '--override-engine-args \'{"tensor_parallel_size": 4, "kv_cache_config": {"dtype": "fp8"}}\'\n'
    )
    (role,) = read(script)["roles"]
    assert (role["tp"], role["max_num_seqs"], role["kv_dtype"]) == (4, 8, "fp8")


def test_degrees_in_a_file_that_is_not_at_hand_are_open_where_the_gpus_say_so() -> None:
    command = "command: [trtllm-serve, org/m, --config, /opt/engine.yaml]"
    summary = read(pod(command))
    assert (summary["roles"][0]["tp"], summary["roles"][0]["gpus_per_replica"]) == (None, 8)
    assert (summary["unresolved"], summary["audit"]) == (["/opt/engine.yaml"], [])
    assert read(pod(command.replace("]", ", --tp_size, '8']")))["roles"][0]["tp"] == 8
