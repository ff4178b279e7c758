"""Emits the services of a day for NVIDIA Dynamo: a graph a service, and the configuration of its Planner by phase.

Fields are those of `PlannerConfig` (ai-dynamo/dynamo, components/src/dynamo/planner/config/planner_config.py): limits
in milliseconds, GPUs that the Planner may use at the most (`max_gpu_budget`, those of the service in the phase), GPUs
of an engine. The Planner reads its file as it starts.
"""

from collections.abc import Sequence

from planner.emit.documents import commented, manifest, plan_title
from planner.emit.fleet.beside import beside_files
from planner.emit.fleet.day import EmittedDay, Phase, cron, job_files, read_day
from planner.emit.options import ClusterOptions
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem

INTERVAL_S = 180  # between two decisions of the Planner by throughput


def files(
    envelope: Envelope, decision: Decision, layouts: Sequence[LayoutPlan] = (), options: ClusterOptions | None = None
) -> dict[str, str]:
    """Configurations of every service and phase, a table for cron that puts them in place, and the jobs' files."""
    if layouts:
        raise PlannerError("a day takes no expert layouts", where="--experts", hint="leave them out")
    day, title = read_day(envelope, decision), plan_title(envelope)
    if not any(day.of_service(job) for job in day.services):
        what = "no job of the day is a service with a plan"
        raise PlannerError(what, where="decision.plans", hint="emit for `fleet-kueue`, `fleet-slurm` or `fleet-ray`")
    made, lines = {}, []
    for phase in day.phases:
        for job in day.services:
            for pool, plan in day.of_service(job).items():
                name = f"planner/{phase.label}-{plan.name}.yaml"
                made[name] = manifest([title], [_configuration(day, job, pool, plan, phase)])
                lines.append(f"{cron(phase.start_s)} {_put(plan.name, name)}\n")
    table = {"crontab": commented([title]) + "".join(lines)}
    own = dict(job_files(day, service="dynamo", options=options))
    return made | table | beside_files(envelope, decision) | own


def _put(service: str, name: str) -> str:
    """Puts a configuration in place and starts the Planner of a service anew."""
    made = f"kubectl create configmap planner-config-{service} --from-file=config.yaml={name} --dry-run=client -o yaml"
    return f"{made} | kubectl apply -f - && kubectl rollout restart deployment/{service}-planner"


def _configuration(day: EmittedDay, job: str, pool: str, plan: Envelope, phase: Phase) -> dict[str, object]:
    """Of a service in a phase: what it may use, and its limits where they can be told to the Planner."""
    roles = plan.roles
    engine = roles[0].engine
    nodes = phase.pools[job].get(pool, 0)
    copies = nodes // day.unit_nodes[job]
    apart = any(role.function == "prefill" for role in roles)
    sizes = {role.function: role.parallelism.devices for role in roles}
    made: dict[str, object] = {
        "environment": "kubernetes",
        "backend": "vllm" if engine is None else engine.name,
        "mode": "disagg" if apart else "agg",
        "max_gpu_budget": nodes * day.gpus_per_node[pool],
        "min_endpoint": max(copies * min(role.replicas for role in roles), 1),
        "throughput_adjustment_interval": INTERVAL_S,
    }
    if apart:
        made["prefill_engine_num_gpu"] = sizes["prefill"]
    made["decode_engine_num_gpu"] = sizes.get("decode", roles[0].parallelism.devices)
    limits = _limits_ms(plan)
    return made | {"optimization_target": "sla" if limits else "throughput", **limits}


def _limits_ms(plan: Envelope) -> dict[str, object]:
    """The tightest limits of the workload on TTFT and on time between tokens, in milliseconds; none unless on both."""
    problem = recorded_problem(plan.inputs)
    if problem is None or len(problem.workloads) != 1:
        return {}
    slo = problem.workloads[0].slo
    stated = {"ttft": slo.ttft, "itl": slo.tpot}
    least = {name: min(each.statistics().values()) * 1e3 for name, each in stated.items() if each is not None}
    return dict(least) if len(least) == len(stated) else {}


TARGETS = (
    EmitTarget(
        "fleet-dynamo",
        "the services of a day as Dynamo graphs, with a configuration of its Planner for every change",
        ("fleet",),
        files,
        emit_on=files,
    ),
)
