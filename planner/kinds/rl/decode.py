"""Turns a solution of the RL search into a plan's decision: roles with memory, placement, timeline of an iteration."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from planner.documents.units import format_si
from planner.hardware.cluster import Pool
from planner.kinds.rl.agents.stated import dispatch_of, rollouts_of, threshold_of
from planner.kinds.rl.curves.serving import shards_of
from planner.kinds.rl.curves.training import Helper, Trainer
from planner.kinds.rl.decision import (
    FusedScoring,
    FusedTraining,
    LateRollout,
    RlDecision,
    ServedScoring,
    Turns,
    WeightSync,
)
from planner.kinds.rl.drawn import trained_tokens
from planner.kinds.rl.formulate import FormulatedRl
from planner.kinds.rl.names import (
    BATCH_SAMPLES,
    BETWEEN_TURNS,
    END_STAGES,
    GPUS,
    LATE,
    PRECISION,
    TAKES,
    WEIGHTS,
    priority_of,
)
from planner.kinds.rl.setting import RlSetting
from planner.kinds.rl.simulated_parts import (
    fused_scoring,
    in_flight_updates,
    late_rollout,
    partial_rollouts,
    served_scoring,
)
from planner.models.architecture import MoeFfn
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block, Engine, Memory, Parallelism, Phase, Role
from planner.rl.agentic import AgenticPlan
from planner.rl.curves import Learner, Service
from planner.rl.evaluate import host_bytes, sleep_s
from planner.rl.layout.roles import laid_roles
from planner.rl.plan import GenerationGroup, Halves, RlEvaluation, RlPlan, TrainingChoice
from planner.rl.services import learner_of, scorers

TRAINER = "megatron-lm"
TRAIN = "train "
_SYNCHRONY = {
    "sync": "synchronous", "stream_sync": "stream", "k_step_async": "asynchronous", "one_step_async": "one_step"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Solved:
    """A searched problem with the plan that was found."""

    setting: RlSetting
    formulated: FormulatedRl
    plan: RlPlan
    evaluation: RlEvaluation
    fused_training: FusedTraining | None = None
    agents: AgenticPlan | None = None

    @property
    def tokens(self) -> float:
        """Output tokens that a mean iteration trains on."""
        return trained_tokens(self.formulated.problem.batches, self.setting.options)

    @property
    def fused(self) -> FusedScoring | None:
        """Scoring beside the last samples, where the plan has it."""
        return fused_scoring(self.formulated.problem, self.plan)

    @property
    def late(self) -> LateRollout | None:
        """Other replicas late in the rollout, where the plan has them."""
        return late_rollout(self.formulated.problem, self.plan)

    @property
    def served(self) -> ServedScoring | None:
        """What servers make of the rollouts, where the plan has some."""
        return served_scoring(self.formulated.problem, self.plan)

    @property
    def generated_s(self) -> float:
        """When the last sample of a mean iteration is generated."""
        return self.evaluation.generation_s if self.fused is None else self.fused.generated_s

    @property
    def training(self) -> TrainingChoice:
        assert self.plan.training is not None
        return self.plan.training

    @property
    def trainer(self) -> Trainer:
        return self.formulated.trainers[self.training.option]

    @property
    def modelled_training(self) -> bool:
        """Whether training is priced by the cost model, and not by a curve that was measured."""
        return self.plan.training is not None and self.trainer.config is not None

    @property
    def actor_key(self) -> str | None:
        """Of the problem's models; None where it names none."""
        return self.setting.keys.get("actor")

    def engine(self, name: str, version: str | None = None) -> Engine | None:
        """The engine of a role; None where costs are stated, whatever they were measured on."""
        return None if self.setting.bare else Engine(name=name, version=version)

    @property
    def takes_turns(self) -> bool:
        """Whether some GPUs both generate and train."""
        return self.arrangement != "disaggregated"

    @property
    def arrangement(self) -> Literal["colocated", "disaggregated", "hybrid"]:
        """As the GPUs say: a hybrid mode whose groups lie in other pools shares none."""
        generating: dict[str, int] = {}
        for group in self.plan.groups:
            generating[group.option.pool] = generating.get(group.option.pool, 0) + group.gpus
        if self.plan.training is None:
            return "disaggregated"
        trained = {self.training.option.pool: self.training.gpus}
        if self.plan.mode.placement == "disaggregated" or not set(generating) & set(trained):
            return "disaggregated"
        return "colocated" if generating == trained else "hybrid"

    @property
    def engines(self) -> tuple[Service, ...]:
        """Those of models that score on GPUs of their own."""
        return tuple(service for service in scorers(self.plan.services) if service.gpus)

    @property
    def asynchronous(self) -> bool:
        return self.plan.mode.sync in ("k_step_async", "one_step_async")

    def pool(self, name: str) -> Pool:
        return next(pool for pool in self.setting.pools if pool.name == name)


