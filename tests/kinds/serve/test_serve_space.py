"""The shapes of the search: everything that NVIDIA AIConfigurator searches is in the space, or forbidden by name.

Its spaces: dense models tp and pp in 1, 2, 4, 8; mixture-of-experts models tp, dp, moe_tp and moe_ep in 1, 2, 4, 8 (dp
and ep to 64 with wide expert parallelism) with tp dp = moe_tp moe_ep; one to 32 prefill workers with one prompt at a
time, one to 512 decode workers with batches to 512.
"""

import itertools

import pytest
from serve_problems import small

from planner.engines.handover import Side
from planner.engines.load import release_of
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.engine_rules import handover_rule, side_of
from planner.kinds.serve.steady.points import Tally, decode_batches, prefill_chunks
from planner.kinds.serve.steady.search import list_candidates, prepare
from planner.kinds.serve.steady.shapes import (
    InstanceShape,
    group_devices,
    placement_domain,
    shape_space,
)
from planner.models.library import find_model

DEGREES = (1, 2, 4, 8)
WIDE = (1, 2, 4, 8, 16, 32, 64)
ENGINES = ("vllm", "sglang", "trtllm")
VLLM = release_of("vllm", None)


def pool(gpu: str, nodes: int, gone: tuple[int, ...] = ()) -> Pool:
    return Pool(gpu, find_node(gpu), nodes, out_of_service=gone)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B"])
def test_every_dense_shape_of_the_peer_is_in_the_space(model: str, engine: str) -> None:
    space = shape_space(find_model(model), pool("h200", 8), release_of(engine, None), ServeOptions())
    for tp, pp in itertools.product(DEGREES, DEGREES):
        shape = InstanceShape(tp, pp, 1, tp, 1)
        assert shape in space.shapes, space.forbidden.get(shape)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-30B-A3B"])
def test_every_mixture_of_experts_shape_of_the_peer_is_in_the_space_or_forbidden_by_name(
    model: str, engine: str
) -> None:
    space = shape_space(find_model(model), pool("h200", 64), release_of(engine, None), ServeOptions())
    count = 0
    for tp, pp, dp, ep in itertools.product(DEGREES, DEGREES, WIDE, WIDE):
        if (tp * dp) % ep == 0:
            shape = InstanceShape(tp, pp, dp, tp * dp // ep, ep)
            assert shape in space.forbidden or shape in space.shapes, shape
            count += 1
    assert count > 300
    assert all(rule for rule in space.forbidden.values())


def test_sglang_runs_what_shards_the_experts_both_ways_and_vllm_does_not() -> None:
    model, shape = find_model("deepseek-ai/DeepSeek-V3"), InstanceShape(8, 1, 1, 4, 2)
    assert shape in shape_space(model, pool("h200", 2), release_of("sglang", None), ServeOptions()).shapes
    assert "both ways" in shape_space(model, pool("h200", 2), VLLM, ServeOptions()).forbidden[shape]


def test_caches_go_to_no_pipeline() -> None:
    model = find_model("Qwen/Qwen3-32B")
    assert handover_rule("decode", InstanceShape(1, 2, 1, 1, 1), model, VLLM) is not None
    assert handover_rule("decode", InstanceShape(1, 2, 1, 1, 1), model, release_of("trtllm", None)) is None
    assert handover_rule("colocated", InstanceShape(1, 2, 1, 1, 1), model, VLLM) is None


@pytest.mark.parametrize(
    ("model", "engine", "reason"),
    [
        ("Qwen/Qwen3-32B", "vllm", None),
        ("deepseek-ai/DeepSeek-V3", "vllm", None),
        ("openai/gpt-oss-120b", "vllm", None),
        ("Qwen/Qwen3.5-27B", "vllm", "no recurrent state over from a pipeline"),
        ("zai-org/GLM-5.2", "vllm", "only where all layers cache alike"),
        ("Qwen/Qwen3.5-27B", "sglang", None),
        ("openai/gpt-oss-120b", "sglang", "no windows over from a pipeline"),
        ("openai/gpt-oss-120b", "trtllm", None),
    ],
)
def test_prefill_in_stages_is_searched_where_a_connector_takes_its_caches(
    model: str, engine: str, reason: str | None
) -> None:
    arch, release = find_model(model), release_of(engine, None)
    assert handover_rule("prefill", InstanceShape(2, 1, 1, 2, 1), arch, release) is None
    rule = handover_rule("prefill", InstanceShape(2, 2, 1, 2, 1), arch, release)
    assert rule is None if reason is None else reason in (rule or "")


def test_a_decode_that_repeats_heads_shares_no_channel_with_a_narrower_pipelined_prefill() -> None:
    setting = prepare(small({"models.llama.name": "Qwen/Qwen3-4B", "options": {"tp": [1, 2], "pp": [1, 2]}}))
    assert [way.connector for way in setting.ways["llama"]] == ["NixlPushConnector"]
    setting = prepare(
        small({"models.llama.name": "Qwen/Qwen3-30B-A3B", "cluster.pools.0.gpus": 8, "options": {"pp": [1, 2]}})
    )
    wide, pipelined = Side(8, 1), Side(2, 2)
    assert any(wide in way.receivers for way in setting.ways["llama"])
    assert any(pipelined in way.senders for way in setting.ways["llama"])
    assert not any(wide in way.receivers and pipelined in way.senders for way in setting.ways["llama"])
    candidates = list_candidates(setting, setting.targets, tally := Tally())
    assert {c.channel.way for c in candidates if c.channel is not None} <= set(setting.ways["llama"])
    for candidate in candidates:
        if candidate.channel is not None and candidate.channel.way is not None:
            assert candidate.channel.way.takes(candidate.function, side_of(candidate.shape))
    assert tally.pruned["no connector joins this shape with all others of its channel"] > 0


def test_batches_and_prompts_of_the_peer_are_on_the_axes() -> None:
    target = prepare(small({"workloads.0.input_tokens": 300})).targets[0]
    assert {*DEGREES, 16, 32, 64, 128, 256, 512} <= set(decode_batches(ServeOptions(), [target]))
    assert 300 in prefill_chunks(ServeOptions(), [target])


def test_a_rack_is_one_domain_whose_largest_group_is_64() -> None:
    rack = pool("gb200", 18)
    assert placement_domain(rack) == 72
    assert group_devices(rack) == 64
    space = shape_space(find_model("deepseek-ai/DeepSeek-V3"), rack, release_of("sglang", None), ServeOptions())
    assert InstanceShape(1, 1, 64, 1, 64) in space.shapes
    assert max(shape.tp for shape in space.shapes) > 8
