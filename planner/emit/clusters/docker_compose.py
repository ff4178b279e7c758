"""Emits serving plans for Docker Compose: one file for each node of the plan, and one for the routers.

Containers share the network of their host and take the ports of the launch scripts. Compose replaces `${NAME}` and
reads `$$` as one `$`, so every `$` of ours is doubled.
"""

from collections.abc import Sequence

from planner.emit.clusters.engines import ENGINES, engine_of, image_of, router_image_of
from planner.emit.clusters.launch import CACHE, FOLDER, files_of, front_command, refuse_options
from planner.emit.documents import manifest, plan_title
from planner.emit.names import label_of
from planner.emit.nodes import read_cluster
from planner.emit.options import ClusterOptions
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.routes import engine_name
from planner.emit.serving.scene import API_PORT, FRONT_FILE, RouterGroup, Scene, ServingEngine
from planner.emit.serving.scripts import clients_share, read_scene
from planner.emit.serving.shared_groups import SHARING, engines_of, routes_on_nodes
from planner.emit.shell import Command, Word
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.plan.schema import Decision, Envelope
from planner.plan.store import plan_digest, plan_json

Json = dict[str, object]
_NAME = "docker-compose"
_TAKES = ("image", "router_image", "model_cache")
_STARTS = "2h"  # for weights to be fetched and graphs captured


def _files(
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan] = (),
    options: ClusterOptions | None = None,
) -> dict[str, str]:
    """`compose-node-NN.yaml` for every node, `compose-router.yaml` where instances share a load, and expert layouts."""
    options = options or ClusterOptions()
    refuse_options(_NAME, options, _TAKES)
    placed = decision if isinstance(decision, PlaceDecision) else None
    able = tuple(ENGINES) if placed is None else SHARING
    engine = engine_of(decision, read_cluster(envelope).problem, _NAME, able)
    if placed is not None:
        decision = engines_of(envelope, placed)
    scene, groups = read_scene(envelope, decision, layouts, engine)
    _refuse_mpi(scene, engine)
    _refuse_other_devices(scene)
    top: Json = {"name": label_of(envelope.name, 40), "x-planner": {"plan": plan_digest(plan_json(envelope))}}
    volumes: Json = {}
    if options.model_cache is not None:
        volumes = {"volumes": {"models": {"external": True, "name": options.model_cache}}}
    alone = [group for group in groups if group.needs_router and not group.prefill and engine.front is not None]
    shared = [clients_share(group, "the ports of its services", decision.router_policy) for group in alone]
    title = (plan_title(envelope), f"Flags of {engine.name} {engine.version}.", *_addresses(scene), *shared)
    beside = {
        name: text
        for instance in scene.instances
        for name, text in files_of(scene, engine, instance, title[:2]).items()
    }
    files = {}
    for place, node in scene.nodes.items():
        services = {
            _service_name(instance, index): _service(scene, engine, instance, index, options)
            for instance in scene.instances
            for index, part in enumerate(instance.parts)
            if part.place == place
        }
        if placed is not None:
            _start_in_turn(services, placed)
        name = f"compose-node-{node.number}.yaml"
        header = (*title, f"Run `docker compose -f {name} up` on {node.title}.")
        files[name] = manifest(header, [{**top, "services": services, **volumes}])
    routed = [group for group in groups if group.needs_router]
    commands = [front_command(scene, engine, group, decision.router_policy) for group in routed]
    routers: Json = {
        f"router-{group.index}": _router(scene, group, command, options, engine)
        for group, command in zip(routed, commands, strict=True)
        if command is not None
    }
    if routers:
        told = _front_files(scene, engine, routed, decision.router_policy)
        header = (*title, "Run `docker compose -f compose-router.yaml up` once the nodes answer.")
        own = {**top, "name": f"{top['name']}-router", "services": routers}
        files["compose-router.yaml"] = manifest(header, [own | ({"configs": told} if told else {})])
    if placed is not None:
        files["routes.json"] = routes_on_nodes(envelope, placed, decision, engine)
    return files | beside


def _refuse_mpi(scene: Scene, engine: ServingEngine) -> None:
    for instance in scene.instances:
        if engine.over_mpi and len(instance.parts) > 1:
            raise instance.refuse(
                f"its ranks lie on several nodes, for which {engine.name} needs MPI over SSH between containers",
                "plan instances that fit a node, or emit for `lws` or `kubernetes`",
            )


