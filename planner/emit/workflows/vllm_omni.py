"""Emits pools of stages for speech as a deploy file of vLLM-Omni, and the command that serves it.

Fields are those of vllm-project/vllm-omni@0e36e32d09, vllm_omni/deploy/qwen3_omni_moe_multi_replicas.yaml: replicas of
a stage share its list of devices, and a connector between stages carries chunks of the codec. No schema is at hand.
"""

from planner.emit.clusters.pods import Json
from planner.emit.documents import commented, manifest, plan_title
from planner.emit.registry import EmitTarget
from planner.emit.workflows.node_gpus import gpus_of_roles
from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.plan.placement import GPU_SHARE
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import recorded_options, recorded_problem

_CONNECTOR = "chunks"


def _stage(number: int, role: Role, places: list[int], utilisation: float) -> Json:
    stage: Json = {"stage_id": number, "devices": ",".join(map(str, places)), "num_replicas": role.replicas}
    if role.parallelism.tp > 1:
        stage["tensor_parallel_size"] = role.parallelism.tp
    if GPU_SHARE in role.limits:
        stage["gpu_memory_utilization"] = round(float(role.limits[GPU_SHARE]) * utilisation, 4)
    if "slots" in role.limits:
        stage["max_num_seqs"] = role.limits["slots"]
    if role.function == "vocode":  # its loop of generation cannot be captured as a graph
        stage["enforce_eager"] = True
    if number:
        stage["input_connectors"] = {f"from_stage_{number - 1}": _CONNECTOR}
    return stage


def emit_omni(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """`deploy.yaml` and `serve.sh`; raises PlannerError for other workflows, and for pools over several nodes."""
    assert isinstance(decision, WorkflowDecision)
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, WorkflowOptions)
    if problem is None or options is None or options.speech is None:
        hint = "emit for `kserve-graph`, `argo` or `ray-serve-graph`"
        raise PlannerError("the plan has no pools of stages for speech", where="inputs.options", hint=hint)
    name = next(iter(problem.models.values())).name
    if name is None:
        what, hint = "the deploy file is served with the name of its model", "give the model its `name`"
        raise PlannerError(what, where="inputs.models", hint=hint)
    places = gpus_of_roles(problem, decision, "a deploy file of vLLM-Omni numbers")
    for role in decision.roles:
        if len(set(places[role.name])) < len(places[role.name]):
            what = f"two replicas of `{role.name}` share a GPU, and a deploy file names each of its devices once"
            hint = "give the option a `gpu_share` above 50%, or others to choose from"
            raise PlannerError(what, where="decision.placement", hint=hint)
    speech, utilisation = options.speech, problem.engine.memory_utilisation
    chunks = {
        "initial_codec_chunk_frames": decision.first_chunk_tokens,
        "codec_chunk_frames": speech.chunk_tokens,
        "codec_left_context_frames": speech.context_tokens,
    }
    config: Json = {
        "async_chunk": True,
        "connectors": {_CONNECTOR: {"name": "SharedMemoryConnector", "extra": chunks}},
        "stages": [_stage(number, role, places[role.name], utilisation) for number, role in enumerate(decision.roles)],
    }
    order = ", ".join(f"{number} {role.name}" for number, role in enumerate(decision.roles))
    told = (plan_title(envelope), f"Stages of the pipeline: {order}. A model whose pipeline has others joins them.")
    serve = f"vllm serve {name} --omni --deploy-config deploy.yaml\n"
    return {
        "deploy.yaml": manifest(told, [config]),
        "serve.sh": "#!/bin/bash\n" + commented((plan_title(envelope),)) + "set -euo pipefail\n" + serve,
    }


TARGETS = (EmitTarget("vllm-omni", "stages of speech as a deploy file of vLLM-Omni", ("workflow",), emit_omni),)
