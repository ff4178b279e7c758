"""Plans with towers as launchers read them: what is frozen, which ranks each module has, what no launcher takes."""

import ast
import json
from typing import Any

import pytest
import yaml
from static_level import solve
from train_problems import problem

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision

IMAGES = [{"share": 1, "images": [{"width": 512, "height": 512, "count": 2}]}, {"share": 1}]
SEARCH = {"tp": 2, "pp": 2, "cp": 1, "micro_batch": 1, "zero_stage": 1, "vpp": 1}
VL = "Qwen/Qwen3-VL-4B-Instruct"


def emitted(target: str, model: str = VL, samples: Any = IMAGES, gpus: int = 8, **options: Any) -> dict[str, str]:  # noqa: ANN401
    search = {**SEARCH, **options.pop("search", {})}
    data = problem(model, nodes=1, global_batch=16, samples=samples, search=search, limits={"gpus": gpus}, **options)
    envelope = solve(data)
    return emit(envelope, TrainDecision.model_validate(envelope.decision), target)


def test_megatron_bridge_trains_the_tower_on_the_first_stage_as_frozen_as_planned() -> None:
    files = emitted("megatron-bridge", frozen=["encoder"])
    model = yaml.safe_load(files["overrides.yaml"])["model"]
    named = ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection")
    assert [model[name] for name in named] == [False, True, False]
    ast.parse(files["train.py"])
    assert "vlm_step import forward_step" in files["train.py"]
    assert "image_size=(512, 512), num_images=2" in files["train.py"]
    order = json.loads(files["sample_order.json"])
    assert sum(len(micro) for own in order["micro_batches_of_replica"] for micro in own) == 16


def test_modules_apart_begin_where_the_language_model_ends() -> None:
    search = {"modules": "apart", "tp": 1, "pp": 2, "dp": 2}
    files = emitted("megatron-bridge", search=search, gpus=8)
    (config,) = [node for node in ast.parse(files["module_parallelism.py"]).body if isinstance(node, ast.Assign)]
    calls = [node for node in ast.walk(config) if isinstance(node, ast.Call)][1:]
    language, vision = ({k.arg: ast.literal_eval(k.value) for k in call.keywords} for call in calls)
    assert language["rank_offset"] == 0
    assert vision["rank_offset"] == 4
    assert vision["pipeline_model_parallel_size"] == 1
    (row, main) = json.loads(emitted("mindspeed-mm", search=search)["dist_config.json"])["dist_config"]["model_config"]
    assert (row["world_size"], main["world_size"]) == (4, 4)
    assert vision["tensor_model_parallel_size"] * vision["data_parallel_size"] == 4
    assert [row["main_dp"], main["main_dp"], row["forward_only"]] == [False, True, False]


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("megatron-lm", {}, "language models alone"),
        ("torchtitan", {}, "language models alone"),
        ("mindspeed-mm", {}, "each on its own"),
        (
            "megatron-bridge",
            {
                "model": "Qwen/Qwen2-Audio-7B",
                "samples": [{"share": 1, "audio_s": [30.0]}],
                "search": {"pp": 4, "tp": 2},
            },
            "no audio tower",
        ),
        ("megatron-bridge", {"task": "sft"}, "mock images"),
    ],
)
def test_what_a_launcher_cannot_train_is_refused(target: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        emitted(target, **options)


def test_a_generator_apart_is_refused_with_the_reason_whatever_its_ranks() -> None:
    """Before its placement is looked at: 100 GPUs leave a node half full."""
    data = problem(
        "DistTrain/MLLM-72B",
        nodes=13,
        limits={"gpus": 100},
        global_batch=16,
        samples=[{"share": 1, "images": [{"width": 224, "height": 224}], "generated": [{"width": 64, "height": 64}]}],
        search={**SEARCH, "tp": 8, "pp": 4, "dp": 1, "recompute": "none", "modules": "apart"},
    )
    plan = solve(data)
    for target in ("megatron-bridge", "mindspeed-mm", "megatron-lm"):
        with pytest.raises(PlannerError, match="trains no generator"):
            emit(plan, TrainDecision.model_validate(plan.decision), target)
