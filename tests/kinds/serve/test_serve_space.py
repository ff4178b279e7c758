"""The shapes of the search: everything that NVIDIA AIConfigurator searches is in the space, or forbidden by name.

Its spaces: dense models tp and pp in 1, 2, 4, 8; mixture-of-experts models tp, dp, moe_tp and moe_ep in 1, 2, 4, 8 (dp
and ep to 64 with wide expert parallelism) with tp dp = moe_tp moe_ep; one to 32 prefill workers with one prompt at a
time, one to 512 decode workers with batches to 512.
"""

import itertools

import pytest
from serve_problems import small

from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.points import decode_batches, prefill_chunks
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.shapes import (
    InstanceShape,
    group_devices,
    inexpressible_in,
    placement_domain,
    shape_space,
)
from planner.models.library import find_model

DEGREES = (1, 2, 4, 8)
WIDE = (1, 2, 4, 8, 16, 32, 64)
ENGINES = ("vllm", "sglang", "trtllm")


def pool(gpu: str, nodes: int, gone: tuple[int, ...] = ()) -> Pool:
    return Pool(gpu, find_node(gpu), nodes, out_of_service=gone)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B"])
def test_every_dense_shape_of_the_peer_is_in_the_space(model: str, engine: str) -> None:
    space = shape_space(find_model(model), pool("h200", 8), engine, ServeOptions())
    for tp, pp in itertools.product(DEGREES, DEGREES):
        shape = InstanceShape(tp, pp, 1, tp, 1)
        assert shape in space.shapes, space.forbidden.get(shape)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-30B-A3B"])
def test_every_mixture_of_experts_shape_of_the_peer_is_in_the_space_or_forbidden_by_name(
    model: str, engine: str
) -> None:
    space = shape_space(find_model(model), pool("h200", 64), engine, ServeOptions())
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
    assert shape in shape_space(model, pool("h200", 2), "sglang", ServeOptions()).shapes
    assert "both ways" in shape_space(model, pool("h200", 2), "vllm", ServeOptions()).forbidden[shape]


def test_caches_go_to_no_pipeline() -> None:
    model = find_model("Qwen/Qwen3-32B")
    assert inexpressible_in("decode", InstanceShape(1, 2, 1, 1, 1), model, "vllm") is not None
    assert inexpressible_in("prefill", InstanceShape(1, 2, 1, 1, 1), model, "vllm") is None
    assert inexpressible_in("prefill", InstanceShape(16, 1, 1, 16, 1), model, "vllm") is not None


def test_batches_and_prompts_of_the_peer_are_on_the_axes() -> None:
    target = prepare(small({"workloads.0.input_tokens": 300})).targets[0]
    assert {*DEGREES, 16, 32, 64, 128, 256, 512} <= set(decode_batches(ServeOptions(), [target]))
    assert 300 in prefill_chunks(ServeOptions(), [target])


def test_a_rack_is_one_domain_whose_largest_group_is_64() -> None:
    rack = pool("gb200", 18)
    assert placement_domain(rack) == 72
    assert group_devices(rack) == 64
    space = shape_space(find_model("deepseek-ai/DeepSeek-V3"), rack, "sglang", ServeOptions())
    assert InstanceShape(1, 1, 64, 1, 64) in space.shapes
    assert max(shape.tp for shape in space.shapes) > 8
