"""An RL plan as launchers see it: rollout and training nodes, batch sizes and sequence lengths."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.emit.documents import plan_title
from planner.emit.refusals import raise_first, refuse
from planner.emit.registry import EmitTarget
from planner.emit.rl.nodes import RoleNodes, node_gpus, role_nodes
from planner.emit.serving.checkpoints import loaded_name
from planner.emit.serving.sglang import mem_fraction_static
from planner.emit.shell import Flag, continued, preamble, refuse_unprintable, required, word
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.names import BATCH_SAMPLES, BETWEEN_TURNS, END_STAGES, PRECISION, WEIGHTS, stands_apart
from planner.kinds.rl.options import RewardCalls, RlOptions
from planner.models.architecture import MoeFfn
from planner.plan.schema import Decision, Envelope, Parallelism, Role
from planner.problem.lengths import end_of_samples
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.problem.schema import Problem


@dataclass(frozen=True, slots=True)
class RlJob:
    """One job; `generating` and `training` are the same GPUs where the plan is colocated."""

    envelope: Envelope
    decision: RlDecision
    options: RlOptions
    problem: Problem
    rollout: Role
    actor: Role
    parts: dict[str, RoleNodes]
    prompt_tokens: int
    response_tokens: int

    @property
    def generating(self) -> RoleNodes:
        return self.parts[self.rollout.name]

    @property
    def training(self) -> RoleNodes:
        return self.parts[self.actor.name]

    @property
    def roles_apart(self) -> tuple[Role, ...]:
        """Every role with GPUs of its own: training, generation where it shares none, what is served, a critic."""
        others = [role for role in self.decision.roles if stands_apart(role)]
        return (self.actor, *(() if self.colocated else (self.rollout,)), *others)

    @property
    def apart(self) -> tuple[RoleNodes, ...]:
        """GPUs of every role with its own."""
        return tuple(map(self.nodes_of, self.roles_apart))

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
        return self.decision.synchrony in ("asynchronous", "one_step")

    @property
    def in_flight(self) -> bool:
        """Whether generators take new weights while samples are under way."""
        return self.decision.in_flight_updates is not None

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: prompt and response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def sparse(self) -> bool:
        """Whether the actor is a mixture of experts, as far as the catalog says."""
        arch = recorded_model(self.problem, self.actor.model)
        return arch is not None and any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.apart)

    @property
    def num_nodes(self) -> int:
        """Nodes that all GPUs of the job fill, those of each pool apart."""
        gpus: Counter[str] = Counter()
        for role in self.roles_apart:
            gpus[role.pool] += self.nodes_of(role).gpus
        return sum(-(-taken // node_gpus(self.problem, pool)) for pool, taken in gpus.items())

    @property
    def node_gpus(self) -> int:
        """GPUs of the largest node that trains or generates."""
        return max(node_gpus(self.problem, role.pool) for role in (self.actor, self.rollout))

    @property
    def engine(self) -> str:
        return self.rollout.engine.name if self.rollout.engine is not None else "vllm"

    def memory_share(self, role: Role) -> float:
        """What the engine of a role is told of a GPU's memory: all that it may use, or SGLang's weights and caches."""
        share = self.problem.engine.memory_utilisation
        return mem_fraction_static(share, role.memory) if self.engine == "sglang" else share

    def limit(self, role: Role, name: str, otherwise: int) -> int:
        """A whole number among a role's limits."""
        limit = role.limits.get(name, otherwise)
        return int(limit) if isinstance(limit, int | float) else otherwise

    def recomputes(self, role: Role) -> bool:
        """Whether the backward pass of a model that is trained computes everything again."""
        return role.limits.get("recompute") == "full"

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch, of all context-parallel ranks."""
        return self.limit(self.actor, "micro_tokens", self.longest)

    @property
    def rank_tokens(self) -> int:
        """Those of one context-parallel rank."""
        return -(-self.micro_tokens // self.shape.cp)

    @property
    def max_batch(self) -> int:
        """Samples that a generating replica has under way at once, at most."""
        return self.limit(self.rollout, "max_batch", 256)

    def end_stages(self, role: Role) -> tuple[int, int] | None:
        """Layers of the first and the last pipeline stage of a model that is trained; None where all have as many."""
        first, last = (self.limit(role, name, 0) for name in END_STAGES)
        return (first, last) if first else None

    def role(self, function: str) -> Role | None:
        return next((role for role in self.decision.roles if role.function == function), None)

    def beside(self, function: str) -> Role | None:
        """The role where it shares the training GPUs."""
        role = self.role(function)
        return role if role is not None and not stands_apart(role) else None

    def served(self, function: str) -> Role | None:
        """The role where it has engines of its own."""
        role = self.role(function)
        return role if role is not None and BATCH_SAMPLES in role.limits else None

    def nodes_of(self, role: Role) -> RoleNodes:
        """The GPUs of a role that generates, trains or is served, as parts of the nodes of its pool."""
        return self.parts[role.name]

    @property
    def precision(self) -> str:
        """The format in which training computes."""
        return str(self.actor.limits.get(PRECISION, "bf16"))

    @property
    def rollout_weights(self) -> str:
        """The weight format of the generators, `bf16` where it is the model's own."""
        return str(self.rollout.limits.get(WEIGHTS, "bf16"))

    @property
    def sleeps_on_host(self) -> bool:
        """Whether engines that sleep keep their weights in host memory."""
        return self.decision.turns is not None and self.decision.turns.engine_weights == "host"

    @property
    def calls(self) -> RewardCalls | None:
        """Rewards that CPUs find."""
        return self.options.reward_calls

    def model(self, role: Role) -> str:
        """The model's name or path, fit for one line of a script or document."""
        return self.model_called(role.model or next(iter(self.problem.models)))

    def model_called(self, key: str) -> str:
        """Name or path of one of the problem's models."""
        name = loaded_name(self.problem.models[key])
        refuse_unprintable(name)
        return name

    @property
    def header(self) -> tuple[str, ...]:
        return (plan_title(self.envelope),)


