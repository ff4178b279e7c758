"""Objects of Kubernetes as the pods that they run: Deployments, LeaderWorkerSets, Dynamo, KServe, Ray, AIBrix."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.importing.engines import is_repository
from planner.importing.serving import SERVING
from planner.importing.values import below, count_of, list_of, mapping_of

Document = Mapping[str, Any]
_CONTROLLERS = frozenset(
    {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod", "ReplicationController"}
)


@dataclass(frozen=True)
class Pods:
    """Pods that work as one replica: how many replicas, nodes a replica, GPUs of them all, and what they are called."""

    spec: Mapping[str, Any]
    replicas: int | None
    nodes: int = 1
    gpus: int | None = None
    role: str | None = None
    max_replicas: int | None = None
    environment: Mapping[str, str] | None = None
    engine: str | None = None
    model: str | None = None
    extra: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # mounted from beside the artifact


def pods_of(document: Document) -> Iterator[Pods]:
    """The pods that an object runs; none for objects that run none."""
    kind, spec = str(document.get("kind", "")), mapping_of(document.get("spec"))
    if kind in _CONTROLLERS:
        yield from _controller(document, kind, spec)
    elif kind == "LeaderWorkerSet":
        yield _leader_worker_set(spec, replicas=count_of(spec.get("replicas"), 1), role=None)
    elif kind == "DynamoGraphDeployment":
        yield from _dynamo(spec)
    elif kind == "LLMInferenceService":
        yield from _llm_inference_service(spec)
    elif kind == "RayClusterFleet":
        cluster = below(spec, "template", "spec")
        yield from _ray_cluster(cluster, count_of(spec.get("replicas"), 1))
    elif kind == "RayCluster":
        yield from _ray_cluster(spec, 1)
    elif kind == "InferenceService":
        yield from _inference_service(spec)
    elif kind == "DisaggregatedSet":
        for role in list_of(spec.get("roles")):
            inner = below(role, "spec")
            replicas = count_of(spec.get("slices"), 1) * count_of(inner.get("replicas"), 1)
            side = _sided_name(str(mapping_of(role).get("name")))
            group = _leader_worker_set(inner, replicas=replicas, role=side)
            yield replace(group, engine="role" if side else None)
    elif kind == "StormService":
        template = below(spec, "template", "spec")
        for role in list_of(template.get("roles")):
            replicas = count_of(spec.get("replicas"), 1) * count_of(mapping_of(role).get("replicas"), 1)
            nodes = count_of(mapping_of(role).get("podGroupSize"), 1)
            inner = mapping_of(below(role, "template").get("spec"))
            yield Pods(
                inner, replicas, nodes, times(gpus_of(inner), nodes), str(mapping_of(role).get("name")), engine="role"
            )


def _controller(document: Document, kind: str, spec: Mapping[str, Any]) -> Iterator[Pods]:
    inner = spec if kind == "Pod" else below(spec, "template", "spec")
    metadata = mapping_of(document.get("metadata"))
    labels = {**mapping_of(metadata.get("labels")), **below(spec, "template", "metadata", "labels")}
    role = _labelled(labels) or _sided_name(str(metadata.get("name", "")))
    count = spec.get("parallelism") if kind == "Job" else spec.get("replicas")
    yield Pods(inner, count_of(count, 1), 1, gpus_of(inner), role)


def _leader_worker_set(spec: Mapping[str, Any], *, replicas: int, role: str | None) -> Pods:
    template = mapping_of(spec.get("leaderWorkerTemplate"))
    size = count_of(template.get("size"), 1)
    worker = below(template, "workerTemplate", "spec")
    leader_template = mapping_of(template.get("leaderTemplate")) or mapping_of(template.get("workerTemplate"))
    leader = mapping_of(leader_template.get("spec")) or worker
    labels = below(template, "workerTemplate", "metadata", "labels")
    own = gpus_of(leader), gpus_of(worker)
    gpus = None if own[0] is None and own[1] is None else (own[0] or 0) + (size - 1) * (own[1] or own[0] or 0)
    environment = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}
    return Pods(leader, replicas, size, gpus, role or _labelled(labels), None, environment)


def _ray_cluster(spec: Mapping[str, Any], replicas: int) -> Iterator[Pods]:
    """A head that starts the engine, and workers whose GPUs it takes through Ray."""
    head = below(spec, "headGroupSpec", "template", "spec")
    nodes, gpus = (1, gpus_of(head)) if gpus_of(head) else (0, None)
    for group in list_of(spec.get("workerGroupSpecs")):
        own = gpus_of(mapping_of(below(group, "template").get("spec")))
        count = count_of(mapping_of(group).get("replicas"), 1) * count_of(mapping_of(group).get("numOfHosts"), 1)
        if own:
            nodes, gpus = nodes + count, (gpus or 0) + own * count
    yield Pods(head, replicas, max(nodes, 1), gpus)


def _dynamo(spec: Mapping[str, Any]) -> Iterator[Pods]:
    """Services of v1alpha1 and components of v1beta1."""
    framework = str(spec.get("backendFramework", "")).lower()
    parts = [(name, mapping_of(part)) for name, part in mapping_of(spec.get("services")).items()]
    parts += [(str(mapping_of(part).get("name")), mapping_of(part)) for part in list_of(spec.get("components"))]
    for _, part in parts:
        pod = mapping_of(part.get("extraPodSpec"))
        inner = below(part, "podTemplate", "spec") or pod
        main = mapping_of(pod.get("mainContainer"))
        if main:
            inner = {**inner, "containers": [{**main, "env": [*list_of(part.get("envs")), *list_of(main.get("env"))]}]}
        nodes = count_of(mapping_of(part.get("multinode")).get("nodeCount"), 1)
        resources = mapping_of(part.get("resources"))
        own = (
            gpus_in(mapping_of(resources.get("limits")))
            or gpus_in(mapping_of(resources.get("requests")))
            or gpus_of(inner)
        )
        side = _side(str(part.get("subComponentType") or part.get("type") or ""))
        if str(part.get("componentType", part.get("type", ""))) in ("frontend", "planner"):
            continue
        engine = framework if framework in SERVING and side else ("role" if side else None)
        yield Pods(inner, count_of(part.get("replicas"), 1), nodes, times(own, nodes), side, engine=engine)


def _llm_inference_service(spec: Mapping[str, Any]) -> Iterator[Pods]:
    """KServe runs vLLM where the service names no command of its own."""
    model = mapping_of(spec.get("model"))
    name = str(model.get("uri", "")).removeprefix("hf://") or str(model.get("name", ""))
    if not is_repository(name) and is_repository(str(model.get("name", ""))):
        name = str(model.get("name"))
    prefill = mapping_of(spec.get("prefill"))
    sides = [("decode" if prefill else "colocated", spec)] + ([("prefill", prefill)] if prefill else [])
    for side, part in sides:
        inner = mapping_of(part.get("template"))
        worker = mapping_of(part.get("worker"))
        parallel = mapping_of(part.get("parallelism"))
        flags = {
            "tensor": "--tensor-parallel-size",
            "pipeline": "--pipeline-parallel-size",
            "data": "--data-parallel-size",
            "dataLocal": "--data-parallel-size-local",
        }
        extra = [f"{flag}={parallel[key]}" for key, flag in flags.items() if key in parallel]
        extra += ["--enable-expert-parallel"] if parallel.get("expert") is True else []
        nodes = 1
        if worker and parallel.get("data") and parallel.get("dataLocal"):
            nodes = max(1, count_of(parallel["data"], 1) // max(count_of(parallel["dataLocal"], 1), 1))
        elif worker:
            nodes = count_of(parallel.get("pipeline"), 1)
        own = gpus_of(inner)
        if not inner.get("containers"):
            inner = {**inner, "containers": [{"name": "main"}]}
        yield Pods(inner, count_of(part.get("replicas"), 1), nodes, times(own, nodes), side, engine="vllm", model=name,
                   extra=tuple(extra))  # fmt: skip


def _inference_service(spec: Mapping[str, Any]) -> Iterator[Pods]:
    predictor = mapping_of(spec.get("predictor"))
    model = mapping_of(predictor.get("model"))
    worker = mapping_of(predictor.get("workerSpec"))
    nodes = count_of(worker.get("pipelineParallelSize"), 1) if worker else 1
    inner = {"containers": [model]} if model else predictor
    uri = str(model.get("storageUri", "")).removeprefix("hf://")
    form, runtime = str(mapping_of(model.get("modelFormat")).get("name", "")).lower(), str(model.get("runtime", ""))
    engine = "vllm" if form in ("huggingface", "vllm") or "vllm" in runtime else None
    low, high = count_of(predictor.get("minReplicas"), 1), predictor.get("maxReplicas")
    extra = [f"--{option}={worker[key]}" for key, option in
             (("tensorParallelSize", "tensor-parallel-size"), ("pipelineParallelSize", "pipeline-parallel-size"))
             if key in worker]  # fmt: skip
    most = count_of(high, low) if high else None
    yield Pods({**predictor, **inner}, low, nodes, times(gpus_of(inner), nodes), None, most,
               engine=engine, model=uri or None, extra=tuple(extra))  # fmt: skip


def gpus_of(spec: Mapping[str, Any]) -> int | None:
    """The GPUs that the containers of a pod ask for; None where none says."""
    counts = []
    for container in list_of(spec.get("containers")):
        resources = below(container, "resources")
        counts.append(gpus_in(mapping_of(resources.get("limits"))) or gpus_in(mapping_of(resources.get("requests"))))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def gpus_in(resources: Mapping[str, Any]) -> int | None:
    """The GPUs among the limits, or the requests, of a container; None where they name none."""
    for key, value in resources.items():
        if (key == "gpu" or key.endswith("/gpu")) and str(value).isdigit():
            return int(value)
    return None


def _labelled(labels: Mapping[str, Any]) -> str | None:
    return next((_side(str(v)) for k, v in labels.items() if k.rpartition("/")[2] in ("role", "inference-role")), None)


def _sided_name(name: str) -> str | None:
    """The side that is a word of a name; None for both and for none."""
    sides = {"prefill", "decode"} & set(re.split(r"[^a-z]+", name.lower()))
    return sides.pop() if len(sides) == 1 else None


def _side(text: str) -> str | None:
    return text if text in ("prefill", "decode") else None


def times(count: int | None, factor: int) -> int | None:
    """So many on each of `factor` nodes; None where it is not known how many."""
    return None if count is None else count * factor
