"""Emits serving plans as LeaderWorkerSets (leaderworkerset.x-k8s.io/v1): one set a role, one group of pods an instance.

Workers share one template. Where their commands differ by a number that grows with the worker, the controller's
LWS_WORKER_INDEX says it; where it grows by more than one a worker, a shell that is told nothing else multiplies.
"""

from collections.abc import Mapping
from types import MappingProxyType

from planner.emit.clusters.engines import ENGINES
from planner.emit.clusters.fronts import front_notes, front_objects
from planner.emit.clusters.launch import HEAD, Group, Launch, Pod, serving_target
from planner.emit.clusters.measure import measured_at, service_url
from planner.emit.clusters.mpi import joined, worker
from planner.emit.clusters.pods import Json, beside, container, expanded, labels, metadata, pod_spec
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES
from planner.emit.shell import Variable, Word
from planner.errors import PlannerError

LEADER = {HEAD: "$(LWS_LEADER_ADDRESS)"}
HEADS = {"planner/pod": "head"}  # the label of first pods
_WORKER = "LWS_WORKER_INDEX"


def lws_spec(launch: Launch, group: Group, annotations: Mapping[str, str] = MappingProxyType({})) -> Json:
    """The `spec` of a LeaderWorkerSet: the instances of a group, `annotations` on their first pods."""
    own, leader = labels(launch, group.name), group.pods[0]
    body = container(launch, group, leader, _hosts(group), named=launch.engine.over_mpi and group.across_nodes)
    head = _template(launch, group, leader, body, {**own, **HEADS}, annotations)
    template: Json = {"size": len(group.pods), "restartPolicy": "RecreateGroupOnPodRestart"}
    if not group.across_nodes:
        template["workerTemplate"] = head
    else:
        of_worker = _template(launch, group, group.pods[1], worker_container(launch, group), own)
        template |= {"leaderTemplate": head, "workerTemplate": of_worker}
    return {"replicas": group.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}


def _hosts(group: Group) -> dict[Variable, str]:
    """The host names of the pods of a group, as the first knows them: further ones follow its own."""
    return {**LEADER, **{worker(turn): f"$(POD_NAME)-{turn}.{group.name}" for turn in range(1, len(group.pods))}}


def _template(
    launch: Launch,
    group: Group,
    pod: Pod,
    body: Json,
    own: Mapping[str, str],
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Json:
    told: Json = {"annotations": dict(annotations)} if annotations else {}
    return {"metadata": {"labels": dict(own), **told}, "spec": pod_spec(launch, group, pod, [body])}


def worker_container(launch: Launch, group: Group) -> Json:
    """The container of every worker, its own numbers by its index."""
    workers = group.pods[1:]
    first = workers[0]
    body = container(launch, group, first, LEADER)
    alike = {(each.program, each.settings, each.gpus) for each in workers}
    if len(alike) > 1 or len({len(each.arguments) for each in workers}) > 1:
        raise _unlike(group)
    columns = list(zip(*(each.arguments for each in workers), strict=True))
    steps = [_step(group, column) for column in columns]
    numbers = sorted({step for step in steps if step > 1})
    arguments = []
    for column, step in zip(columns, steps, strict=True):
        own = f"$({_WORKER})" if step == 1 else f"$(PLANNER_{step})"
        arguments.append(own if step else expanded(column[0], LEADER))
    if not numbers:
        return {**body, "args": arguments}
    return {**body, **_multiplied(body, arguments, numbers)}


def _multiplied(body: Json, arguments: list[str], numbers: list[int]) -> Json:
    """The command behind a shell that replaces whole arguments `$(PLANNER_8)` by eight times the worker's index.

    What the shell runs is written here; names of users reach it as arguments alone.
    """
    command = body["command"]
    assert isinstance(command, list)
    words, given = [], [*command, *arguments]
    for index, each in enumerate(given):
        step = next((number for number in numbers if each == f"$(PLANNER_{number})"), None)
        words.append(f'"$((LWS_WORKER_INDEX * {step}))"' if step else f'"${{{index + 1}}}"')
    program = "exec " + " ".join(words)
    kept = ["" if each.startswith("$(PLANNER_") else each for each in given]
    return {"command": ["bash", "-c", program.replace("$", "$$")], "args": ["bash", *kept]}


def _step(group: Group, column: tuple[Word, ...]) -> int:
    """By how much an argument grows a worker; 0 where all workers have the same."""
    if all(each == column[0] for each in column):  # of one worker, whatever it is
        return 0
    numbers = [int(text) if (text := str(each)).isdecimal() else -1 for each in column]
    if numbers[0] > 0 and numbers == [numbers[0] * (turn + 1) for turn in range(len(numbers))]:
        return numbers[0]
    raise _unlike(group)


def _unlike(group: Group) -> PlannerError:
    return group.refuse(
        "its nodes take different numbers of ranks, and the workers of a group share one template",
        "place the same number of ranks on every node, or emit for `kubernetes`",
    )


def _objects(launch: Launch, group: Group) -> list[Json]:
    group = joined(launch, group, "LeaderWorkerSet")
    group_set: Json = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(launch, group.name, group.name),
        "spec": lws_spec(launch, group),
    }
    return [*beside(launch, group), group_set]


def _files(launch: Launch) -> dict[str, str]:
    sets = [each for group in launch.groups for each in _objects(launch, group)]
    fronts = front_objects(
        launch,
        lambda group, replica: f"{group.name}-{replica}.{group.name}",
        lambda group: {**labels(launch, group.name), **HEADS},
    )
    header = (*launch.header, *front_notes(launch), "Start it with `kubectl apply -f plan.yaml`.")
    return {"plan.yaml": manifest(header, [*sets, *fronts])}


TARGETS = (
    serving_target(
        "lws",
        "LeaderWorkerSets, one a role, with Services and routers",
        _files,
        engines=tuple(ENGINES),
        takes=(*ON_KUBERNETES, "ssh_secret"),
        measured=measured_at(service_url),
    ),
)
