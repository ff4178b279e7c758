"""What emission reads off a plan of a day: jobs, their nodes and GPUs by phase, their own plans."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.documents.units import clock as to_the_minute
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError, errors_at
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope

LONGEST = 40  # characters of a name that others are made of


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the day, and the nodes of every job in it, all together and by pool."""

    start_s: float
    end_s: float
    nodes: dict[str, int]
    pools: dict[str, dict[str, int]]

    @property
    def label(self) -> str:
        """`06-30`."""
        return clock(self.start_s).replace(":", "-")


@dataclass(frozen=True, slots=True)
class EmittedDay:
    """A plan of a day as its artifacts need it."""

    name: str
    gpus_per_node: dict[str, int]  # by pool
    jobs: tuple[str, ...]
    services: tuple[str, ...]  # jobs with a load
    phases: tuple[Phase, ...]
    plans: dict[str, Envelope]  # by the name of their folder, `chat-1`
    unit_nodes: dict[str, int]  # of a copy of a service

    def most(self, job: str, pool: str | None = None) -> int:
        """The most nodes that a job has in the day, of a pool where one is given."""
        return max(phase.nodes[job] if pool is None else phase.pools[job].get(pool, 0) for phase in self.phases)

    def of_service(self, job: str) -> dict[str, Envelope]:
        """The plans of a copy of a service by the pool that it runs on."""
        own = {name: plan for name, plan in self.plans.items() if plan.name == name and name.startswith(f"{job}-")}
        return {str(_role(plan)["pool"]): plan for name, plan in own.items() if _of_job(name, job, _role(plan)["pool"])}


def _role(plan: Envelope) -> dict[str, Any]:
    roles: Any = plan.decision["roles"]
    return dict(roles[0])


def _of_job(name: str, job: str, pool: str) -> bool:
    """Whether a plan of so many nodes, perhaps of a pool, is the job's."""
    return re.fullmatch(rf"{re.escape(job)}(-{re.escape(pool)})?-\d+", name) is not None


def read_day(envelope: Envelope, decision: Decision) -> EmittedDay:
    """The day of a plan."""
    data: dict[str, Any] = decision.model_dump(mode="json")
    options: Any = envelope.inputs["options"]
    sizes = {role.pool: role.parallelism.devices for role in decision.roles}
    if not sizes:
        raise PlannerError("no job has a node in any window", where="decision.windows", hint="solve another day")
    own = options.get("jobs", ())
    return EmittedDay(
        name=label_of(envelope.name, LONGEST),
        gpus_per_node=sizes,
        jobs=tuple(data["windows"][0]["nodes"]),
        services=tuple(job["name"] for job in own if job.get("load")),
        phases=tuple(
            Phase(
                phase.start_s,
                phase.start_s + (phase.duration_s or 0.0),
                window["nodes"],
                _by_pool(window, next(iter(sizes))),
            )
            for phase, window in zip(decision.phases, data["windows"], strict=True)
        ),
        plans={_folder(each): Envelope.model_validate(each["plan"]) for each in data.get("plans", ())},
        unit_nodes={job["name"]: int(job.get("unit_nodes", 1)) for job in own},
    )


def _by_pool(window: dict[str, Any], only: str) -> dict[str, dict[str, int]]:
    """Nodes of every job by pool, also where there is one pool alone."""
    several: dict[str, dict[str, int]] = window.get("pools", {})
    nodes: dict[str, int] = window["nodes"]
    return {job: several.get(job, {}) if several else {only: count} if count else {} for job, count in nodes.items()}


def _folder(each: dict[str, Any]) -> str:
    pool = each.get("pool")
    return f"{each['job']}-{each['nodes']}" if pool is None else f"{each['job']}-{pool}-{each['nodes']}"


def job_files(
    day: EmittedDay, *, service: str | None = None, options: ClusterOptions | None = None
) -> Iterator[tuple[str, str]]:
    """The launch files of every job on every number of nodes that it has, in a folder each; options are of services."""
    from planner.emit.registry import emit

    for folder, plan in day.plans.items():
        own = find_kind(plan.kind).decision.model_validate(plan.decision)
        with errors_at(f"decision.plans.{folder}"):
            told = options if plan.kind == "serve" else None
            for name, text in emit(plan, own, _target(plan, own, service), (), told).items():
                yield f"jobs/{folder}/{name}", text


def _target(plan: Envelope, decision: Decision, service: str | None) -> str:
    """That of the files of a job: of a service the one given, or its engine's own."""
    if plan.kind == "train":
        return "megatron-lm"
    if plan.kind == "rl":
        return "verl"
    if service is not None:
        return service
    engine = decision.roles[0].engine
    if engine is None or engine.name not in SERVING_ENGINES:
        raise PlannerError("a service without an engine", where="decision.roles", hint="solve again")
    return SERVING_ENGINES[engine.name].target


def pool_names(envelope: Envelope) -> list[str]:
    """The pools of the problem, in its order."""
    cluster: Any = envelope.inputs["cluster"]
    return [pool.get("name") or pool["gpu"] for pool in cluster["pools"]]


def clock(seconds: float) -> str:
    """`06:30`, the end of a day as the beginning of the next."""
    return to_the_minute(60.0 * (round(seconds / 60.0) % (24 * 60)))


def cron(seconds: float) -> str:
    """The minute of every day at which a phase begins, as cron has it."""
    minutes = round(seconds / 60.0)
    return f"{minutes % 60} {minutes // 60 % 24} * * *"
