"""Objects of Kubernetes: Deployments, LeaderWorkerSets, Dynamo, KServe, AIBrix; pods as launches."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.importing.engines import Given, decision_names, is_repository, model_of, options_of
from planner.importing.flags import flag_findings, setting_findings
from planner.importing.formats.accelerators import accelerator_in
from planner.importing.launches import (
    Launch,
    Started,
    interpolated,
    launch_of,
    launches_of_script,
    shell_text,
    split_words,
    substituted,
    words_of,
)  # fmt: skip
from planner.importing.options import Options
from planner.importing.records import Reading
from planner.importing.serving import (
    SERVING,
    agreed,
    is_later_rank,
    nodes_of,
    reading_of_roles,
    role_of_launch,
)  # fmt: skip
from planner.importing.values import Values, below, count_of, list_of, mapping_of
from planner.importing.worlds import World

Document = Mapping[str, Any]
_CONTROLLERS = frozenset(
    {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod", "ReplicationController"}
)
_SELECTORS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/class",
    "gpu.nvidia.com/model",
)
_EXTRA_ARGS = ("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS")


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


def read_objects(documents: Sequence[Document], given: Mapping[str, str], source: str) -> Reading | None:
    """The deployment that all objects of a file make together; None where no object starts an engine."""
    pods = [pod for document in documents for pod in pods_of(document)]
    return read_pods(pods, documents, given, source)


def read_pods(
    pods: Sequence[Pods], documents: Sequence[Document], given: Mapping[str, str], source: str
) -> Reading | None:
    """The deployment that pods make together, with the ConfigMaps of `documents`; None where none starts an engine."""
    maps = config_maps(documents)
    ways: list[tuple[list[tuple[Pods, Launch]], World]] = []
    ways.append(([], World((), {}, {})))
    for pod in pods:
        started = _started(pod, maps, given, source)
        if started:
            ways = [
                ([*done, *[(pod, launch) for launch in way.launches]], _both(world, way.world))
                for done, world in ways
                for way in started
            ]
    readings = [(_reading(launches, documents), world) for launches, world in ways if launches]
    if readings:
        return agreed(readings)
    patched = [(pod, launch) for pod in pods for launch in _patches(pod, maps, given)]
    if not patched:
        return None
    reading = _reading(patched, documents)
    return replace(reading, guesses=(*reading.guesses, f"engine {reading.fields['engine']} is taken from its flags"))


LEAST_FLAGS = 2  # that tell an engine without its command


def _patches(pod: Pods, maps: Mapping[str, Mapping[str, str]], given: Mapping[str, str]) -> Iterator[Launch]:
    """Containers that add arguments to an engine that a base starts: patches of kustomize."""
    for each in list_of(pod.spec.get("containers")):
        container = mapping_of(each)
        if container.get("command"):
            continue
        environment = {**_environment(container, maps), **given}
        words = [substituted(str(word), environment.get) for word in words_of(container.get("args"))]
        engine = engine_of_flags(words)
        if engine is not None:
            yield Launch(engine, tuple(words))


def engine_of_flags(words: Sequence[str]) -> str | None:
    """The engine whose settings the flags are, the first that knows most of them; None for fewer than two."""
    flags = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    known = {engine: len(flags & set(decision_names(engine))) for engine in SERVING}
    engine = max(SERVING, key=lambda name: known[name])
    return engine if known[engine] >= LEAST_FLAGS else None


def _both(left: World, right: World) -> World:
    return World((), {}, {**left.decided, **right.decided})


def _reading(launches: Sequence[tuple[Pods, Launch]], documents: Sequence[Document]) -> Reading:
    values = Values()
    roles, models, findings = [], [], list[str]()
    for pod, launch in launches:
        kept = Values()
        options = options_of(launch)
        if is_later_rank(options) and len(launches) > 1:
            continue
        role = role_of_launch(launch, _given(pod, options), kept, pod.role)
        if pod.role in ("prefill", "decode") and pod.engine is not None:
            role["role"] = pod.role
        roles.append(role)
        findings += flag_findings(launch.engine, options) + setting_findings(launch.engine, options, role, kept)
        findings += _request_findings(pod.spec)
        models.append(pod.model or model_of(launch.engine, options, kept))
        values.unresolved += kept.unresolved
    named = list(dict.fromkeys(name for name in models if name is not None and is_repository(name)))
    model = named[0] if named else models[0]
    if len(named) > 1:
        model, findings = None, [*findings, f"the file serves several models: {', '.join(named)}"]
    gpu_type, guesses = _gpu_type(documents, [pod for pod, _ in launches])
    return reading_of_roles(
        launches[0][1].engine, model, roles, values.unresolved, gpu_type=gpu_type, findings=findings, guesses=guesses
    )


def _given(pod: Pods, options: Options) -> Given:
    """What a replica is given: pods of a controller that are the nodes of one replica count as one."""
    nodes = nodes_of(options, Values()) if pod.nodes == 1 else 1
    if nodes == 1:
        return Given(pod.gpus, pod.nodes, pod.replicas, None, pod.max_replicas)
    replicas = None if pod.replicas is None else max(pod.replicas // nodes, 1)
    return Given(_times(pod.gpus, nodes), nodes, replicas)


def _gpu_type(documents: Sequence[Document], pods: Sequence[Pods]) -> tuple[str | None, list[str]]:
    """The GPU that node selectors name, else the one in the name of the object, which is told as a guess."""
    chosen = {accelerator for pod in pods for accelerator in selected_types(pod.spec)}
    if len(chosen) == 1:
        return chosen.pop(), []
    for document in documents:
        if any(True for _ in pods_of(document)):
            name = str(mapping_of(document.get("metadata")).get("name", ""))
            accelerator = accelerator_in(name)
            if accelerator is not None and not chosen:
                return accelerator, [f"gpu_type {accelerator} is taken from the name `{name}`"]
    return None, []


def selected_types(spec: Mapping[str, Any]) -> set[str]:
    """The accelerators that a pod's selectors name."""
    return {accelerator for text in _selectors(spec) if (accelerator := accelerator_in(text)) is not None}


