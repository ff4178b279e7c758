"""Where clients talk to on Kubernetes: routers as Deployments, and Services."""

from collections.abc import Callable, Mapping

from planner.emit.clusters.launch import Front, Group, Launch
from planner.emit.clusters.pods import Json, labels, metadata, runs
from planner.emit.serving.scene import API_PORT
from planner.emit.shell import Variable

Address = Callable[[Group, int], str]  # the host name of the head of a replica


def front_objects(launch: Launch, address: Address, heads: Callable[[Group], Mapping[str, str]]) -> list[Json]:
    """A router and its Service for each model and mode; where one instance is called directly, a Service of its head.

    `heads` are the labels of the pods of a group that answer requests.
    """
    objects: list[Json] = []
    for front in launch.fronts:
        if front.command is None:
            (group,) = front.groups
            objects.append(service(launch, front.name, heads(group), API_PORT))
        else:
            own = labels(launch, front.name)
            objects += [_router(launch, front, address), service(launch, front.name, own, front.port)]
    return objects


def service(launch: Launch, name: str, selector: Mapping[str, str], port: int, *, headless: bool = False) -> Json:
    """A Service; a headless one names every pod, ready or not, since heads are met before they answer."""
    names: Json = {"clusterIP": "None", "publishNotReadyAddresses": True} if headless else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(launch, name),
        "spec": {**names, "selector": dict(selector), "ports": [{"name": "http", "port": port, "targetPort": port}]},
    }


def _router(launch: Launch, front: Front, address: Address) -> Json:
    assert front.command is not None
    hosts = {Variable(name): address(*member) for name, member in front.members.items()}
    return router(launch, front, runs(front.command.program, front.command.arguments, hosts))


def router(launch: Launch, front: Front, run: Json, account: str | None = None) -> Json:
    """The Deployment of a router that runs `run`, under a service account where it watches pods."""
    container: Json = {
        "name": "router",
        "image": launch.router_image,
        **run,
        "ports": [{"name": "http", "containerPort": front.port}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
    }
    own, watches = labels(launch, front.name), {} if account is None else {"serviceAccountName": account}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(launch, front.name, front.name),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": own},
            "template": {"metadata": {"labels": dict(own)}, "spec": {**watches, "containers": [container]}},
        },
    }