def _front_files(scene: Scene, engine: ServingEngine, routed: Sequence[RouterGroup], policy: str | None) -> Json:
    """What servers before prefill and decode read, by name; Compose sets addresses of nodes in them."""
    if engine.front is None:
        return {}

    def host(instance: EngineInstance) -> str:
        number = scene.node(instance.head).number
        return f"{_address(number, len(scene.nodes))}:{API_PORT + instance.head.slot}"

    return {
        f"front-{group.index}": {"content": manifest((), [engine.front(group, policy, host)])}
        for group in routed
        if group.prefill
    }


def _start_in_turn(services: dict[str, Json], placed: PlaceDecision) -> None:
    """Engines that share GPUs start one after the other: each measures what is left of the memory."""
    before: dict[str, str] = {}
    for host in placed.hosts:
        name = f"{label_of(engine_name(host.group, host.model), 40)}-0"
        if name in services:
            if host.group in before:
                services[name]["depends_on"] = {before[host.group]: {"condition": "service_healthy"}}
            before[host.group] = name


def _addresses(scene: Scene) -> list[str]:
    if len(scene.nodes) == 1:
        return []
    return ["Set NODE_00, NODE_01, ... to the numeric addresses of the nodes, in the environment or in a file .env."]


def _refuse_other_devices(scene: Scene) -> None:
    from planner.hardware.library import find_node

    for pool in scene.cluster.problem.cluster.pools:
        vendor = find_node(pool.gpu).accelerator.vendor
        if vendor != "nvidia":
            raise PlannerError(
                f"Docker Compose reserves GPUs of NVIDIA by their numbers, not those of `{vendor}`",
                where="inputs.cluster.pools",
                hint="emit launch scripts, or for `kubernetes`",
            )


def _service_name(instance: EngineInstance, index: int) -> str:
    name = f"{label_of(instance.role.name, 40)}-{instance.replica}"
    return name if len(instance.parts) == 1 else f"{name}-node-{index}"


def _service(
    scene: Scene, engine: ServingEngine, instance: EngineInstance, index: int, options: ClusterOptions
) -> Json:
    command, part = engine.launch(scene, instance, index), instance.parts[index]
    device = {"driver": "nvidia", "device_ids": [str(gpu) for gpu in part.gpus], "capabilities": ["gpu"]}
    own = {name: _expanded(scene, each) for name, each in command.settings if name != "CUDA_VISIBLE_DEVICES"}
    mounts = [f"./{name}:{FOLDER}/{name}:ro" for name in files_of(scene, engine, instance)]
    cache = [f"models:{CACHE}"] if options.model_cache is not None else []
    return {
        "image": options.image or image_of(engine),
        **_run(scene, command),
        **({"working_dir": FOLDER} if mounts else {}),
        "network_mode": "host",
        "ipc": "host",
        "environment": {"HF_TOKEN": None, **({"HF_HOME": CACHE} if cache else {}), **own},
        **({"volumes": [*mounts, *cache]} if mounts or cache else {}),
        **(_health(API_PORT + part.slot) if index == 0 else {}),
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }


def _run(scene: Scene, command: Command) -> Json:
    return {
        "entrypoint": [_expanded(scene, each) for each in command.program],
        "command": [_expanded(scene, each) for each in command.arguments],
    }


def _health(port: int) -> Json:
    program = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/health')"
    test = ["CMD", "python3", "-c", program]
    return {"healthcheck": {"test": test, "interval": "30s", "timeout": "10s", "retries": 4, "start_period": _STARTS}}


def _router(scene: Scene, group: RouterGroup, command: Command, options: ClusterOptions, engine: ServingEngine) -> Json:
    told = {"source": f"front-{group.index}", "target": f"{FOLDER}/{FRONT_FILE}"}
    reads: Json = {} if engine.front is None else {"working_dir": FOLDER, "configs": [told]}
    return {"image": router_image_of(engine, options), **_run(scene, command), **reads, "network_mode": "host"}


def _expanded(scene: Scene, each: Word) -> str:
    """A word in which Compose sets addresses of nodes, and nothing else."""
    known = {node.variable: _address(node.number, len(scene.nodes)) for node in scene.nodes.values()}
    return "".join(part.replace("$", "$$") if isinstance(part, str) else known[part.name] for part in each.parts)


def _address(number: str, num_nodes: int) -> str:
    if num_nodes == 1:
        return f"${{NODE_{number}:-127.0.0.1}}"
    return f"${{NODE_{number}:?set NODE_{number} to the numeric address of node {number}}}"


TARGETS = (
    EmitTarget(
        _NAME, "a Compose file for each node, and one for the routers", ("serve", "place"), _files, _files, _files
    ),
)
