"""Plans for clusters: frozen artifacts, artifacts read back, names that no reader takes for anything else, refusals."""

import dataclasses
import math
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_read import READERS, ReadRole, gpus_of, ranks, told_by
from emit_plans import CASES, DEEPSEEK, LLAMA, QWEN, QWEN_MOE, Case, RolePlan, colocated
from test_emit_injection import HOSTILE

from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.plan.schema import Engine, Envelope
from planner.plan.store import plan_digest, plan_json

GOLDEN = Path(__file__).parents[1] / "golden" / "emit"
IMAGES = ClusterOptions(image="example/engine:1", router_image="example/router:1")
FROZEN = ("dense-tp4", "disaggregated-2p1d", "moe-dep16-two-nodes", "mixed-two-models")
BOTH = ("vllm", "sglang")
ENGINES_OF = {
    **dict.fromkeys(("kubernetes", "lws", "docker-compose", "dynamo"), (*BOTH, "trtllm")),
    "disaggregatedset": BOTH,
    **dict.fromkeys(("kserve", "ray-serve", "llm-d"), ("vllm",)),
}
ALONE = ClusterOptions(image="example/engine:1")  # where routers belong to the target
OPTIONS = {
    "dynamo": ALONE,
    "kserve": ALONE,
    "ray-serve": ALONE,
    "disaggregatedset": dataclasses.replace(IMAGES, namespace="serving"),
}
MEETS = ("dynamo", "kserve", "ray-serve")  # targets that say themselves which ranks a further pod holds
PAIRS = [(target, engine) for target, engines in ENGINES_OF.items() for engine in engines]
UNNAMED = ("kserve", "ray-serve", "disaggregatedset")  # that call the pods of a colocated plan otherwise
COLOCATED = [(target, engine) for target, engine in PAIRS if target not in UNNAMED]  # by `plan-colocated`


def built(case: Case, engine: str) -> tuple[Envelope, Any]:
    """The plan of a case, made for an engine."""
    envelope, decision = case.build()
    roles = tuple(role.model_copy(update={"engine": Engine(name=engine)}) for role in decision.roles)
    return envelope, decision.model_copy(update={"roles": roles})


def files_of(case: Case, target: str, engine: str = "vllm", **options: Any) -> dict[str, str]:  # noqa: ANN401
    if joins_over_ssh(case, target, engine):
        options = {"ssh_secret": "ranks", **options}
    given = dataclasses.replace(OPTIONS.get(target, IMAGES), **options)
    return emit(*built(case, engine), target, (), given)


def joins_over_ssh(case: Case, target: str, engine: str) -> bool:
    """Whether ranks of an instance lie on pods that meet by MPI."""
    wide = any(math.prod(v for k, v in role.degrees.items() if k in ("tp", "pp", "dp")) > 8 for role in case.roles)
    return engine == "trtllm" and target in ("kubernetes", "lws") and wide


@pytest.mark.parametrize(("target", "engine"), PAIRS)
@pytest.mark.parametrize("name", FROZEN)
def test_artifacts_are_those_that_the_validators_accepted(
    target: str, engine: str, name: str, golden: Callable[[str, str], None]
) -> None:
    envelope, _ = built(CASES[name], engine)
    digest = plan_digest(plan_json(envelope))
    try:
        files = files_of(CASES[name], target, engine)
    except PlannerError as refused:
        files = {"refused.txt": f"{refused.what}\n"}
    for file, text in files.items():
        assert file == "refused.txt" or digest in text
        golden(f"emit/{target}/{engine}-{name}/{file}", text.replace(digest, "sha256:PLAN"))
    assert sorted(path.name for path in (GOLDEN / target / f"{engine}-{name}").iterdir()) == sorted(files)


