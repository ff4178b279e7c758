"""Pods of Kubernetes as launches: their containers, what these are told, and the GPUs that they ask for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.importing.engines import Given, decision_names, is_repository, model_of, options_of
from planner.importing.flags import flag_findings, setting_findings
from planner.importing.formats.accelerators import accelerator_in
from planner.importing.formats.pods import Document, Pods, gpus_in, pods_of, times
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
from planner.importing.shell.worlds import World
from planner.importing.values import Values, below, list_of, mapping_of

_SELECTORS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/class",
    "gpu.nvidia.com/model",
)
_EXTRA_ARGS = ("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS")


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
        launches[0][1].engine, model, roles, values.unresolved, gpu_type=gpu_type, findings=findings, guesses=guesses,
        releases=[launch.release for _, launch in launches],
    )  # fmt: skip


def _given(pod: Pods, options: Options) -> Given:
    """What a replica is given: pods of a controller that are the nodes of one replica count as one."""
    nodes = nodes_of(options, Values()) if pod.nodes == 1 else 1
    if nodes == 1:
        return Given(pod.gpus, pod.nodes, pod.replicas, None, pod.max_replicas)
    replicas = None if pod.replicas is None else max(pod.replicas // nodes, 1)
    return Given(times(pod.gpus, nodes), nodes, replicas)


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
    extra = tuple(word for name in _EXTRA_ARGS for word in split_words(environment.get(name, ""))) + pod.extra
    image = str(container.get("image") or "")
    return [
        Started(tuple(replace(own, words=(*own.words, *extra), image=image) for own in way.launches), way.world)
        for way in ways
    ]


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


def _request_findings(spec: Mapping[str, Any]) -> list[str]:
    """Containers that ask for other GPUs than they are limited to, which Kubernetes refuses."""
    findings = []
    for container in list_of(spec.get("containers")):
        resources = below(container, "resources")
        asked, most = (gpus_in(mapping_of(resources.get(key))) for key in ("requests", "limits"))
        if asked is not None and most is not None and asked != most:
            findings.append(f"a container requests {asked} GPUs and is limited to {most}: the two must be equal")
    return findings
