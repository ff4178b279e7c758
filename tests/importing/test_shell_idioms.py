"""Idioms of shells: what each script starts follows from the language, and nothing of it is run."""

from typing import Any

import pytest

from planner.importing.registry import Artifact, read_artifact


def read(script: str, **given: str) -> dict[str, Any]:
    return read_artifact(Artifact(f"#!/bin/bash\n{script}\n", "script", given)).summary()


SERVE = "vllm serve org/m"


@pytest.mark.parametrize(
    ("script", "replicas", "tp"),
    [
        (f"i=0\nwhile [ $i -lt 3 ]; do\n  {SERVE} --port $i &\n  i=$((i+1))\ndone", 3, 1),
        (f"i=0\nuntil ((i >= 3)); do {SERVE} --port $i & ((i++)); done", 3, 1),
        (f"for ((i=0; i<8; i+=2)); do {SERVE} -tp 2 --port $i & done", 4, 2),
        (f"for i in 1 2 3 4; do if [ $i -gt 2 ]; then break; fi; {SERVE} --port $i & done", 2, 1),
        (f"while true; do {SERVE} -tp 2; sleep 1; done", 1, 2),
        (f"while ! curl -s localhost; do sleep 1; exit 1; done\n{SERVE} -tp 2", 1, 2),
        (f'CMD="{SERVE}"\nCMD+=" -tp 4"\neval "$CMD"', 1, 4),
        (f'H=(a b)\nfor h in "${{H[@]}}"; do ssh $h "{SERVE} -tp 8" & done', 2, 8),
        (f"tmux new-session -d -s s '{SERVE} -tp 2'", 1, 2),
        (f"bash -s <<EOF\n{SERVE} -tp 4\nEOF", 1, 4),
        (f"cat > run.sh <<'EOF'\n#!/bin/bash\n{SERVE} -tp $1\nEOF\nbash run.sh 8", 1, 8),
        (f"cat <<'EOF' | tee c.yaml\ntensor-parallel-size: 4\nEOF\n{SERVE} --config c.yaml", 1, 4),
        (f"read -r -d '' A <<EOF\n-tp 2\nEOF\n{SERVE} $A", 1, 2),
        (f"A=$(cat <<EOF\n-tp 2\nEOF\n)\n{SERVE} $A", 1, 2),
        (f"start() {{ local n=$1; shift; {SERVE} -tp $n \"$@\"; }}\nstart 4 --port 1", 1, 4),
        (f"f() {{ if [ -z \"$2\" ]; then return; fi; {SERVE} -tp $2; }}\nf 1\nf 1 2", 1, 2),
        (f"G=0,1,2,3\nN=$(echo $G | tr ',' '\\n' | wc -l)\n{SERVE} -tp $N", 1, 4),
        (f"G=0,1\nIFS=, ; {SERVE} -tp $(echo $G | awk -F, '{{print NF}}')", 1, 2),
        (f"A=(0 1 2 3)\n{SERVE} -tp ${{#A[@]}}", 1, 4),
        (f"[ -z \"$DEBUG\" ] && T=2 || T=4\n{SERVE} -tp $T", 1, 2),
        (f"[ 1 -eq 2 ] && T=2 || T=4\n{SERVE} -tp $T", 1, 4),
        (f"if [[ \"Qwen3-32B\" =~ ^Qwen3 ]]; then T=2; else T=1; fi\n{SERVE} -tp $T", 1, 2),
        (f"M=a-tp8\n{SERVE} -tp ${{M:4:1}}", 1, 8),
        (f"NAME=T; T=4\n{SERVE} -tp ${{!NAME}}", 1, 4),
        (f"if [ \"$NODE_RANK\" == 0 ]; then {SERVE} -tp 2; else ray start; fi", 1, 2),
        (f'if [ "$ROLE" = head ]; then {SERVE} -tp 2; fi', 1, 2),
        (f'if [ $# -lt 2 ]; then echo usage; exit 1; fi\n{SERVE} -tp 2', 1, 2),
        (f'if [ -z "$1" ]; then exit 1; fi\n{SERVE} -tp ${{2:-2}}', 1, 2),
        (f': "${{A:?set A to the model\'s folder}}"\n{SERVE} -tp 2', 1, 2),
    ],
)  # fmt: skip
def test_idioms_start_what_they_say(script: str, replicas: int, tp: int) -> None:
    (role,) = read(script)["roles"]
    assert (role["replicas"], role["tp"]) == (replicas, tp)


