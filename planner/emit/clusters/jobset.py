"""Emits training and RL plans as a JobSet (jobset.x-k8s.io/v1alpha2): one indexed job a pool, one pod a node.

Kubernetes tells each pod of an indexed job its number; JobSet names pods, so that all find the first.
"""

from collections.abc import Sequence

from planner.emit.clusters.jobs import ClusterJob, NodeSet, beside, pod_spec, read_cluster_job
from planner.emit.clusters.pods import Json, labels, metadata
from planner.emit.documents import manifest
from planner.emit.options import ClusterOptions
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.plan.schema import Decision, Envelope

_NAME = "jobset"


def job_set(job: ClusterJob) -> Json:
    """The object."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, job.name, "training"),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [_replicated(job, nodes) for nodes in job.sets],
        },
    }


def _replicated(job: ClusterJob, nodes: NodeSet) -> Json:
    rank = "${JOB_COMPLETION_INDEX}" if nodes.first == 0 else f"$((JOB_COMPLETION_INDEX + {nodes.first}))"
    head = f"{job.name}-{job.sets[0].name}-0-0.{job.name}"
    return {
        "name": nodes.name,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": nodes.count,
                "completions": nodes.count,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {
                    "metadata": {"labels": labels(job, nodes.name)},
                    "spec": pod_spec(job, nodes, rank, head),
                },
            }
        },
    }


def _files(
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan] = (),
    options: ClusterOptions | None = None,
) -> dict[str, str]:
    job = read_cluster_job(envelope, decision, options or ClusterOptions(), _NAME)
    header = (*job.header, "Start it with `kubectl apply -f plan.yaml`.")
    return {"plan.yaml": manifest(header, [*beside(job), job_set(job)])}


TARGETS = (EmitTarget(_NAME, "a JobSet whose pods run a launcher's script", ("train", "rl"), _files, emit_on=_files),)
