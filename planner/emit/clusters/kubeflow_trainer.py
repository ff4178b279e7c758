"""Emits training and RL plans as a TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1).

Its runtime `torch-distributed` starts equal nodes, their job and container called `node`, and tells each its number
and the first one's address in variables of torchrun; what that runtime lacks (volumes, where pods may run) is patched.
"""

from collections.abc import Sequence

from planner.emit.clusters.jobs import (
    ClusterJob,
    beside,
    command,
    mounts,
    read_cluster_job,
    settings,
    volumes,
)
from planner.emit.clusters.pods import Json, devices, metadata, where
from planner.emit.documents import manifest
from planner.emit.options import ClusterOptions, flag
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope

_NAME, _RUNTIME, _NODE = "kubeflow-trainer", "torch-distributed", "node"
_MANAGER = "planner/emit"  # who owns the patches
_RANK = "${PET_NODE_RANK} MASTER_ADDR=${PET_MASTER_ADDR} MASTER_PORT=${PET_MASTER_PORT}"


def train_job(job: ClusterJob) -> Json:
    """The object; raises PlannerError for what a TrainJob has no place for."""
    _require_equal_nodes(job)
    (nodes,) = job.sets
    program, arguments = command(job, _RANK)
    container: Json = {"name": _NODE, "volumeMounts": mounts(job)}
    pod: Json = {"volumes": volumes(job), "containers": [container], **where(nodes.nodes, nodes.pool)}
    patch = {"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, job.name, "training"),
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            "trainer": {
                "image": job.image,
                "numNodes": nodes.count,
                "numProcPerNode": nodes.gpus,
                "command": program,
                "args": arguments,
                "env": settings(job, nodes),
                "resourcesPerNode": devices(job.options, nodes.resource, nodes.gpus),
            },
            "runtimePatches": [
                {"manager": _MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patch]}}}}
            ],
        },
    }


def _require_equal_nodes(job: ClusterJob) -> None:
    if len(job.sets) > 1:
        raise PlannerError(
            f"the nodes of a TrainJob are equal, and the plan takes nodes of {len(job.sets)} kinds",
            where="decision.placement",
            hint="emit for `jobset`",
        )
    if job.options.gpus == "claims":
        raise PlannerError(
            "a TrainJob patches no claims into the pods of its runtime",
            where=flag("gpus"),
            hint="write `counts`, or emit for `jobset`",
        )


def _files(
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan] = (),
    options: ClusterOptions | None = None,
) -> dict[str, str]:
    job = read_cluster_job(envelope, decision, options or ClusterOptions(), _NAME)
    own = train_job(job)
    header = (*job.header, "Start it with `kubectl apply -f plan.yaml`.")
    return {"plan.yaml": manifest(header, [*beside(job), own])}


TARGETS = (
    EmitTarget(
        _NAME, "a TrainJob of Kubeflow Trainer that runs a launcher's script", ("train", "rl"), _files, emit_on=_files
    ),
)
