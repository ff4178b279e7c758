"""Pools for images as plans: the cheapest that keep TTFT and TPOT, stated again, judged anew, launched, refused."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.kinds.workflow.pools.images import pools_on, read_images
from planner.kinds.workflow.pools.plan import plan_of
from planner.load.problems import load_problem
from planner.plan.findings import FAILED
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.workflow.image_pools import cheapest_pools, served

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve-images-epd.yaml"
LOOSE = "workloads.0.slo={ttft: {p90: 900ms}, tpot: {p90: 40ms}}"


def resolved(*overrides: str) -> Resolved:
    return load_problem(EXAMPLE, overrides=overrides)


def plan(*overrides: str) -> tuple[Envelope, Decision]:
    envelope = find_kind("workflow").solve(resolved(*overrides), Limits(seed=0))
    return envelope, find_kind("workflow").decision.model_validate(envelope.decision)


@pytest.fixture(scope="module")
def solved() -> tuple[Envelope, Decision]:
    return plan()


@pytest.fixture(scope="module")
def loose() -> tuple[Envelope, Decision]:
    return plan(LOOSE)


def test_every_rule_of_a_solved_plan_holds_and_its_bound_is_derived_again(
    solved: tuple[Envelope, Decision], loose: tuple[Envelope, Decision]
) -> None:
    for each in (solved, loose):
        findings = check_plan(*each, proof=True)
        assert [finding.rule for finding in findings if finding.verdict == FAILED] == []
        assert "certificate.bound_again" in {finding.rule for finding in findings}


def test_a_tight_limit_needs_an_encode_pool_and_a_loose_one_none(
    solved: tuple[Envelope, Decision], loose: tuple[Envelope, Decision]
) -> None:
    assert {role.name for role in solved[1].roles} == {"encode", "prefill", "decode"}
    assert {role.name for role in loose[1].roles} == {"prefill", "decode"}
    with pytest.raises(Infeasible) as raised:
        find_kind("workflow").solve(resolved("options.images.encode=[]"), Limits(seed=0))
    assert raised.value.proved


def test_pools_are_those_of_the_solver_and_keep_the_limits_on_its_stream(solved: tuple[Envelope, Decision]) -> None:
    form = read_images(resolved())
    problem, pools = pools_on(form, 0), plan_of(form, solved[1])  # type: ignore[arg-type]  # of workflows
    assert solved[0].certificate.bound == cheapest_pools(problem).objective
    assert form.keeps(served(problem, pools))


def test_limits_hold_on_streams_that_nothing_was_chosen_on(solved: tuple[Envelope, Decision]) -> None:
    judged = find_kind("workflow").simulated(*solved, AtHand())
    assert judged is not None
    assert {finding.rule: finding.ok for finding in judged[0]} == {"simulate.ttft": True, "simulate.tpot": True}
    assert [(row["time"], row["verdict"]) for row in judged[1]["beside_stated"]] == [("ttft", "kept"), ("tpot", "kept")]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"split_images": None}, "restated"),
        ({"first_chunk_tokens": 5}, "restated"),
    ],
)
def test_a_plan_that_splits_images_otherwise_than_it_may_fails(
    solved: tuple[Envelope, Decision], change: dict[str, Any], rule: str
) -> None:
    data = solved[0].model_dump(mode="json")["decision"] | change
    decision = find_kind("workflow").decision.model_validate(data)
    findings = check_plan(solved[0].model_copy(update={"decision": data}), decision)
    assert any(finding.rule.startswith(rule) for finding in findings if finding.verdict == FAILED)


def test_a_script_of_vllm_starts_every_replica_on_its_gpus(solved: tuple[Envelope, Decision], tmp_path: Path) -> None:
    script = emit(*solved, "vllm-epd")["serve.sh"]
    started = run_on_fakes(script, tmp_path)
    seen = sorted(line["gpus"] for line in started if line["words"][0] == "vllm")
    assert seen == sorted(str(device) for block in solved[1].placement for device in devices(block))
    roles = [json.loads(w)["ec_role"] for line in started for w in line["words"] if w.startswith('{"ec_')]
    replicas = {role.name: role.replicas for role in solved[1].roles}
    assert roles.count("ec_producer") == replicas["encode"]
    assert roles.count("ec_consumer") == replicas["prefill"]
    (proxy,) = (line["words"] for line in started if line["words"][0] == "python")
    ports = [line["words"][4] for line in started if line["words"][0] == "vllm"]
    urls = [url for word in proxy if word.startswith("http:") for url in word.split(",")]
    assert sorted(url.rpartition(":")[2] for url in urls) == sorted(ports)
    slots = {role.name: role.limits for role in solved[1].roles}["decode"]["slots"]
    assert sum(["--max-num-seqs", str(slots)] == line["words"][-4:-2] for line in started) == replicas["decode"]


def test_servers_of_sglang_only_encode_or_only_know_language(tmp_path: Path) -> None:
    solved = plan("engine.name=sglang")
    started = run_on_fakes(emit(*solved, "sglang-epd")["serve.sh"], tmp_path)
    replicas = {role.name: role.replicas for role in solved[1].roles}
    encoders = [line["words"] for line in started if "--encoder-only" in line["words"]]
    language = [line["words"] for line in started if "--language-only" in line["words"]]
    assert (len(encoders), len(language)) == (replicas["encode"], replicas["prefill"])
    ports = {words[words.index("--port") + 1] for words in encoders}
    for words in language:
        first = words.index("--encoder-urls") + 1
        assert {url.rpartition(":")[2] for url in words[first : first + len(encoders)]} == ports
    (router,) = (line["words"] for line in started if "sglang_router.launch_router" in line["words"])
    assert (router.count("--prefill"), router.count("--decode")) == (replicas["prefill"], replicas["decode"])


def run_on_fakes(script: str, folder: Path) -> list[dict[str, Any]]:
    """GPUs and words of every command that a script starts, which are written down and nothing else."""
    told = folder / "told"
    for name in ("vllm", "python", "vllm-router"):
        fake = folder / name
        fake.write_text(
            '#!/bin/bash\n(flock 9; printf "%q " "${CUDA_VISIBLE_DEVICES:--}" '
            f'{name} "$@"; echo) 9>>{told} >>{told}\n'
        )
        fake.chmod(0o755)
    text = script.replace("trap 'kill $(jobs -p)' EXIT", "") + "wait\n"
    env = {"PATH": f"{folder}:/usr/bin:/bin", "EC_FOLDER": str(folder / "ec")}
    subprocess.run(["bash", "-c", text], env=env, check=True)
    lines = [shlex.split(line) for line in told.read_text().splitlines()]
    return [{"gpus": gpus, "words": words} for gpus, *words in lines]


def test_without_an_encode_pool_prefill_and_decode_serve_the_whole_model(
    loose: tuple[Envelope, Decision], tmp_path: Path
) -> None:
    started = run_on_fakes(emit(*loose, "vllm-epd")["serve.sh"], tmp_path)
    replicas = {role.name: role.replicas for role in loose[1].roles}
    servers = [line["words"] for line in started if line["words"][0] == "vllm"]
    assert len(servers) == sum(replicas.values())
    assert not any("--ec-transfer-config" in words for words in servers)
    (router,) = (line["words"] for line in started if line["words"][0] == "vllm-router")
    assert (router.count("--prefill"), router.count("--decode")) == (replicas["prefill"], replicas["decode"])
    ports = {words[words.index("--port") + 1] for words in servers}
    assert {word.rpartition(":")[2] for word in router if word.startswith("http:")} == ports


def test_what_the_engines_have_no_servers_for_is_refused(solved: tuple[Envelope, Decision]) -> None:
    with pytest.raises(PlannerError, match="the plan is for vllm, not for sglang") as raised:
        emit(*solved, "sglang-epd")
    assert "`vllm-epd`" in raised.value.hint
    with pytest.raises(PlannerError, match="no graph of services"):
        emit(*solved, "argo")
    with pytest.raises(PlannerError, match="no pools of stages for speech"):
        emit(*solved, "vllm-omni")


def test_images_kept_together_are_not_launched_apart() -> None:
    together = plan("options.images.split_images=false", "workloads.0.slo={ttft: {p90: 900ms}, tpot: {p90: 40ms}}",
                    "options.images.prefill.0={name: one GPU, base_s: 0.015, per_token_s: 0.00003}")  # fmt: skip
    assert together[1].split_images is False  # type: ignore[attr-defined]  # of workflows
    with pytest.raises(PlannerError, match="stay together"):
        emit(*together, "vllm-epd")


@pytest.mark.parametrize(
    ("overrides", "what", "hint"),
    [
        (("options.images.shares=[0.5, 0.6]",), "add up to 1.1", "add up to 1"),
        (("options.images.shares=[1, 0]",), "no request has images", "above 0"),
        (("options.images.prefill=[]",), "", ""),
        (("options.images.prefill.0={name: p, encode_per_image_s: 1}",), "no `encode_base_s`", "encode_base_s"),
        (("options.images.encode=[]", "options.images.prefill.0={name: p}"), "no option encodes images", "encode"),
        (("options.images.decode.1.name=16 slots",), "two options of `decode`", "its own"),
        (("options.images.encode.0.pool=other",), "unknown pool `other`", "h100"),
        (("options.images.encode.0.gpus=16",), "a replica of 16 GPUs", "inside a node"),
        (("workloads.0.slo={ttft: {p90: 1s}}",), "one percentile of TTFT and one of TPOT", "tpot"),
        (("workloads.0.slo={ttft: {p90: 1s}, tpot: {mean: 1s}}",), "one percentile of TTFT", "tpot"),
        (("workloads.0.load={concurrency: 4}",), "", ""),
        (("models.vision.weights=fp8",), "has no effect with `images`", "remove it"),
        (("options.correlation=0.5",), "has no effect with `images`", "remove"),
        (("options.stages=[{name: s, options: [{name: a, latency: {mean: 1s}}]}]",), "`speech` or `images`", "one"),
        (("cluster.pools.0={name: h100, gpu: h100_sxm, gpus: 8}",), "has no price", "price"),
    ],
)
def test_what_is_no_problem_with_images_is_refused_with_what_to_do(
    overrides: tuple[str, ...], what: str, hint: str
) -> None:
    with pytest.raises(PlannerError) as raised:
        find_kind("workflow").solve(resolved(*overrides), Limits(seed=0))
    assert what in raised.value.what
    assert hint in raised.value.hint
