"""Emits prefill and decode apart as a DisaggregatedSet (disaggregatedset.x-k8s.io/v1), which rolls both out together.

Its LeaderWorkerSets are named by revision, so that routers find the heads of groups by their labels and not by name:
`--service-discovery` of vllm-router and sglang_router, for which they watch the pods of their namespace. SGLang's
prefill pods tell their bootstrap port by an annotation.
"""

from collections.abc import Sequence

from planner.emit.clusters.fronts import router, service
from planner.emit.clusters.launch import Front, Group, Launch, serving_target
from planner.emit.clusters.lws import HEADS, lws_spec
from planner.emit.clusters.measure import measured_at, service_url
from planner.emit.clusters.pods import Json, beside, labels, metadata, runs
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES, flag
from planner.emit.serving.scene import API_PORT, BOOTSTRAP_PORT
from planner.emit.shell import Word, values, word
from planner.errors import PlannerError

_WATCHED = ("--prefill", "--decode")  # flags that name instances one by one
_BOOTSTRAP = "sglang.ai/bootstrap-port"


def _objects(launch: Launch, front: Front) -> list[Json]:
    if front.command is None or not front.prefill:
        raise PlannerError(
            "a DisaggregatedSet has roles of prefill and of decode, and the plan serves whole requests in one",
            where="decision.roles",
            hint="emit for `lws`",
        )
    roles = [{"name": group.name, "spec": _spec(launch, group)} for group in front.groups]
    return [
        {
            "apiVersion": "disaggregatedset.x-k8s.io/v1",
            "kind": "DisaggregatedSet",
            "metadata": metadata(launch, front.name, front.name),
            "spec": {"slices": 1, **_placement(launch), "roles": roles},
        },
        *_watcher(launch, front),
        router(launch, front, runs(front.command.program, _arguments(launch, front), {}), front.name),
        service(launch, front.name, labels(launch, front.name), front.port),
    ]


def _placement(launch: Launch) -> Json:
    """Where the controller lets the roles run: together in one domain of a label of nodes, apart from other sets."""
    if launch.options.placement is None:
        return {}
    kind, _, label = launch.options.placement.partition("=")
    return {"placementPolicy": {"type": kind, "topology": label}}


def _namespace(launch: Launch) -> str:
    if launch.options.namespace is None:
        raise PlannerError(
            "the router finds pods in a namespace, and none is given",
            where=flag("namespace"),
            hint=f"give `{flag('namespace')} NAME`",
        )
    return launch.options.namespace


def _spec(launch: Launch, group: Group) -> Json:
    annotations = {_BOOTSTRAP: str(BOOTSTRAP_PORT)}
    sglang = launch.engine.name == "SGLang" and group.role.function == "prefill"
    return lws_spec(launch, group, annotations if sglang else {})


def _arguments(launch: Launch, front: Front) -> Sequence[Word]:
    """The router's, with labels in place of addresses."""
    assert front.command is not None
    words = [
        each for name, value in front.command.flags if name not in _WATCHED for each in (word(name), *values(value))
    ]
    told = ["--service-discovery", "--service-discovery-port", str(API_PORT)]
    told += ["--service-discovery-namespace", _namespace(launch)]
    for name, groups in zip(_WATCHED, (front.prefill, front.decode), strict=True):
        (group,) = _alone(groups, front)
        heads = {**labels(launch, group.name), **HEADS}
        told += [f"{name}-selector", *(f"{key}={value}" for key, value in heads.items())]
    return [*words, *map(word, told)]


def _alone(groups: Sequence[Group], front: Front) -> Sequence[Group]:
    if len(groups) > 1:
        raise groups[0].refuse(
            f"the router finds pods by one set of labels a side, and `{front.model}` has {len(groups)} such roles",
            "emit for `lws`, where routers are given every address",
        )
    return groups


def _watcher(launch: Launch, front: Front) -> list[Json]:
    """An account that may watch the pods of its namespace."""
    group, name = "rbac.authorization.k8s.io", front.name
    of = {"namespace": _namespace(launch)}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(launch, name)},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata(launch, name), "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(launch, name),
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, **of}],
        },
    ]


def _files(launch: Launch) -> dict[str, str]:
    objects = [each for group in launch.groups for each in beside(launch, group)]
    objects += [each for front in launch.fronts for each in _objects(launch, front)]
    return {"plan.yaml": manifest((*launch.header, "Start it with `kubectl apply -f plan.yaml`."), objects)}


TARGETS = (
    serving_target(
        "disaggregatedset",
        "a DisaggregatedSet of prefill and decode, with its router",
        _files,
        engines=("vllm", "sglang"),
        takes=(*ON_KUBERNETES, "placement"),
        measured=measured_at(service_url),
    ),
)
