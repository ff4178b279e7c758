"""Serving plans as clusters start them: groups of equal instances, each of one or more pods, and routers before them.

Pods have addresses and devices of their own, so that every instance takes the first ports and the first GPUs, and the
replicas of a role are alike. What differs between targets is how groups are written and how a pod finds its head.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.emit.clusters.engines import engine_of, image_of, router_image_of
from planner.emit.documents import plan_title
from planner.emit.names import label_of, require_host
from planner.emit.nodes import Node, NodeId, read_cluster
from planner.emit.options import ClusterOptions, flag
from planner.emit.refusals import refuse
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.emit.serving.instances import EngineInstance, NodeRanks, read_instances
from planner.emit.serving.scene import API_PORT, FRONT_FILE, ROUTER_PORT, RouterGroup, Scene, ServingEngine
from planner.emit.serving.scripts import planned_shares, read_scene, router_command, told_files
from planner.emit.shell import Command, Variable, Word, values, word
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope, Role
from planner.plan.store import plan_digest, plan_json

OWN, HEAD = Variable("POD_IP"), Variable("HEAD_ADDRESS")
"""The address of the pod that a command runs in, and of the first pod of its instance."""
CACHE = "/models"  # where checkpoints lie that pods share
FOLDER = "/etc/planner"  # where files that commands name lie in every pod
KEYS = "/etc/planner-keys"  # where the key of a secret lies by which pods of an instance start ranks
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}  # as the vendors' device plug-ins call their GPUs
_FILE_BYTES = 1 << 20  # of a ConfigMap


@dataclass(frozen=True, slots=True)
class Pod:
    """What one pod of an instance runs, and on how many GPUs."""

    program: tuple[Word, ...]
    flags: tuple[tuple[str, tuple[Word, ...]], ...]
    settings: tuple[tuple[str, Word], ...]
    gpus: int

    @property
    def arguments(self) -> tuple[Word, ...]:
        """What the program is given, one by one."""
        return tuple(each for name, values in self.flags for each in (word(name), *values))

    def without(self, *names: str) -> "Pod":
        """The same without some flags."""
        return self.with_flags(tuple(each for each in self.flags if each[0] not in names))

    def with_port(self, port: int) -> "Pod":
        """The same that answers at another port."""
        return self.with_flags(tuple((name, (word(port),) if name == "--port" else of) for name, of in self.flags))

    def with_flags(self, flags: tuple[tuple[str, tuple[Word, ...]], ...]) -> "Pod":
        return dataclasses.replace(self, flags=flags)


@dataclass(frozen=True, slots=True)
class Shares:
    """GPUs that engines of several roles share: the name of their claim, their number, and who is to start before."""

    claim: str
    gpus: int
    after: str | None  # the name of a group; None for the first


@dataclass(frozen=True, slots=True)
class Group:
    """A role: equal instances, each of `pods`, the first of which answers requests."""

    name: str  # a DNS label
    role: Role
    model: str
    replicas: int
    pods: tuple[Pod, ...]
    resource: str  # what GPUs are called
    pool: str | None  # to be told apart by, where the plan has several
    nodes: tuple[str, ...]  # that it was placed on; none where they have no names
    files: Mapping[str, str]  # by name, what lies in FOLDER
    shares: Shares | None = None

    @property
    def across_nodes(self) -> bool:
        return len(self.pods) > 1

    def require_equal_pods(self, target: str) -> None:
        """Raises PlannerError where the pods of an instance have different numbers of GPUs."""
        sizes = sorted({pod.gpus for pod in self.pods})
        if len(sizes) > 1:
            raise self.refuse(
                f"{target} gives the pods of an instance the same GPUs, and this one takes {sizes[0]} and {sizes[-1]}",
                "place the same number of ranks on every node, or emit for `kubernetes`",
            )

    def refuse(self, what: str, hint: str) -> PlannerError:
        """An error about the role, to raise."""
        return refuse(f"role `{self.role.name}`: {what}", "roles", hint)


Address = Callable[[Group, int], str]
"""The host name of the head of a replica."""


@dataclass(frozen=True, slots=True)
class Front:
    """Where clients of a model talk to: a router before instances, or the one instance that there is."""

    name: str
    model: str
    command: Command | None
    port: int
    members: Mapping[str, tuple[Group, int]]  # by the variable of the head's address, the group and the replica
    prefill: tuple[Group, ...]
    decode: tuple[Group, ...]
    colocated: tuple[Group, ...]
    settings: "Callable[[Address], Mapping[str, object]] | None" = None  # what FRONT_FILE says, for the command

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.colocated + self.prefill + self.decode


@dataclass(frozen=True)
class Launch:
    """A serving plan for a cluster."""

    envelope: Envelope
    decision: Decision
    name: str  # a DNS label
    engine: ServingEngine
    groups: tuple[Group, ...]
    fronts: tuple[Front, ...]
    scene: Scene
    options: ClusterOptions
    notes: tuple[str, ...]
    placed: Decision | None = None  # of a placement, from which the decision was made

    @cached_property
    def digest(self) -> str:
        return plan_digest(plan_json(self.envelope))

    @property
    def header(self) -> tuple[str, ...]:
        shares = planned_shares(self.decision) if len(self.fronts) > 1 else ()
        flags = f"Flags of {self.engine.name} {self.engine.version}."
        return (plan_title(self.envelope), flags, *self.notes, *shares)

    @property
    def image(self) -> str:
        """Of the engine; raises PlannerError where none is known."""
        return self.options.image or image_of(self.engine)

    def own_image(self, holds: str) -> str:
        """The image that was given; raises PlannerError where none was, since `holds` is in no engine's own."""
        if self.options.image is None:
            raise PlannerError(
                f"no image that holds {holds} is known", where=flag("image"), hint=f"give `{flag('image')} NAME:TAG`"
            )
        return self.options.image

    @property
    def router_image(self) -> str:
        return router_image_of(self.engine, self.options)


