"""Training and RL plans as jobs of clusters: each pod starts what the launch script would, and refusals."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import JOBS, random_training, started
from emit_runs import Stage
from test_rl_targets import APART
from test_rl_targets import plan as rl_plan
from training_plans import DEEPSPEED, MEGATRON, TITAN, TrainCase

from planner.emit.clusters.jobs import beside, read_cluster_job
from planner.emit.clusters.jobset import job_set
from planner.emit.documents import manifest
from planner.emit.options import ClusterOptions, read_settings
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.plan.schema import Engine
from planner.plan.store import plan_digest, plan_json

UNEVEN = MEGATRON["dense-uneven-full-recompute"]
OPTIONS = ClusterOptions(image="example/trainer:1", settings=(("MEGATRON_LM", "/opt/Megatron-LM"),))
RL_OPTIONS = ClusterOptions(
    image="example/trainer:1", settings=(("VERL", "."), ("TRAIN_FILES", "a.parquet"), ("VAL_FILES", "b.parquet"))
)
TARGETS = tuple(JOBS)
HOSTILE = ("$(MASTER_ADDR)", "$$", "`id`", "${HOME}", "a: b", "{{ .x }}", "it's", '"', "; id", "-n", "1e3", "y", "")


def files_of(case: TrainCase, target: str, **options: Any) -> dict[str, str]:  # noqa: ANN401
    return emit(*case.build(), target, (), dataclasses.replace(OPTIONS, **options))


def value(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


@pytest.mark.parametrize("target", TARGETS)
def test_every_pod_starts_what_the_plan_says_as_its_node(target: str, tmp_path: Path) -> None:
    draw, stage = random.Random(target), Stage(tmp_path)
    for _ in range(6):
        case = random_training(draw)
        options = {"gpus": "claims"} if target == "jobset" and draw.random() < 0.3 else {}
        assert_as_planned(case, target, files_of(case, target, **options), stage)


def assert_as_planned(case: TrainCase, target: str, files: dict[str, str], stage: Stage) -> None:
    """The first, the last and a pod between: each says the plan's sizes, its own number, and where the first is."""
    pods = list(JOBS[target](files))
    assert [pod.gpus for pod in pods] == [8] * case.nodes
    assert all(pod.nodes == (case.node_names or ()) for pod in pods)
    for rank in sorted({0, len(pods) // 2, len(pods) - 1}):
        (call,) = started(pods[rank], files, stage)
        told = call.arguments
        assert value(told, "--tensor-model-parallel-size") == str(case.degrees["tp"])
        assert value(told, "--pipeline-model-parallel-size") == str(case.degrees["pp"])
        assert value(told, "--global-batch-size") == str(case.global_batch)
        assert value(told, "--seq-length") == str(case.sequence_tokens)
        assert value(told, "--nproc-per-node") == "8"
        if case.nodes > 1:
            assert (value(told, "--node-rank"), value(told, "--nnodes")) == (str(rank), str(case.nodes))
            assert value(told, "--master-addr") in ("head", "training-node-0-0.training")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("text", HOSTILE)
def test_settings_and_arguments_arrive_as_they_were_given(target: str, text: str, tmp_path: Path) -> None:
    files = files_of(UNEVEN, target, settings=(("MEGATRON_LM", f"/opt/{text}"),), arguments=("--data-path", text))
    (call,) = started(next(iter(JOBS[target](files))), files, Stage(tmp_path))
    assert call.arguments[-2:] == ("--data-path", text)
    assert f"/opt/{text}/pretrain_gpt.py" in call.arguments


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("launcher", "case", "program"),
    [
        ("torchtitan", TITAN["sharded"], "torchtitan.train"),
        ("deepspeed", DEEPSPEED["sharded"], "/opt/train.py"),
        ("torchrun", TITAN["sharded"], "/opt/train.py"),
    ],
)
def test_the_script_of_any_launcher_runs(
    target: str, launcher: str, case: TrainCase, program: str, tmp_path: Path
) -> None:
    settings = () if launcher == "torchtitan" else (("TRAIN", "/opt/train.py"),)
    files = files_of(case, target, launcher=launcher, settings=settings)
    (call,) = started(list(JOBS[target](files))[1], files, Stage(tmp_path))
    assert program in call.arguments
    assert value(call.arguments, "--node-rank") == "1"


@pytest.mark.parametrize("target", TARGETS)
def test_the_script_is_that_of_the_engine_that_the_plan_was_priced_for(target: str) -> None:
    envelope, decision = TITAN["sharded"].build()
    role = decision.roles[0].model_copy(update={"engine": Engine(name="torchtitan")})
    planned = decision.model_copy(update={"roles": (role,)})
    files = emit(envelope, planned, target, (), dataclasses.replace(OPTIONS, settings=None))
    assert "the script of `torchtitan`" in files["plan.yaml"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("run", "gpus"), [({}, 32), (APART, 64)])
def test_rl_jobs_meet_over_ray_before_the_script_starts(
    target: str, run: dict[str, Any], gpus: int, tmp_path: Path
) -> None:
    files = emit(*rl_plan(**run), target, (), RL_OPTIONS)
    pods = list(JOBS[target](files))
    assert sum(pod.gpus for pod in pods) == gpus
    stage = Stage(tmp_path)
    head = [call.arguments for call in started(pods[0], files, stage)]
    assert ("start", "--head", "--node-ip-address", "10.0.0.7", "--port", "6379", "--num-gpus", "8") in [
        each[1:] for each in head
    ]
    (joined,) = (each[-1] for each in head if each[1] == "-c")
    assert f"get('GPU', 0) < {gpus}" in joined
    (script,) = (each for each in head if "-m" in each)
    assert script[2].startswith("verl.")


@pytest.mark.parametrize(
    ("launcher", "needs", "program"),
    [
        ("nemo-rl", {"NEMO_RL": "repo"}, ("uv", "run", "examples/run_grpo.py")),
        (
            "areal",
            {"AREAL": "repo", "EXAMPLE": "examples/math/gsm8k_rl.py", "EXAMPLE_CONFIG": "base.yaml"},
            ("python3", "examples/math/gsm8k_rl.py", "--config"),
        ),
    ],
)
def test_frameworks_with_a_configuration_are_started_by_jobs_too(
    launcher: str, needs: dict[str, str], program: tuple[str, ...], tmp_path: Path
) -> None:
    stage, repository = Stage(tmp_path), tmp_path / "repo"
    (repository / "examples" / "configs").mkdir(parents=True)
    (stage.programs / "uv").write_text((stage.programs / "python3").read_text())
    (stage.programs / "uv").chmod(0o755)
    given = tuple((name, str(repository) if value == "repo" else value) for name, value in needs.items())
    options = dataclasses.replace(RL_OPTIONS, launcher=launcher, settings=given, arguments=("a=it's",))
    files = emit(*rl_plan(**APART), "jobset", (), options)
    pods = list(JOBS["jobset"](files))
    calls = [call.arguments for call in started(pods[0], files, stage)]
    (start,) = (each for each in calls if each[: len(program)] == program)
    assert start[-1] == "a=it's"
    written = yaml.safe_load(emit(*rl_plan(**APART), launcher)[f"{launcher}.yaml"])
    if launcher == "nemo-rl":
        assert yaml.safe_load((repository / "examples" / "configs" / "planned.yaml").read_text()) == written
    else:
        (merge,) = (each for each in calls if each[1] == "-c" and "OmegaConf" in each[2])
        assert merge[3] == "base.yaml"
        assert merge[4].endswith("/areal.yaml")
        assert merge[5] == start[3]


def test_workers_of_rl_jobs_join_and_leave_when_the_head_no_longer_answers(tmp_path: Path) -> None:
    files = emit(*rl_plan(), "jobset", (), RL_OPTIONS)
    worker, stage = list(JOBS["jobset"](files))[1], Stage(tmp_path)
    (stage.programs / "true").write_text('#!/bin/bash\n[ "$1" = start ]\n')
    calls = [call.arguments for call in started(worker, files, stage, then='[ "$1" = start ]')]
    address = ("--address", "rl-grpo-7b-node-0-0.rl-grpo-7b:6379")
    assert sorted(calls) == [("ray", "health-check", *address), ("ray", "start", *address, "--num-gpus", "8")]


def test_nodes_of_a_further_pool_count_on(tmp_path: Path) -> None:
    job = read_cluster_job(*UNEVEN.build(), OPTIONS, "jobset")
    (nodes,) = job.sets
    sets = tuple(dataclasses.replace(nodes, name=f"node-{turn}", first=3 * turn, count=3) for turn in range(2))
    job = dataclasses.replace(job, sets=sets)
    files = {"plan.yaml": manifest((), [*beside(job), job_set(job)])}
    stage = Stage(tmp_path)
    calls = [started(pod, files, stage) for pod in JOBS["jobset"](files)]
    assert [value(call.arguments, "--node-rank") for (call,) in calls] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("target", TARGETS)
def test_artifacts_carry_the_digest_of_their_plan_and_are_as_recorded(
    target: str, golden: Callable[[str, str], None]
) -> None:
    for name, (envelope, decision), options in (
        ("dense-two-nodes", UNEVEN.build(), OPTIONS),
        ("rl", rl_plan(**APART), RL_OPTIONS),
    ):
        digest = plan_digest(plan_json(envelope))
        files = emit(envelope, decision, target, (), dataclasses.replace(options, model_cache="models"))
        assert all(each["metadata"]["annotations"]["planner/plan-digest"] == digest for each in documents(files))
        golden(f"emit/{target}/{name}/plan.yaml", files["plan.yaml"].replace(digest, "sha256:PLAN"))


def documents(files: dict[str, str]) -> list[dict[str, Any]]:
    return list(yaml.load_all(files["plan.yaml"], Loader=yaml.CSafeLoader))


@pytest.mark.parametrize("target", TARGETS)
def test_secrets_and_volumes_of_jobs_are_named_and_never_written(target: str) -> None:
    files = files_of(UNEVEN, target, namespace="training", model_cache="models", token_secret="hub")
    assert {each["metadata"]["namespace"] for each in documents(files)} == {"training"}
    text = str(documents(files))
    assert "{'secretKeyRef': {'name': 'hub', 'key': 'HF_TOKEN'}}" in text
    assert "'persistentVolumeClaim': {'claimName': 'models'}" in text


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("jobset", {"image": None}, "no image that holds the program of `megatron-lm`"),
        ("jobset", {"settings": None}, "asks for MEGATRON_LM"),
        ("jobset", {"settings": (("MEGATRON_LM", "x"), ("NODE_RANK", "3"))}, "NODE_RANK is set for each pod"),
        ("jobset", {"launcher": "slurm"}, "no script for every node comes of `slurm`"),
        ("jobset", {"launcher": "vllm"}, "no script for every node comes of `vllm`"),
        ("jobset", {"router_image": "a:b"}, "no place for it"),
        ("kubeflow-trainer", {"gpus": "claims"}, "patches no claims"),
    ],
)
def test_what_a_job_cannot_start_is_refused_with_its_reason(target: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlannerError) as caught:
        files_of(UNEVEN, target, **options)
    assert reason in caught.value.what
    assert caught.value.hint
    assert caught.value.where


def test_scripts_that_take_no_arguments_are_given_none() -> None:
    settings = (("PROMPTS", "a"), ("SAVE", "b"))
    options = dataclasses.replace(RL_OPTIONS, launcher="openrlhf", settings=settings, arguments=("x",))
    with pytest.raises(PlannerError, match="takes no arguments"):
        emit(*rl_plan(), "jobset", (), options)


@pytest.mark.parametrize("target", TARGETS)
def test_node_names_of_jobs_are_dns_labels(target: str) -> None:
    with pytest.raises(PlannerError, match="made of no DNS labels"):
        files_of(dataclasses.replace(UNEVEN, node_names=("Node_1", "b")), target)


@pytest.mark.parametrize("entry", ["A", "=b", "1A=b", "A B=c", "HF_TOKEN=secret"])
def test_settings_are_names_and_values_and_no_tokens(entry: str) -> None:
    with pytest.raises(PlannerError):
        read_settings([entry])
    with pytest.raises(PlannerError, match="given twice"):
        read_settings(["A=b", "A=c"])
    assert read_settings(["A=b=c", "B="]) == (("A", "b=c"), ("B", ""))
