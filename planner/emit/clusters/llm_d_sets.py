"""Instances over nodes in overlays of llm-d: LeaderWorkerSets over its multi-host recipe.

Its base has a LeaderWorkerSet `decode` with a leader `modelserver-leader` and workers `modelserver-worker`
(github.com/llm-d/llm-d, guides/recipes/modelserver/base/multi-host/default), and none of prefill, which is added whole.
Kustomize knows no schema of such a set: a patch replaces whole lists, so that pods are written whole, and names that
the overlay prefixes are found by the paths of KUSTOMIZE_CONFIG. Routers find first pods alone, by their labels.
"""

from planner.emit.clusters.launch import Group, Launch, Pod
from planner.emit.clusters.lws import HEADS, LEADER, worker_container
from planner.emit.clusters.pods import Json, container, labels, metadata, pod_spec, serves
from planner.emit.serving.scene import API_PORT

BASE = "llm-d/guides/recipes/modelserver/base/multi-host/default"
GUIDE, ROLE = "llm-d.ai/guide", "llm-d.ai/role"  # labels by which the router finds pods, and tells their sides
SERVER_IMAGE, PROXY_IMAGE = "REPLACE_MODEL_SERVER_IMAGE", "REPLACE_ROUTING_SIDECAR_IMAGE"
_TEMPLATES = tuple(f"spec/leaderWorkerTemplate/{part}/spec" for part in ("leaderTemplate", "workerTemplate"))
_POD = "spec/template/spec"
KUSTOMIZE_CONFIG: Json = {
    "nameReference": [
        {
            "kind": kind,
            "fieldSpecs": [
                *({"kind": "LeaderWorkerSet", "path": f"{template}/{path}"} for template in _TEMPLATES),
                {"kind": "Deployment", "path": f"{_POD}/{path}"},
            ],
        }
        for kind, path in (
            ("ConfigMap", "volumes/configMap/name"),
            ("ResourceClaimTemplate", "resourceClaims/resourceClaimTemplateName"),
            ("ServiceAccount", "serviceAccountName"),
        )
    ]
}
"""Where sets and Deployments name other objects of an overlay."""
_PROXY: Json = {
    "name": "routing-proxy",
    "image": PROXY_IMAGE,
    "args": [f"--port={API_PORT}", "--kv-connector=nixlv2", "--secure-serving=false"],
    "ports": [{"name": "sidecar", "containerPort": API_PORT}],
    "restartPolicy": "Always",
}


def worker_set(launch: Launch, group: Group, side: str, port: int | None) -> Json:
    """The set of one side; `port` is that of the engine behind a proxy, None where it answers by itself."""
    leader = group.pods[0]
    if port is not None:
        leader = leader.with_port(port)
    marks = {GUIDE: launch.name, ROLE: side}
    head: Json = {
        **container(launch, group, group.pods[0], LEADER),
        "args": container(launch, group, leader, LEADER)["args"],
        **serves(port or API_PORT),
        "name": "modelserver-leader",
        "image": SERVER_IMAGE,
    }
    spec: Json = {"initContainers": [dict(_PROXY)]} if port is not None else {}
    leaders = _template(launch, group, leader, {**labels(launch, group.name), **HEADS, **marks}, head, spec)
    workers = leaders
    if group.across_nodes:
        body = {**worker_container(launch, group), "name": "modelserver-worker", "image": SERVER_IMAGE}
        workers = _template(launch, group, group.pods[1], labels(launch, group.name), body, {})
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {**metadata(launch, side), "labels": marks},
        "spec": {
            "replicas": group.replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": len(group.pods),
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leaders,
                "workerTemplate": workers,
            },
        },
    }


def _template(launch: Launch, group: Group, pod: Pod, own: dict[str, str], body: Json, spec: Json) -> Json:
    return {"metadata": {"labels": own}, "spec": {**pod_spec(launch, group, pod, [body]), **spec}}