ServingFiles = Callable[[Launch], dict[str, str]]
ReadPlacement = Callable[[Envelope, Decision, ClusterOptions, str, Sequence[str]], Launch]


def serving_target(
    name: str,
    purpose: str,
    files: ServingFiles,
    *,
    engines: Sequence[str],
    takes: Sequence[str],
    measured: "ServingFiles | None" = None,
    placements: "ReadPlacement | None" = None,
) -> EmitTarget:
    """A target for serving plans of `engines` that reads the options `takes`; `files` gives names and texts.

    `measured` gives the job that measures the plan, where one is asked for; `placements` reads plans of `kind: place`.
    """

    def launched(
        envelope: Envelope,
        decision: Decision,
        layouts: Sequence[LayoutPlan] = (),
        options: ClusterOptions | None = None,
    ) -> dict[str, str]:
        options = options or ClusterOptions()
        refuse_options(name, options, takes)
        if placements is not None and envelope.kind == "place":
            if layouts:
                raise PlannerError("placements take no expert layouts", where="--experts", hint="leave it out")
            launch = placements(envelope, decision, options, name, engines)
        else:
            launch = read_launch(envelope, decision, layouts, options, name, engines)
        _refuse_idle_options(launch)
        return files(launch) | (measured(launch) if measured is not None and options.measure is not None else {})

    kinds = ("serve",) if placements is None else ("serve", "place")
    return EmitTarget(name, purpose, kinds, launched, launched, launched)


def _refuse_idle_options(launch: Launch) -> None:
    """Raises PlannerError for what is said of a job that nobody asked for, and of pods that are not there."""
    options = launch.options
    if options.ssh_secret is not None and not any(
        launch.engine.over_mpi and group.across_nodes for group in launch.groups
    ):
        raise PlannerError(
            "no instance of the plan starts ranks on other pods over SSH", where=flag("ssh_secret"), hint="leave it out"
        )
    for name in ("measure_image", "measure_url"):
        if name in options.given and options.measure is None:
            raise PlannerError("no job measures the plan", where=flag(name), hint=f"give `{flag('measure')} NAME` too")


