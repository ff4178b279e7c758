"""Training and RL as Kubernetes runs them: JobSets, TrainJobs, PyTorchJobs and plain Jobs, each pod a node."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.importing.formats.kubernetes import Document, Pods, config_maps, container_ways, gpus_of, pods_of
from planner.importing.launches import Started

Ways = list[tuple[Started, tuple[int | None, int | None]]]
"""The ways through a job, each with its nodes and the GPUs of a node."""


def ways_of_jobs(documents: Sequence[Document], given: Mapping[str, str], source: str) -> Ways:
    """What the first object that trains starts; none where none does."""
    maps = config_maps(documents)
    for document in documents:
        for pods in [*_jobs(document), *pods_of(document)]:
            for container in _list(pods.spec.get("containers")):
                ways = container_ways(_map(container), pods, maps, given, source)
                if ways:
                    a_node = None if pods.gpus is None else pods.gpus // pods.nodes
                    return [(way, (pods.nodes, a_node)) for way in ways]
    return []


def _jobs(document: Document) -> Iterator[Pods]:
    """The pods of a training job as one group, by those that run its launcher."""
    kind, spec = str(document.get("kind", "")), _map(document.get("spec"))
    groups: list[tuple[dict[str, Any], int]] = []
    if kind == "TrainJob":
        groups = [_train_job(spec)]
    elif kind == "JobSet":
        for job in _list(spec.get("replicatedJobs")):
            own = _deep(_map(job), "template", "spec")
            count = _count(_map(job).get("replicas")) * _count(own.get("parallelism"))
            groups.append((_deep(own, "template", "spec"), count))
    elif kind in ("PyTorchJob", "MPIJob"):
        for replica in (_map(each) for each in _map(spec.get(f"{kind[:-3].lower()}ReplicaSpecs")).values()):
            groups.append((_deep(replica, "template", "spec"), _count(replica.get("replicas"))))
    groups = [(pod, count) for pod, count in groups if gpus_of(pod)] or groups
    nodes = sum(count for _, count in groups)
    for pod, _ in groups[:1]:
        a_node = gpus_of(pod)
        environment = {"PET_NNODES": str(nodes), "PET_NODE_RANK": "0", "WORLD_SIZE": str(nodes)}
        yield Pods(pod, 1, nodes, None if a_node is None else a_node * nodes, environment=environment)


def _train_job(spec: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The pod of a TrainJob: its trainer, with what patches of its runtime add."""
    trainer = _map(spec.get("trainer"))
    patch = _map(next(iter(_list(spec.get("runtimePatches"))), {}))
    jobs = _list(_deep(patch, "trainingRuntimeSpec", "template", "spec").get("replicatedJobs"))
    pod = _deep(_map(next(iter(jobs), {})), "template", "spec", "template", "spec")
    patched = _map(next(iter(_list(pod.get("containers"))), {}))
    container = {**patched, **trainer, "resources": _map(trainer.get("resourcesPerNode"))}
    return {**pod, "containers": [container]}, _count(trainer.get("numNodes"))


def _deep(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The mapping below these keys; empty where one is missing."""
    for key in keys:
        value = _map(value.get(key))
    return dict(value)


def _count(value: object) -> int:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdigit()) else 1


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
