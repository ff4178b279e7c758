"""Values of charts and compositions that hold containers: llm-d's model service, and Docker Compose."""

from collections.abc import Mapping
from typing import Any

from planner.importing.formats import kubernetes
from planner.importing.formats.pods import Pods, gpus_of
from planner.importing.launches import interpolated, words_of
from planner.importing.records import Reading
from planner.importing.values import below, count_of, list_of, mapping_of

Document = Mapping[str, Any]
_DEGREES = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}


def read_model_service(document: Document, given: Mapping[str, str], source: str) -> Reading | None:
    """Values of llm-d's `llm-d-modelservice` chart: `decode` and `prefill`, each with its degrees and containers.

    The chart adds model and degrees to containers whose `modelCommand` is `vllmServe` or `imageDefault`, and asks for
    tensor x local data GPUs where the containers ask for none.
    """
    artifacts = mapping_of(document.get("modelArtifacts"))
    model = str(artifacts.get("uri", "")).removeprefix("hf://") or str(artifacts.get("name", ""))
    prefill = mapping_of(document.get("prefill"))
    apart = bool(prefill) and prefill.get("create") is not False and prefill.get("replicas", 1) != 0
    pods = []
    for side in ("prefill", "decode"):
        part = mapping_of(document.get(side))
        if not part or part.get("create") is False or part.get("replicas", 1) == 0:
            continue
        degrees = mapping_of(part.get("parallelism"))
        extra = [f"{flag}={degrees[key]}" for key, flag in _DEGREES.items() if key in degrees]
        containers = [_model_container(mapping_of(each), document) for each in list_of(part.get("containers"))]
        spec = {**part, "containers": containers}
        own = gpus_of(spec)
        data, local = count_of(degrees.get("data"), 1), count_of(degrees.get("dataLocal"), 1)
        workers = data // local if document.get("multinode") is True and "data" in degrees else 1
        if own is None and degrees:
            own = count_of(degrees.get("tensor"), 1) * (local if "dataLocal" in degrees else data)
        nodes = max(workers, 1)
        pods.append(
            Pods(
                spec, count_of(part.get("replicas"), 1), nodes, None if own is None else own * nodes,
                side if apart else "colocated", engine="vllm", model=model, extra=tuple(extra),
            )
        )  # fmt: skip
    return kubernetes.read_pods(pods, [document], given, source)


def _model_container(container: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """A container as the chart starts it: with the words of the engine in front of its arguments."""
    if container.get("modelCommand") == "custom" or container.get("command"):
        return dict(container)
    return {**container, "name": "main"}


def read_compose(
    document: Document, given: Mapping[str, str], source: str, beside: Mapping[str, str]
) -> Reading | None:
    """A Compose file: services that start an engine, with their devices, environment, and files of the same folder."""
    pods = []
    for name, entry in mapping_of(document.get("services")).items():
        service = mapping_of(entry)
        environment = service.get("environment")
        pairs = (
            [str(each).partition("=")[::2] for each in environment]
            if isinstance(environment, list)
            else [(key, str(value)) for key, value in mapping_of(environment).items() if value is not None]
        )
        container = {
            "name": str(name),
            "image": service.get("image"),
            "command": [interpolated(str(word), given) for word in words_of(service.get("entrypoint"))],
            "args": [interpolated(str(word), given) for word in words_of(service.get("command"))],
            "env": [{"name": key, "value": interpolated(value, given)} for key, value in pairs],
        }
        deploy = mapping_of(service.get("deploy"))
        replicas = count_of(deploy.get("replicas", service.get("scale")), 1)
        gpus = _reserved(service)
        visible = dict(pairs).get("CUDA_VISIBLE_DEVICES") or dict(pairs).get("NVIDIA_VISIBLE_DEVICES")
        if gpus is None and visible and visible.replace(",", "").isdigit():
            gpus = len(visible.split(","))
        side = next((side for side in ("prefill", "decode") if side in str(name).lower()), None)
        pods.append(Pods({"containers": [container]}, replicas, 1, gpus, side, files=_mounted(service, beside)))
    return kubernetes.read_pods(pods, [], given, source)


def _mounted(service: Mapping[str, Any], beside: Mapping[str, str]) -> dict[str, str]:
    """The files of the folder that a service sees, by its own paths."""
    pairs = [str(each).split(":") for each in list_of(service.get("volumes")) if isinstance(each, str)]
    named = [(parts[0].rpartition("/")[2], parts[1]) for parts in pairs if len(parts) > 1]
    return {path: beside[name] for name, path in named if name in beside}


def _reserved(service: Mapping[str, Any]) -> int | None:
    """The GPUs that a service reserves by number or by name; None for all of the machine, and where nothing says."""
    resources = below(service, "deploy", "resources", "reservations")
    counts = []
    for device in [*list_of(resources.get("devices")), *list_of(service.get("gpus"))]:
        entry = mapping_of(device)
        names, count = list_of(entry.get("device_ids")), entry.get("count")
        counts.append(len(names) if names else count_of(count, 0))
    return sum(counts) or None
