"""Emits serving plans for Ray Serve: the configuration of its LLM applications, and a RayService that holds it.

Applications are built by `ray.serve.llm`: `build_openai_app` of whole requests, `build_pd_openai_app` of prefill and
decode apart. `engine_kwargs` are the names of vLLM's flags; Ray itself sets the ports and meets the ranks of an
instance, for which every replica asks for one bundle a GPU, of the nodes of its role by a resource of that name.

Of a placement every group is a worker of Ray, with a resource for each model that lives there. A model's replicas, one
a group, ask for it, and engines of a group of one GPU for equal parts of that. Ray gives parts of GPUs one by one, so
that larger groups are for one model.
"""

import dataclasses
import json
from collections.abc import Mapping

from planner.emit.clusters.engines import ACROSS_NODES, LISTENS
from planner.emit.clusters.launch import Front, Group, Launch, serving_target
from planner.emit.clusters.measure import measured_at
from planner.emit.clusters.placements import read_placement, routes
from planner.emit.clusters.pods import Json, beside, environment, metadata, mounts, pod_spec, resources
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES
from planner.emit.serving.scene import API_PORT
from planner.emit.serving.vllm_tiers import CONFIG_PATH
from planner.emit.shell import Word

_VERSION = "2.60.0"  # of the schema that was read
_HOLDS = "Ray and its LLM server"
PARTS = 10_000  # of a GPU, as finely as Ray counts
_SHARE = 0.001  # of a role's resource that a bundle takes: that it is there is all that counts


def _application(launch: Launch, front: Front, index: int) -> Json:
    if front.prefill:
        sides = {"prefill_config": front.prefill, "decode_config": front.decode}
        args: Json = {name: _config(_alone(front, groups)) for name, groups in sides.items()}
        builder = "build_pd_openai_app"
    else:
        config = _config(_alone(front, front.colocated)) if launch.placed is None else _copies(launch, front)
        args = {"llm_configs": [config]}
        builder = "build_openai_app"
    return {
        "name": f"llm-{index}",
        "route_prefix": _route(launch, front),
        "import_path": f"ray.serve.llm:{builder}",
        "args": args,
    }


def _alone(front: Front, groups: tuple[Group, ...]) -> Group:
    if len(groups) > 1:
        raise groups[1].refuse(
            f"an application of Ray Serve has one kind of replica a side, and `{front.model}` has {len(groups)}",
            "plan one role a side, or emit for `lws`",
        )
    return groups[0]


def _config(group: Group) -> Json:
    """An LLMConfig: the replicas of a role."""
    shape = group.role.parallelism
    if shape.dp > 1:
        raise group.refuse(
            f"it has dp {shape.dp}, and these applications of Ray Serve have replicas of one data-parallel rank",
            "plan with dp 1 and more replicas, or emit for `lws`",
        )
    if any(name.startswith(("LMCACHE_", CONFIG_PATH)) for name, _ in group.pods[0].settings):
        raise group.refuse(
            "its prefixes are kept beside vLLM, by LMCache or in a Mooncake store, whose variables these applications "
            "of Ray Serve do not set",
            "emit for `lws`, or offer no memory but `host` for a single engine",
        )
    ranks = sum(pod.gpus for pod in group.pods)
    bundle = {"GPU": 1, "CPU": 1, group.name: _SHARE}
    return {
        "model_loading_config": {"model_id": group.model, "model_source": group.model},
        "deployment_config": {"autoscaling_config": {"min_replicas": group.replicas, "max_replicas": group.replicas}},
        "engine_kwargs": _engine_kwargs(group),
        "placement_group_config": {
            "bundles": [dict(bundle) for _ in range(ranks)],
            "strategy": "PACK" if group.across_nodes else "STRICT_PACK",
        },
    }


def _copies(launch: Launch, front: Front) -> Json:
    """An LLMConfig: the engines of a model on its groups, one replica each."""
    names = [group.name for group in front.colocated]
    groups = [group for group in launch.groups if group.name in names]
    number = [len(members) for members in _workers(launch).values() if any(each.name in names for each in members)]
    ranks = {group.pods[0].gpus for group in groups}
    if len(ranks) > 1 or (max(number) > 1 and max(ranks) > 1):
        raise groups[0].refuse(
            f"`{front.model}` stands on groups of {max(ranks)} GPUs beside other models, or on unlike ones, and Ray "
            "gives replicas of a model the same, and parts of GPUs one by one",
            "solve with `options.tp: [1]`, or emit for `kubernetes`",
        )
    told = [_engine_kwargs(group) for group in groups]
    part = min((str(each.pop("gpu_memory_utilization")) for each in told), key=float)
    if any(each != told[0] for each in told):
        raise groups[0].refuse(
            f"engines of `{front.model}` have other settings on other groups, and replicas of Ray have the same",
            "emit for `kubernetes`",
        )
    (size,) = ranks
    share = int(PARTS / max(number)) / PARTS
    bundle = {"GPU": share, "CPU": 1, front.name: 1.0 / size}
    return {
        "model_loading_config": {"model_id": front.model, "model_source": front.model},
        "deployment_config": {"autoscaling_config": {"min_replicas": len(groups), "max_replicas": len(groups)}},
        "engine_kwargs": {**told[0], "gpu_memory_utilization": float(part)},
        "placement_group_config": {"bundles": [dict(bundle) for _ in range(size)], "strategy": "STRICT_PACK"},
    }