def refuse_options(target: str, options: ClusterOptions, takes: Sequence[str]) -> None:
    """Raises PlannerError for the first option that a target has no place for."""
    for given in options.given:
        if given not in takes:
            known = ", ".join(f"`{flag(name)}`" for name in takes)
            raise PlannerError(f"target `{target}` has no place for it", where=flag(given), hint=f"it takes {known}")


def read_launch(
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan],
    options: ClusterOptions,
    target: str,
    engines: Sequence[str],
) -> Launch:
    """The groups and routers of a plan; raises PlannerError for what no cluster starts.

    Those are engines that `target` does not run, models without a name to load them by, replicas of a role that lie
    otherwise over nodes than the first, and names of nodes that are no DNS labels.
    """
    cluster = read_cluster(envelope)
    engine = engine_of(decision, cluster.problem, target, engines)
    places = _Places()
    scene, routed = read_scene(envelope, decision, layouts, engine, places.settle)
    placed = read_instances(decision, cluster, engine.rank_order)
    name = label_of(envelope.name, 24)
    groups = {
        role.name: _group(scene, engine, name, role, places.heads, [i for i in placed if i.role is role])
        for role in decision.roles
    }
    fronts = tuple(_front(scene, engine, name, group, groups, decision) for group in routed)
    notes = [f'Experts of role "{role}" lie as in {each.says}, from the start.' for role, each in scene.experts.items()]
    notes += [engine.expert_note] if scene.experts and engine.expert_note else []
    return Launch(envelope, decision, name, engine, tuple(groups.values()), fronts, scene, options, tuple(notes))


class _Places:
    """A place of its own for every part of every instance, with all its GPUs counted from 0."""

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}  # by variable of a part's address, that of its head

    def settle(self, instances: list[EngineInstance]) -> tuple[list[EngineInstance], dict[NodeId, Node]]:
        nodes: dict[NodeId, Node] = {}
        settled = []
        for instance in instances:
            parts = []
            for part in instance.parts:
                place = NodeId(part.place.pool, len(nodes))
                nodes[place] = Node(f"{len(nodes)}", "a pod", word(""))
                parts.append(NodeRanks(place, tuple(range(len(part.gpus))), 0))
                self.heads[nodes[place].variable] = nodes[parts[0].place].variable
            settled.append(dataclasses.replace(instance, parts=tuple(parts)))
        return settled, nodes


def _group(
    scene: Scene,
    engine: ServingEngine,
    plan: str,
    role: Role,
    heads: Mapping[str, str],
    placed: Sequence[EngineInstance],
) -> Group:
    own = [instance for instance in scene.instances if instance.role is role]
    pods = [_pods(scene, engine, instance, heads) for instance in own]
    if any(other != pods[0] for other in pods):
        raise own[0].refuse(
            "its replicas lie differently over nodes, and clusters start equal ones",
            "place each replica on as many nodes as the others",
        )
    pools = scene.cluster.problem.cluster.pools
    spec = pools[placed[0].head.place.pool]
    places = sorted({part.place for instance in placed for part in instance.parts})
    names = spec.node_names or ()
    files = files_of(scene, engine, own[0])
    if sum(len(text.encode()) for text in files.values()) >= _FILE_BYTES:
        raise own[0].refuse("its files are larger than the 1 MiB that a ConfigMap holds", "take a smaller layout")
    return Group(
        name=f"{plan}-{label_of(role.name, 20)}",
        role=role,
        model=scene.model_name(own[0]),
        replicas=len(own),
        pods=pods[0],
        resource=resource_of(spec.gpu),
        pool=label_of(spec.label, 63) if len(pools) > 1 else None,
        nodes=tuple(require_host(names[place.node]) for place in places) if names else (),
        files=files,
    )


