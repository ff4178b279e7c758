"""Models that a problem gave by a config.json leave by the paths that whoever launches them names."""

from typing import Any

import pytest
from emit_plans import QWEN, Case, RolePlan, colocated
from small_configs import SMALL_CONFIGS

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.plan.store import plan_digest, plan_json

TARGETS = ("vllm", "sglang", "kubernetes", "lws", "dynamo", "docker-compose")


def own(config: str = "own", **more: Any) -> Case:  # noqa: ANN401
    model: dict[str, Any] = {"config": config, "contents": SMALL_CONFIGS["dense-8"]}
    return Case((RolePlan(),), {"default": model | more})


def files(case: Case, target: str, *paths: str) -> dict[str, str]:
    options = ClusterOptions(image="example/engine:1") if target in TARGETS[2:] else None
    return emit(*case.build(), target, (), options, paths)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_loads_the_model_from_where_it_lies(target: str) -> None:
    with pytest.raises(PlannerError, match="engines cannot load `own`") as caught:
        files(own(), target)
    assert "`--model-path PATH`" in caught.value.hint
    text = "\n".join(files(own(), target, "/weights/own").values())
    assert "/weights/own" in text
    assert plan_digest(plan_json(own().build()[0])) in text
    assert text == "\n".join(files(own(), target, "default=/weights/own").values())


def test_a_folder_called_as_a_repository_is_one() -> None:
    assert "vllm serve my/own" in files(own("my/own"), "vllm")["launch-node-00.sh"]


@pytest.mark.parametrize(
    ("case", "paths", "reason"),
    [
        (own(), ("other=/weights",), "unknown model `other`"),
        (own(), ("weights",), "is no path"),
        (own(), ("/a", "default=/b"), "given twice"),
        (colocated(tp=1), ("/a",), "by its name"),
        (Case((RolePlan(),), {"default": {"name": QWEN}, "b": {"name": QWEN}}), ("/a",), "names no model"),
    ],
)
def test_paths_of_nothing_are_refused(case: Case, paths: tuple[str, ...], reason: str) -> None:
    with pytest.raises(PlannerError) as caught:
        files(case, "vllm", *paths)
    assert reason in caught.value.what
    assert caught.value.where == "--model-path"
    assert caught.value.hint


def test_formats_that_a_config_holds_are_not_made_again() -> None:
    stored = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    case = own(contents={**SMALL_CONFIGS["dense-8"], "quantization_config": stored}, weights="fp8_block")
    assert "--quantization" not in files(case, "sglang", "/weights/own")["launch-node-00.sh"]
    assert "--quantization fp8" in files(own(weights="fp8"), "sglang", "/weights/own")["launch-node-00.sh"]
