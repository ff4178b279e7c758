"""An RL plan as launchers see it: rollout and training nodes, batch sizes and sequence lengths."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from planner.emit.documents import plan_title
from planner.emit.refusals import raise_first
from planner.emit.registry import EmitTarget
from planner.emit.shell import Flag, continued, preamble, refuse_unprintable, required, word
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision, RlOptions
from planner.kinds.rl.names import BETWEEN_TURNS
from planner.plan.schema import Decision, Envelope, Parallelism, Role
from planner.problem.lengths import end_of_samples
from planner.problem.recorded import recorded_options, recorded_problem
from planner.problem.schema import Problem


@dataclass(frozen=True, slots=True)
class RoleNodes:
    """GPUs of a role as equal parts of equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class RlJob:
    """One job; `generating` and `training` are the same GPUs where the plan is colocated."""

    envelope: Envelope
    decision: RlDecision
    options: RlOptions
    problem: Problem
    rollout: Role
    actor: Role
    generating: RoleNodes
    training: RoleNodes
    prompt_tokens: int
    response_tokens: int

    @property
    def colocated(self) -> bool:
        return self.decision.arrangement == "colocated"

    @property
    def shape(self) -> Parallelism:
        return self.actor.parallelism

    def in_host_memory(self, role: Role) -> bool:
        """Whether the weights of a role leave the devices between its turns, where training has GPUs of its own."""
        return not self.colocated and role.limits.get(BETWEEN_TURNS) == "host"

    @property
    def samples(self) -> int:
        return self.options.prompts * self.options.samples_per_prompt

    @property
    def asynchronous(self) -> bool:
        return self.decision.synchrony == "asynchronous"

    @property
    def in_flight(self) -> bool:
        """Whether generators take new weights while samples are under way."""
        return self.decision.in_flight_updates is not None

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: prompt and response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def num_nodes(self) -> int:
        return self.training.nodes + (0 if self.colocated else self.generating.nodes)

    @property
    def gpus_per_node(self) -> int:
        return max(self.training.gpus_per_node, self.generating.gpus_per_node)

    @property
    def engine(self) -> str:
        return self.rollout.engine.name if self.rollout.engine is not None else "vllm"

    @property
    def memory_share(self) -> float:
        """Share of a GPU that the engine may use."""
        return self.problem.engine.memory_utilisation

    def limit(self, role: Role, name: str, otherwise: int) -> int:
        """A whole number among a role's limits."""
        limit = role.limits.get(name, otherwise)
        return int(limit) if isinstance(limit, int | float) else otherwise

    @property
    def recomputes(self) -> bool:
        return self.actor.limits.get("recompute") == "full"

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch on one GPU, the longest sample at least: context-parallel ranks share them."""
        return -(-max(self.limit(self.actor, "micro_tokens", self.longest), self.longest) // self.shape.cp)

    def role(self, function: str) -> Role | None:
        return next((role for role in self.decision.roles if role.function == function), None)

    def model(self, role: Role) -> str:
        """The model's name or path, fit for one line of a script or document."""
        return self.model_called(role.model or next(iter(self.problem.models)))

    def model_called(self, key: str) -> str:
        """Name or path of one of the problem's models."""
        spec = self.problem.models[key]
        name = spec.name or spec.config or ""
        refuse_unprintable(name)
        return name

    @property
    def header(self) -> tuple[str, ...]:
        return (plan_title(self.envelope),)


def rl_target(
    name: str,
    purpose: str,
    files: Callable[[RlJob], dict[str, str]],
    *,
    over_samples: bool = False,
    drafts: bool = False,
) -> EmitTarget:
    """A target for RL plans; `files` gives names and texts."""

    def emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
        job = read_rl_job(envelope, decision, over_samples=over_samples)
        drafted = job.options.speculation is not None and not drafts
        hint = "use the target `nemo-rl`, or solve without `speculation`"
        raise_first((drafted, refuse(f"{name} starts generators without drafts", "roles", hint)))
        return files(job)

    return EmitTarget(name, purpose, ("rl",), emit)


def refuse(what: str, where: str, hint: str) -> PlannerError:
    """An error at a place of the decision."""
    return PlannerError(what, where=f"decision.{where}", hint=hint)