def rl_target(name: str, purpose: str, files: Callable[[RlJob], dict[str, str]]) -> EmitTarget:
    """A target for RL plans; `files` gives names and texts."""
    launcher = RL_LAUNCHERS[name]

    def emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
        job = read_rl_job(envelope, decision, over_samples=launcher.over_samples)
        drafted = job.options.speculation is not None and not launcher.drafts
        hint = "use the target `nemo-rl`, or solve without `speculation`"
        algorithm, spread = job.options.algorithm, job.rollout.parallelism.ep > 1
        able = " or ".join(f"`{each.name}`" for each in RL_LAUNCHERS.values() if algorithm in each.algorithms)
        raise_first(
            (drafted, refuse(f"{name} starts generators without drafts", "roles", hint)),
            (
                algorithm not in launcher.algorithms,
                refuse(
                    f"{launcher.title} has no `{algorithm}`",
                    "algorithm",
                    f"use the target {able}" if able else "solve with an algorithm that trains",
                ),
            ),
            (
                spread and job.engine in launcher.whole_experts,
                refuse(
                    f"{launcher.title} does not tell {job.engine} to spread experts over its ranks",
                    "roles",
                    f"solve with `launcher: {name}`",
                ),
            ),
        )
        return files(job)

    return EmitTarget(name, purpose, ("rl",), emit)


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
    rollout, actor = rollouts[0], actors[0]
    prompt = end_of_samples(problem.workloads[0], "input_tokens")
    longest = int(rollout.limits.get("max_context_tokens", prompt))
    job = RlJob(
        envelope,
        decision,
        options,
        problem,
        rollout,
        actor,
        role_nodes(problem, decision.roles, colocated=decision.arrangement == "colocated"),
        prompt,
        longest - prompt,
    )
    _require_longest(job)
    return job


def _require_longest(job: RlJob) -> None:
    """Raises PlannerError where the longest sample fits into no micro-batch, or not into the model's context."""
    longest = job.longest
    what = f"micro-batches of {job.micro_tokens} tokens were measured, and samples have up to {longest}"
    hint = f"measure training with `micro_tokens: {longest}`, or cap `max_output_tokens`"
    raise_first(
        (
            job.response_tokens < 1,
            refuse(f"samples of {longest} tokens with their prompts", "roles", "solve again"),
        ),
        (job.micro_tokens < longest, refuse(what, f"roles.{job.actor.name}.limits", hint)),
    )
    arch = recorded_model(job.problem, job.actor.model)
    if arch is not None and longest > arch.max_context_tokens:
        what = f"samples have up to {longest} tokens, and engines start {arch.name} with {arch.max_context_tokens}"
        raise refuse(what, f"roles.{job.rollout.name}.limits", "cap `max_output_tokens`, or what `tools` say")


FP8_RECIPES = {"fp8": ("hybrid", "tensorwise"), "fp8_block": ("e4m3", "blockwise")}
"""Of Megatron-Core, by the format in which training computes: what is e4m3, and how it is scaled."""


def said_of_sleep(job: RlJob, framework: str) -> tuple[str, ...]:
    """A comment where a framework keeps weights in host memory and the plan, which was not asked, drops them."""
    if job.decision.arrangement == "disaggregated" or job.sleeps_on_host:
        return ()
    return (f"{framework} keeps weights of engines that sleep in host memory: `engine_sleep: [host]` prices it",)


def said_of_calls(job: RlJob, framework: str) -> tuple[str, ...]:
    """A comment on rewards that CPUs find, for a framework whose configuration does not count their workers."""
    if job.calls is None:
        return ()
    return (f"{framework} counts no workers of a {job.calls.by} here: the plan has {job.calls.workers} of them",)


def _refuse_changes(decision: RlDecision) -> None:
    """What is decided by plans and run by none of the launchers."""
    longest_first = "no launcher hands out samples by predicted length"
    asked = "`length_error` and `dispatch`" if decision.agents is None else "`dispatches` of `agents`"
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
        (
            decision.dispatch != "fifo",
            refuse(longest_first, "dispatch", f"solve without {asked}, in the order of prompts"),
        ),
        *(
            (change is not None, refuse(f"no launcher runs {what}", field, f"solve without `{option}`"))
            for change, field, what, option in changes
        ),
    )


def flag(name: str, value: object = None) -> Flag:
    """A flag and its value as one word; without one, a switch."""
    return name, None if value is None else word(value)


def command_script(
    job: RlJob, needs: dict[str, str], program: str, flags: Iterable[Flag], said: Iterable[str] = ()
) -> str:
    """A bash script of one command; `needs` are variables of the environment that it asks for, and what they are.

    `said` are comments under its title.
    """
    rows = [program, *(f"  {name}" if value is None else f"  {name} {value}" for name, value in flags)]
    return "\n".join([*preamble((*job.header, *said)), "", *required(needs), "", *continued(rows)]) + "\n"


def folder_script(job: RlJob, needs: dict[str, str], *rows: str) -> str:
    """A bash script whose `rows` know the folder that it lies in as `here`."""
    here = 'here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'
    return "\n".join([*preamble(job.header), "", *required(needs), here, "", *rows]) + "\n"
