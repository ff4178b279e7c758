"""Emits serving plans as plain Kubernetes objects: StatefulSets, Services, routers.

A role whose instances fit a node is one StatefulSet of its replicas. The pods of an instance over several nodes run
different commands, so that each is a StatefulSet of its own; nothing restarts them together when one fails.

Engines of a placement that share GPUs are pods that name one ResourceClaim, and each waits until the one before it
answers: vLLM measures at its start what is left of the memory.
"""

from collections.abc import Mapping

from planner.emit.clusters.engines import ENGINES
from planner.emit.clusters.fronts import front_notes, front_objects, service
from planner.emit.clusters.launch import HEAD, Group, Launch, Pod, serving_target
from planner.emit.clusters.measure import measured_at, service_url
from planner.emit.clusters.mpi import joined, worker
from planner.emit.clusters.placements import read_placement, require_claims, routes
from planner.emit.clusters.pods import Json, beside, container, labels, metadata, pod_spec
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES
from planner.emit.serving.scene import API_PORT
from planner.emit.shell import Variable

_WAIT = """import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5)
        break
    except OSError:
        time.sleep(5)
"""
_TURN = "planner/pod"  # which pod of an instance it is


def _address(group: Group, replica: int) -> str:
    """The host name of the head of a replica."""
    if not group.across_nodes:
        return f"{group.name}-{replica}.{group.name}"
    return _hosts(group, replica)[HEAD]


def _hosts(group: Group, replica: int) -> dict[Variable, str]:
    """The host names of the pods of an instance."""
    names = [f"{_set_name(group, replica, index)}-0.{group.name}" for index in range(len(group.pods))]
    return {HEAD: names[0], **{worker(turn): name for turn, name in enumerate(names) if turn}}


def _set_name(group: Group, replica: int, index: int) -> str:
    return f"{group.name}-r{replica}-n{index}"


def _objects(launch: Launch, group: Group) -> list[Json]:
    names = service(launch, group.name, labels(launch, group.name), API_PORT, headless=True)
    group = joined(launch, group, "Kubernetes")
    if not group.across_nodes:
        sets = [_stateful_set(launch, group, group.name, 0, group.replicas, {HEAD: ""})]
    else:
        sets = [
            _stateful_set(launch, group, _set_name(group, replica, index), index, 1, _hosts(group, replica))
            for replica in range(group.replicas)
            for index in range(len(group.pods))
        ]
    return [*beside(launch, group), names, *sets]


def _stateful_set(
    launch: Launch, group: Group, name: str, index: int, replicas: int, hosts: Mapping[Variable, str]
) -> Json:
    pod: Pod = group.pods[index]
    own = {**labels(launch, group.name), _TURN: str(index), "planner/set": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(launch, name, group.name),
        "spec": {
            "replicas": replicas,
            "serviceName": group.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": dict(own)},
                "spec": {
                    **pod_spec(launch, group, pod, [container(launch, group, pod, hosts)]),
                    **_waits(launch, group),
                },
            },
        },
    }


def _waits(launch: Launch, group: Group) -> Json:
    """A container that ends when the engine that starts before answers."""
    if group.shares is None or group.shares.after is None:
        return {}
    url = f"http://{group.shares.after}-0.{group.shares.after}:{API_PORT}/health"
    command = ["python3", "-c", _WAIT, url]
    return {"initContainers": [{"name": "after", "image": launch.image, "command": command}]}


def _files(launch: Launch) -> dict[str, str]:
    require_claims(launch)
    objects = [each for group in launch.groups for each in _objects(launch, group)]
    fronts = front_objects(launch, _address, lambda group: {**labels(launch, group.name), _TURN: "0"})
    header = (*launch.header, *front_notes(launch), "Start it with `kubectl apply -f plan.yaml`.")
    answers: dict[str, Json] = {
        group.role.name: {"host": _address(group, 0), "port": API_PORT} for group in launch.groups
    }
    return {"plan.yaml": manifest(header, [*objects, *fronts]), **routes(launch, answers)}


TARGETS = (
    serving_target(
        "kubernetes",
        "StatefulSets, Services and routers of plain Kubernetes",
        _files,
        engines=tuple(ENGINES),
        takes=(*ON_KUBERNETES, "ssh_secret"),
        measured=measured_at(service_url),
        placements=read_placement,
    ),
)