def random_case(draw: random.Random) -> Case:
    """One model in one mode on nodes of 8 GPUs."""
    model = draw.choice((QWEN, LLAMA, QWEN_MOE, DEEPSEEK))

    def role(function: str, first: int) -> RolePlan:
        degrees = {"tp": draw.choice((1, 2, 4, 8, 16))}
        if model in (QWEN_MOE, DEEPSEEK):
            dp = draw.choice((1, 2, 4, 8, 16, 24))
            tp = draw.choice((1, 2, 4)) if dp > 1 else degrees["tp"]
            degrees = {"tp": tp, "dp": dp, "ep": tp * dp} if tp * dp > 1 else {"tp": 1}
        elif draw.random() < 0.3:
            degrees["pp"] = 2
        limits = {"max_batch": draw.randint(1, 128), "max_context_tokens": draw.randint(100, 9000)}
        limits |= {"chunk_tokens": 8192} if function != "decode" else {}
        return RolePlan(function, draw.randint(1, 3), degrees, limits, first=first)

    formats = {"kv_cache": draw.choice(("bf16", "fp8"))}
    formats |= {"weights": draw.choice(("bf16", "fp8"))} if model == QWEN else {}
    split = draw.random() < 0.4
    roles = (role("prefill", 0), role("decode", 160)) if split else (role("colocated", 0),)
    names = tuple(f"node-{index}.example" for index in range(64)) if draw.random() < 0.5 else None
    return Case(roles, {"default": {"name": model, **formats}}, 64, names)


def read_back(target: str, engine: str, draw: random.Random) -> bool:
    """Whether a random plan can be written for a target; what is written must say what the plan says."""
    return read_case(random_case(draw), target, engine, draw)


def read_case(case: Case, target: str, engine: str, draw: random.Random) -> bool:
    """Whether a plan can be written for a target; what is written must say what the plan says."""
    claims = {"gpus": "claims"} if target != "docker-compose" and draw.random() < 0.3 else {}
    try:
        files = files_of(case, target, engine, **claims)
    except PlannerError:
        return False
    roles = READERS[target](files)
    assert set(roles) == {f"plan-{role.function}" for role in case.roles}
    for role in case.roles:
        assert_as_planned(case, role, roles[f"plan-{role.function}"], engine)
        if target not in MEETS and engine != "trtllm":
            assert_told_apart(roles[f"plan-{role.function}"], engine)
    return True


def test_artifacts_read_back_say_what_the_plan_says() -> None:
    draw, read = random.Random("clusters"), 0
    while read < 200:
        read += read_back(*PAIRS[read % len(PAIRS)], draw)


@pytest.mark.parametrize(("target", "engine"), PAIRS)
def test_artifacts_of_every_target_read_back_say_what_they_say(target: str, engine: str) -> None:
    draw = random.Random(f"{target}/{engine}")
    assert sum(read_back(target, engine, draw) for _ in range(40)) >= 10


def assert_as_planned(case: Case, role: RolePlan, got: ReadRole, engine: str) -> None:
    said = told_by(got.pods[0], engine)
    degrees = tuple(role.degrees.get(axis, 1) for axis in ("tp", "pp", "dp", "ep"))
    assert (said.model, said.degrees) == (case.models["default"]["name"], degrees)
    assert said.limits == (role.limits["max_batch"], role.limits["max_context_tokens"])
    assert got.replicas == role.replicas
    assert gpus_of(got) == ranks(said.degrees)
    formats = case.models["default"]
    assert (said.weights == "fp8") == (formats.get("weights") == "fp8")
    assert (said.kv_cache or "").startswith("fp8") == (formats["kv_cache"] == "fp8")
    for pod in got.pods[1:]:
        assert pod.argv == ("bash", "mpi.sh", "worker") or told_by(pod, engine).degrees == degrees


