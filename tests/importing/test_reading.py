"""What artifacts decide, read off small ones whose answers follow from the documentation of their formats."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.importing.files import read_files
from planner.importing.given import with_fields
from planner.importing.registry import Artifact, read_artifact

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "imports"


def read(text: str, **given: str) -> dict[str, Any]:
    return read_artifact(Artifact(text, "artifact", given)).summary()


def role(text: str, **given: str) -> dict[str, Any]:
    (only,) = read(text, **given)["roles"]
    assert isinstance(only, dict)
    return only


@pytest.mark.parametrize(
    ("size", "tp"),
    [
        ("8", 8),
        ("${A:-2}", 2),
        ("$((2 * B))", 6),
        ("$B", 3),
        ("${B}", 3),
        ('"$B"', 3),
        ("${C-4}", 4),
        ("${NAME##*-}", 5),
        ("$(( (B + 1) / 2 ))", 2),
        ("${B:+7}", 7),
        ("$((B > 2 ? B : 2))", 3),
    ],
)
def test_words_of_a_shell_are_followed(size: str, tp: int) -> None:
    script = f"#!/bin/bash\nB=3\nNAME=tp-5\nexec vllm serve org/model \\\n  --tensor-parallel-size {size} | tee log\n"
    assert role(script)["tp"] == tp


def test_arrays_functions_and_loops_are_followed() -> None:
    script = """#!/bin/bash
ARGS=(--max-num-seqs 64)
for extra in "--max-model-len 4096"; do ARGS+=($extra); done
serve() { vllm serve "$1" "${ARGS[@]}"; }
serve org/model
"""
    assert (role(script)["max_num_seqs"], role(script)["max_model_len"]) == (64, 4096)
    assert read(script)["model"] == "org/model"


def test_a_value_of_the_environment_is_named_and_not_invented() -> None:
    script = "#!/bin/bash\nvllm serve $MODEL --tensor-parallel-size=$TP --port $PORT\n"
    summary = read(script)
    assert summary["model"] is None
    assert summary["gpus"] is None
    assert summary["roles"][0]["tp"] is None
    assert sorted(summary["unresolved"]) == ["MODEL", "TP"]
    resolved = read(script, MODEL="org/model", TP="4")
    assert (resolved["model"], resolved["gpus"], resolved["unresolved"]) == ("org/model", 4, [])


def test_a_condition_that_nobody_can_answer_opens_only_what_rests_on_it() -> None:
    script = """#!/bin/bash
if [[ $ISL -eq 1024 ]]; then SEQS=512; else SEQS=256; fi
vllm serve org/model --max-num-seqs $SEQS --max-model-len 9216
"""
    summary = read(script)
    assert summary["roles"][0]["max_num_seqs"] is None
    assert summary["roles"][0]["max_model_len"] == 9216
    assert summary["unresolved"] == ["ISL"]
    assert role(script, ISL="1024")["max_num_seqs"] == 512
    assert role(script, ISL="8192")["max_num_seqs"] == 256


def test_a_heredoc_written_to_a_file_is_the_configuration_that_a_flag_names() -> None:
    script = """#!/bin/bash
LENGTH=4096
cat > c.yaml << EOF
max-model-len: $LENGTH
max-num-seqs: 32
EOF
vllm serve org/model --config c.yaml --max-num-seqs 16
"""
    assert (role(script)["max_model_len"], role(script)["max_num_seqs"]) == (4096, 16)


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    script = f"#!/bin/bash\nX=$(touch {tmp_path}/run)\ntouch {tmp_path}/run\nvllm serve org/model --max-num-seqs $X\n"
    assert read(script)["unresolved"] == ["X"]
    assert list(tmp_path.iterdir()) == []


LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: any}
spec:
  replicas: 3
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
        - name: engine
          command: [/bin/bash, -c]
          args: ["vllm serve org/model --data-parallel-size $((LWS_GROUP_SIZE * LOCAL)) --enable-expert-parallel"]
          env: [{name: LOCAL, value: "8"}, {name: HF_TOKEN, value: hf_abcdefgh}]
          resources: {limits: {nvidia.com/gpu: "8"}}
"""


def test_a_group_of_workers_is_one_replica() -> None:
    summary = read(LWS)
    (only,) = summary["roles"]
    assert [only[key] for key in ("replicas", "nodes_per_replica", "gpus_per_replica", "dp", "ep")] == [
        3,
        2,
        16,
        16,
        16,
    ]
    assert summary["gpus"] == 48
    assert summary["audit"] == []


