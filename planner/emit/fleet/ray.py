"""Emits a day for Ray: bounds of the autoscaler's worker group of every job, changed by the clock, and the jobs' files.

Each job has a RayCluster (ray.io/v1, KubeRay) called after it, with a worker group a pool, in the order of the
problem, that has a worker a node.
"""

from planner.emit.documents import commented, plan_title
from planner.emit.fleet.beside import beside_files
from planner.emit.fleet.day import cron, job_files, pool_names, read_day
from planner.emit.registry import EmitTarget
from planner.plan.schema import Decision, Envelope


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """A JSON patch for every job and change, a table for cron that applies them, and the jobs' files."""
    import json

    day, title = read_day(envelope, decision), plan_title(envelope)
    made, lines = {}, []
    pools = pool_names(envelope) if len(day.gpus_per_node) > 1 else [*day.gpus_per_node]
    for phase in day.phases:
        for job in day.jobs:
            name = f"bounds/{phase.label}-{job}.json"
            patch = [each for index, pool in enumerate(pools) for each in _patch(index, phase.pools[job].get(pool, 0))]
            made[name] = json.dumps(patch, indent=1) + "\n"
            lines.append(f"{cron(phase.start_s)} kubectl patch raycluster {job} --type=json --patch-file {name}\n")
    told = {"crontab": commented([title]) + "".join(lines)}
    return made | told | beside_files(envelope, decision) | dict(job_files(day))


def _patch(group: int, nodes: int) -> list[dict[str, object]]:
    """As many workers as the job has nodes, no more and no fewer."""
    bounds = {"minReplicas": nodes, "maxReplicas": nodes, "replicas": nodes}
    return [
        {"op": "replace", "path": f"/spec/workerGroupSpecs/{group}/{name}", "value": value}
        for name, value in bounds.items()
    ]


TARGETS = (
    EmitTarget("fleet-ray", "a day as bounds of Ray's autoscaler by the clock, and the jobs' files", ("fleet",), files),
)
