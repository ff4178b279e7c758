"""Audits of serving deployments: what they do, what to change, and what becomes of the artifact."""

import json
from pathlib import Path

import pytest

from planner.audit.audit import audit
from planner.audit.records import Audit
from planner.cli.main import main
from planner.importing.files import read_files
from planner.importing.plans.question import Question

MANIFEST = """# two replicas
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 2   # one a pair of GPUs
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        command: [vllm, serve]
        args:
        - Qwen/Qwen3-8B
        - --tensor-parallel-size=2   # NVLink
        - --max-num-seqs=64
        - --max-model-len=16384
        env: [{name: HF_TOKEN, value: hf_secret123456}]
        resources: {limits: {nvidia.com/gpu: "2"}}
"""
QUESTION = ("input=2500,output=60,rate=8/s", "ttft.p95=2s,itl.p95=25ms", "gpu=h100,gpus=4")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    file = tmp_path_factory.mktemp("audit") / "chat.yaml"
    file.write_text(MANIFEST)
    return file, audit([str(file)], {}, {}, Question.of(*QUESTION))


def test_an_audit_says_what_runs_does_under_the_load(audited: tuple[Path, Audit]) -> None:
    now = audited[1].now
    assert now is not None
    low, high = now.figures["requests_per_s_interval"]
    assert low <= now.figures["requests_per_s_within_limits"] <= high
    memory = now.figures["memory"][0]
    assert memory["margin_bytes"] == memory["usable_bytes"] - memory["used_bytes"] > 0
    ends = now.figures["times"]["ttft_s.p95"]["interval"]
    assert ends[0] < now.figures["times"]["ttft_s.p95"]["value"] < ends[1]


def test_a_change_keeps_more_and_its_interval_holds_its_gain(audited: tuple[Path, Audit]) -> None:
    now, change = audited[1].now, audited[1].change
    assert now is not None
    assert change is not None
    assert change.figures["requests_per_s_within_limits"] > now.figures["requests_per_s_within_limits"]
    low, high = change.figures["gain_interval"]
    assert low <= change.figures["gain"] <= high
    assert 1 <= len({setting.field for setting in change.settings} - {"replicas", "gpus_per_replica"}) <= 2


def test_the_changed_artifact_says_what_the_change_says_and_keeps_all_other_lines(audited: tuple[Path, Audit]) -> None:
    file, result = audited
    assert result.change is not None
    (text,) = result.changed.values()
    edited = file.with_name("edited.yaml")
    edited.write_text(text)
    role = read_files([str(edited)], {}).fields["roles"][0]
    assert all(role[setting.field] == setting.after for setting in result.change.settings)
    lines = text.splitlines()
    changed = [line for line in MANIFEST.splitlines() if line not in lines]
    assert len(changed) <= len(result.change.settings)
    assert "# two replicas" in lines


def test_the_load_needs_no_more_gpus_than_run(audited: tuple[Path, Audit]) -> None:
    fewest = audited[1].free[0]
    assert fewest.figures["gpus"] <= 4
    assert "needs" in fewest.title


def test_no_secret_is_in_an_audit(audited: tuple[Path, Audit]) -> None:
    assert "hf_secret123456" not in json.dumps(audited[1].document())


def test_a_deployment_that_does_not_fit_exits_with_1_and_says_by_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "big.sh"
    file.write_text("#!/bin/bash\nvllm serve meta-llama/Llama-3.3-70B-Instruct --max-num-seqs 64\n")
    flags = [
        "--workload",
        "input=500,output=50,rate=1/s",
        "--slo",
        "ttft=4s,itl=100ms",
        "--cluster",
        "gpu=h100,nodes=1",
    ]
    assert main(["audit", str(file), *flags]) == 1
    out = capsys.readouterr().out
    assert "FAIL  cannot run: weights take 141" in out
    assert "needs" in out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--workload", "input=500,output=9"], "on which GPUs, at which rate requests come, which limits they have"),
        (["--workload", "input500", "--slo", "ttft=1s"], "must be NAME=VALUE"),
        (["--workload", "input=500,output=50,rate=1", "--slo", "ttft=1", "--cluster", "gpu=h100,nodes=1"], "ttft"),
        (["--workload", "input=500,output=50,rate=1/s", "--slo", "ttft=1s"], "on which GPUs"),
        (["--workload", "input=500,output=50,rate=1/s", "--slo", "ttft=1s", "--cluster", "gpu=h1000,nodes=1"], "h1000"),
    ],
)
def test_a_question_that_lacks_something_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    file = tmp_path / "a.sh"
    file.write_text("#!/bin/bash\nvllm serve Qwen/Qwen3-32B --tensor-parallel-size 2\n")
    assert main(["audit", str(file), *flags]) == 2
    assert says in capsys.readouterr().err
