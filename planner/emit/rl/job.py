"""An RL plan as launchers see it: who generates and who trains, in whole nodes, with the job's batch and lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.emit.shell import Word, comment, refuse_unprintable, word
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision, RlOptions
from planner.plan.schema import Decision, Envelope, Parallelism, Role
from planner.plan.store import plan_digest, plan_json
from planner.problem.recorded import recorded_options, recorded_problem
from planner.problem.schema import Lengths, MomentLengths, Problem, UniformLengths

ESTIMATORS = ("ppo", "grpo", "dapo", "gspo", "reinforce_pp", "rloo")


@dataclass(frozen=True, slots=True)
class Share:
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
    generating: Share
    training: Share
    prompt_tokens: int
    response_tokens: int

    @property
    def colocated(self) -> bool:
        return self.decision.arrangement == "colocated"

    @property
    def shape(self) -> Parallelism:
        return self.actor.parallelism

    @property
    def samples(self) -> int:
        return self.options.prompts * self.options.samples_per_prompt

    @property
    def engine(self) -> str:
        return self.rollout.engine.name if self.rollout.engine is not None else "vllm"

    @property
    def memory_share(self) -> float:
        """Share of a GPU that the engine may use."""
        return self.problem.engine.memory_utilisation

    def limit(self, role: Role, name: str, otherwise: int) -> int:
        """A whole number among a role's limits."""
        found = role.limits.get(name, otherwise)
        return int(found) if isinstance(found, int | float) else otherwise

    @property
    def recomputes(self) -> bool:
        return self.actor.limits.get("recompute") == "full"

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch on one GPU, the longest sample at least: context-parallel ranks share them."""
        longest = self.prompt_tokens + self.response_tokens
        return -(-max(self.limit(self.actor, "micro_tokens", longest), longest) // self.shape.cp)

    def role(self, function: str) -> Role | None:
        return next((role for role in self.decision.roles if role.function == function), None)

    def model(self, role: Role) -> str:
        """The model's name or path, fit for one line of a script or document."""
        spec = self.problem.models[role.model or next(iter(self.problem.models))]
        name = spec.name or spec.config or ""
        refuse_unprintable(name)
        return name

    @property
    def header(self) -> tuple[str, ...]:
        digest = plan_digest(plan_json(self.envelope))
        return (f'Plan "{self.envelope.name}", {digest}, by planner {self.envelope.software.planner}',)

    @property
    def comments(self) -> str:
        """The header as comment lines."""
        return "".join(f"{comment(line)}\n" for line in self.header)


def read_rl_job(envelope: Envelope, decision: Decision, *, over_samples: bool = False) -> RlJob:
    """The job of an RL plan; raises PlannerError for what no launcher runs, and over-sampling but where one does."""
    assert isinstance(decision, RlDecision)
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is None or options is None:
        raise PlannerError("the options are no RL job", where="inputs.options", hint="solve the problem again")
    _refuse_changes(decision)
    if options.over_sampling > 1 and not over_samples:
        hint = "use the target `slime`, or solve with `over_sampling: 1`"
        what = f"{options.over_sampling:g} samples generated for each one trained on"
        raise PlannerError(what, where="inputs.options.over_sampling", hint=hint)
    groups = [role for role in decision.roles if role.function == "rollout"]
    actors = [role for role in decision.roles if role.function == "actor"]
    if len(groups) != 1 or len(actors) != 1:
        hint = "solve without `tail_fractions`: launchers start equal replicas"
        what = f"{len(groups)} groups generate and {len(actors)} roles train"
        raise PlannerError(what, where="decision.roles", hint=hint)
    if decision.arrangement == "hybrid":
        raise PlannerError("hybrid plans share some GPUs", where="decision.arrangement", hint="plan without sharing")
    prompt = _longest(problem.workloads[0].input_tokens) if problem.workloads else 1024
    response = _longest(problem.workloads[0].output_tokens) if problem.workloads else 1024
    response = min(response, options.max_output_tokens or response)
    per_node = {pool.label: pool.gpus_per_node for pool in problem.cluster.pools}
    rollout, actor = groups[0], actors[0]
    return RlJob(
        envelope,
        decision,
        options,
        problem,
        rollout,
        actor,
        _share(rollout, per_node.get(rollout.pool) or 8),
        _share(actor, per_node.get(actor.pool) or 8),
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
    if decision.priority != "fifo" or decision.move_threshold is not None:
        what = "no launcher lets samples overtake or move between replicas in tool calls"
        hint = "solve without `priorities` and `move_thresholds` of `tools`"
        raise PlannerError(what, where="decision.priority", hint=hint)
    for found, field, what, option in changes:
        if found is not None:
            hint = f"solve without `{option}`"
            raise PlannerError(f"no launcher runs {what}", where=f"decision.{field}", hint=hint)


def _longest(lengths: Lengths) -> int:
    """Where the problem's lengths end."""
    match lengths:
        case int():
            return lengths
        case UniformLengths():
            return lengths.high
        case MomentLengths():
            return max(1, round(lengths.mean * (1 + 4 * lengths.cv)))
        case _:
            raise PlannerError("lengths of a trace", where="inputs.workloads", hint="give the lengths by mean and cv")


def _share(role: Role, per_node: int) -> Share:
    """The GPUs of a role as equal parts of nodes, as many of a node as divide them."""
    gpus = role.replicas * role.parallelism.devices
    wide = max(width for width in range(1, per_node + 1) if gpus % width == 0)
    group = min(role.parallelism.tp, per_node)
    if wide % group:
        hint = f"use a multiple of {per_node} GPUs for `{role.name}`"
        raise PlannerError(f"{gpus} GPUs are no equal parts of nodes", where=f"roles.{role.name}", hint=hint)
    return Share(gpus // wide, wide)


Flag = tuple[str, Word | None]


def flag(name: str, value: object = None) -> Flag:
    """A flag and its value as one word; without one, a switch."""
    return name, None if value is None else word(value)


def command_script(job: RlJob, needs: dict[str, str], program: str, flags: Sequence[Flag]) -> str:
    """A bash script of one command; `needs` are variables of the environment that it asks for, and what they are."""
    lines = ["#!/usr/bin/env bash", *(comment(line) for line in job.header), "set -euo pipefail", ""]
    lines += [f': "${{{name}:?set {name} to {what}}}"' for name, what in needs.items()]
    parts = [program, *(f"  {name}" if value is None else f"  {name} {value}" for name, value in flags)]
    return "\n".join([*lines, "", *(f"{part} \\" for part in parts[:-1]), parts[-1]]) + "\n"