def test_no_secret_of_an_environment_is_in_what_was_read() -> None:
    assert "hf_abcdefgh" not in json.dumps(read(LWS))


def test_flags_stand_in_the_config_map_that_is_mounted() -> None:
    text = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  e.yaml: "tp-size: 2\\nmax-running-requests: 48\\n"
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: any}
spec:
  replicas: 5
  template:
    spec:
      containers:
      - command: [python3, -m, sglang.launch_server]
        args: [--model-path, org/model, --config, /etc/e/e.yaml]
        resources: {limits: {nvidia.com/gpu: 2}}
        volumeMounts: [{name: v, mountPath: /etc/e}]
      volumes: [{name: v, configMap: {name: settings}}]
"""
    summary = read(text)
    assert (summary["engine"], summary["model"], summary["gpus"]) == ("sglang", "org/model", 10)
    assert (summary["roles"][0]["tp"], summary["roles"][0]["max_num_seqs"]) == (2, 48)


def test_a_name_says_a_side_only_where_caches_are_handed_over() -> None:
    text = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: decode}}
spec: {{template: {{spec: {{containers: [{{command: [vllm, serve, org/model{flag}]}}]}}}}}}
"""
    assert role(text.format(flag=""))["role"] == "colocated"
    transfer = """, --kv-transfer-config, '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    assert role(text.format(flag=transfer))["role"] == "decode"


MEGATRON = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} \\
  --micro-batch-size 1 --global-batch-size {batch} --seq-length 4096 --bf16
"""


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("pp", [1, 4])
def test_ranks_are_held_against_the_gpus_that_a_script_starts(nodes: int, tp: int, pp: int) -> None:
    summary = read(MEGATRON.format(nodes=nodes, tp=tp, pp=pp, batch=256))
    enough = tp * pp <= 8 * nodes
    assert summary["dp"] == (8 * nodes // (tp * pp) if enough else None)
    assert bool(summary["audit"]) == (not enough)


def test_a_batch_that_does_not_divide_is_told() -> None:
    assert "global batch 30" in read(MEGATRON.format(nodes=1, tp=2, pp=1, batch=30))["audit"][0]


def test_degrees_beyond_the_gpus_of_a_replica_are_told(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(LWS.replace('gpu: "8"', 'gpu: "4"'))
    (finding,) = read_files([str(file)], {}).findings
    assert finding == "dp 16 needs 16 GPUs, a replica is given 8"


def test_files_of_one_deployment_are_put_together(tmp_path: Path) -> None:
    for side in ("prefill", "decode"):
        script = (
            f"#!/bin/bash\npython3 -m sglang.launch_server --model-path org/m --tp 4 --disaggregation-mode {side}\n"
        )
        (tmp_path / f"{side}.sh").write_text(script)
    reading = read_files([str(tmp_path)], {})
    assert [role["role"] for role in reading.fields["roles"]] == ["prefill", "decode"]
    assert reading.fields["gpus"] == 8
    assert reading.findings == ()


def test_open_fields_are_given_and_set_ones_are_not_overridden() -> None:
    reading = read_artifact(Artifact("max-num-seqs: 8\n", "c.yaml", {}))
    assert reading.unresolved == ("model",)
    filled = with_fields(reading, {"model": "org/m", "colocated.max_model_len": "2048"})
    assert filled.fields["model"] == "org/m"
    assert filled.fields["roles"][0]["max_model_len"] == 2048
    assert filled.unresolved == ()
    with pytest.raises(PlannerError, match="is 8 in the artifact"):
        with_fields(reading, {"colocated.max_num_seqs": "9"})
    with pytest.raises(PlannerError, match="max_num_seqs"):
        with_fields(reading, {"colocated.max_num_seq": "9"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\x00\x01", "binary"),
        (b"a: [1,\n", "not valid YAML"),
        (b"a: &a [*a]\n", "names nothing before it"),
        (b"replicas: {{ .Values.replicas }}\n", "Helm template"),
        (b"hello: world\n", "nothing that planner knows"),
        (b"#!/bin/bash\necho hello\n", "nothing that planner knows"),
        (b"", "nothing that planner knows"),
        (b"#!/bin/bash\nvllm serve a/b --tensor-parallel-size $((\n", "not whole"),
        (b"#!/bin/bash\nvllm serve 'a/b --tensor-parallel-size 2\n", "not whole"),
        (b"#" * (17 * 2**20), "larger than 16 MiB"),
    ],
    ids=["binary", "half", "cycle", "helm", "other", "script", "empty", "open-sum", "open-quote", "large"],
)
def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "artifact.yaml"
    file.write_bytes(content)
    with pytest.raises(PlannerError, match=says) as raised:
        read_files([str(file)], {})
    assert str(file) in str(raised.value)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\nvllm serve org/a\n")
    (tmp_path / "b.sh").write_text("#!/bin/bash\nvllm serve org/b\n")
    with pytest.raises(PlannerError, match="several models"):
        read_files([str(tmp_path)], {})


def test_scripts_with_too_many_ways_are_refused() -> None:
    tests = "\n".join(f'if [ "$V{k}" -gt 1 ]; then A{k}=1; fi' for k in range(9))
    with pytest.raises(PlannerError, match="64 ways"):
        read(f"#!/bin/bash\n{tests}\nvllm serve org/m\n")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/imports")
def test_public_artifacts_are_read_as_people_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.modules.pop("imports", None)
    from imports import score

    for path in sorted((SHARED / "truth").glob("*.json")):
        truth = json.loads(path.read_text())
        summary = read_files([str(SHARED / truth["file"])], {}).summary()
        assert score(summary, truth)[2] == [], path.stem
        assert len(summary["audit"]) == len(truth["audit"]), path.stem


def test_a_script_needs_no_first_line_and_what_it_exits_without_is_required() -> None:
    script = 'set -ex\nif [ -z "${ROOT}" ]; then\n  echo set ROOT\n  exit 1\nfi\nvllm serve org/m --max-num-seqs 4\n'
    assert role(script)["max_num_seqs"] == 4


def test_lines_appended_to_a_file_stand_behind_the_others() -> None:
    script = """#!/bin/bash
cat > c.yaml << EOF
max_batch_size: 8
EOF
cat << EOF >> c.yaml
kv_cache_config:
  dtype: fp8
EOF
trtllm-serve org/m --config c.yaml
"""
    assert (role(script)["max_num_seqs"], role(script)["kv_dtype"]) == (8, "fp8")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--max-num-seq 8", ["unknown flag --max-num-seq, nearest is --max-num-seqs"]),
        ("--enable-prefix-caching --no-enable-prefix-caching", ["cancel each other"]),
        ("--no-enable-prefix-caching", []),
        ("--max-num-batched-tokens 64 --max-num-seqs 128", ["64 is below max-num-seqs 128"]),
        ("--max-num-batched-tokens 128 --max-num-seqs 128", []),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 64 --max-model-len 128", ["without chunked prefill"]),
        ("--max-num-batched-tokens 64 --max-model-len 128", []),
        ("--gpu-memory-utilization 90", ["not between 0 and 1"]),
    ],
)
def test_flags_that_the_engine_refuses_or_drops_are_told(tmp_path: Path, flags: str, says: list[str]) -> None:
    (tmp_path / "a.sh").write_text(f"#!/bin/bash\nvllm serve org/m {flags}\n")
    findings = read_files([str(tmp_path)], {}).findings
    assert len(findings) == len(says)
    assert all(part in text for part, text in zip(says, findings, strict=True))


def test_a_fleet_of_ray_clusters_counts_its_head_and_its_workers() -> None:
    pod = "{containers: [{command: [/bin/bash, -lc, --], args: [%s], resources: {limits: {nvidia.com/gpu: 8}}}]}"
    serve = "'ulimit -n 65536; vllm serve org/m --tensor-parallel-size 8 --pipeline-parallel-size 2'"
    text = f"""
apiVersion: orchestration.aibrix.ai/v1alpha1
kind: RayClusterFleet
spec:
  replicas: 2
  template:
    spec:
      headGroupSpec: {{template: {{spec: {pod % serve}}}}}
      workerGroupSpecs: [{{replicas: 1, template: {{spec: {pod % "ray start"}}}}}]
"""
    only = role(text)
    assert [only[key] for key in ("replicas", "nodes_per_replica", "gpus_per_replica", "tp", "pp")] == [2, 2, 16, 8, 2]
