"""Training and RL plans as clusters start them: pods that stand for the nodes of a plan and run one launcher's script.

The files of a launcher's target lie in a ConfigMap. Pods count through the nodes in the order of ranks; those of a pool
are equal, and a pool follows the other. RL frameworks meet over Ray: the first pod starts its head and the script, the
others join and leave with it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.emit.clusters.launch import CACHE, FOLDER, refuse_options, resource_of
from planner.emit.clusters.pods import (
    SHARED_MEMORY,
    Json,
    claim_template,
    claimed,
    config_map,
    devices,
    environment,
    escaped,
    where,
)
from planner.emit.documents import plan_title
from planner.emit.names import label_of, require_host
from planner.emit.nodes import Cluster, NodeId, read_cluster
from planner.emit.options import ClusterOptions, flag
from planner.emit.registry import targets
from planner.emit.rl.job import read_rl_job
from planner.emit.shell import continued, preamble
from planner.emit.training.job import read_job
from planner.errors import PlannerError
from planner.plan.placement import devices as placed_devices
from planner.plan.schema import Decision, Envelope
from planner.plan.store import plan_digest, plan_json

LAUNCHERS = {"train": "megatron-lm", "rl": "verl"}
"""The target whose script runs where neither the call nor the plan names one, by kind of plan."""
TAKES = ("image", "namespace", "model_cache", "token_secret", "gpus", "launcher", "settings", "arguments")
RAY_SCRIPT, _RAY_PORT = "ray.sh", 6379
_WORK = "/work"  # the folder that scripts run in, a copy of FOLDER that they may write to
_SET_HERE = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "POD_IP")
_NEEDS = re.compile(r'"\$\{(\w+):\?set \1 to ([^}]*)\}')
_FILE_BYTES = 1 << 20  # of a ConfigMap


@dataclass(frozen=True, slots=True)
class NodeSet:
    """Equal nodes of a pool, one after the other in the order of ranks; `first` is the rank of the first."""

    name: str
    first: int
    count: int
    gpus: int
    resource: str
    pool: str | None  # to be told apart by, where the plan has several
    nodes: tuple[str, ...]  # that it was placed on; none where they have no names


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A training or RL plan for a cluster; `script` is what every pod runs, one of `files`."""

    envelope: Envelope
    name: str  # a DNS label
    launcher: str
    script: str
    files: Mapping[str, str]
    sets: tuple[NodeSet, ...]
    options: ClusterOptions

    @property
    def digest(self) -> str:
        return plan_digest(plan_json(self.envelope))

    @property
    def header(self) -> tuple[str, ...]:
        return (plan_title(self.envelope), f"Every pod is a node of the plan and runs the script of `{self.launcher}`.")

    @property
    def image(self) -> str:
        """Of the training program; raises PlannerError where none was given."""
        if self.options.image is None:
            raise PlannerError(
                f"no image that holds the program of `{self.launcher}` is known",
                where=flag("image"),
                hint=f"give `{flag('image')} NAME:TAG`",
            )
        return self.options.image


def read_cluster_job(envelope: Envelope, decision: Decision, options: ClusterOptions, target: str) -> ClusterJob:
    """The pods of a plan; raises PlannerError for what its launcher refuses, and for what its script would ask for."""
    refuse_options(target, options, TAKES)
    launcher = options.launcher or _planned_launcher(envelope, decision)
    files = _launcher_files(envelope, decision, launcher)
    script = next(name for name in files if name.endswith(".sh"))
    _require_settings(files[script], options)
    _require_arguments(files[script], launcher, options)
    cluster = read_cluster(envelope)
    sets = (
        _train_sets(envelope, decision, cluster) if envelope.kind == "train" else _rl_sets(envelope, decision, cluster)
    )
    if envelope.kind == "rl":
        files = {**files, RAY_SCRIPT: _over_ray(envelope, script, sum(each.count * each.gpus for each in sets))}
        script = RAY_SCRIPT
    if sum(len(text.encode()) for text in files.values()) >= _FILE_BYTES:
        raise PlannerError(
            f"the files of `{launcher}` are larger than the 1 MiB that a ConfigMap holds",
            where=flag("launcher"),
            hint=f"emit for `{launcher}`, and put the files into the image",
        )
    return ClusterJob(envelope, label_of(envelope.name, 24), launcher, script, files, sets, options)


