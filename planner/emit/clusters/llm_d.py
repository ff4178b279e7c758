"""Emits serving plans as Kustomize overlays over the recipes of llm-d, and values of its router's chart.

Its bases have Deployments `decode`, and `prefill` where the two are apart, with a container `modelserver`
(github.com/llm-d/llm-d, guides/recipes/modelserver/base/single-host). The patches are merged into them strategically:
lists of arguments are replaced, containers, environment and volumes are joined by their names. Where prefill is apart,
a proxy beside decode takes port 8000, and decode answers at 8200. Plans with an instance over several nodes are
LeaderWorkerSets over the multi-host recipe (`llm_d_sets`).
"""

from planner.emit.clusters.launch import Front, Group, Launch, serving_target
from planner.emit.clusters.llm_d_sets import BASE, GUIDE, KUSTOMIZE_CONFIG, PROXY_IMAGE, SERVER_IMAGE, worker_set
from planner.emit.clusters.measure import measured_at
from planner.emit.clusters.pods import Json, beside, mounts, pod_spec, runs, surroundings
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES

_BASES = "llm-d/guides/recipes/modelserver/base/single-host"
_BEHIND_PROXY = 8200
_CONFIG = "kustomizeconfig.yaml"
_EVERYWHERE: Json = {"includeSelectors": True, "includeTemplates": True}
_SIDES = ("decode", "prefill")
_ALWAYS, _HANDLER = "always-disagg-pd-decider", "disagg-profile-handler"


def _patch(launch: Launch, group: Group, name: str, port: int | None) -> Json:
    """What a Deployment of the base becomes; `port` is another one than the engine's own."""
    pod = group.pods[0] if port is None else group.pods[0].with_port(port)
    container: Json = {
        "name": "modelserver",
        **runs(pod.program, pod.arguments, {}),
        **surroundings(launch, group, pod, {}),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *mounts(launch, group)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "annotations": {"planner/plan-digest": launch.digest}},
        "spec": {"replicas": group.replicas, "template": {"spec": pod_spec(launch, group, pod, [container])}},
    }


def _roles(launch: Launch) -> dict[str, Group]:
    """By name of the base's Deployment, the role that it becomes."""
    first = launch.groups[0]
    if len(launch.fronts) > 1:
        raise first.refuse("an overlay of llm-d serves one model in one mode", "emit for `lws`")
    front: Front = launch.fronts[0]
    sides = [front.decode, front.prefill] if front.prefill else [front.colocated]
    for groups in sides:
        if len(groups) > 1:
            raise groups[1].refuse(
                f"an overlay of llm-d has one Deployment a side, and the plan {len(groups)} roles",
                "plan one role a side, or emit for `lws`",
            )
    return {name: groups[0] for name, groups in zip(_SIDES, sides, strict=False)}


def _kustomization(
    launch: Launch, base: str, marks: Json, patched: list[str], others: list[Json], *, apart: bool
) -> Json:
    """`marks` says where the label of the plan goes."""
    images = [_image(SERVER_IMAGE, launch.image)]
    if apart:
        images.append(_image(PROXY_IMAGE, launch.router_image))
    namespace: Json = {} if launch.options.namespace is None else {"namespace": launch.options.namespace}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base, *(["plan.yaml"] if others else [])],
        "configurations": [_CONFIG],
        "namePrefix": f"{launch.name}-",
        **namespace,
        "images": images,
        "labels": [{"pairs": {GUIDE: launch.name}, **marks}],
        "patches": [{"path": f"patch-{name}.yaml"} for name in patched],
    }


def _image(name: str, image: str) -> dict[str, str]:
    """As Kustomize replaces images: a name, and its tag or digest."""
    if "@" in image:
        base, digest = image.split("@", 1)
        return {"name": name, "newName": base, "digest": digest}
    folder, slash, last = image.rpartition("/")
    base, _, tag = last.partition(":")
    return {"name": name, "newName": f"{folder}{slash}{base}", "newTag": tag or "latest"}


def _router_values(launch: Launch, *, apart: bool) -> Json:
    """Values of the router's chart: which pods it sends to, and how it chooses."""
    epp: Json = {"replicas": 1}
    if apart:
        epp |= {
            "pluginsConfigFile": "plan.yaml",
            "pluginsCustomConfig": {"plan.yaml": manifest((), [_picker()])},
        }
    return {"router": {"epp": epp, "modelServers": {"matchLabels": {GUIDE: launch.name}}}}


def _picker() -> Json:
    """Every request is prefilled apart; of each side, the pod with fewer requests in flight."""
    filters = [f"{side}-filter" for side in ("prefill", "decode")]
    chooses = ["active-request-scorer", "max-score-picker"]
    profiles = [
        {"name": side, "plugins": [{"pluginRef": each} for each in (filters[index], *chooses)]}
        for index, side in enumerate(("prefill", "decode"))
    ]
    handler = {"type": _HANDLER, "parameters": {"deciders": {"prefill": _ALWAYS}}}
    plain = [{"type": each} for each in (*filters, *chooses)]
    return {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": _ALWAYS}, handler, *plain],
        "schedulingProfiles": profiles,
    }


def _files(launch: Launch) -> dict[str, str]:
    roles = _roles(launch)
    apart, own = "prefill" in roles, launch.header
    others = [each for group in roles.values() for each in beside(launch, group)]
    start = (*own, "With a checkout of llm-d in this folder as `llm-d`: `kubectl apply -k .`")
    ports = {"decode": _BEHIND_PROXY if apart else None}
    if any(group.across_nodes for group in roles.values()):
        base, marks, patched = BASE, Json(), ["decode"]
        made = {name: worker_set(launch, group, name, ports.get(name)) for name, group in roles.items()}
        others += [made[name] for name in roles if name not in patched]
    else:
        base, marks, patched = f"{_BASES}/{'pd/vllm' if apart else 'default'}", dict(_EVERYWHERE), list(roles)
        made = {name: _patch(launch, group, name, ports.get(name)) for name, group in roles.items()}
    return {
        "kustomization.yaml": manifest(start, [_kustomization(launch, base, marks, patched, others, apart=apart)]),
        _CONFIG: manifest(own, [KUSTOMIZE_CONFIG]),
        **{f"patch-{name}.yaml": manifest(own, [made[name]]) for name in patched},
        "router-values.yaml": manifest(own, [_router_values(launch, apart=apart)]),
        **({"plan.yaml": manifest(own, others)} if others else {}),
    }


TARGETS = (
    serving_target(
        "llm-d",
        "a Kustomize overlay over llm-d's recipes, and values of its router",
        _files,
        engines=("vllm",),
        takes=ON_KUBERNETES,
        measured=measured_at(),
    ),
)
