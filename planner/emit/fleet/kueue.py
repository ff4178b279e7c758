"""Emits a day for Kueue: a ClusterQueue a job in one cohort, a file of them for every change, and KEDA for services.

`nominalQuota` is what a job has in the phase, `borrowingLimit` what others may leave to it, and a job takes back what
is its own by `reclaimWithinCohort`. ClusterQueue, LocalQueue and ResourceFlavor are of kueue.x-k8s.io/v1beta2;
ScaledObject is of keda.sh/v1alpha1, and scales the StatefulSets of the service's own plan.
"""

from collections.abc import Iterator, Mapping, Sequence

from planner.emit.documents import commented, manifest, plan_title
from planner.emit.fleet.day import EmittedDay, Phase, clock, cron, job_files, read_day
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
    own = dict(job_files(day, containers=True, options=options))
    for job in day.services:
        scaled = [_scaled(day, job, name, each) for name, each in _sets(own, f"jobs/{job}-{day.unit_nodes[job]}/")]
        if scaled:
            made[f"scale-{job}.yaml"] = manifest([title], scaled)
    return made | own


def _sets(own: Mapping[str, str], folder: str) -> Iterator[tuple[str, int]]:
    """StatefulSets of a copy of a service, and how many replicas they have in it."""
    import yaml

    for name, text in own.items():
        for each in yaml.safe_load_all(text) if name.startswith(folder) and name.endswith(".yaml") else ():
            if each["kind"] == "StatefulSet":
                yield each["metadata"]["name"], each["spec"]["replicas"]


def _objects(day: EmittedDay) -> Iterator[dict[str, object]]:
    yield {
        "apiVersion": API,
        "kind": "ResourceFlavor",
        "metadata": {"name": day.name},
        "spec": {"nodeLabels": {"nvidia.com/gpu.present": "true"}},
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
    """What a job has in a phase, and what it may borrow: up to the most that its plans use."""
    size, nodes = day.gpus_per_node, phase.nodes[job]
    quota = {
        "name": GPU,
        "nominalQuota": nodes * size,
        "borrowingLimit": (day.most(job) - nodes) * size,
        "lendingLimit": nodes * size,
    }
    return {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{day.name}-{job}"},
        "spec": {
            "cohortName": day.name,
            "namespaceSelector": {},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": [{"name": day.name, "resources": [quota]}]}],
        },
    }


def _scaled(day: EmittedDay, job: str, name: str, each: int) -> dict[str, object]:
    """Replicas of a StatefulSet by the clock, `each` in a copy of the plan of its service."""

    def replicas(nodes: int) -> int:
        return nodes // day.unit_nodes[job] * each

    triggers = [
        {
            "type": "cron",
            "metadata": {
                "timezone": "Etc/UTC",
                "start": cron(phase.start_s),
                "end": cron(phase.end_s),
                "desiredReplicas": str(replicas(phase.nodes[job])),
            },
        }
        for phase in day.phases
        if phase.nodes[job] and len(day.phases) > 1
    ]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            "minReplicaCount": replicas(day.least(job)),
            "maxReplicaCount": max(replicas(day.most(job)), 1),
            "triggers": triggers or [_always(replicas(day.most(job)))],
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