def assert_told_apart(got: ReadRole, engine: str) -> None:
    """Further pods are told which ranks they hold."""
    for turn, pod in enumerate(got.pods[1:], 1):
        if "--node-rank" in pod.argv:
            assert pod.argv[pod.argv.index("--node-rank") + 1] == str(turn)
        else:
            before = sum(pod.gpus for pod in got.pods[:turn])
            assert engine == "vllm"
            tp = int(pod.argv[pod.argv.index("--tensor-parallel-size") + 1])
            assert pod.argv[pod.argv.index("--data-parallel-start-rank") + 1] == str(before // tp)


HARDER = [
    *HOSTILE,
    "{{ .Values.x }}",
    "$(POD_IP)",
    "$$(POD_IP)",
    "a: b",
    "? a",
    "&a",
    "*a",
    "!!str",
    "1e3",
    "y",
    "${A:-b}",
    "|",
]


WIDE = Case((RolePlan(degrees={"dp": 24, "ep": 24}),), {"default": {"name": "MODEL"}}, 3)
NARROW = Case((RolePlan("prefill"), RolePlan("decode")), {"default": {"name": "MODEL"}})


@cache
def argvs(target: str, model: str, engine: str = "vllm") -> list[tuple[str, ...]]:
    """The words of every pod of a plan that serves a model of any name."""
    over_nodes = ("kubernetes", "lws", "docker-compose") if engine == "vllm" else ("kubernetes", "lws")
    case = WIDE if target in over_nodes else NARROW
    roles = READERS[target](files_of(dataclasses.replace(case, models={"default": {"name": model}}), target, engine))
    return [pod.argv for role in roles.values() for pod in role.pods]


@pytest.mark.parametrize("target", [target for target in ENGINES_OF if target != "kserve"])
@pytest.mark.parametrize("name", HARDER)
def test_a_hostile_name_arrives_as_one_argument(target: str, name: str) -> None:
    plain = argvs(target, "MODEL")
    assert len(plain) >= 2
    assert argvs(target, name) == [tuple(name if each == "MODEL" else each for each in argv) for argv in plain]


@pytest.mark.parametrize("target", [target for target, engines in ENGINES_OF.items() if "trtllm" in engines])
@pytest.mark.parametrize("name", HARDER)
def test_a_hostile_name_arrives_as_one_argument_of_an_engine_with_settings(target: str, name: str) -> None:
    plain = argvs(target, "MODEL", "trtllm")
    assert argvs(target, name, "trtllm") == [
        tuple(name if each == "MODEL" else each for each in argv) for argv in plain
    ]


@pytest.mark.parametrize("target", ENGINES_OF)
@pytest.mark.parametrize("name", ["it's", 'say "hi"', "{{ .Values.x }}", "$(POD_IP)", "- a: b"])
def test_a_plan_of_any_name_adds_no_document(target: str, name: str) -> None:
    plain, hostile = (
        [list(yaml.load_all(text, Loader=yaml.CSafeLoader)) for _, text in sorted(files.items()) if text]
        for files in (
            files_of(dataclasses.replace(NARROW, name=each), target) for each in ("plan", f"{name}\nkind: x\n---\n")
        )
    )
    assert [[each.get("kind") for each in documents] for documents in hostile] == [
        [each.get("kind") for each in documents] for documents in plain
    ]


@pytest.mark.parametrize("name", [*HOSTILE, "{{ .Spec }}", "a: b"])
def test_kserve_takes_no_name_that_its_templates_could_read(name: str) -> None:
    with pytest.raises(PlannerError, match="more than a name"):
        argvs("kserve", name)


@pytest.mark.parametrize("target", ENGINES_OF)
@pytest.mark.parametrize("name", ["--trust-remote-code", "two\nlines", "zero\0", "escape\x1b[0m"])
def test_names_that_no_command_can_carry_are_refused(target: str, name: str) -> None:
    with pytest.raises(PlannerError, match=r"flag|must not carry"):
        files_of(colocated(tp=1, model=name), target)


def test_labels_tell_all_names_apart() -> None:
    names = ["decode", "Decode", "de code", "de-code", "de_code", "1", "x" * 80, "x" * 81, "", "!", "--"]
    labels = [label_of(name, 20) for name in names]
    assert len(set(labels)) == len(names)
    assert all(len(label) <= 20 and label[0].isalpha() and label[-1].isalnum() for label in labels)
    assert label_of("decode", 20) == "decode"


@pytest.mark.parametrize(
    ("target", "case", "options", "reason"),
    [
        ("kubernetes", colocated(1, tp=1), {"image": "a b"}, "no container image"),
        ("kubernetes", colocated(1, tp=1), {"namespace": "Not A Label"}, "no DNS label"),
        ("kubernetes", colocated(1, tp=1), {"gpus": "some"}, "some"),
        ("docker-compose", colocated(1, tp=1), {"namespace": "x"}, "no place"),
        ("vllm", colocated(1, tp=1), {"namespace": "x"}, "starts no containers"),
        ("lws", colocated(2, tp=1), {"router_image": None}, "no image that holds `vllm-router`"),
        ("docker-compose", colocated(2, tp=1), {"router_image": None}, "no image that holds `vllm-router`"),
        ("lws", Case((RolePlan(),), {"default": {"name": QWEN}}, 1, ("Node_1",)), {}, "made of no DNS labels"),
        ("kubernetes", Case((RolePlan(),), {"default": {"config": "here"}}), {}, "engines cannot load"),
        (
            "lws",
            Case((RolePlan(degrees={"dp": 16, "ep": 16}, first=4),), {"default": {"name": DEEPSEEK}}, 3),
            {},
            "share one template",
        ),
        (
            "kubernetes",
            Case((RolePlan(replicas=2, degrees={"tp": 4}, first=6),), {"default": {"name": QWEN}}, 2),
            {},
            "lie differently over nodes",
        ),
        (
            "kubernetes",
            Case((RolePlan(replicas=2, degrees={"dp": 4, "ep": 4}, first=6),), {"default": {"name": DEEPSEEK}}, 2),
            {},
            "lie differently over nodes",
        ),
        ("kubernetes", Case((RolePlan(), RolePlan(name="b", first=0)), {"default": {"name": QWEN}}), {}, "belongs to"),
        ("dynamo", colocated(1, tp=1), {"router_image": None}, "no image that holds NVIDIA Dynamo"),
        ("ray-serve", colocated(1, tp=1), {"router_image": None}, "no image that holds Ray"),
        ("ray-serve", colocated(1, tp=4, dp=2), {"router_image": None, "image": "a:b"}, "one data-parallel rank"),
        ("kserve", colocated(1, 2, LLAMA, tp=16), {"router_image": None}, "dp 1 over several"),
        ("disaggregatedset", colocated(1, tp=1), {"namespace": "a"}, "whole requests in one"),
        ("disaggregatedset", CASES["disaggregated-2p1d"], {}, "none is given"),
        ("llm-d", CASES["mixed-two-models"], {}, "one model in one mode"),
        ("disaggregatedset", CASES["disaggregated-2p1d"], {"placement": "Exclusive=rack"}, "Exclusive=rack"),
        ("disaggregatedset", CASES["disaggregated-2p1d"], {"placement": "ExclusiveSlice=a b"}, "a b"),
        ("lws", CASES["disaggregated-2p1d"], {"placement": "ExclusiveSlice=rack"}, "no place"),
    ],
)
def test_what_a_cluster_cannot_start_is_refused_with_its_reason(
    target: str, case: Case, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PlannerError) as caught:
        emit(*case.build(), target, (), ClusterOptions(**{"router_image": "example/router:1", **options}))
    assert reason in caught.value.what
    assert caught.value.hint
    assert caught.value.where


@pytest.mark.parametrize("target", [target for target, engines in ENGINES_OF.items() if "trtllm" not in engines])
def test_an_engine_that_a_target_does_not_run_is_refused(target: str) -> None:
    with pytest.raises(PlannerError, match="starts no trtllm"):
        files_of(colocated(tp=1), target, "trtllm")


@pytest.mark.parametrize("target", ["kubernetes", "lws", "dynamo", "kserve", "ray-serve"])
def test_secrets_and_volumes_are_named_and_never_written(target: str) -> None:
    files = files_of(colocated(2, tp=4), target, namespace="serving", model_cache="models", token_secret="hub")
    documents = list(yaml.safe_load_all(files["plan.yaml"]))
    assert {each["metadata"]["namespace"] for each in documents} == {"serving"}
    text = str(documents)
    assert "{'secretKeyRef': {'name': 'hub', 'key': 'HF_TOKEN'}}" in text
    assert "'persistentVolumeClaim': {'claimName': 'models'}" in text


@pytest.mark.parametrize("kind", ["ExclusiveSlice", "ExclusiveTopology"])
def test_a_set_says_where_its_roles_may_run(kind: str) -> None:
    files = files_of(CASES["disaggregated-2p1d"], "disaggregatedset", placement=f"{kind}=example.com/rack")
    (own,) = (each for each in yaml.safe_load_all(files["plan.yaml"]) if each["kind"] == "DisaggregatedSet")
    assert own["spec"]["placementPolicy"] == {"type": kind, "topology": "example.com/rack"}
