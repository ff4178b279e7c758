"""Ranks on several pods: the script by which the first starts them, run by bash, and what is refused."""

import socket
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from emit_plans import CASES, DEEPSEEK, Case, RolePlan, colocated
from emit_runs import Stage
from test_cluster_targets import built, files_of

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError

WIDE = CASES["moe-dep16-two-nodes"]
HOSTILE = 'it\'s $(id) `id` ${HOME} {{ .x }} "a: b"'


def script(case: Case) -> str:
    documents = yaml.safe_load_all(files_of(case, "lws", "trtllm")["plan.yaml"])
    text: str = next(each["data"]["mpi.sh"] for each in documents if each["kind"] == "ConfigMap")
    return text


@pytest.fixture(name="ran")
def _ran(tmp_path: Path) -> "tuple[Stage, Path]":
    """A stage whose programs are those of SSH and MPI, and the script with the place of its key there."""
    stage = Stage(tmp_path)
    notes = (stage.programs / "python3").read_text()
    for name in ("mpirun", "sshd", "ssh-keygen"):
        (stage.programs / name).write_text(notes)
        (stage.programs / name).chmod(0o755)
    (tmp_path / "ssh-privatekey").write_text("key\n")
    path = tmp_path / "mpi.sh"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    text = script(WIDE).replace("/etc/planner-keys", str(tmp_path)).replace("/run/sshd", f"{tmp_path}/run")
    path.write_text(text.replace("2222", port))
    return stage, path


def start(ran: "tuple[Stage, Path]", *words: str) -> None:
    stage, path = ran
    environment = stage.environment(HOME=str(path.parent), HF_TOKEN="t", LD_LIBRARY_PATH="")
    done = subprocess.run(
        ["bash", str(path), *words], cwd=stage.work, env=environment, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr


def test_the_first_pod_starts_every_rank_and_no_shell_reads_the_program(ran: "tuple[Stage, Path]") -> None:
    stage, path = ran
    port = int(path.read_text().split("-e -p ", 1)[1].split(" ", 1)[0])
    with socket.create_server(("127.0.0.1", port)):
        start(ran, "head", "8", "2", "127.0.0.1", "localhost", "trtllm-serve", HOSTILE, "--port", "8000")
    calls = [call.arguments for call in stage.calls()]
    (told,) = (each for each in calls if each[0] == "mpirun")
    assert told[1:6] == ("--allow-run-as-root", "-n", "16", "--host", "127.0.0.1:8,localhost:8")
    assert told[told.index("trtllm-llmapi-launch") :] == (
        "trtllm-llmapi-launch", "trtllm-serve", HOSTILE, "--port", "8000",
    )  # fmt: skip
    handed_on = [each for flag, each in pairwise(told) if flag == "-x"]
    assert handed_on == ["PATH", "HF_TOKEN"]
    assert [each[0] for each in calls].count("sshd") == 1


def test_further_pods_wait_for_the_first(ran: "tuple[Stage, Path]") -> None:
    start(ran, "worker")
    calls = [call.arguments for call in ran[0].calls()]
    (daemon,) = (each for each in calls if each[0] == "sshd")
    assert daemon[-1] == "-D"
    assert not any(each[0] == "mpirun" for each in calls)


@pytest.mark.parametrize("target", ["kubernetes", "lws"])
def test_ranks_on_several_pods_need_a_key_and_others_none(target: str) -> None:
    options = ClusterOptions(image="a:b", router_image="a:b")
    with pytest.raises(PlannerError, match="joins over SSH"):
        emit(*built(WIDE, "trtllm"), target, (), options)
    given = ClusterOptions(image="a:b", router_image="a:b", ssh_secret="ranks")
    for case, engine in ((colocated(2, tp=1), "trtllm"), (WIDE, "vllm")):
        with pytest.raises(PlannerError, match="starts ranks on other pods"):
            emit(*built(case, engine), target, (), given)
    text = files_of(WIDE, target, "trtllm")["plan.yaml"]
    assert text.count("secretName: ranks") == 2


def test_pods_with_other_numbers_of_ranks_are_refused() -> None:
    case = Case((RolePlan(degrees={"dp": 16, "ep": 16}, first=4),), {"default": {"name": DEEPSEEK}}, 3)
    with pytest.raises(PlannerError, match="the same GPUs"):
        files_of(case, "kubernetes", "trtllm")


def test_what_dynamos_operator_cannot_start_over_nodes_is_refused() -> None:
    named = Case((RolePlan(degrees={"dp": 16, "ep": 16}),), {"default": {"name": "it's"}}, 2)
    with pytest.raises(PlannerError, match="writes the command of several nodes into a shell"):
        files_of(named, "dynamo", "trtllm")
    with pytest.raises(PlannerError, match="claims are not"):
        files_of(WIDE, "dynamo", "trtllm", gpus="claims")


def test_two_roles_of_one_model_have_no_router_of_this_engine() -> None:
    case = Case((RolePlan(name="a"), RolePlan(name="b", degrees={"tp": 2})), {"default": {"name": DEEPSEEK}})
    with pytest.raises(PlannerError, match="no router of its own"):
        files_of(case, "lws", "trtllm")


def test_a_server_before_both_sides_is_told_the_names_of_pods() -> None:
    documents = list(yaml.safe_load_all(files_of(CASES["disaggregated-2p1d"], "lws", "trtllm")["plan.yaml"]))
    (front,) = (each["data"] for each in documents if each["metadata"]["name"] == "plan-front-0-files")
    data = yaml.safe_load(front["disaggregated.yaml"])
    assert data["context_servers"]["urls"] == [f"plan-prefill-{turn}.plan-prefill:8000" for turn in range(2)]
    assert data["generation_servers"]["urls"] == ["plan-decode-0.plan-decode:8000"]