def decode(solved: Solved) -> RlDecision:
    """The decision; it knows no solver."""
    names = rollout_names(solved)
    late = solved.plan.late
    roles = rollout_roles(solved) + ([_rollout(solved, LATE, late.group)] if late is not None else [])
    if solved.plan.training is not None:
        roles += [_actor(solved), *(_helper(solved, helper) for helper in solved.trainer.helpers)]
    roles += [_server(solved, service) for service in solved.engines]
    learner = learner_of(solved.plan.services)
    roles += [_learner(solved, learner)] if learner is not None else []
    tail = solved.plan.tail_fraction if len(names) > 1 else 0.0
    apart = not solved.takes_turns and solved.plan.training is not None
    kept = {helper.part: helper.kept_bytes for helper in solved.trainer.helpers} if apart else {}
    if apart and solved.modelled_training and solved.trainer.helpers:
        kept["actor"] = float(solved.trainer.memory(solved.training.dp).state_R.max())
    return RlDecision(
        roles=tuple(roles),
        placement=tuple(_placement(solved, names)),
        phases=tuple(timeline(solved)),
        algorithm=solved.setting.options.algorithm,
        arrangement=solved.arrangement,
        synchrony=_SYNCHRONY[solved.plan.mode.sync],  # type: ignore[arg-type]  # names of the literal
        staleness=solved.plan.mode.staleness if solved.asynchronous else 0,
        minibatches=solved.setting.options.minibatches,
        **_policies(solved),
        tail_share=tail,
        turns=_turns_taken(solved),
        resident_bytes=kept,
        weight_sync=_weight_sync(solved),
        partial_rollouts=partial_rollouts(solved.formulated.problem, solved.plan),
        in_flight_updates=in_flight_updates(solved.formulated.problem, solved.plan),
        late_rollout=solved.late,
        fused_scoring=solved.fused,
        fused_training=solved.fused_training,
        served_scoring=solved.served,
        shares=_shares(solved, names, tail),
        rollout_scales=dict(solved.formulated.scales) or None,
    )


def _policies(solved: Solved) -> dict[str, Any]:
    """How samples are handed out, wait and move."""
    policy, agents = solved.plan.policy, solved.agents
    if agents is not None:
        return {
            "dispatch": dispatch_of(agents),
            "priority": agents.priority,
            "move_threshold": threshold_of(agents),
            "agents": rollouts_of(agents, solved.evaluation),
        }
    return {
        "dispatch": "fifo" if solved.formulated.problem.dispatch == "fifo" else "longest_first",
        "priority": priority_of(policy) if policy is not None else "fifo",
        "move_threshold": policy.move_threshold if policy is not None and isfinite(policy.move_threshold) else None,
    }


def _turns_taken(solved: Solved) -> Turns | None:
    """What moves to the host and back, where generation and training are priced and share devices, and the problem says
    how engines sleep or what hosts take."""
    options = solved.setting.options
    asked = "host" in options.engine_sleep or options.host_bandwidth_bytes_per_s is not None
    if not asked or not solved.takes_turns or not solved.modelled_training:
        return None
    pool, option, keeps = solved.pool(solved.training.option.pool), solved.training.option, solved.plan.mode.keeps
    waiting = sum(helper.weights_bytes for helper in solved.trainer.helpers if helper.offloaded)
    moved_s = option.offload_s + option.offload_sharded_s / solved.training.dp
    return Turns(
        engine_weights="host" if keeps else "drop",
        engine_bytes=max(group.option.host_bytes for group in solved.plan.groups) if keeps else 0.0,
        training_bytes=solved.training.host_bytes - waiting,
        moved_s=moved_s + (sleep_s(solved.plan) if keeps else 0.0),
        host_bytes=host_bytes(solved.plan),
        host_capacity_bytes=pool.node.host_memory_bytes / pool.node.num_gpus,
    )


