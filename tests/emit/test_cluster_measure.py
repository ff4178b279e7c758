"""Jobs that measure a plan: they send its load, to where it answers, and are judged by generators' own parsers."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_read import expanded
from emit_plans import LLAMA, QWEN, Case, RolePlan, colocated

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope

WORKLOAD: dict[str, Any] = {
    "name": "default",
    "input_tokens": {"low": 500, "high": 1500},
    "output_tokens": 200,
    "load": {"rate_per_s": 8.0},
}
OPTIONS = ClusterOptions(
    image="example/engine:1", router_image="example/router:1", measure="vllm", measure_image="example/load:1"
)
AT = {"kserve": "http://gateway/a", "llm-d": "http://gateway"}
TARGETS = {
    "kubernetes": "http://plan-front-0:8500",
    "lws": "http://plan-front-0:8500",
    "dynamo": "http://plan-frontend:8000",
    "ray-serve": "http://plan-serve-svc:8000",
    **AT,
}


def built(case: Case, workload: dict[str, Any] = WORKLOAD) -> tuple[Envelope, ServeDecision]:
    envelope, decision = case.build()
    return envelope.model_copy(update={"inputs": {**envelope.inputs, "workloads": [workload]}}), decision


def jobs(case: Case, target: str, workload: dict[str, Any] = WORKLOAD, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    own = {"router_image": None} if target in ("dynamo", "kserve", "ray-serve") else {}
    given = dataclasses.replace(OPTIONS, **own, measure_url=AT.get(target))
    files = emit(*built(case, workload), target, (), dataclasses.replace(given, **options))
    return list(yaml.load_all(files["measure.yaml"], Loader=yaml.CSafeLoader))


def argv(job: dict[str, Any]) -> list[str]:
    (body,) = job["spec"]["template"]["spec"]["containers"]
    return [expanded(each, {}) for each in body["args"]][1:]


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("target", TARGETS)
def test_the_job_sends_the_planned_load_to_where_the_plan_answers(target: str) -> None:
    (job,) = jobs(colocated(2, tp=4), target)
    told = argv(job)
    assert told[:3] == ["vllm", "bench", "serve"]
    assert value(told, "--base-url") == TARGETS[target]
    assert (value(told, "--model"), float(value(told, "--request-rate"))) == (QWEN, 8.0)
    assert (value(told, "--random-input-len"), value(told, "--random-output-len")) == ("1000", "200")
    assert json.loads(value(told, "--random-range-ratio")) == {"input": 0.5, "output": 0.0}
    assert job["metadata"]["annotations"]["planner/plan-digest"].startswith("sha256:")


@pytest.mark.parametrize(
    ("generator", "flags"),
    [
        ("guidellm", {"--profile": "kind=concurrent,streams=12,warmup=0.1"}),
        ("aiperf", {"--concurrency": "12"}),
        ("vllm", {"--max-concurrency": "12", "--num-prompts": "240"}),
    ],
)
def test_clients_in_a_closed_loop_are_as_many_as_planned(generator: str, flags: dict[str, str]) -> None:
    (job,) = jobs(colocated(2, tp=4), "lws", {**WORKLOAD, "load": {"concurrency": 12}}, measure=generator)
    assert {flag: value(argv(job), flag) for flag in flags} == flags


def test_fronts_of_one_model_get_their_shares_of_the_load() -> None:
    case = Case((RolePlan(replicas=2), RolePlan("prefill"), RolePlan("decode")), {"default": {"name": QWEN}})
    both = jobs(case, "lws")
    assert len({job["metadata"]["name"] for job in both}) == 2
    rates = [float(value(argv(job), "--request-rate")) for job in both]
    assert sum(rates) == pytest.approx(8.0)
    assert len({value(argv(job), "--base-url") for job in both}) == 2


@pytest.mark.parametrize("name", ["$(POD_IP)", "a b; id", "it's", "{{ .x }}", "$$", "a: b"])
def test_a_hostile_model_name_reaches_the_generator_as_one_argument(name: str) -> None:
    case = dataclasses.replace(colocated(2, tp=4), models={"default": {"name": name}})
    assert value(argv(jobs(case, "lws")[0]), "--model") == name
    assert value(argv(jobs(case, "lws", measure="aiperf")[0]), "--model") == name


def test_the_report_is_all_that_a_good_run_prints_and_a_bad_run_prints_its_log(tmp_path: Path) -> None:
    (job,) = jobs(colocated(2, tp=4), "lws")
    (body,) = job["spec"]["template"]["spec"]["containers"]
    program = tmp_path / "vllm"
    words = [expanded(each, {}).replace("/tmp/measured", str(tmp_path / "out")) for each in body["command"]]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for status, printed in ((0, "report"), (1, "noise")):
        program.write_text(f"#!/bin/sh\necho noise\necho report >{tmp_path}/out/vllm.json\nexit {status}\n")
        program.chmod(0o755)
        ran = subprocess.run(
            [*words, *(expanded(each, {}) for each in body["args"])],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (status, printed, "")


@pytest.mark.parametrize(
    ("target", "workload", "options", "reason"),
    [
        ("lws", WORKLOAD, {"measure": "wrk"}, "unknown load generator `wrk`"),
        ("lws", WORKLOAD, {"measure": "aiperf", "measure_image": None}, "no image that holds `aiperf`"),
        ("lws", WORKLOAD, {"measure": None}, "no job measures the plan"),
        ("lws", {**WORKLOAD, "load": None}, {}, "has no load"),
        ("lws", {**WORKLOAD, "input_tokens": {"trace": "a"}}, {}, "come from the trace"),
        ("kserve", WORKLOAD, {"measure_url": None}, "answers where its owner says"),
        ("docker-compose", WORKLOAD, {}, "no place for it"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(
    target: str, workload: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PlannerError) as caught:
        jobs(colocated(2, tp=4), target, workload, **options)
    assert reason in caught.value.what
    assert caught.value.hint


def test_guidellm_is_given_no_name_that_it_reads_as_more() -> None:
    case = dataclasses.replace(colocated(2, tp=4), models={"default": {"name": "a,target=http://b"}})
    with pytest.raises(PlannerError, match="more than a name"):
        jobs(case, "lws", measure="guidellm")


@pytest.mark.parametrize("url", ["ftp://a", "http://a b", "http://a;id", "x"])
def test_an_address_is_an_address(url: str) -> None:
    with pytest.raises(PlannerError, match="no address"):
        ClusterOptions(measure="vllm", measure_url=url)


def told_to_vllm() -> list[list[str]]:
    """The arguments of `vllm bench serve` for each sort of load; its parser is asked where vLLM is loaded anyway."""
    loads = ({"rate_per_s": 8.0}, {"concurrency": 3}, {"rate_per_s": 0.5, "arrival_cv": 2.0})
    return [argv(jobs(colocated(2, model=LLAMA, tp=4), "lws", {**WORKLOAD, "load": load})[0])[3:] for load in loads]