def _launchers(kind: str) -> list[str]:
    """The targets that may give a script for every node of plans of this kind."""
    return [name for name, each in targets().items() if kind in each.kinds and each.emit_on is None and name != "slurm"]


def _planned_launcher(envelope: Envelope, decision: Decision) -> str:
    """The target of the engine that the plan was priced for, where it has one."""
    planned = {role.engine.name for role in decision.roles if role.engine is not None and role.function == "train"}
    named = [name for name in _launchers(envelope.kind) if name in planned]
    return named[0] if named else LAUNCHERS[envelope.kind]


def _launcher_files(envelope: Envelope, decision: Decision, launcher: str) -> dict[str, str]:
    """What the target of that name emits; raises PlannerError where nothing of it is a script for every node."""
    known = _launchers(envelope.kind)
    if launcher not in known:
        raise PlannerError(
            f"no script for every node comes of `{launcher}` for plans of kind `{envelope.kind}`",
            where=flag("launcher"),
            hint=f"those that give one are {', '.join(f'`{name}`' for name in known)}",
        )
    return targets()[launcher].emit(envelope, decision)


def _require_settings(script: str, options: ClusterOptions) -> None:
    """Raises PlannerError for variables that the script asks for and nobody gave, and for those that are set here."""
    given = {name for name, _ in options.settings or ()}
    for name, what in _NEEDS.findall(script):
        if name not in given and name not in _SET_HERE:
            raise PlannerError(
                f"the script asks for {name}: {what}",
                where=flag("settings"),
                hint=f"give `{flag('settings')} {name}=VALUE`",
            )
    for name in given & {*_SET_HERE}:
        raise PlannerError(f"{name} is set for each pod", where=flag("settings"), hint="leave it out")


def _require_arguments(script: str, launcher: str, options: ClusterOptions) -> None:
    if options.arguments and '"$@"' not in script:
        raise PlannerError(
            f"the script of `{launcher}` takes no arguments", where=flag("arguments"), hint="leave them out"
        )


def _train_sets(envelope: Envelope, decision: Decision, cluster: Cluster) -> tuple[NodeSet, ...]:
    """The nodes of a training job, pool after pool as its pipeline goes through them."""
    job = read_job(envelope, decision)
    runs = [(pool, tuple(places)) for pool, places in groupby(job.nodes, key=lambda place: place.pool)]
    return _numbered([_Nodes(pool, len(places), job.gpus_per_node, places) for pool, places in runs], cluster)


def _rl_sets(envelope: Envelope, decision: Decision, cluster: Cluster) -> tuple[NodeSet, ...]:
    """The nodes that train, and those that generate where they are others."""
    job = read_rl_job(envelope, decision, over_samples=True)
    parts = [(job.actor, job.training), *([] if job.colocated else [(job.rollout, job.generating)])]
    rows = []
    for role, size in parts:
        pool = cluster.pool(role.pool)
        blocks = [block for block in decision.placement if block.role == role.name]
        places = {cluster.place(pool, device)[0] for block in blocks for device in placed_devices(block)}
        rows.append(_Nodes(pool, size.nodes, size.gpus_per_node, tuple(sorted(places))))
    if len({(row.pool, row.gpus) for row in rows}) == 1:  # Ray shares equal nodes out by itself
        every = tuple(sorted({place for row in rows for place in row.places}))
        rows = [_Nodes(rows[0].pool, sum(row.count for row in rows), rows[0].gpus, every)]
    return _numbered(rows, cluster)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Equal nodes of the pool of that index, and where they were placed."""

    pool: int
    count: int
    gpus: int
    places: tuple[NodeId, ...]


def _numbered(rows: Sequence[_Nodes], cluster: Cluster) -> tuple[NodeSet, ...]:
    """Nodes as sets that count on from each other."""
    pools = cluster.problem.cluster.pools
    sets, first = list[NodeSet](), 0
    for row in rows:
        spec = pools[row.pool]
        names = spec.node_names or ()
        sets.append(
            NodeSet(
                name="node" if len(rows) == 1 else f"node-{len(sets)}",
                first=first,
                count=row.count,
                gpus=row.gpus,
                resource=resource_of(spec.gpu),
                pool=label_of(spec.label, 63) if len(pools) > 1 else None,
                nodes=tuple(require_host(names[place.node]) for place in row.places if place.node < len(names)),
            )
        )
        first += row.count
    return tuple(sets)


def _over_ray(envelope: Envelope, script: str, gpus: int) -> str:
    """What pods of an RL job run: the first is Ray's head and starts the script once all GPUs have joined."""
    joined = f"ray.init(address='auto', log_to_driver=False); sys.exit(ray.cluster_resources().get('GPU', 0) < {gpus})"
    head = [
        f'  ray start --head --node-ip-address "${{POD_IP}}" --port {_RAY_PORT} --num-gpus "${{NODE_GPUS}}"',
        f'  until python3 -c "import ray, sys; {joined}"; do sleep 5; done',
        "  export RAY_ADDRESS=auto",
        f'  bash {script} "$@"',
        "  ray stop",
    ]
    address = f'"${{MASTER_ADDR}}:{_RAY_PORT}"'
    worker = [
        *(f"  {row}" for row in continued([f"until ray start --address {address}", '  --num-gpus "${NODE_GPUS}"; do'])),
        "    sleep 5",
        "  done",
        f"  while ray health-check --address {address} >/dev/null 2>&1; do sleep 10; done",
    ]
    title = (plan_title(envelope), "The head ends with the script; the others end when it no longer answers.")
    return "\n".join([*preamble(title), 'if [ "${NODE_RANK}" = 0 ]; then', *head, "else", *worker, "fi"]) + "\n"