def _shares(solved: Solved, names: tuple[str, ...], tail: float) -> dict[str, float]:
    """Of the samples, by the role that starts them; none where there is only one, or where agents share queues."""
    if solved.agents is not None:
        return {}
    if len(names) > 1:
        return {names[0]: 1.0 - tail, names[1]: tail}
    return {names[0]: 1.0} if solved.plan.late is not None else {}


def rollout_names(solved: Solved) -> tuple[str, ...]:
    """Names of the generating roles, in the order of the plan's groups."""
    if solved.agents is not None:
        return ("rollout", *(f"rollout-{place}" for place in range(2, len(solved.plan.groups) + 1)))
    return ("rollout",) if len(solved.plan.groups) == 1 else ("rollout", "rollout-tail")


def rollout_roles(solved: Solved) -> list[Role]:
    """Roles of the groups that begin a rollout, in the order of the plan's groups."""
    names = rollout_names(solved)
    return [_rollout(solved, name, group) for name, group in zip(names, solved.plan.groups, strict=True)]


def _weight_sync(solved: Solved) -> WeightSync:
    if solved.plan.training is None:
        return WeightSync(method="broadcast")
    across = {group.option.pool for group in solved.plan.groups} != {solved.training.option.pool}
    return WeightSync(
        method="reshard" if solved.takes_turns else "relay" if across else "broadcast",
        duration_s=solved.evaluation.handover_s,
        overlapped=solved.asynchronous and solved.formulated.problem.weight_sync_overlapped,
    )


def _rollout(solved: Solved, name: str, group: GenerationGroup) -> Role:
    option, engine = group.option, solved.setting.resolved.problem.engine
    bare = solved.setting.bare
    sparse = not bare and any(isinstance(layer.ffn, MoeFfn) for layer in solved.setting.actor.layers)
    drafts = solved.setting.options.speculation
    return Role(
        name=name,
        function="rollout",
        model=solved.actor_key,
        engine=solved.engine(engine.name, engine.version),
        pool=option.pool,
        replicas=group.replicas,
        parallelism=Parallelism(
            tp=option.tp, pp=option.pp, ep=option.ep, moe_tp=option.tp // option.ep if sparse else 1
        ),
        limits={
            "max_batch": option.curve.max_running,
            "max_context_tokens": solved.formulated.lengths.longest,
            **({} if drafts is None else {"draft_tokens": drafts.most}),
            **({WEIGHTS: option.label} if option.label else {}),
        },
        memory=solved.formulated.generators[option].memory,
    )