def off_the_gpus(job: RlJob, framework: str) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of roles that leave the devices between their turns, for a framework that keeps them there."""
    for role in job.decision.roles:
        yield (
            job.in_host_memory(role),
            refuse(
                f"{framework} keeps `{role.name}` on the GPUs where training has its own",
                f"roles.{role.name}.limits.{BETWEEN_TURNS}",
                "plan with `arrangements: [colocated]`, or use the target `verl`",
            ),
        )


def read_rl_job(envelope: Envelope, decision: Decision, *, over_samples: bool = False) -> RlJob:
    """The job of an RL plan; raises PlannerError for what no launcher runs, and over-sampling but where one does."""
    assert isinstance(decision, RlDecision)
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is None or options is None:
        raise PlannerError("the options are no RL job", where="inputs.options", hint="solve the problem again")
    if not problem.models:
        what = "names no model to launch: its costs are measured curves"
        raise PlannerError(what, where="inputs.models", hint="use the target `rl-plan`, or solve with `models`")
    _refuse_changes(decision)
    rollouts = [role for role in decision.roles if role.function == "rollout"]
    actors = [role for role in decision.roles if role.function == "actor"]
    raise_first(
        (
            options.over_sampling > 1 and not over_samples,
            PlannerError(
                f"{options.over_sampling:g} samples generated for each one trained on",
                where="inputs.options.over_sampling",
                hint="use the target `slime`, or solve with `over_sampling: 1`",
            ),
        ),
        (
            len(rollouts) != 1 or len(actors) != 1,
            refuse(
                f"{len(rollouts)} groups generate and {len(actors)} roles train",
                "roles",
                "solve without `tail_fractions`: launchers start equal replicas",
            ),
        ),
        (
            decision.arrangement == "hybrid",
            refuse("hybrid plans share some GPUs", "arrangement", "plan without sharing"),
        ),
    )
    prompt = end_of_samples(problem.workloads[0], "input_tokens") if problem.workloads else 1024
    response = end_of_samples(problem.workloads[0], "output_tokens") if problem.workloads else 1024
    response = min(response, options.max_output_tokens or response)
    per_node = {pool.label: pool.gpus_per_node for pool in problem.cluster.pools}
    rollout, actor = rollouts[0], actors[0]
    return RlJob(
        envelope,
        decision,
        options,
        problem,
        rollout,
        actor,
        _role_nodes(rollout, per_node.get(rollout.pool) or 8),
        _role_nodes(actor, per_node.get(actor.pool) or 8),
        prompt,
        response,
    )


def _refuse_changes(decision: RlDecision) -> None:
    """What is decided by plans and run by none of the launchers."""
    changes = (
        (decision.late_rollout, "late_rollout", "replicas that change during a rollout", "late_thresholds"),
        (decision.fused_scoring, "fused_scoring", "replicas that score while others generate", "fusion_thresholds"),
        (decision.fused_training, "fused_training", "actor and critic trained at the same time", "fused_training"),
    )
    raise_first(
        (
            decision.priority != "fifo" or decision.move_threshold is not None,
            refuse(
                "no launcher lets samples overtake or move between replicas in tool calls",
                "priority",
                "solve without `priorities` and `move_thresholds` of `tools`",
            ),
        ),
        *(
            (change is not None, refuse(f"no launcher runs {what}", field, f"solve without `{option}`"))
            for change, field, what, option in changes
        ),
    )


def _role_nodes(role: Role, per_node: int) -> RoleNodes:
    """The GPUs of a role as equal parts of nodes, as many of a node as divide them."""
    gpus = role.replicas * role.parallelism.devices
    wide = max(width for width in range(1, per_node + 1) if gpus % width == 0)
    group = min(role.parallelism.tp, per_node)
    if wide % group:
        raise PlannerError(
            f"{gpus} GPUs are no equal parts of nodes",
            where=f"roles.{role.name}",
            hint=f"use a multiple of {per_node} GPUs for `{role.name}`",
        )
    return RoleNodes(gpus // wide, wide)


def flag(name: str, value: object = None) -> Flag:
    """A flag and its value as one word; without one, a switch."""
    return name, None if value is None else word(value)


def command_script(job: RlJob, needs: dict[str, str], program: str, flags: Iterable[Flag]) -> str:
    """A bash script of one command; `needs` are variables of the environment that it asks for, and what they are."""
    rows = [program, *(f"  {name}" if value is None else f"  {name} {value}" for name, value in flags)]
    return "\n".join([*preamble(job.header), "", *required(needs), "", *continued(rows)]) + "\n"


def folder_script(job: RlJob, needs: dict[str, str], *rows: str) -> str:
    """A bash script whose `rows` know the folder that it lies in as `here`."""
    here = 'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'
    return "\n".join([*preamble(job.header), "", *required(needs), here, "", *rows]) + "\n"
