"""Where clients talk to on Kubernetes: routers as Deployments, and Services."""

from collections.abc import Callable, Mapping

from planner.emit.clusters.launch import FOLDER, Address, Front, Group, Launch
from planner.emit.clusters.pods import Json, config_map, labels, metadata, runs
from planner.emit.documents import manifest
from planner.emit.serving.scene import API_PORT, FRONT_FILE
from planner.emit.shell import Variable


def front_objects(launch: Launch, address: Address, heads: Callable[[Group], Mapping[str, str]]) -> list[Json]:
    """A router and its Service for each model and mode; where instances are called directly, a Service of their heads.

    `heads` are the labels of the pods of a group that answer requests.
    """
    objects: list[Json] = []
    for front in launch.fronts:
        if front.command is None:
            objects.append(service(launch, front.name, heads(_alone(launch, front)), API_PORT))
        else:
            own = labels(launch, front.name)
            objects += [*_router(launch, front, address), service(launch, front.name, own, front.port)]
    return objects


def front_notes(launch: Launch) -> list[str]:
    """What a Service does other than the plan takes routers to do."""
    policy = launch.decision.router_policy
    if policy is None:
        return []
    return [
        f'The Service of "{front.model}" sends each connection to any instance; the plan takes clients to send by '
        f"{policy}."
        for front in launch.fronts
        if front.command is None and sum(group.replicas for group in front.groups) > 1
    ]


def _alone(launch: Launch, front: Front) -> Group:
    """The group that a Service sends to by itself."""
    if len(front.groups) > 1:
        raise front.groups[1].refuse(
            f"{launch.engine.name} has no router of its own, a Service finds pods by one set of labels, and "
            f"`{front.model}` has {len(front.groups)} roles",
            "plan one role for the model, or emit for `dynamo`",
        )
    return front.groups[0]


def service(launch: Launch, name: str, selector: Mapping[str, str], port: int, *, headless: bool = False) -> Json:
    """A Service; a headless one names every pod, ready or not, since heads are met before they answer."""
    names: Json = {"clusterIP": "None", "publishNotReadyAddresses": True} if headless else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(launch, name),
        "spec": {**names, "selector": dict(selector), "ports": [{"name": "http", "port": port, "targetPort": port}]},
    }


def _router(launch: Launch, front: Front, address: Address) -> list[Json]:
    """The Deployment, and where it reads a file the ConfigMap of that."""
    assert front.command is not None
    hosts = {Variable(name): address(*member) for name, member in front.members.items()}
    run = runs(front.command.program, front.command.arguments, hosts)
    if front.settings is None:
        return [router(launch, front, run)]
    files = {FRONT_FILE: manifest((), [front.settings(address)])}
    run |= {"workingDir": FOLDER, "volumeMounts": [{"name": "files", "mountPath": FOLDER, "readOnly": True}]}
    return [config_map(launch, _files_name(front), files), router(launch, front, run)]


def _files_name(front: Front) -> str:
    return f"{front.name}-files"


def router(launch: Launch, front: Front, run: Json, account: str | None = None) -> Json:
    """The Deployment of a router that runs `run`, under a service account where it watches pods."""
    container: Json = {
        "name": "router",
        "image": launch.router_image,
        **run,
        "ports": [{"name": "http", "containerPort": front.port}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
    }
    own = labels(launch, front.name)
    more: Json = {} if account is None else {"serviceAccountName": account}
    if front.settings is not None:
        more |= {"volumes": [{"name": "files", "configMap": {"name": _files_name(front)}}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(launch, front.name, front.name),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": dict(own)}, "spec": {**more, "containers": [container]}},
        },
    }
