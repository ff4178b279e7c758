"""Plans whose engine places experts by load: what each engine is told, and what none can run.

Names of settings: vLLM's vllm/config/parallel.py (`ParallelConfig.enable_eplb`, `EPLBConfig.num_redundant_experts`),
SGLang's sglang/srt/server_args.py, and `MoeLoadBalancerConfig` of TensorRT-LLM's tensorrt_llm/llmapi/llm_args.py.
"""

import json
import re
import shlex

import pytest
import yaml
from cluster_read import READERS
from emit_plans import DEEPSEEK, QWEN, Case, RolePlan
from test_cluster_targets import COLOCATED, IMAGES, OPTIONS, built

from planner.emit.registry import emit
from planner.errors import PlannerError

LIMITS = {"max_batch": 64, "chunk_tokens": 8192, "max_context_tokens": 8192}


def case(copies: int, model: str = DEEPSEEK, **degrees: int) -> Case:
    limits = {**LIMITS, "redundant_experts": copies}
    return Case((RolePlan(degrees=degrees or {"dp": 8, "ep": 8}, limits=limits),), {"default": {"name": model}})


def flags(files: dict[str, str], program: str) -> dict[str, str]:
    """Flags of the command of the only script, by name."""
    text = files["launch-node-00.sh"].replace("\\\n", " ")
    (command,) = re.findall(rf"^.*{program}.*&$", text, re.MULTILINE)
    words = shlex.split(command.removesuffix("&"))
    return {name: value for name, value in zip(words, [*words[1:], ""], strict=True) if name.startswith("--")}


@pytest.mark.parametrize("copies", [0, 32])
def test_vllm_is_told_the_copies_beside_its_balancer(copies: int) -> None:
    told = flags(emit(*case(copies).build(), "vllm"), "vllm serve")
    assert "--enable-eplb" in told
    assert "--enable-expert-parallel" in told
    assert json.loads(told["--eplb-config"]) == {"num_redundant_experts": copies}


@pytest.mark.parametrize("copies", [0, 32])
def test_sglang_is_told_the_copies_beside_its_balancer(copies: int) -> None:
    told = flags(emit(*case(copies).build(), "sglang"), "python3 -m sglang")
    assert "--enable-eplb" in told
    assert told["--ep-num-redundant-experts"] == str(copies)
    assert told["--ep-dispatch-algorithm"] == "dynamic"
    assert "--init-expert-location" not in told


@pytest.mark.parametrize("copies", [0, 32])
def test_tensorrt_llm_is_told_all_slots_and_that_it_moves_them(copies: int) -> None:
    files = emit(*case(copies).build(), "tensorrt-llm")
    settings = yaml.safe_load(files["config-colocated.yaml"])
    assert settings["moe_config"]["load_balancer"] == {"num_slots": 256 + copies, "layer_updates_per_iter": 1}


@pytest.mark.parametrize(("target", "engine"), COLOCATED)
def test_every_pod_of_a_cluster_is_told(target: str, engine: str) -> None:
    files = emit(*built(case(32), engine), target, [], OPTIONS.get(target, IMAGES))
    (pod,) = READERS[target](files)["plan-colocated"].pods
    told = " ".join(pod.argv) + "".join(pod.files.values())
    assert {
        "vllm": '"num_redundant_experts": 32',
        "sglang": "--ep-num-redundant-experts 32",
        "trtllm": "num_slots: 288",
    }[engine] in told


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (case(3), "has 256 and redundant_experts 3 on ep 8"),
        (case(32, ep=4, moe_tp=2, dp=8), "ep 4, moe_tp 2"),
        (case(0, QWEN, tp=4), "has 0 and redundant_experts 0 on ep 1"),
    ],
)
@pytest.mark.parametrize("target", ["vllm", "sglang", "tensorrt-llm"])
def test_copies_that_do_not_fill_the_ranks_are_not_launched(plan: Case, said: str, target: str) -> None:
    with pytest.raises(PlannerError) as caught:
        emit(*plan.build(), target)
    assert said in caught.value.what or "cuts experts over all ranks" in caught.value.what


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(PlannerError, match="`redundant_experts` must be a whole number, found -1"):
        emit(*case(-1).build(), "vllm")
