"""What targets refuse, and how they express the limits and formats of a role."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from emit_plans import DEEPSEEK, QWEN, QWEN_MOE, Case, RolePlan, colocated

from planner.emit.registry import emit, targets
from planner.emit.serving.checkpoints import load_quantisation, published_name
from planner.errors import PlannerError
from planner.plan.schema import Engine, Memory, Route
from planner.problem.schema import ModelSpec

METHODS = {"fp8": "fp8"}
HALVES = {"micro_batches": 2}
MOE = {"default": {"name": QWEN_MOE}}


def split(sent: dict[str, int], received: dict[str, int], model: str = QWEN) -> Case:
    """Prefill and decode on a node each."""
    roles = (RolePlan("prefill", degrees=sent), RolePlan("decode", degrees=received, first=8))
    return Case(roles, {"default": {"name": model}}, 2)


def flags(case: Case, target: str, node: str = "00") -> dict[str, str]:
    """The flags of the first command on a node, switches with an empty value."""
    text = emit(*case.build(), target)[f"launch-node-{node}.sh"]
    command = re.split(r" &\n", text)[0]
    return dict(re.findall(r"(--[a-z0-9-]+) ?([^\s\\]*)", command))


def refusal(case: Case, target: str) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        emit(*case.build(), target)
    assert caught.value.hint
    assert caught.value.where
    return caught.value


def test_the_targets_are_those_whose_modules_are_there() -> None:
    assert {"vllm", "sglang"} <= set(targets())


def test_an_unknown_target_names_the_nearest() -> None:
    assert "`sglang`" in refusal(colocated(tp=1), "sglan").hint


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_a_kind_that_is_not_served_is_refused(target: str) -> None:
    assert "`train`" in refusal(replace(colocated(tp=1), kind="train"), target).what


@pytest.mark.parametrize(
    ("target", "case", "reason"),
    [
        ("vllm", colocated(1, model=DEEPSEEK, tp=8, moe_tp=2, ep=4), "moe_tp 2 x ep 4"),
        ("vllm", colocated(1, model=DEEPSEEK, tp=8, ep=4), "= 4 ranks"),
        ("sglang", colocated(1, model=DEEPSEEK, tp=8, ep=16), "= 16 ranks"),
        ("vllm", colocated(1, tp=4, cp=2), "cp 2"),
        ("sglang", colocated(1, tp=4, cp=2), "cp 2"),
        ("vllm", colocated(1, 4, tp=16, dp=2), "span nodes"),
        ("sglang", colocated(1, 2, tp=8, dp=2), "one node"),
        ("sglang", Case((RolePlan(degrees={"tp": 8}, first=6),), {"default": {"name": QWEN}}, 2), "evenly"),
        ("vllm", Case((RolePlan(degrees={"tp": 8}, first=6),), {"default": {"name": QWEN}}, 2), "evenly"),
        ("vllm", Case((RolePlan("prefill"),), {"default": {"name": QWEN}}), "need each other"),
        ("vllm", split({"tp": 2}, {"tp": 3}), "one divides the other"),
        ("sglang", split({"tp": 3}, {"tp": 2}), "one divides the other"),
        ("vllm", split({"tp": 2}, {"tp": 2, "pp": 2}), "caches to no pipeline (prefill has tp 2 and pp 1"),
        ("sglang", split({"tp": 2, "pp": 4}, {"tp": 2, "pp": 2}), "in as many as prefill has"),
        ("vllm", split({"tp": 2, "pp": 2}, {"tp": 8}, QWEN_MOE), "repeats KV heads over more ranks than prefill has"),
        ("vllm", split({"tp": 2, "pp": 2}, {"tp": 2}, "Qwen/Qwen3.5-27B"), "no recurrent state over from a pipeline"),
        ("vllm", split({"tp": 2, "pp": 2}, {"tp": 4}, "openai/gpt-oss-120b"), "to no wider tensor-parallel group"),
        ("sglang", split({"tp": 2, "pp": 2}, {"tp": 2}, "openai/gpt-oss-120b"), "no windows over from a pipeline"),
        ("sglang", split({"tp": 2, "pp": 2}, {"tp": 2}), "only to another tensor-parallel size"),
        ("sglang", split({"tp": 2, "pp": 4}, {"tp": 4}, QWEN_MOE), "takes unequal stages for a drafter's layers"),
        ("vllm", Case((RolePlan("train"),), {"default": {"name": QWEN}}), "function `train`"),
        ("vllm", Case((RolePlan(model="other"),), {"default": {"name": QWEN}}), "unknown model `other`"),
        ("vllm", Case((RolePlan(pool="other"),), {"default": {"name": QWEN}}), "no pool is called `other`"),
        ("vllm", Case((RolePlan(first=8),), {"default": {"name": QWEN}}), "outside the 1 nodes"),
        ("vllm", Case((RolePlan(limits={"max_batch": 0}),), {"default": {"name": QWEN}}), "positive whole number"),
        (
            "sglang",
            Case(
                (RolePlan(degrees={"dp": 16, "ep": 16}, limits={"max_batch": 2048}),),
                {"default": {"name": DEEPSEEK}},
                2,
            ),
            "max_batch 2048",
        ),
        ("vllm", Case((RolePlan(degrees={"tp": 2}, limits=HALVES),), {"default": {"name": QWEN}}), "two batches"),
        ("sglang", Case((RolePlan(degrees={"dp": 4, "moe_tp": 4}, limits=HALVES),), MOE), "two batches"),
        ("vllm", Case((RolePlan(degrees={"dp": 4, "ep": 4}, limits={"micro_batches": 3}),), MOE), "micro_batches 3"),
        ("vllm", Case((RolePlan(degrees={"dp": 4, "ep": 4, "pp": 2}, limits=HALVES),), MOE), "pipelines"),
        (
            "vllm",
            Case((RolePlan(name="a"), RolePlan(name="b", first=0)), {"default": {"name": QWEN}}),
            "belongs to a/0 and to b/0",
        ),
    ],
)
def test_what_an_engine_cannot_express_is_refused_with_its_reason(target: str, case: Case, reason: str) -> None:
    assert reason in refusal(case, target).what


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("sglang", split({"tp": 2, "pp": 2}, {"tp": 2, "pp": 2})),
        ("vllm", split({"tp": 2, "pp": 2}, {"tp": 2})),
        ("vllm", split({"tp": 8}, {"tp": 8}, QWEN_MOE)),
        ("vllm", split({"tp": 4}, {"tp": 2}, QWEN_MOE)),
        ("vllm", split({"tp": 8}, {"tp": 2}, QWEN_MOE)),
        ("vllm", split({"tp": 8}, {"dp": 8, "ep": 8}, DEEPSEEK)),
    ],
)
def test_shapes_that_can_hand_over_their_cache_are_emitted(target: str, case: Case) -> None:
    assert len(emit(*case.build(), target)) == 3


def transfer(case: Case, node: str) -> dict[str, str]:
    """What the first vLLM command on a node is told of its hand-over."""
    told = flags(case, "vllm", node).get("--kv-transfer-config")
    text = emit(*case.build(), "vllm")[f"launch-node-{node}.sh"]
    config = re.search(r"--kv-transfer-config '([^']*)'", text)
    assert (told is None) == (config is None)
    return dict(json.loads(config[1])) if config is not None else {}


@pytest.mark.parametrize(
    ("sent", "received", "model", "connector"),
    [
        ({"tp": 2}, {"tp": 2}, QWEN, "NixlConnector"),
        ({"tp": 2, "pp": 2}, {"tp": 2}, QWEN, "NixlPushConnector"),
        ({"tp": 2, "pp": 4}, {"dp": 8, "ep": 8}, DEEPSEEK, "NixlPushConnector"),
        ({"tp": 8}, {"tp": 8}, QWEN_MOE, "NixlConnector"),
        ({"tp": 8}, {"tp": 2}, QWEN_MOE, "NixlPushConnector"),
        ({"tp": 2}, {"tp": 8}, QWEN_MOE, "NixlConnector"),
    ],
)
def test_prefill_in_stages_writes_and_other_prefill_is_read(
    sent: dict[str, int], received: dict[str, int], model: str, connector: str
) -> None:
    case = split(sent, received, model)
    own = {"kv_connector": connector, "kv_load_failure_policy": "fail"}
    assert transfer(case, "00") == {**own, "kv_role": "kv_producer"}
    assert transfer(case, "01") == {**own, "kv_role": "kv_consumer"}


def test_layers_with_a_state_are_laid_out_as_their_hand_over_needs() -> None:
    text = emit(*split({"tp": 2}, {"tp": 2}, "Qwen/Qwen3.5-27B").build(), "vllm")["launch-node-00.sh"]
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in text
    assert "VLLM_SSM_CONV_STATE_LAYOUT" not in emit(*split({"tp": 2}, {"tp": 2}).build(), "vllm")["launch-node-00.sh"]


def test_roles_that_no_one_connector_joins_stand_behind_routers_of_their_own() -> None:
    roles = (
        RolePlan("prefill", degrees={"tp": 2, "pp": 2}, name="deep"),
        RolePlan("prefill", degrees={"tp": 2}, name="flat"),
        RolePlan("decode", degrees={"tp": 2}, name="narrow"),
        RolePlan("decode", degrees={"tp": 8}, name="wide", first=8),
    )
    envelope, decision = Case(roles, MOE, 2).build()
    pairs = (("deep", "narrow"), ("flat", "wide"))
    routes = tuple(Route(workload="default", source=a, to=b, share=0.5) for a, b in pairs)
    apart = emit(envelope, decision.model_copy(update={"routing": (*decision.routing, *routes)}), "vllm")
    assert apart["launch-router.sh"].count("vllm-router ") == 2
    with pytest.raises(PlannerError, match="repeats KV heads over more ranks"):
        emit(envelope, decision, "vllm")


@pytest.mark.parametrize(
    ("target", "flag"), [("vllm", "--no-enable-prefix-caching"), ("sglang", "--disable-radix-cache")]
)
def test_prompts_are_cached_as_planned(target: str, flag: str) -> None:
    assert flags(colocated(tp=1), target)[flag] == ""
    envelope, decision = colocated(tp=1).build()
    (role,) = decision.roles
    caching = role.model_copy(update={"limits": {**role.limits, "prefix_caching": "on"}})
    scripts = emit(envelope, decision.model_copy(update={"roles": (caching,)}), target)
    text = "".join(scripts.values())
    assert flag not in text
    assert ("--enable-prefix-caching" in text) == (target == "vllm")


@pytest.mark.parametrize(("target", "version"), [("vllm", "0.10.2"), ("vllm", "0.34.1"), ("sglang", "0.5.3")])
def test_a_plan_of_a_release_without_scripts_names_the_nearest(target: str, version: str) -> None:
    envelope, decision = colocated(tp=1).build()
    (role,) = decision.roles
    old = role.model_copy(update={"engine": Engine(name=target, version=version)})
    with pytest.raises(PlannerError, match=rf"{re.escape(version)}, and these are scripts of .*, the nearest"):
        emit(envelope, decision.model_copy(update={"roles": (old,)}), target)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_steps_in_two_batches_take_the_kernels_that_they_hide(target: str) -> None:
    whole, halves = (
        flags(Case((RolePlan(degrees={"dp": 8, "ep": 8}, limits=limits),), {"default": {"name": DEEPSEEK}}), target)
        for limits in ({}, HALVES)
    )
    switch, kernels = {
        "vllm": ("--enable-dbo", {"--all2all-backend": "deepep_high_throughput"}),
        "sglang": ("--enable-two-batch-overlap", {"--moe-a2a-backend": "deepep", "--deepep-mode": "auto"}),
    }[target]
    assert halves == whole | kernels | {switch: ""}


def test_a_role_that_is_not_placed_whole_is_refused() -> None:
    envelope, decision = colocated(2, tp=2).build()
    with pytest.raises(PlannerError, match="has 0 placed ranks"):
        emit(envelope, decision.model_copy(update={"placement": ()}), "vllm")


def test_a_plan_without_a_valid_problem_is_refused() -> None:
    envelope, decision = colocated(tp=1).build()
    with pytest.raises(PlannerError, match="inputs"):
        emit(envelope.model_copy(update={"inputs": {"kind": "serve"}}), decision, "vllm")


@pytest.mark.parametrize(
    ("function", "limits", "tokens"),
    [
        ("colocated", {"max_batch": 64, "chunk_tokens": 2000}, "2064"),
        ("prefill", {"max_batch": 64, "chunk_tokens": 2000}, "2000"),
        ("prefill", {"max_batch": 64, "chunk_tokens": 32}, "64"),
        ("decode", {"max_batch": 64}, None),
        ("decode", {"max_batch": 4000, "chunk_tokens": 8}, "4000"),
        ("colocated", {}, None),
    ],
)
def test_the_token_budget_of_vllm_holds_the_chunk_beside_the_decoding_batch(
    function: str, limits: dict[str, int], tokens: str | None
) -> None:
    other = {"prefill": "decode", "decode": "prefill"}.get(function)
    roles = [RolePlan(function, limits=limits), *([RolePlan(other)] if other else [])]
    written = flags(Case(tuple(roles), {"default": {"name": QWEN}}), "vllm")
    assert written.get("--max-num-batched-tokens") == tokens
    assert written.get("--max-num-seqs") == (str(limits["max_batch"]) if limits else None)


def test_sglang_is_told_the_limits_of_all_attention_ranks_together() -> None:
    role = RolePlan(degrees={"tp": 2, "dp": 4, "ep": 8}, limits={"max_batch": 10, "chunk_tokens": 1000})
    written = flags(Case((role,), {"default": {"name": DEEPSEEK}}), "sglang")
    assert (written["--tp-size"], written["--attn-dp-size"], written["--ep-size"]) == ("8", "4", "8")
    assert (written["--max-running-requests"], written["--chunked-prefill-size"]) == ("40", "4000")
    assert written["--cuda-graph-max-bs-decode"] == "10"


@pytest.mark.parametrize(("activations_bytes", "fraction"), [(0.0, "0.9"), (9e9, "0.81"), (9.05e9, "0.809")])
def test_sglang_keeps_activations_out_of_the_static_memory(activations_bytes: float, fraction: str) -> None:
    memory = Memory(capacity_bytes=90e9, activations_bytes=activations_bytes)
    written = flags(Case((RolePlan(memory=memory),), {"default": {"name": QWEN}}), "sglang")
    assert written["--mem-fraction-static"] == fraction


def test_ranks_beyond_a_node_are_announced_by_their_first() -> None:
    case = colocated(1, 2, DEEPSEEK, dp=16, ep=16)
    assert flags(case, "vllm")["--data-parallel-size-local"] == "8"
    second = flags(case, "vllm", "01")
    assert second["--data-parallel-start-rank"] == "8"
    assert "--headless" in second
    assert "--port" not in second


def test_a_published_checkpoint_is_found_without_its_organisation() -> None:
    assert published_name(ModelSpec(name="qwen3-32b")) == QWEN
    assert flags(Case((RolePlan(),), {"default": {"name": "Qwen3-32B"}}), "sglang")["--model-path"] == QWEN


def test_a_full_name_is_kept_even_where_it_is_an_alias() -> None:
    name = "Qwen/Qwen3-30B-A3B-Thinking-2507"
    assert published_name(ModelSpec(name=name)) == name
    assert published_name(ModelSpec(name=name.split("/")[1])) == name


@pytest.mark.parametrize(
    ("model", "flag"),
    [
        ({"name": QWEN}, None),
        ({"name": QWEN, "weights": "bf16"}, None),
        ({"name": QWEN, "weights": "fp8"}, "fp8"),
        ({"name": "Qwen/Qwen3-32B-FP8", "weights": "fp8"}, None),
        ({"name": "Qwen/Qwen3-32B-FP8", "weights": "fp8_block"}, None),
        ({"name": DEEPSEEK, "weights": "fp8"}, None),
        ({"name": "openai/gpt-oss-120b", "weights": "mxfp4"}, None),
        ({"name": "my/own", "weights": "fp8"}, "fp8"),
        ({"name": "my/own", "weights": "fp16"}, None),
    ],
)
def test_quantisation_is_asked_for_only_where_the_checkpoint_lacks_it(model: dict[str, Any], flag: str | None) -> None:
    assert load_quantisation(ModelSpec(**model), METHODS, "the engine", "here") == flag


@pytest.mark.parametrize(
    "model",
    [
        {"name": QWEN, "weights": "nvfp4"},
        {"name": QWEN, "weights": "int4"},
        {"name": DEEPSEEK, "weights": "bf16"},
        {"name": "Qwen/Qwen3-32B-FP8", "weights": "nvfp4"},
        {"name": "my/own", "weights": "mxfp4"},
    ],
)
def test_a_format_that_loading_cannot_make_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="cannot turn the checkpoint"):
        load_quantisation(ModelSpec(**model), METHODS, "the engine", "here")


@pytest.mark.parametrize(("target", "planned"), [("vllm", "trtllm"), ("vllm", "sglang"), ("sglang", "vllm")])
def test_a_plan_of_another_engine_is_refused(target: str, planned: str) -> None:
    envelope, decision = colocated(tp=1).build()
    (role,) = decision.roles
    other = decision.model_copy(update={"roles": (role.model_copy(update={"engine": Engine(name=planned)}),)})
    with pytest.raises(PlannerError, match=f"was planned for {planned}") as raised:
        emit(envelope, other, target)
    assert f"engine: {{name: {target}}}" in raised.value.hint
    own = decision.model_copy(update={"roles": (role.model_copy(update={"engine": Engine(name=target)}),)})
    assert emit(envelope, own, target) == emit(envelope, decision, target)


def test_a_plan_of_an_older_release_is_referred_to_what_emits_it() -> None:
    envelope, decision = colocated(tp=1).build()
    engine = Engine(name="vllm", version="0.11.0")
    old = decision.model_copy(update={"roles": (decision.roles[0].model_copy(update={"engine": engine}),)})
    with pytest.raises(PlannerError, match=re.escape("was planned for vLLM 0.11.0")) as raised:
        emit(envelope, old, "vllm")
    assert "`engine.version=0.33.0`" in raised.value.hint
    assert "`planner audit`" in raised.value.hint