def command(job: ClusterJob, rank: str) -> tuple[list[str], list[str]]:
    """Program and arguments of a pod, escaped; `rank` is an expression of bash for the number of its node.

    What the shell runs is written here; arguments of users reach it as its own.
    """
    program = f'cp -L {FOLDER}/* . && NODE_RANK={rank} exec bash {job.script} "$@"'
    given = [job.script, *(job.options.arguments or ())]
    return ["bash", "-c", escaped(program)], [escaped(each) for each in given]


def settings(job: ClusterJob, nodes: NodeSet) -> list[Json]:
    """The environment of a pod, but for where the first one is."""
    own: list[Json] = [{"name": name, "value": escaped(value)} for name, value in job.options.settings or ()]
    return [*environment(job.options), {"name": "NODE_GPUS", "value": str(nodes.gpus)}, *own]


def mounts(job: ClusterJob) -> list[Json]:
    """Of a container that runs `command`."""
    cache: list[Json] = [] if job.options.model_cache is None else [{"name": "models", "mountPath": CACHE}]
    return [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "work", "mountPath": _WORK},
        {"name": "files", "mountPath": FOLDER, "readOnly": True},
        *cache,
    ]


def volumes(job: ClusterJob) -> list[Json]:
    """What the mounts name."""
    cache: list[Json] = []
    if job.options.model_cache is not None:
        cache = [{"name": "models", "persistentVolumeClaim": {"claimName": job.options.model_cache}}]
    files: Json = {"name": "files", "configMap": {"name": f"{job.name}-files"}}
    return [dict(SHARED_MEMORY), {"name": "work", "emptyDir": {}}, files, *cache]


def pod_spec(job: ClusterJob, nodes: NodeSet, rank: str, head: str) -> Json:
    """A whole pod, which runs once; `head` is the address of the first."""
    program, arguments = command(job, rank)
    container: Json = {
        "name": "node",
        "image": job.image,
        "workingDir": _WORK,
        "command": program,
        "args": arguments,
        "env": [*settings(job, nodes), {"name": "MASTER_ADDR", "value": head}],
        "resources": devices(job.options, nodes.resource, nodes.gpus),
        "volumeMounts": mounts(job),
    }
    claims = claimed(job.name, nodes.gpus) if job.options.gpus == "claims" else {}
    own: Json = {"restartPolicy": "Never", "containers": [container], "volumes": volumes(job)}
    return {**own, **claims, **where(nodes.nodes, nodes.pool)}


def beside(job: ClusterJob) -> list[Json]:
    """Objects that the pods name: the files, and the templates of their claims."""
    objects = [config_map(job, f"{job.name}-files", job.files)]
    if job.options.gpus == "claims":
        for nodes in {nodes.gpus: nodes for nodes in job.sets}.values():
            objects.append(claim_template(job, job.name, nodes.resource, nodes.gpus))
    return objects
