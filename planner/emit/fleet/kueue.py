"""Emits a day for Kueue: a ClusterQueue a job in one cohort, a file of them for every change, and KEDA for services.

`nominalQuota` is what a job has in the phase, `borrowingLimit` what others may leave to it, and a job takes back what
is its own by `reclaimWithinCohort`. ClusterQueue, LocalQueue and ResourceFlavor are of kueue.x-k8s.io/v1beta2;
ScaledObject is of keda.sh/v1alpha1, and scales the StatefulSets of the service's own plan.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.emit.documents import commented, manifest, plan_title
from planner.emit.fleet.beside import beside_files
from planner.emit.fleet.day import LONGEST, EmittedDay, Phase, clock, cron, job_files, read_day
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope

API = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"


def files(
    envelope: Envelope, decision: Decision, layouts: Sequence[LayoutPlan] = (), options: ClusterOptions | None = None
) -> dict[str, str]:
    """Queues as the day begins, one file of them for every change with its cron table, scaled services, and jobs."""
    if layouts:
        raise PlannerError("a day takes no expert layouts", where="--experts", hint="leave them out")
    day, title = read_day(envelope, decision), plan_title(envelope)
    made = {"queues.yaml": manifest([title, "As the day begins."], _objects(day))}
    for phase in day.phases:
        made[f"changes/{phase.label}.yaml"] = manifest(
            [title, f"From {clock(phase.start_s)} on: kubectl apply --server-side -f."],
            (_queue(day, job, phase) for job in day.jobs),
        )
    made["crontab"] = commented([title]) + "".join(
        f"{cron(phase.start_s)} kubectl apply --server-side -f changes/{phase.label}.yaml\n" for phase in day.phases
    )
    own = dict(job_files(day, service="kubernetes", options=options))
    for job in day.services:
        scaled = [
            _scaled(day, job, pool, name, each)
            for pool, plan in day.of_service(job).items()
            for name, each in _sets(own, f"jobs/{plan.name}/")
        ]
        if scaled:
            made[f"scale-{job}.yaml"] = manifest([title], scaled)
    return made | beside_files(envelope, decision) | own


def _sets(own: Mapping[str, str], folder: str) -> Iterator[tuple[str, int]]:
    """StatefulSets of a copy of a service, and how many replicas they have in it."""
    import yaml

    for name, text in own.items():
        for each in yaml.safe_load_all(text) if name.startswith(folder) and name.endswith(".yaml") else ():
            if each["kind"] == "StatefulSet":
                yield each["metadata"]["name"], each["spec"]["replicas"]


def _objects(day: EmittedDay) -> Iterator[dict[str, object]]:
    for pool in day.gpus_per_node:
        labels = {"nvidia.com/gpu.present": "true"} if len(day.gpus_per_node) == 1 else {"planner/pool": pool}
        yield {
            "apiVersion": API,
            "kind": "ResourceFlavor",
            "metadata": {"name": _flavor(day, pool)},
            "spec": {"nodeLabels": labels},
        }
    for job in day.jobs:
        yield _queue(day, job, day.phases[0])
        yield {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": job, "namespace": "default"},
            "spec": {"clusterQueue": f"{day.name}-{job}"},
        }


def _queue(day: EmittedDay, job: str, phase: Phase) -> dict[str, object]:
    """What a job has in a phase of every pool, and what it may borrow: up to the most that its plans use."""
    flavors: list[dict[str, object]] = []
    for pool, size in day.gpus_per_node.items():
        nodes = phase.pools[job].get(pool, 0)
        quota = {
            "name": GPU,
            "nominalQuota": nodes * size,
            "borrowingLimit": (day.most(job, pool) - nodes) * size,
            "lendingLimit": nodes * size,
        }
        flavors.append({"name": _flavor(day, pool), "resources": [quota]})
    return {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{day.name}-{job}"},
        "spec": {
            "cohortName": day.name,
            "namespaceSelector": {},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
        },
    }


def _flavor(day: EmittedDay, pool: str) -> str:
    """The day's name, with that of the pool where there are several."""
    return day.name if len(day.gpus_per_node) == 1 else f"{day.name}-{label_of(pool, LONGEST)}"


def _scaled(day: EmittedDay, job: str, pool: str, name: str, each: int) -> dict[str, object]:
    """Replicas of a StatefulSet on a pool by the clock, `each` in a copy of the plan of its service."""
    nodes_of = {phase.label: phase.pools[job].get(pool, 0) for phase in day.phases}

    def replicas(nodes: int) -> int:
        return nodes // day.unit_nodes[job] * each

    triggers = [
        {
            "type": "cron",
            "metadata": {
                "timezone": "Etc/UTC",
                "start": cron(phase.start_s),
                "end": cron(phase.end_s),
                "desiredReplicas": str(replicas(nodes_of[phase.label])),
            },
        }
        for phase in day.phases
        if nodes_of[phase.label] and len(day.phases) > 1
    ]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            "minReplicaCount": replicas(min(nodes_of.values())),
            "maxReplicaCount": max(replicas(max(nodes_of.values())), 1),
            "triggers": triggers or [_always(replicas(max(nodes_of.values())))],
        },
    }


def _always(replicas: int) -> dict[str, object]:
    """The trigger of a service that never changes."""
    times = {"start": "0 0 * * *", "end": "59 23 * * *", "desiredReplicas": str(replicas)}
    return {"type": "cron", "metadata": {"timezone": "Etc/UTC", **times}}


TARGETS = (
    EmitTarget(
        "fleet-kueue",
        "a day as Kueue's ClusterQueues with a file for every change, KEDA schedules, and the jobs' files",
        ("fleet",),
        files,
        emit_on=files,
    ),
)
