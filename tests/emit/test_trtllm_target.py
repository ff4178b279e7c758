"""TensorRT-LLM: settings by the names that its releases know, read back as the plan says them, and refusals."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from emit_plans import CASES, DEEPSEEK, QWEN, QWEN_MOE, Case, RolePlan, colocated
from emit_runs import Stage
from test_cluster_targets import built, random_case
from test_emit_injection import HOSTILE

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.plan.schema import Memory
from planner.plan.store import plan_digest, plan_json

GOLDEN = Path(__file__).parents[1] / "golden" / "emit"
FROZEN = ("dense-tp4", "disaggregated-2p1d", "moe-dep8", "moe-tep4", "mixed-two-models", "moe-dep16-two-nodes")
SETTINGS = {
    "backend", "cache_transceiver_config", "cuda_graph_config", "disable_overlap_scheduler", "enable_attention_dp",
    "enable_chunked_prefill", "kv_cache_config", "max_batch_size", "max_num_tokens", "max_seq_len", "moe_config",
    "moe_expert_parallel_size", "moe_tensor_parallel_size", "pipeline_parallel_size", "speculative_config",
    "tensor_parallel_size",
}  # fmt: skip
"""Of LlmArgs, by the names in tensorrt_llm/llmapi/llm_args.py; the wheel was not at hand."""
BELOW = {
    "cache_transceiver_config": {"backend", "max_tokens_in_buffer"},
    "cuda_graph_config": {"enable_padding", "max_batch_size"},
    "kv_cache_config": {"dtype", "enable_block_reuse", "free_gpu_memory_fraction"},
    "moe_config": {"load_balancer"},
    "speculative_config": {"decoding_type", "max_draft_len", "num_nextn_predict_layers", "speculative_model"},
}
FRONT = {"hostname", "port", "context_servers", "generation_servers"}
"""Of extract_disagg_cfg in disagg_utils.py, which hands any other name on to both sides and says nothing."""


def files_of(case: Case) -> dict[str, str]:
    return emit(*built(case, "trtllm"), "tensorrt-llm")


@pytest.mark.parametrize("name", FROZEN)
def test_files_are_as_recorded(name: str, golden: Callable[[str, str], None]) -> None:
    envelope, decision = built(CASES[name], "trtllm")
    digest = plan_digest(plan_json(envelope))
    try:
        files = emit(envelope, decision, "tensorrt-llm")
    except PlannerError as refused:
        files = {"refused.txt": f"{refused.what}\n"}
    for file, text in files.items():
        assert file == "refused.txt" or digest in text
        golden(f"emit/tensorrt-llm/{name}/{file}", text.replace(digest, "sha256:PLAN"))
    assert sorted(path.name for path in (GOLDEN / "tensorrt-llm" / name).iterdir()) == sorted(files)


def settings(files: dict[str, str], role: str) -> dict[str, Any]:
    """The settings of a role, all by names that releases know."""
    data: dict[str, Any] = yaml.safe_load(files[f"config-{role}.yaml"])
    assert set(data) <= SETTINGS
    for name, value in data.items():
        assert not isinstance(value, dict) or set(value) <= BELOW[name]
    return data


def test_settings_read_back_say_what_the_plan_says() -> None:
    draw, read = random.Random("trtllm"), 0
    while read < 200:
        case = random_case(draw)
        try:
            files = files_of(case)
        except PlannerError:
            continue
        read += 1
        formats = case.models["default"]
        for role in case.roles:
            data = settings(files, role.function)
            tp, dp, ep = (role.degrees.get(axis, 1) for axis in ("tp", "dp", "ep"))
            assert data["tensor_parallel_size"] == tp * dp
            assert data["pipeline_parallel_size"] == role.degrees.get("pp", 1)
            assert data.get("enable_attention_dp", False) == (dp > 1)
            assert data.get("moe_expert_parallel_size", 1) == ep
            assert data["max_batch_size"] == role.limits["max_batch"]
            assert data["max_seq_len"] == role.limits["max_context_tokens"]
            assert data["kv_cache_config"]["dtype"] == {"bf16": "auto", "fp8": "fp8"}[formats["kv_cache"]]
            started = "".join(text for name, text in files.items() if name.startswith("launch-"))
            assert started.count(f"--config config-{role.function}.yaml") == role.replicas


def test_the_server_before_both_sides_is_told_every_address_and_nothing_that_it_would_hand_on() -> None:
    case = Case((RolePlan("prefill", 2), RolePlan("decode", 3, first=8)), {"default": {"name": QWEN}}, 2, ("a", "b"))
    front = yaml.safe_load(files_of(case)["disaggregated.yaml"])
    assert set(front) == FRONT
    for side, urls in (("context", ["a:8000", "a:8001"]), ("generation", ["b:8000", "b:8001", "b:8002"])):
        servers = front[f"{side}_servers"]
        assert servers["urls"] == urls
        assert servers["num_instances"] == len(urls)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_arrives_as_one_argument(name: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "programs" / "trtllm-serve").write_text((tmp_path / "programs" / "vllm").read_text())
    (tmp_path / "programs" / "trtllm-serve").chmod(0o755)
    (call,) = stage.run(files_of(colocated(tp=1, model=name))["launch-node-00.sh"])
    assert call.arguments[1] == name


def test_caches_take_what_the_plan_gives_them_of_what_weights_leave() -> None:
    memory = Memory(capacity_bytes=90e9, weights_bytes=40e9, activations_bytes=10e9)
    files = files_of(Case((RolePlan(memory=memory),), {"default": {"name": QWEN}}))
    assert settings(files, "colocated")["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (colocated(1, tp=2, dp=4, ep=8, model=DEEPSEEK), "either tensor- or data-parallel"),
        (colocated(1, 2, DEEPSEEK, dp=16, ep=16), "needs MPI"),
        (colocated(1, dp=2), "copies of a dense model"),
        (colocated(1, tp=1, weights="fp8"), "cannot turn the checkpoint"),
        (
            Case(
                (RolePlan(degrees={"dp": 4, "ep": 4}, limits={"max_batch": 4, "micro_batches": 2}),),
                {"default": {"name": QWEN_MOE}},
            ),
            "two batches",
        ),
    ],
)
def test_what_it_does_not_run_is_refused_with_the_reason(case: Case, reason: str) -> None:
    with pytest.raises(PlannerError) as caught:
        files_of(case)
    assert reason in caught.value.what
    assert caught.value.hint


def test_a_plan_of_another_engine_is_refused() -> None:
    with pytest.raises(PlannerError, match="was planned for vllm"):
        emit(*built(colocated(tp=1), "vllm"), "tensorrt-llm")


def test_every_target_says_by_which_policy_clients_share_requests_that_nothing_routes() -> None:
    envelope, decision = built(colocated(2, tp=2), "trtllm")
    routed = decision.model_copy(update={"router_policy": "power-of-two"})
    options = ClusterOptions(image="example/engine:1")
    told = {"tensorrt-llm": None, "docker-compose": options, "kubernetes": options, "lws": options}
    for target, given in told.items():
        texts = emit(envelope, routed, target, (), given)
        assert any("by power-of-two." in text for text in texts.values()), target
        assert not any("by power-of-two." in text for text in emit(envelope, decision, target, (), given).values())
