"""Emits serving plans for NVIDIA Dynamo: a DynamoGraphDeployment (nvidia.com/v1beta1) for each model and mode.

Workers are `dynamo.vllm` and `dynamo.sglang`, which take the engine's own flags, and `dynamo.trtllm`, which reads its
settings from a file; they listen to Dynamo and not to a port of requests. Of an instance over several nodes the
operator sets how they meet (docs.nvidia.com/dynamo, multinode deployments), from `multinode.nodeCount` and the engine's
sizes; ranks of TensorRT-LLM it starts over SSH with a key of its own, by a command that it writes into a shell. It
mounts shared memory and sets probes. Memory of a vLLM engine's own for prefixes is managed by KVBM, Dynamo's block
manager.
"""

import re
from dataclasses import replace

from planner.emit.clusters.engines import ACROSS_NODES, ENGINES, LISTENS
from planner.emit.clusters.launch import FOLDER, Front, Group, Launch, serving_target
from planner.emit.clusters.measure import measured_at
from planner.emit.clusters.pods import Json, beside, metadata, mounts, pod_spec, runs, surroundings
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES, flag
from planner.emit.serving import kvbm
from planner.emit.serving.scene import API_PORT
from planner.emit.shell import Word, word
from planner.errors import PlannerError

_TYPES = {"colocated": "worker", "prefill": "prefill", "decode": "decode"}
_OF_SERVE = ("--backend", "--config")  # of trtllm-serve
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_POLICY = "power-of-two"  # of plans that state none
_HOLDS = "NVIDIA Dynamo and the engine"


def _graph(launch: Launch, front: Front) -> Json:
    components = [_frontend(launch), *(_worker(launch, group) for group in front.groups)]
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata(launch, _graph_name(launch, front)),
        "spec": {**_framework(launch), "components": components},
    }


def _framework(launch: Launch) -> Json:
    """What the operator is told where it starts ranks itself."""
    return {"backendFramework": "trtllm"} if launch.engine.over_mpi else {}


def _frontend(launch: Launch) -> Json:
    policy = launch.decision.router_policy or _POLICY
    container: Json = {
        "name": "main",
        "image": launch.own_image(_HOLDS),
        **runs((word("python3"), word("-m"), word("dynamo.frontend")), (word("--router-mode"), word(policy)), {}),
    }
    return {
        "name": "Frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": {"spec": {"containers": [container]}},
    }


def _worker(launch: Launch, group: Group) -> Json:
    group.require_equal_pods("Dynamo")
    pod = group.pods[0].without(*LISTENS, *_OF_SERVE, *(ACROSS_NODES if group.across_nodes else ()))
    if launch.engine.name == "vLLM" and kvbm.manages(group.role):
        pod = replace(pod, flags=kvbm.flags_of(pod.flags), settings=kvbm.settings_of(group.role, pod.settings))
    module, own = _program(launch, group)
    if launch.engine.over_mpi and group.across_nodes:
        _require_started(launch, group)
    container: Json = {
        "name": "main",
        "image": launch.own_image(_HOLDS),
        **runs(module, (*own, *pod.arguments), {}),
        **surroundings(launch, group, pod, {}),
    }
    own_mounts = mounts(launch, group)
    if own_mounts:
        container["volumeMounts"] = own_mounts
    return {
        "name": group.name,
        "type": _TYPES[group.role.function],
        "replicas": group.replicas,
        **({"multinode": {"nodeCount": len(group.pods)}} if group.across_nodes else {}),
        "podTemplate": {"spec": pod_spec(launch, group, pod, [container], shared_memory=False)},
    }


def _program(launch: Launch, group: Group) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """The worker's module, and what it is told that the engine's own flags do not say."""
    if launch.engine.name == "vLLM":
        own: tuple[Word, ...] = (word("--model"), group.pods[0].program[-1])
        if group.role.function != "colocated":
            own += (word("--disaggregation-mode"), word(group.role.function))
        return (word("python3"), word("-m"), word("dynamo.vllm")), own
    if launch.engine.over_mpi:
        model = group.pods[0].program[-1]
        (told,) = dict(group.pods[0].flags)["--config"]
        side = () if group.role.function == "colocated" else (word("--disaggregation-mode"), word(group.role.function))
        names = (word("--model-path"), model, word("--served-model-name"), model)
        settings = (word("--extra-engine-args"), word(f"{FOLDER}/{told}"))
        return (word("python3"), word("-m"), word("dynamo.trtllm")), (*names, *settings, *side)
    return (word("python3"), word("-m"), word("dynamo.sglang")), ()


def _require_started(launch: Launch, group: Group) -> None:
    """Raises PlannerError for what the operator cannot start on several nodes over SSH."""
    if not _PLAIN.fullmatch(group.model):
        raise group.refuse(
            f"Dynamo's operator writes the command of several nodes into a shell, and `{group.model}` is more than a "
            "name",
            "name a model of letters, digits, `.`, `_`, `-` and `/`, or emit for `lws`",
        )
    if launch.options.gpus == "claims":
        raise PlannerError(
            "Dynamo's operator starts as many ranks of TensorRT-LLM as GPUs are counted, and claims are not",
            where=flag("gpus"),
            hint="write `counts`, or emit for `lws`",
        )


def _graph_name(launch: Launch, front: Front) -> str:
    return launch.name if len(launch.fronts) == 1 else front.name


def _url(launch: Launch, front: Front) -> str:
    """The Service that the operator makes of a frontend."""
    return f"http://{_graph_name(launch, front)}-frontend:{API_PORT}"


def _files(launch: Launch) -> dict[str, str]:
    graphs = [_graph(launch, front) for front in launch.fronts]
    others = [each for group in launch.groups for each in beside(launch, group)]
    return {"plan.yaml": manifest((*launch.header, "Start it with `kubectl apply -f plan.yaml`."), [*others, *graphs])}


TARGETS = (
    serving_target(
        "dynamo",
        "a DynamoGraphDeployment for each model and mode",
        _files,
        engines=tuple(ENGINES),
        takes=tuple(name for name in ON_KUBERNETES if name != "router_image"),
        measured=measured_at(_url),
    ),
)