def files_of(
    scene: Scene, engine: ServingEngine, instance: EngineInstance, header: Sequence[str] = ()
) -> dict[str, str]:
    """By name, the files that the commands of an instance read: its settings, and the layout of its experts."""
    experts = scene.experts.get(instance.role.name)
    layout = {} if experts is None else {experts.file: experts.text}
    return told_files(engine, scene, instance, header) | layout


def resource_of(gpu: str) -> str:
    """What Kubernetes calls the GPUs of a catalog name; raises PlannerError for vendors that it is not known of."""
    from planner.hardware.library import find_node

    vendor = find_node(gpu).accelerator.vendor
    if vendor not in _RESOURCES:
        raise PlannerError(
            f"no cluster resource is known for GPUs of `{vendor or gpu}`",
            where="inputs.cluster.pools",
            hint=f"the vendors known are {', '.join(_RESOURCES)}",
        )
    return _RESOURCES[vendor]


def _pods(scene: Scene, engine: ServingEngine, instance: EngineInstance, heads: Mapping[str, str]) -> tuple[Pod, ...]:
    pods = []
    for index, part in enumerate(instance.parts):
        command = engine.launch(scene, instance, index)
        own = scene.node(part).variable
        local = {heads[own]: HEAD, own: OWN}  # the head is its own
        pods.append(
            Pod(
                program=tuple(_moved(each, local) for each in command.program),
                flags=tuple(
                    (name, tuple(_moved(each, local) for each in values(value))) for name, value in command.flags
                ),
                settings=tuple((name, _moved(each, local)) for name, each in command.settings if name not in _DEVICES),
                gpus=len(part.gpus),
            )
        )
    return tuple(pods)


_DEVICES = ("CUDA_VISIBLE_DEVICES",)  # of a pod, all that it is given


def _moved(each: Word, variables: Mapping[str, Variable]) -> Word:
    """The word with its variables called otherwise."""
    return Word(tuple(part if isinstance(part, str) else variables[part.name] for part in each.parts))


def _front(
    scene: Scene,
    engine: ServingEngine,
    plan: str,
    routed: RouterGroup,
    groups: Mapping[str, Group],
    decision: Decision,
) -> Front:
    def of(instances: Sequence[EngineInstance]) -> tuple[Group, ...]:
        return tuple(groups[name] for name in dict.fromkeys(instance.role.name for instance in instances))

    command = front_command(scene, engine, routed, decision.router_policy) if routed.needs_router else None
    members = {
        scene.node(instance.head).variable: (groups[instance.role.name], instance.replica)
        for instance in routed.instances
    }
    return Front(
        name=f"{plan}-front-{routed.index}",
        model=routed.model,
        command=command,
        port=ROUTER_PORT + routed.index,
        members=members,
        prefill=of(routed.prefill),
        decode=of(routed.decode),
        colocated=of(routed.colocated),
        settings=_front_settings(engine, groups, routed, decision.router_policy),
    )


def front_command(scene: Scene, engine: ServingEngine, routed: RouterGroup, policy: str | None) -> Command | None:
    """What starts the router; None where an engine's own server stands before prefill and decode alone."""
    if engine.front is None:
        return router_command(scene, engine, routed, policy)
    if not routed.prefill:
        return None
    return Command(routed.title, engine.router, (("-c", word(FRONT_FILE)),))


def _front_settings(
    engine: ServingEngine, groups: Mapping[str, Group], routed: RouterGroup, policy: str | None
) -> "Callable[[Address], Mapping[str, object]] | None":
    front = engine.front
    if front is None or not routed.prefill:
        return None

    def settings(address: Address) -> Mapping[str, object]:
        def host(instance: EngineInstance) -> str:
            return f"{address(groups[instance.role.name], instance.replica)}:{API_PORT}"

        return front(routed, policy, host)

    return settings
