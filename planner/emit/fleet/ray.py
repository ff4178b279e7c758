"""Emits a day for Ray: bounds of the autoscaler's worker group of every job, changed by the clock, and the jobs' files.

Each job has a RayCluster (ray.io/v1, KubeRay) called after it, whose first worker group has a worker a node.
"""

from planner.emit.documents import commented, plan_title
from planner.emit.fleet.day import cron, job_files, read_day
from planner.emit.registry import EmitTarget
from planner.plan.schema import Decision, Envelope


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """A JSON patch for every job and change, a table for cron that applies them, and the jobs' files."""
    import json

    day, title = read_day(envelope, decision), plan_title(envelope)
    made, lines = {}, []
    for phase in day.phases:
        for job in day.jobs:
            name = f"bounds/{phase.label}-{job}.json"
            made[name] = json.dumps(_patch(phase.nodes[job]), indent=1) + "\n"
            lines.append(f"{cron(phase.start_s)} kubectl patch raycluster {job} --type=json --patch-file {name}\n")
    return made | {"crontab": commented([title]) + "".join(lines)} | dict(job_files(day, containers=False))


def _patch(nodes: int) -> list[dict[str, object]]:
    """As many workers as the job has nodes, no more and no fewer."""
    bounds = {"minReplicas": nodes, "maxReplicas": nodes, "replicas": nodes}
    return [
        {"op": "replace", "path": f"/spec/workerGroupSpecs/0/{name}", "value": value} for name, value in bounds.items()
    ]


TARGETS = (
    EmitTarget("fleet-ray", "a day as bounds of Ray's autoscaler by the clock, and the jobs' files", ("fleet",), files),
)