def _workers(launch: Launch) -> dict[str, list[Group]]:
    """Engines of every group of a placement, by a name for its worker."""
    workers: dict[str, list[Group]] = {}
    for group in launch.groups:
        workers.setdefault(group.name if group.shares is None else group.shares.claim, []).append(group)
    return workers


def _placed_workers(launch: Launch) -> list[Json]:
    """A worker for every group of a placement, which tells Ray whose engines it takes."""
    workers = []
    for name, members in _workers(launch).items():
        own = {group.name for group in members}
        models: Mapping[str, float] = {
            front.name: 1 for front in launch.fronts if own & {group.name for group in front.colocated}
        }
        alone = dataclasses.replace(members[0], name=name, shares=None, replicas=1)
        workers.append(_worker(launch, alone, models))
    return workers


def _engine_kwargs(group: Group) -> Json:
    """The flags of vLLM as arguments of its configuration: switches are true, or false with `no`."""
    told: Json = {}
    for name, values in group.pods[0].without(*LISTENS, *ACROSS_NODES).flags:
        key = name.removeprefix("--").replace("-", "_")
        if not values:
            told[key.removeprefix("no_")] = not key.startswith("no_")
        else:
            told[key] = _value(values[0])
    return told


def _value(each: Word) -> object:
    """A number, an object, or text, as vLLM reads the flag."""
    (text,) = each.parts
    assert isinstance(text, str)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ray_service(launch: Launch, config: str) -> Json:
    head: Json = {"name": "ray", "image": launch.own_image(_HOLDS), "resources": {"limits": {"cpu": "8"}}}
    groups = [_worker_group(launch, group) for group in launch.groups]
    if launch.placed is not None:
        groups = _placed_workers(launch)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": metadata(launch, launch.name),
        "spec": {
            "serveConfigV2": config,
            "rayClusterConfig": {
                "rayVersion": _VERSION,
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0", "num-gpus": "0"},
                    "template": {"spec": {"containers": [head]}},
                },
                "workerGroupSpecs": groups,
            },
        },
    }


def _worker_group(launch: Launch, group: Group) -> Json:
    """A pod for every node of every instance of a role, which tells Ray that it is one of the role's."""
    group.require_equal_pods("Ray")
    return _worker(launch, group, {group.name: 1})


def _worker(launch: Launch, group: Group, resource: Mapping[str, float]) -> Json:
    pod, number = group.pods[0], group.replicas * len(group.pods)
    own_mounts = mounts(launch, group)
    container: Json = {
        "name": "ray",
        "image": launch.own_image(_HOLDS),
        "env": environment(launch.options),
        "resources": resources(launch, group, pod),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *own_mounts],
    }
    return {
        "groupName": group.name,
        "replicas": number,
        "minReplicas": number,
        "maxReplicas": number,
        "rayStartParams": {"num-gpus": str(pod.gpus), "resources": json.dumps(json.dumps(resource))},
        "template": {"spec": pod_spec(launch, group, pod, [container])},
    }


def _route(launch: Launch, front: Front) -> str:
    return "/" if len(launch.fronts) == 1 else f"/{front.name}"


def _url(launch: Launch, front: Front) -> str:
    """The Service that KubeRay makes of an application."""
    return f"http://{launch.name}-serve-svc:{API_PORT}{_route(launch, front)}".rstrip("/")


def _files(launch: Launch) -> dict[str, str]:
    for group in launch.groups:
        if group.role.name in launch.scene.experts:
            raise group.refuse(
                "Ray's replicas start in folders of their own, without layouts of experts", "leave it out"
            )
    if launch.placed is not None and "lora_modules" in launch.groups[0].role.limits:
        raise launch.groups[0].refuse("Ray's replicas load adapters of folders of their own", "emit for `kubernetes`")
    applications = [_application(launch, front, index) for index, front in enumerate(launch.fronts)]
    config: Json = {"applications": applications}
    whole = [dataclasses.replace(members[0], name=name, shares=None) for name, members in _workers(launch).items()]
    others = [each for group in whole for each in beside(launch, group)]
    service = _ray_service(launch, manifest((), [config]))
    return {
        "plan.yaml": manifest((*launch.header, "Start it with `kubectl apply -f plan.yaml`."), [*others, service]),
        "serve.yaml": manifest((*launch.header, "On a Ray cluster of one's own: `serve deploy serve.yaml`."), [config]),
        **routes(launch, _answers(launch)),
    }


def _answers(launch: Launch) -> dict[str, Json]:
    """By role, where its model is asked for."""
    return {
        group.role.name: {"url": _url(launch, front)}
        for front in launch.fronts
        for group in launch.groups
        if group.name in {each.name for each in front.groups}
    }


TARGETS = (
    serving_target(
        "ray-serve",
        "a RayService with its serving configuration, and that configuration alone",
        _files,
        engines=("vllm",),
        takes=tuple(name for name in ON_KUBERNETES if name != "router_image"),
        measured=measured_at(_url),
        placements=read_placement,
    ),
)
