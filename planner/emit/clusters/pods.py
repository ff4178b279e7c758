"""Pods as Kubernetes and everything on it take them: containers, GPUs, probes, volumes, where they may run.

Kubernetes replaces `$(NAME)` in commands, arguments and settings and reads `$$` as one `$`, so every `$` of ours is
doubled. No shell runs.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from planner.emit.clusters.launch import CACHE, FOLDER, KEYS, OWN, Group, Launch, Pod, Shares
from planner.emit.options import ClusterOptions
from planner.emit.serving.scene import API_PORT
from planner.emit.shell import Variable, Word

Json = dict[str, object]
_STARTS = {"periodSeconds": 10, "failureThreshold": 720}  # two hours for weights to be fetched and graphs captured
_CLASSES = {"nvidia.com/gpu": "gpu.nvidia.com", "amd.com/gpu": "gpu.amd.com"}  # of the vendors' drivers for claims
SHARED_MEMORY: Json = {"name": "shm", "emptyDir": {"medium": "Memory"}}
_SHM_MOUNT: tuple[Json, ...] = ({"name": "shm", "mountPath": "/dev/shm"},)
POD_NAME: Json = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
POD_IP: Json = {"name": OWN.name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


class Planned(Protocol):
    """A plan on a cluster, as its objects are marked."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def options(self) -> ClusterOptions: ...


def escaped(text: str) -> str:
    """Text of which Kubernetes replaces nothing."""
    return text.replace("$", "$$")


def expanded(each: Word, addresses: Mapping[Variable, str]) -> str:
    """A word in which Kubernetes sets the pod's own address; `addresses` says what the others are, escaped already."""
    known = {OWN: f"$({OWN.name})", **addresses}
    return "".join(escaped(part) if isinstance(part, str) else known[part] for part in each.parts)


def labels(launch: Planned, component: str) -> dict[str, str]:
    """What tells the pods of a part of the plan from all others."""
    return {"app.kubernetes.io/instance": launch.name, "app.kubernetes.io/component": component}


def metadata(launch: Planned, name: str, component: str = "") -> Json:
    """Of an object of the plan: its name, and which plan it is of."""
    where = {} if launch.options.namespace is None else {"namespace": launch.options.namespace}
    own = {"labels": labels(launch, component)} if component else {}
    return {"name": name, **where, **own, "annotations": {"planner/plan-digest": launch.digest}}


def container(
    launch: Launch, group: Group, pod: Pod, addresses: Mapping[Variable, str], *, named: bool = False
) -> Json:
    """The engine in one pod; probes only where it answers requests, in the first of an instance.

    `named`: addresses name the pod itself, as `$(POD_NAME)`.
    """
    return {
        "name": "engine",
        "image": launch.image,
        **runs(pod.program, pod.arguments, addresses),
        **surroundings(launch, group, pod, addresses, known=(POD_NAME,) if named else ()),
        **(serves() if pod is group.pods[0] else {}),
        "volumeMounts": [*_SHM_MOUNT, *mounts(launch, group)],
    }


def runs(program: Sequence[Word], arguments: Sequence[Word], addresses: Mapping[Variable, str]) -> Json:
    """What a container starts."""
    command = [expanded(each, addresses) for each in program]
    return {"command": command, "args": [expanded(each, addresses) for each in arguments]}


def surroundings(
    launch: Launch, group: Group, pod: Pod, addresses: Mapping[Variable, str], known: Sequence[Json] = ()
) -> Json:
    """Folder, environment (`known` first) and devices of a container of the engine."""
    return {
        **({"workingDir": FOLDER} if group.files else {}),
        "env": [*map(dict, known), *environment(launch.options), *settings(pod, addresses)],
        "resources": resources(launch, group, pod),
    }


def settings(pod: Pod, addresses: Mapping[Variable, str]) -> list[Json]:
    """What the engine in a pod reads from its environment, addresses of other pods filled in."""
    return [{"name": name, "value": expanded(each, addresses)} for name, each in pod.settings]


def environment(options: ClusterOptions) -> list[Json]:
    """The pod's address, and where checkpoints come from."""
    secret, entries = options.token_secret, [dict(POD_IP)]
    if secret is not None:
        entries.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "HF_TOKEN"}}})
    if options.model_cache is not None:
        entries.append({"name": "HF_HOME", "value": CACHE})
    return entries


