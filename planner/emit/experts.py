"""Emits expert placements as the files that SGLang, TensorRT-LLM, vLLM and vLLM-Ascend load (EPLB formats).

The files themselves are written by `planner.experts.forms`; here a plan becomes the rows that they are made of.
"""

from functools import partial

import numpy as np

from planner.emit.registry import EmitTarget
from planner.errors import PlannerError
from planner.experts.forms import LaunchRows, files_of, launch_rows
from planner.experts.model_layers import ModelLayers, layers_of
from planner.kinds.experts.decision import STEPWISE, ExpertsDecision
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_model, recorded_problem


def read_rows(envelope: Envelope, decision: Decision) -> LaunchRows:
    """The rows of a plan; PlannerError for layouts that no engine holds, and for models of which nothing is known."""
    assert isinstance(decision, ExpertsDecision)
    if decision.policy == "realtime" or decision.policy in STEPWISE:
        raise PlannerError(
            "layouts made step by step are not started from a file",
            where="decision.policy",
            hint="plan with `policy: static` or `periodic`, or write them all by `--target experts-placement`",
        )
    if not decision.layouts:
        raise PlannerError(
            "the layout is in a side file",
            where="decision.layouts",
            hint="emit a plan whose layouts are in the plan itself",
        )
    repeated = [layout.expert_of_slot for layout in decision.layouts for _ in range(layout.num_layers)]
    if len({len(row) for row in repeated}) != 1:
        raise PlannerError("layers have different numbers of slots", where="decision.layouts", hint="solve again")
    role = decision.roles[0]
    free = any(layout.quota is not None for layout in decision.layouts)
    layers = _layers(envelope, decision)
    return launch_rows(np.array(repeated, np.int64), role.parallelism.ep, layers, free_shares=free)


def _layers(envelope: Envelope, decision: ExpertsDecision) -> ModelLayers:
    """The model's layers as the plan gives them, else as the catalog does."""
    key = decision.roles[0].model
    if decision.layer_ids:
        without_mtp = tuple(layer for layer in decision.layer_ids if layer not in decision.mtp_layer_ids)
        return ModelLayers(
            str(key), decision.num_model_layers, without_mtp, decision.mtp_layer_ids, decision.num_experts
        )
    problem = recorded_problem(envelope.inputs)
    model = None if problem is None else recorded_model(problem, key)
    if model is None:
        raise PlannerError(
            f"the catalog does not know model `{key}`",
            where="decision.roles.0.model",
            hint="give the model by its catalog name",
        )
    return layers_of(model)


def _emit(form: str, envelope: Envelope, decision: Decision) -> dict[str, str]:
    """The files of the engine called `form`."""
    return files_of(form, read_rows(envelope, decision))


PURPOSES = {
    "sglang": "the expert location that SGLang starts from",
    "tensorrt-llm": "the load balancer that TensorRT-LLM starts from",
    "vllm": "vLLM's EPLB settings, and an initial mapping where it reads one",
    "vllm-ascend": "the expert map that vLLM-Ascend starts from",
}
TARGETS = tuple(
    EmitTarget(f"{form}-experts", purpose, ("experts",), partial(_emit, form)) for form, purpose in PURPOSES.items()
)