def test_an_argument_that_decides_is_asked_for() -> None:
    script = f'if [ "$SIZE" = big ]; then {SERVE} -tp 8; elif [ "$SIZE" = small ]; then {SERVE} -tp 1; fi'
    summary = read(script)
    assert (summary["roles"][0]["tp"], summary["unresolved"]) == (None, ["SIZE"])
    assert read(script, SIZE="small")["roles"][0]["tp"] == 1


@pytest.mark.parametrize(
    ("job", "command", "replicas", "nodes", "gpus"),
    [
        ("--nodes=4 --gpus-per-node=8 --ntasks-per-node=1", f"srun {SERVE} -tp 8", 4, 1, 32),
        ("-N 4 --gres=gpu:h100:8", f"srun -N 2 -n 2 {SERVE} -tp 8", 2, 1, 16),
        ("-N 1 --ntasks=8 --gpus=8", f"srun bash -c '{SERVE} --port $((8000+SLURM_PROCID))'", 8, 1, 8),
        ("-N 4 --gres=gpu:8", f"{SERVE} -tp 8 -pp 4", 1, 4, 32),
        (
            "-N 4 --ntasks-per-node=1 --gres=gpu:8",
            "srun python3 -m sglang.launch_server --model-path org/m --tp 16 --nnodes 2 --node-rank $SLURM_PROCID",
            2, 2, 32,
        ),
        ("-N 2 --ntasks-per-node=4 --gres=gpu:4", "srun --mpi=pmix trtllm-serve org/m --tp_size 8", 1, 2, 8),
        ("-N 4 --gpus-per-node=8", f"for i in 1 2 3; do srun -N1 -n1 {SERVE} -tp 4 & done", 3, 1, 12),
    ],
)  # fmt: skip
def test_tasks_of_a_job_are_replicas(job: str, command: str, replicas: int, nodes: int, gpus: int) -> None:
    summary = read(f"#SBATCH {job}\n{command}")
    (role,) = summary["roles"]
    assert (role["replicas"], role["nodes_per_replica"], summary["gpus"]) == (replicas, nodes, gpus)
    assert summary["audit"] == []


def test_a_job_that_is_given_too_little_is_told() -> None:
    (finding,) = read(f"#SBATCH -N 1 --gres=gpu:8 --ntasks-per-node=2\nsrun {SERVE} -tp 8")["audit"]
    assert "need 16 GPUs, the job is given 8" in finding


@pytest.mark.parametrize("sees", ["CUDA_VISIBLE_DEVICES=0,1 ", "docker run --gpus '\"device=0,1\"' image "])
def test_devices_that_a_command_sees_are_those_that_it_is_given(sees: str) -> None:
    (role,) = read(f"{sees}{SERVE} -tp 4")["roles"]
    assert (role["tp"], role["gpus_per_replica"]) == (4, 2)


def test_manifests_that_a_script_applies_are_read() -> None:
    manifest = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: m}\nspec:\n  replicas: $N\n  template:\n    spec:\n"
        "      containers:\n      - {name: m, image: 'vllm/vllm-openai:v1', args: [--model, org/m]}\n"
    )
    assert read(f"N=3\nkubectl apply -f - <<EOF\n{manifest}EOF")["roles"][0]["replicas"] == 3


TITAN = "torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file t.toml"


def test_flags_of_torchtitan_override_its_file() -> None:
    toml = "cat > t.toml <<EOF\n[model]\nname = 'llama3'\n[parallelism]\ntensor_parallel_degree = 8\nEOF\n"
    summary = read(f"{toml}{TITAN} --parallelism.pipeline_parallel_degree 2 --training.seq_len=4096")
    assert [summary[key] for key in ("model", "gpus", "tp", "pp", "dp", "sequence")] == ["llama3", 16, 8, 2, 1, 4096]


def test_trainers_under_deepspeed_have_the_gpus_of_their_launcher() -> None:
    script = (
        'cat > z.json <<EOF\n{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}\nEOF\n'
        "deepspeed --num_nodes 2 --num_gpus 8 sft.py --deepspeed z.json --model_name_or_path org/m "
        "--per_device_train_batch_size 2"
    )
    summary = read(script)
    values = [summary[key] for key in ("engine", "model", "gpus", "dp", "micro_batch", "zero_stage")]
    assert values == ["deepspeed", "org/m", 16, 16, 2, 3]
