"""Training and RL as Kubernetes runs them: JobSets, TrainJobs, PyTorchJobs and plain Jobs, each pod a node."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.importing.formats.kubernetes import config_maps, container_ways
from planner.importing.formats.pods import Document, Pods, gpus_of, pods_of
from planner.importing.launches import Started
from planner.importing.values import below, count_of, list_of, mapping_of

Ways = list[tuple[Started, tuple[int | None, int | None]]]
"""The ways through a job, each with its nodes and the GPUs of a node."""


def ways_of_jobs(documents: Sequence[Document], given: Mapping[str, str], source: str) -> Ways:
    """What the first object that trains starts; none where none does."""
    maps = config_maps(documents)
    for document in documents:
        for pods in [*_jobs(document), *pods_of(document)]:
            for container in list_of(pods.spec.get("containers")):
                ways = container_ways(mapping_of(container), pods, maps, given, source)
                if ways:
                    a_node = None if pods.gpus is None else pods.gpus // pods.nodes
                    return [(way, (pods.nodes, a_node)) for way in ways]
    return []


def _jobs(document: Document) -> Iterator[Pods]:
    """The pods of a training job as one group, by those that run its launcher."""
    kind, spec = str(document.get("kind", "")), mapping_of(document.get("spec"))
    groups: list[tuple[dict[str, Any], int]] = []
    if kind == "TrainJob":
        groups = [_train_job(spec)]
    elif kind == "JobSet":
        for job in list_of(spec.get("replicatedJobs")):
            own = below(mapping_of(job), "template", "spec")
            count = count_of(mapping_of(job).get("replicas"), 1) * count_of(own.get("parallelism"), 1)
            groups.append((below(own, "template", "spec"), count))
    elif kind in ("PyTorchJob", "MPIJob"):
        for replica in (mapping_of(each) for each in mapping_of(spec.get(f"{kind[:-3].lower()}ReplicaSpecs")).values()):
            groups.append((below(replica, "template", "spec"), count_of(replica.get("replicas"), 1)))
    groups = [(pod, count) for pod, count in groups if gpus_of(pod)] or groups
    nodes = sum(count for _, count in groups)
    for pod, _ in groups[:1]:
        a_node = gpus_of(pod)
        environment = {"PET_NNODES": str(nodes), "PET_NODE_RANK": "0", "WORLD_SIZE": str(nodes)}
        yield Pods(pod, 1, nodes, None if a_node is None else a_node * nodes, environment=environment)


def _train_job(spec: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The pod of a TrainJob: its trainer, with what patches of its runtime add."""
    trainer = mapping_of(spec.get("trainer"))
    patch = mapping_of(next(iter(list_of(spec.get("runtimePatches"))), {}))
    jobs = list_of(below(patch, "trainingRuntimeSpec", "template", "spec").get("replicatedJobs"))
    pod = below(mapping_of(next(iter(jobs), {})), "template", "spec", "template", "spec")
    patched = mapping_of(next(iter(list_of(pod.get("containers"))), {}))
    container = {**patched, **trainer, "resources": mapping_of(trainer.get("resourcesPerNode"))}
    return {**pod, "containers": [container]}, count_of(trainer.get("numNodes"), 1)