def serves(port: int = API_PORT) -> Json:
    """Ports and probes of a container that answers requests."""
    probe: Json = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "ports": [{"name": "http", "containerPort": port}],
        "startupProbe": {**probe, **_STARTS},
        "readinessProbe": {**probe, "periodSeconds": 10},
        "livenessProbe": {**probe, "periodSeconds": 30, "failureThreshold": 4, "timeoutSeconds": 10},
    }


def resources(launch: Launch, group: Group, pod: Pod) -> Json:
    """GPUs as a count of the vendor's resource, or by the pod's claim."""
    if group.shares is not None:
        return {"claims": [{"name": "gpus"}]}
    return devices(launch.options, group.resource, pod.gpus)


def devices(options: ClusterOptions, resource: str, gpus: int) -> Json:
    """GPUs of a container as a count of the vendor's resource, or by the pod's claim."""
    if options.gpus == "claims":
        return {"claims": [{"name": "gpus"}]}
    count = {resource: str(gpus)}
    return {"limits": count, "requests": dict(count)}


def mounts(launch: Launch, group: Group) -> list[Json]:
    """Of checkpoints, files and keys."""
    cache: list[Json] = [] if launch.options.model_cache is None else [{"name": "models", "mountPath": CACHE}]
    files: list[Json] = [{"name": "files", "mountPath": FOLDER, "readOnly": True}] if group.files else []
    keys: list[Json] = [{"name": "keys", "mountPath": KEYS, "readOnly": True}] if _has_keys(launch, group) else []
    return [*cache, *files, *keys]


def _has_keys(launch: Launch, group: Group) -> bool:
    return launch.options.ssh_secret is not None and group.across_nodes


def pod_spec(launch: Launch, group: Group, pod: Pod, containers: Sequence[Json], *, shared_memory: bool = True) -> Json:
    """Volumes, claims and nodes of a pod around its containers."""
    volumes = [dict(SHARED_MEMORY)] if shared_memory else list[Json]()
    if launch.options.model_cache is not None:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": launch.options.model_cache}})
    if group.files:
        volumes.append({"name": "files", "configMap": {"name": f"{group.name}-files"}})
    if _has_keys(launch, group):
        volumes.append({"name": "keys", "secret": {"secretName": launch.options.ssh_secret}})
    claims: Json = {}
    if group.shares is not None:
        claims = {"resourceClaims": [{"name": "gpus", "resourceClaimName": group.shares.claim}]}
    elif launch.options.gpus == "claims":
        claims = claimed(group.name, pod.gpus)
    named: Json = {"volumes": volumes} if volumes else {}
    return {"containers": list(containers), **named, **claims, **where(group.nodes, group.pool)}


def claimed(name: str, gpus: int) -> Json:
    """Of a pod of the group or job, its claim of GPUs."""
    return {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": _claim_name(name, gpus)}]}


def _claim_name(name: str, gpus: int) -> str:
    return f"{name}-{gpus}-gpus"


def where(nodes: Sequence[str], pool: str | None) -> Json:
    """The nodes that pods may run on: those of the plan by name, else those of its pool."""
    if nodes:
        terms = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    return {} if pool is None else {"nodeSelector": {"planner/pool": pool}}


def beside(launch: Launch, group: Group) -> list[Json]:
    """Objects that the pods of a group name: their files, and the templates of their claims."""
    objects: list[Json] = []
    if group.files:
        objects.append(config_map(launch, f"{group.name}-files", group.files))
    if group.shares is not None:
        return objects if group.shares.after else [*objects, shared_claim(launch, group.shares, group.resource)]
    if launch.options.gpus == "claims":
        for pod in {pod.gpus: pod for pod in group.pods}.values():
            objects.append(claim_template(launch, group.name, group.resource, pod.gpus))
    return objects


def config_map(launch: Planned, name: str, files: Mapping[str, str]) -> Json:
    """Files that pods mount."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(launch, name), "data": dict(files)}


def shared_claim(launch: Planned, shares: Shares, resource: str) -> Json:
    """GPUs that the pods of several engines claim together."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata(launch, shares.claim),
        "spec": {"devices": {"requests": [_request(resource, shares.gpus)]}},
    }


def _request(resource: str, gpus: int) -> Json:
    return {"name": "gpus", "exactly": {"deviceClassName": _CLASSES[resource], "count": gpus}}


def claim_template(launch: Planned, name: str, resource: str, gpus: int) -> Json:
    """What a pod of the group or job claims of dynamic allocation: so many GPUs of the vendor's class."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(launch, _claim_name(name, gpus)),
        "spec": {"spec": {"devices": {"requests": [_request(resource, gpus)]}}},
    }
