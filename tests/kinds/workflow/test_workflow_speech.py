"""Pools for speech as plans: the cheapest that are heard in time, stated again, judged anew, launched, refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.kinds.workflow.pools.plan import plan_of
from planner.kinds.workflow.pools.speech import pools_on, read_speech
from planner.load.problems import load_problem, resolve_document
from planner.plan.findings import FAILED
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.workflow.speech_pools import cheapest_pools, heard, keeps

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve-speech.yaml"


def resolved(*overrides: str) -> Resolved:
    return load_problem(EXAMPLE, overrides=overrides)


@pytest.fixture(scope="module")
def solved() -> tuple[Envelope, Decision]:
    envelope = find_kind("workflow").solve(resolved(), Limits(seed=0))
    return envelope, find_kind("workflow").decision.model_validate(envelope.decision)


def test_every_rule_of_a_solved_plan_holds_and_its_bound_is_derived_again(solved: tuple[Envelope, Decision]) -> None:
    findings = check_plan(*solved, proof=True)
    assert [finding.rule for finding in findings if finding.verdict == FAILED] == []
    assert "certificate.bound_again" in {finding.rule for finding in findings}


def test_pools_are_those_of_the_solver_and_keep_the_limits_on_its_stream(solved: tuple[Envelope, Decision]) -> None:
    setting = read_speech(resolved())
    problem, plan = pools_on(setting, 0), plan_of(setting, solved[1])  # type: ignore[arg-type]  # of workflows
    assert solved[0].certificate.bound == cheapest_pools(problem).objective
    assert keeps(problem, heard(problem, plan))


def test_limits_hold_on_streams_that_nothing_was_chosen_on(solved: tuple[Envelope, Decision]) -> None:
    judged = find_kind("workflow").simulated(*solved, AtHand())
    assert judged is not None
    assert {finding.rule: finding.ok for finding in judged[0]} == {"simulate.ttft": True, "simulate.late": True}
    (beside,) = judged[1]["beside_stated"]  # first audio; a share of chunks is no time
    assert beside["verdict"] == ("too close to call" if judged[0][0].close else "kept")
    assert beside["stated_s"] == pytest.approx(beside["simulated_s"], rel=0.1)


def test_no_device_is_of_two_stages(solved: tuple[Envelope, Decision]) -> None:
    used = [device for block in solved[1].placement for device in devices(block)]
    assert len(used) == len(set(used)) == sum(role.replicas * role.parallelism.devices for role in solved[1].roles)


def test_a_plan_with_fewer_servers_than_it_says_fails(solved: tuple[Envelope, Decision]) -> None:
    envelope = solved[0]
    data: Any = envelope.model_dump(mode="json")["decision"]
    data["stages"][2]["servers"] += 1
    decision = find_kind("workflow").decision.model_validate(data)
    findings = check_plan(envelope.model_copy(update={"decision": data}), decision)
    assert "restated.decision" in {finding.rule for finding in findings if finding.verdict == FAILED}


def test_a_deploy_file_has_devices_replicas_slots_and_chunks_of_the_plan(solved: tuple[Envelope, Decision]) -> None:
    files, decision = emit(*solved, "vllm-omni"), solved[1]
    config = yaml.safe_load(files["deploy.yaml"])
    assert [stage["num_replicas"] for stage in config["stages"]] == [role.replicas for role in decision.roles]
    placed = [stage["devices"].split(",") for stage in config["stages"]]
    wanted = [role.replicas * role.parallelism.devices for role in decision.roles]
    assert [len(each) for each in placed] == wanted
    assert config["stages"][2]["max_num_seqs"] == decision.roles[2].limits["slots"]
    (connector,) = config["connectors"].values()
    assert connector["extra"]["initial_codec_chunk_frames"] == decision.first_chunk_tokens  # type: ignore[attr-defined]
    assert "--deploy-config deploy.yaml" in files["serve.sh"]
    with pytest.raises(PlannerError, match="no graph of services"):
        emit(*solved, "argo")


@pytest.mark.parametrize(
    ("overrides", "what", "hint"),
    [
        (("options.speech.first_chunks=[5000]", "workloads.0.output_tokens=220"), "a first chunk of 5000", "220"),
        (("options.speech.encode=[]",), "", ""),
        (("options.speech.audio.low_s=31",), "31 s at least and 30 s at most", "no more than `high_s`"),
        (("options.speech.encode.0.pool=other",), "unknown pool `other`", "l40s"),
        (("options.speech.encode.0.gpus=16",), "a replica of 16 GPUs", "inside a node"),
        (("workloads.0.slo={latency: 1s}",), "one percentile of the time to first audio", "ttft"),
        (("workloads.0.slo={ttft: {mean: 1s}}",), "one percentile", "ttft"),
        (("models.voice.weights=fp8",), "has no effect with `speech`", "remove it"),
        (("options.correlation=0.5",), "has no effect with `speech`", "remove"),
        (
            ("options.stages=[{name: s, options: [{name: a, latency: {mean: 1s}}]}]",),
            "either `stages`, `speech` or `images`",
            "one",
        ),
        (("cluster.pools.0={name: l40s, gpu: l40s, gpus: 8}",), "has no price", "price"),
    ],
)
def test_what_is_no_speech_problem_is_refused_with_what_to_do(overrides: tuple[str, ...], what: str, hint: str) -> None:
    with pytest.raises(PlannerError) as raised:
        find_kind("workflow").solve(resolved(*overrides), Limits(seed=0))
    assert what in raised.value.what
    assert hint in raised.value.hint


def test_more_gpus_than_there_are_are_told_by_their_number() -> None:
    with pytest.raises(Infeasible) as raised:
        find_kind("workflow").solve(resolved("workloads.0.load.rate=4/s"), Limits(seed=0))
    assert raised.value.proved
    assert raised.value.conflict[-1]["nearest"].endswith(" GPUs")


@pytest.fixture(scope="module")
def shared() -> tuple[Envelope, Decision]:
    resolved = load_problem(
        EXAMPLE.with_name("serve-speech-shared.yaml"), overrides=("options.simulated_requests=800",)
    )
    envelope = find_kind("workflow").solve(resolved, Limits(seed=0))
    return envelope, find_kind("workflow").decision.model_validate(envelope.decision)


def test_replicas_that_share_gpus_stand_on_as_few_as_hold_them(shared: tuple[Envelope, Decision]) -> None:
    findings = check_plan(*shared)
    assert [finding.rule for finding in findings if finding.verdict == FAILED] == []
    held: dict[int, float] = {}
    for block in shared[1].placement:
        role = next(role for role in shared[1].roles if role.name == block.role)
        for device in devices(block):
            held[device] = held.get(device, 0.0) + float(role.limits.get("gpu_share", 1.0))
    assert max(held.values()) <= 1.0 + 1e-9
    assert any(value < 1.0 for value in held.values()) or len(held) < sum(role.replicas for role in shared[1].roles)
    assert shared[0].certificate.objective.value == pytest.approx(1.9 * len(held))
    deploy = yaml.safe_load(emit(*shared, "vllm-omni")["deploy.yaml"])
    shares = {role.name: role.limits.get("gpu_share") for role in shared[1].roles}
    for stage, name in zip(deploy["stages"], shares, strict=True):
        share = shares[name]
        assert stage.get("gpu_memory_utilization") == (None if share is None else pytest.approx(0.9 * float(share)))


def test_more_than_a_gpu_has_room_for_fails(shared: tuple[Envelope, Decision]) -> None:
    data: Any = shared[0].model_dump(mode="json", by_alias=True)["decision"]
    sharing = [block for block in data["placement"] if "gpu_share" in roles_of(data)[block["role"]]["limits"]]
    whole = next(block for block in data["placement"] if block not in sharing)
    sharing[0]["first_device"] = whole["first_device"]
    decision = find_kind("workflow").decision.model_validate(data)
    findings = check_plan(shared[0].model_copy(update={"decision": data}), decision)
    assert "placement.exclusive" in {finding.rule for finding in findings if finding.verdict == FAILED}


def roles_of(data: Any) -> dict[str, Any]:  # noqa: ANN401 - parsed JSON
    return {role["name"]: role for role in data["roles"]}


def test_a_deploy_file_numbers_the_gpus_of_one_node_alone() -> None:
    data = yaml.safe_load(EXAMPLE.read_text())
    data["cluster"]["pools"][0] |= {"gpus": 16, "gpus_per_node": 2}
    envelope = find_kind("workflow").solve(resolve_document(given_document(data, "problem"), Path()), Limits(seed=0))
    with pytest.raises(PlannerError, match="the GPUs of one node"):
        emit(envelope, find_kind("workflow").decision.model_validate(envelope.decision), "vllm-omni")
