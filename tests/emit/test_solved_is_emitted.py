"""What a problem names as its engine launches what solve answers with: solve refuses what emit would.

The quick part takes a few models and what options ask for; all models beside the repository are `slow`.
"""

from pathlib import Path
from typing import Any

import pytest
from train_problems import problem

from planner import Plan
from planner import solve as solve_plan
from planner.api import solve
from planner.emit.registry import emit
from planner.engines.trained_models import untrained
from planner.engines.training import TRAINING_ENGINES
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.models.library import find_model

MODELS = Path(__file__).parents[2].parent / "shared" / "validators" / "models"
LLAMA, MOE, VISION = "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-VL-8B-Instruct"
SMALL = ("XiaomiMiMo/MiMo-7B-Base", "openai/gpt-oss-20b")
FIXED: dict[str, Any] = {"micro_batch": 1, "cp": 1, "tp": [1, 2], "recompute": "full"}
SEEN = [{"share": 1, "images": [{"width": 640, "height": 640, "count": 1}]}]
MADE = [{"share": 1, "generated": [{"width": 512, "height": 512, "count": 1}]}]
TWO = {"pools": [{"gpu": "h100_sxm", "nodes": 1}, {"gpu": "h200_sxm", "nodes": 1}]}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "ramp": (LLAMA, {"global_batch": 128, "batch_ramp": [{"global_batch": 64, "tokens": 1e9}]}),
    "uneven ramp": (
        LLAMA,
        {
            "global_batch": 160,
            "batch_ramp": [{"global_batch": 32, "tokens": 1e9}, {"global_batch": 128, "tokens": 1e9}],
        },
    ),
    "layers apart": (LLAMA, {"search": {"layerwise": True}}),
    "replicas": (LLAMA, {"cluster": TWO, "search": {"pools": "replicas"}}),
    "any pools": (LLAMA, {"cluster": TWO}),
    "towers tuned": (VISION, {"samples": SEEN, "task": "sft"}),
    "towers of others": ("Qwen/Qwen3.5-27B", {"samples": SEEN}),
    "towers apart": (VISION, {"samples": SEEN, "search": {"modules": "apart", "pp": 2}}),
    "generator": ("stepfun-ai/NextStep-1-Large", {"samples": MADE}),
    "12 GPUs": (LLAMA, {"global_batch": 96, "limits": {"gpus": 12}}),
    "adapters": (MOE, {"task": "lora"}),
}


def _problem(engine: str, model: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """A small search of the engine's first task, unless the options say otherwise."""
    facts = TRAINING_ENGINES[engine]
    search = {**FIXED, "pp": [1, 2] if facts.most_pp is None else 1, **options.pop("search", {})}
    return {**problem(model, **{"task": facts.tasks[0], **options, "search": search}), "engine": {"name": engine}}


def _launched(data: dict[str, Any], engine: str) -> bool:
    """Whether there is a plan, which its engine then launches."""
    try:
        plan = solve(data)
    except (PlannerError, Infeasible):
        return False
    assert emit(plan, TrainDecision.model_validate(plan.decision), engine)
    return True


@pytest.mark.parametrize("name", ASKED)
def test_what_options_ask_for_is_emitted_or_refused_by_solve(name: str) -> None:
    model, options = ASKED[name]
    able = {engine for engine in TRAINING_ENGINES if _launched(_problem(engine, model, **options), engine)}
    expected = {
        "ramp": {"megatron-lm", "megatron-bridge"},
        "any pools": set(TRAINING_ENGINES),
        "towers apart": {"megatron-bridge"},
        "12 GPUs": set(TRAINING_ENGINES),
        "adapters": {"megatron-bridge", "nemo-automodel"},
    }
    assert able == expected.get(name, set())


@pytest.mark.parametrize("model", SMALL)
def test_a_model_is_emitted_or_refused_by_solve(model: str) -> None:
    for engine, facts in TRAINING_ENGINES.items():
        for task in facts.tasks:
            data = _problem(engine, model, task=task, nodes=4, search={"dp": [8, 16, 32]})
            assert _launched(data, engine) == (untrained(engine, find_model(model), task) is None)


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(MODELS.iterdir()) if MODELS.exists() else [], ids=lambda path: path.name)
def test_every_model_beside_the_repository_is_emitted_or_refused_by_solve(folder: Path) -> None:
    search = {"tp": [1, 8], "dp": [128, 1024]}
    for engine, facts in TRAINING_ENGINES.items():
        for task in facts.tasks:
            data = _problem(engine, "any", task=task, nodes=128, search=search, global_batch=1024)
            data["models"] = {"policy": {"config": str(folder)}}
            try:
                plan = solve_plan(data)
            except (PlannerError, Infeasible):
                continue
            Plan(plan.envelope, plan.decision, folder=folder).emit(engine)


def test_heads_for_further_tokens_are_left_out_where_the_engine_trains_without_them() -> None:
    """And told; what is emitted elsewhere has none either."""
    search = {"tp": 1, "pp": 1, "dp": 8}
    plans = {
        engine: solve(_problem(engine, SMALL[0], task="sft", nodes=1, search=search))
        for engine in ("nemo-automodel", "megatron-bridge")
    }
    decisions = {engine: TrainDecision.model_validate(plan.decision) for engine, plan in plans.items()}
    trained = {engine: "mtp" in decision.stage_runs[-1].parts for engine, decision in decisions.items()}
    assert trained == {"nemo-automodel": False, "megatron-bridge": True}
    told = {engine: any("(MTP)" in text for text in plan.assumptions) for engine, plan in plans.items()}
    assert told == {"nemo-automodel": True, "megatron-bridge": False}
    with pytest.raises(PlannerError, match="no MTP heads"):
        emit(plans["megatron-bridge"], _at_zero(3, decisions["megatron-bridge"]), "nemo-automodel")
    without = _at_zero(0, decisions["nemo-automodel"])
    assert "mtp_num_layers: null" in emit(plans["nemo-automodel"], without, "megatron-bridge")["overrides.yaml"]


def _at_zero(stage: int, decision: TrainDecision) -> TrainDecision:
    return decision.model_copy(update={"zero_stage": stage})
