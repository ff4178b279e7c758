"""What emission reads off a plan of a day: jobs, their nodes and GPUs by phase, their own plans."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.errors import PlannerError, errors_at
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope

LAUNCHERS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""Targets of the files of services, by their engine."""
LONGEST = 40  # characters of a name that others are made of


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the day, and the nodes of every job in it."""

    start_s: float
    end_s: float
    nodes: dict[str, int]

    @property
    def label(self) -> str:
        """`06-30`."""
        return clock(self.start_s).replace(":", "-")


@dataclass(frozen=True, slots=True)
class EmittedDay:
    """A plan of a day as its artifacts need it."""

    name: str
    pool: str
    gpus_per_node: int
    jobs: tuple[str, ...]
    services: tuple[str, ...]  # jobs with a load
    phases: tuple[Phase, ...]
    plans: dict[tuple[str, int], Envelope]
    unit_nodes: dict[str, int]  # of a copy of a service

    def least(self, job: str) -> int:
        """The fewest nodes that a job has in the day."""
        return min(phase.nodes[job] for phase in self.phases)

    def most(self, job: str) -> int:
        """The most nodes that a job has in the day."""
        return max(phase.nodes[job] for phase in self.phases)


def read_day(envelope: Envelope, decision: Decision) -> EmittedDay:
    """The day of a plan."""
    data: dict[str, Any] = decision.model_dump(mode="json")
    options: Any = envelope.inputs["options"]
    role = decision.roles[0]
    return EmittedDay(
        name=label_of(envelope.name, LONGEST),
        pool=role.pool,
        gpus_per_node=role.parallelism.devices,
        jobs=tuple(job["name"] for job in options["jobs"]),
        services=tuple(job["name"] for job in options["jobs"] if job.get("load")),
        phases=tuple(
            Phase(phase.start_s, phase.start_s + (phase.duration_s or 0.0), window["nodes"])
            for phase, window in zip(decision.phases, data["windows"], strict=True)
        ),
        plans={(each["job"], each["nodes"]): Envelope.model_validate(each["plan"]) for each in data.get("plans", ())},
        unit_nodes={job["name"]: int(job.get("unit_nodes", 1)) for job in options["jobs"]},
    )


def job_files(day: EmittedDay, *, containers: bool, options: ClusterOptions | None = None) -> Iterator[tuple[str, str]]:
    """The launch files of every job on every number of nodes that it has, in a folder each; options are of services."""
    from planner.emit.registry import emit

    for (job, nodes), plan in day.plans.items():
        own = find_kind(plan.kind).decision.model_validate(plan.decision)
        with errors_at(f"decision.plans.{job}-{nodes}"):
            told = options if plan.kind == "serve" else None
            for name, text in emit(plan, own, _target(plan, own, containers=containers), (), told).items():
                yield f"jobs/{job}-{nodes}/{name}", text


def _target(plan: Envelope, decision: Decision, *, containers: bool) -> str:
    if plan.kind == "train":
        return "megatron-lm"
    if plan.kind == "rl":
        return "verl"
    engine = decision.roles[0].engine
    if engine is None or engine.name not in LAUNCHERS:
        raise PlannerError("a service without an engine", where="decision.roles", hint="solve again")
    return "kubernetes" if containers else LAUNCHERS[engine.name]


def clock(seconds: float) -> str:
    """`06:30`."""
    minutes = round(seconds / 60.0)
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def cron(seconds: float) -> str:
    """The minute of every day at which a phase begins, as cron has it."""
    minutes = round(seconds / 60.0)
    return f"{minutes % 60} {minutes // 60 % 24} * * *"