def _actor(solved: Solved) -> Role:
    trainer, choice = solved.trainer, solved.training
    shape = Parallelism(tp=choice.option.tp, pp=choice.option.pp, dp=choice.dp)
    limits: dict[str, float | int | str] = {"micro_tokens": choice.option.micro_tokens // trainer.inner_dp}
    if trainer.config is not None:
        config = trainer.at(choice.dp)
        shape = Parallelism(tp=config.tp, pp=config.pp, cp=config.cp, dp=config.dp, ep=config.ep)
        limits["recompute"] = config.recompute.granularity
        limits |= _end_stages(config.layers_of_stage)
        if config.precision != "bf16":
            limits[PRECISION] = config.precision
    return Role(
        name="actor",
        function="actor",
        model=solved.actor_key,
        engine=solved.engine(TRAINER),
        pool=choice.option.pool,
        replicas=1,
        parallelism=shape,
        limits=limits,
        memory=_trained_memory(solved, trainer, choice.dp),
    )


def _end_stages(layers: tuple[int, ...]) -> dict[str, int]:
    """Layers of the first and the last stage, where not all have as many."""
    return dict(zip(END_STAGES, (layers[0], layers[-1]), strict=True)) if len(set(layers)) > 1 else {}


def _trained_memory(solved: Solved, trainer: Trainer, dp: int) -> Memory | None:
    if trainer.config is None:
        return None
    memory = trainer.memory(dp)
    fullest = int(memory.total_R.argmax())
    return Memory(
        weights_bytes=float(memory.weights_R[fullest]),
        gradients_bytes=float(memory.gradients_R[fullest]),
        optimizer_bytes=float(memory.optimizer_R[fullest]),
        activations_bytes=float(memory.activations_R[fullest]),
        workspace_bytes=float(memory.workspace_R[fullest]),
        capacity_bytes=solved.pool(trainer.option.pool).node.accelerator.memory_bytes,
    )


def _helper(solved: Solved, helper: Helper) -> Role:
    replicas = solved.training.gpus // helper.gpus
    together = helper.part == "critic" or helper.with_actor
    shape = Parallelism(tp=helper.tp, pp=helper.pp, dp=replicas if together else 1, cp=helper.cp, ep=helper.ep)
    return Role(
        name=helper.part,
        function=helper.part,
        model=solved.setting.keys[helper.part],
        engine=Engine(name=TRAINER),
        pool=solved.training.option.pool,
        replicas=1 if together else replicas,
        parallelism=shape,
        limits={
            **({BETWEEN_TURNS: "host"} if helper.offloaded else {}),
            **({"recompute": helper.recompute} if helper.recompute else {}),
            **_end_stages(helper.layers_of_stage),
        },
    )


def _learner(solved: Solved, learner: Learner) -> Role:
    """A critic on GPUs of its own."""
    trainer = solved.formulated.learners[learner]
    config = trainer.at(learner.dp)
    return Role(
        name="critic",
        function="critic",
        model=solved.setting.keys["critic"],
        engine=Engine(name=TRAINER),
        pool=learner.pool,
        replicas=1,
        parallelism=Parallelism(tp=config.tp, pp=config.pp, cp=config.cp, dp=config.dp, ep=config.ep),
        limits={
            GPUS: "own",
            "micro_tokens": learner.option.micro_tokens // trainer.inner_dp,
            "recompute": config.recompute.granularity,
        },
        memory=_trained_memory(solved, trainer, learner.dp),
    )


def _server(solved: Solved, service: Service) -> Role:
    """The engines of a part that is served."""
    engine, shards = solved.setting.resolved.problem.engine, shards_of(solved.setting, service)
    return Role(
        name=service.part,
        function=service.part,
        model=solved.setting.keys[service.part],
        engine=Engine(name=engine.name, version=engine.version),
        pool=service.pool,
        replicas=service.servers,
        parallelism=shards,
        limits={
            BATCH_SAMPLES: service.batch,
            "max_context_tokens": solved.formulated.lengths.longest,
            **({TAKES: "batches"} if service.whole else {}),
        },
        memory=solved.formulated.servers[service].memory,
    )


def _placement(solved: Solved, names: tuple[str, ...]) -> Iterator[Block]:
    """Roles where `planner.rl.layout` has them; late replicas stand where the early ones do, and models that take turns
    with the actor where it does."""
    plan, late = solved.plan, solved.plan.late
    blocks = [(name, _rollout_axes(group)) for name, group in zip(names, plan.groups, strict=True)]
    blocks += [("actor", _actor_axes(solved))] if plan.training is not None else []
    blocks += [(part.part, _axes_apart(solved, part)) for part in plan.services if part.gpus]
    for role in laid_roles(plan):
        name, axes = blocks[role.index]
        devices = solved.pool(role.pool).job_devices[role.first : role.first + role.gpus].tolist()
        yield block_on(devices, name, role.pool, axes)
        if name in names and late is not None:
            yield block_on(devices, LATE, role.pool, _rollout_axes(late.group))
        if name == "actor":
            for helper in solved.trainer.helpers:
                yield block_on(devices, helper.part, role.pool, _helper_axes(solved, helper))


def _axes_apart(solved: Solved, part: Service | Learner) -> tuple[Axis, ...]:
    """Of engines that score, and of a critic on GPUs of its own."""
    if isinstance(part, Learner):
        return _ranks(_learner(solved, part).parallelism)
    return _axes((("replica", part.servers, part.gpus), ("tp", part.gpus, 1)))


def _helper_axes(solved: Solved, helper: Helper) -> tuple[Axis, ...]:
    """Replicas one after the other; of a critic that trains at the same time, over blocks of the actor's stages. Models
    that are cut as the actor stand on its ranks."""
    if helper.with_actor:
        return _actor_axes(solved)
    count, inner = solved.training.gpus // helper.gpus, helper.tp * helper.cp
    within = (("cp", helper.cp, helper.tp), ("tp", helper.tp, 1))
    if solved.fused_training is None or helper.part != "critic":
        outer = "dp" if helper.part == "critic" else "replica"
        return _axes(((outer, count, helper.gpus), ("pp", helper.pp, inner), *within))
    stage = solved.training.gpus // solved.training.option.pp
    blocks = solved.training.option.pp // helper.pp
    return _axes((("dp", blocks, helper.pp * stage), ("pp", helper.pp, stage), ("dp", stage // inner, inner), *within))


def _axes(sizes: tuple[tuple[str, int, int], ...]) -> tuple[Axis, ...]:
    return tuple(Axis(name=name, size=size, stride=stride) for name, size, stride in sizes if size > 1)


def _rollout_axes(group: GenerationGroup) -> tuple[Axis, ...]:
    option = group.option
    return _axes((("replica", group.replicas, option.gpus), ("pp", option.pp, option.tp), ("tp", option.tp, 1)))


def _actor_axes(solved: Solved) -> tuple[Axis, ...]:
    return _ranks(_actor(solved).parallelism)


def _ranks(shape: Parallelism) -> tuple[Axis, ...]:
    """As Megatron-LM places ranks: tp innermost, then cp, dp, and pp outermost."""
    inner = shape.tp * shape.cp
    sizes = (
        ("pp", shape.pp, inner * shape.dp),
        ("dp", shape.dp, inner),
        ("cp", shape.cp, shape.tp),
        ("tp", shape.tp, 1),
    )
    return _axes(sizes)


def timeline(solved: Solved) -> Iterator[Phase]:
    """The phases of a mean iteration, seconds from its start.

    Generation and training of a disaggregated plan overlap: asynchronous training works on an earlier batch, streaming
    training starts on the first minibatch. Models on the same devices take turns, but for scoring that is fused with
    generation: it begins on the replicas that are set free. Phases of no time are left out.
    """
    evaluation, fused = solved.evaluation, solved.fused
    yield from _generating(solved)
    yield from _serving(solved)
    if solved.plan.training is None:
        return
    if solved.asynchronous:
        clock = evaluation.handed_s
    elif solved.plan.mode.sync == "stream_sync":
        clock = max(evaluation.iteration_s - evaluation.handover_s - evaluation.training_s, 0.0)
    else:
        clock = max(evaluation.generation_s, evaluation.scored_s) + evaluation.handed_s
    if fused is not None:
        yield from _in_turn(_scores(solved), fused.free_s, fused.scored_s - fused.free_s)
    yield from _handed_over(solved, clock - evaluation.handed_s)
    turns = _turns(solved) if fused is None else [turn for turn in _turns(solved) if turn not in _scores(solved)]
    if evaluation.halves is not None:
        trained = list(_beside_critic(turns, clock, evaluation.training_s, evaluation.halves))
    else:
        trained = list(_in_turn(turns, clock, evaluation.training_s))
    yield from trained if solved.fused_training is None else _together(trained)
    action = "take turns" if solved.takes_turns else "send weights to rollout"
    if evaluation.handover_s > 0:
        end = clock + evaluation.training_s
        yield Phase(name="synchronise", start_s=end, duration_s=evaluation.handover_s, actions=(action,))


def _generating(solved: Solved) -> Iterator[Phase]:
    names, late = rollout_names(solved), solved.late
    if late is None:
        yield Phase(name="generate", start_s=0.0, duration_s=solved.generated_s, roles=names)
        return
    change_s = solved.formulated.problem.late_change_s
    yield Phase(name="generate", start_s=0.0, duration_s=late.changed_s, roles=names)
    yield Phase(
        name="generate the rest",
        start_s=late.changed_s,
        duration_s=late.generated_s - late.changed_s,
        roles=(LATE,),
        actions=(f"cut weights anew in {format_si(change_s, 's')}, prefill contexts again",),
    )


def _serving(solved: Solved) -> Iterator[Phase]:
    """Engines score samples while others are generated: for as long as they work, until all is scored."""
    busy = {} if solved.served is None else solved.served.busy_s
    for service in solved.engines:
        if not service.whole:
            busy_s = busy[service.part]
            start_s = max(solved.evaluation.scored_s - busy_s, 0.0)
            yield Phase(name=f"score by {service.part}", start_s=start_s, duration_s=busy_s, roles=(service.part,))


def _handed_over(solved: Solved, clock: float) -> Iterator[Phase]:
    """Engines that training hands its batch, one part after the other, with the seconds of all in proportion."""
    busy_s = {} if solved.served is None else solved.served.busy_s
    parts = {service.part: busy_s[service.part] for service in solved.engines if service.whole}
    for part, weight in parts.items():
        seconds = solved.evaluation.handed_s * weight / sum(parts.values())
        yield Phase(name=f"score by {part}", start_s=clock, duration_s=seconds, roles=(part,))
        clock += seconds


Turn = tuple[str, str, float]
"""What is done, by which role, and the GPU seconds that a token takes."""


def _in_turn(turns: list[Turn], start_s: float, seconds: float) -> Iterator[Phase]:
    """Phases one after the other that share `seconds` by what their tokens take."""
    total, clock = sum(weight for _, _, weight in turns), start_s
    for name, role, weight in turns:
        duration = seconds * weight / total
        yield Phase(name=name, start_s=clock, duration_s=duration, roles=(role,))
        clock += duration


def _beside_critic(turns: list[Turn], start_s: float, seconds: float, halves: Halves) -> Iterator[Phase]:
    """What the actor's GPUs do, and values and updates of a critic on its own meanwhile; the first done waits."""
    updates_s = start_s + seconds - max(halves.update_s, halves.learned_s)
    yield from _in_turn([turn for turn in turns if not turn[0].startswith(TRAIN)], start_s, halves.forward_s)
    yield Phase(name="values", start_s=start_s, duration_s=halves.values_s, roles=("critic",))
    yield from _in_turn([turn for turn in turns if turn[0].startswith(TRAIN)], updates_s, halves.update_s)
    yield Phase(name=f"{TRAIN}critic", start_s=updates_s, duration_s=halves.learned_s, roles=("critic",))


def _together(phases: list[Phase]) -> Iterator[Phase]:
    """The same, but for trainings, all of which take what they took in turn together."""
    training = [phase for phase in phases if phase.name.startswith(TRAIN)]
    start_s = min(phase.start_s for phase in training)
    seconds = sum(phase.duration_s or 0.0 for phase in training)
    for phase in phases:
        yield phase if phase not in training else phase.model_copy(update={"start_s": start_s, "duration_s": seconds})


def _scores(solved: Solved) -> list[Turn]:
    return [(f"score by {helper.part}", helper.part, helper.forward_gpu_s) for helper in solved.trainer.helpers]


def _turns(solved: Solved) -> list[Turn]:
    """Training split by what each model's part of a token costs."""
    train, forward = solved.trainer.actor_gpu_s
    learners = [helper for helper in solved.trainer.helpers if helper.train_gpu_s > 0]
    return [
        ("log-probabilities", "actor", forward),
        *_scores(solved),
        *((f"{TRAIN}{helper.part}", helper.part, helper.train_gpu_s) for helper in learners),
        (f"{TRAIN}actor", "actor", train),
    ]