def _selectors(spec: Mapping[str, Any]) -> Iterator[str]:
    selector = mapping_of(spec.get("nodeSelector"))
    yield from (str(selector[key]) for key in _SELECTORS if key in selector)
    affinity = below(spec, "affinity", "nodeAffinity")
    required = mapping_of(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in list_of(required.get("nodeSelectorTerms")):
        for expression in list_of(mapping_of(term).get("matchExpressions")):
            wanted = list_of(mapping_of(expression).get("values"))
            if (
                mapping_of(expression).get("key") in _SELECTORS
                and len(wanted) == 1
                and mapping_of(expression).get("operator") == "In"
            ):
                yield str(wanted[0])


def config_maps(documents: Sequence[Document]) -> dict[str, dict[str, str]]:
    """The files of every ConfigMap by its name."""
    return {
        str(mapping_of(document.get("metadata")).get("name")): {
            key: str(text) for key, text in mapping_of(document.get("data")).items()
        }
        for document in documents
        if document.get("kind") == "ConfigMap"
    }


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
                inner, replicas, nodes, _times(gpus_of(inner), nodes), str(mapping_of(role).get("name")), engine="role"
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
            _gpus_in(mapping_of(resources.get("limits")))
            or _gpus_in(mapping_of(resources.get("requests")))
            or gpus_of(inner)
        )
        side = _side(str(part.get("subComponentType") or part.get("type") or ""))
        if str(part.get("componentType", part.get("type", ""))) in ("frontend", "planner"):
            continue
        engine = framework if framework in SERVING and side else ("role" if side else None)
        yield Pods(inner, count_of(part.get("replicas"), 1), nodes, _times(own, nodes), side, engine=engine)


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
        yield Pods(inner, count_of(part.get("replicas"), 1), nodes, _times(own, nodes), side, engine="vllm", model=name,
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
    yield Pods({**predictor, **inner}, low, nodes, _times(gpus_of(inner), nodes), None, most,
               engine=engine, model=uri or None, extra=tuple(extra))  # fmt: skip


def _started(pod: Pods, maps: Mapping[str, Mapping[str, str]], given: Mapping[str, str], source: str) -> list[Started]:
    """The ways through the containers of a pod that start an engine; the first container that does counts."""
    for container in list_of(pod.spec.get("containers")):
        ways = container_ways(mapping_of(container), pod, maps, given, source)
        ways = [w for w in ways if any(launch.engine in SERVING for launch in w.launches)]
        if ways:
            return ways
    return []


def container_ways(
    container: Mapping[str, Any],
    pod: Pods,
    maps: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
    source: str,
) -> list[Started]:
    """The ways through what a container runs, under its environment and the files mounted into it."""
    environment = {**_environment(container, maps), **(pod.environment or {}), **given}
    words = [
        substituted(str(word), environment.get) for key in ("command", "args") for word in words_of(container.get(key))
    ]
    files = {**pod.files, **_files(container, pod.spec, maps)}
    script = shell_text(words)
    if script is not None:
        ways = launches_of_script(script, environment, source, files)
    else:
        words = [interpolated(word, environment) for word in words]
        launch = launch_of(words) or _by_image(container, words, pod)
        ways = (
            []
            if launch is None
            else [Started((replace(launch, files=files, environment=environment),), World((), {}, {}))]
        )
    extra = [word for name in _EXTRA_ARGS for word in split_words(environment.get(name, ""))] + list(pod.extra)
    return [_extended(way, tuple(extra)) for way in ways] if extra else ways


def _extended(way: Started, extra: tuple[str, ...]) -> Started:
    return Started(tuple(replace(launch, words=(*launch.words, *extra)) for launch in way.launches), way.world)


def _by_image(container: Mapping[str, Any], words: Sequence[str], pod: Pods) -> Launch | None:
    """The launch of an image whose own entry point is the engine: vLLM's, and that of KServe's services."""
    image = str(container.get("image", ""))
    if pod.engine in SERVING and container.get("name") in ("main", "kserve-container", None):
        return Launch(pod.engine, tuple(words))
    if re.search(r"vllm[\w.-]*openai|/vllm-(openai|cpu)", image) and words:
        return Launch("vllm", tuple(words))
    return Launch("vllm", tuple(words)) if pod.model is not None and pod.engine == "vllm" else None


def _environment(container: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Variables that stand in the text: values, and keys of ConfigMaps in the same file. Secrets stay unread."""
    variables: dict[str, str] = {}
    for entry in list_of(container.get("envFrom")):
        variables |= maps.get(str(below(entry, "configMapRef").get("name")), {})
    for entry in list_of(container.get("env")):
        name, value = str(mapping_of(entry).get("name")), mapping_of(entry).get("value")
        reference = mapping_of(below(entry, "valueFrom").get("configMapKeyRef"))
        place = str(mapping_of(below(entry, "valueFrom").get("fieldRef")).get("fieldPath", ""))
        if value is not None:
            variables[name] = substituted(str(value), variables.get)
        elif reference:
            text = maps.get(str(reference.get("name")), {}).get(str(reference.get("key")))
            variables |= {} if text is None else {name: text}
        elif re.search(r"(pod|worker|completion)-index", place):
            variables[name] = "0"  # of the first pod
    return variables


def _files(
    container: Mapping[str, Any], spec: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The files of mounted ConfigMaps by the path that the container sees."""
    volumes = {str(mapping_of(v).get("name")): below(v, "configMap") for v in list_of(spec.get("volumes"))}
    files: dict[str, str] = {}
    for mount in list_of(container.get("volumeMounts")):
        source = volumes.get(str(mapping_of(mount).get("name")), {})
        path, key = str(mapping_of(mount).get("mountPath", "")).rstrip("/"), mapping_of(mount).get("subPath")
        held = maps.get(str(source.get("name")), {})
        renamed = {str(mapping_of(i).get("key")): str(mapping_of(i).get("path")) for i in list_of(source.get("items"))}
        for name, text in held.items():
            files[path if key == name else f"{path}/{renamed.get(name, name)}"] = text
    return files


def gpus_of(spec: Mapping[str, Any]) -> int | None:
    """The GPUs that the containers of a pod ask for; None where none says."""
    counts = []
    for container in list_of(spec.get("containers")):
        resources = below(container, "resources")
        counts.append(_gpus_in(mapping_of(resources.get("limits"))) or _gpus_in(mapping_of(resources.get("requests"))))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _request_findings(spec: Mapping[str, Any]) -> list[str]:
    """Containers that ask for other GPUs than they are limited to, which Kubernetes refuses."""
    findings = []
    for container in list_of(spec.get("containers")):
        resources = below(container, "resources")
        asked, most = (_gpus_in(mapping_of(resources.get(key))) for key in ("requests", "limits"))
        if asked is not None and most is not None and asked != most:
            findings.append(f"a container requests {asked} GPUs and is limited to {most}: the two must be equal")
    return findings


def _gpus_in(resources: Mapping[str, Any]) -> int | None:
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


def _times(count: int | None, factor: int) -> int | None:
    return None if count is None else count * factor
