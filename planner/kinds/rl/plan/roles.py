"""Roles of an RL plan: engines that generate and that score, the actor, models beside it, a critic on its own GPUs."""

from collections.abc import Iterator

from planner.costs.training.config import TrainingConfig
from planner.kinds.rl.curves.serving import shards_of
from planner.kinds.rl.curves.training import Helper, Trainer
from planner.kinds.rl.names import (
    BATCH_SAMPLES,
    BETWEEN_TURNS,
    END_STAGES,
    GPUS,
    LATE,
    PRECISION,
    TAKES,
    WEIGHTS,
)
from planner.kinds.rl.plan.solved import Solved
from planner.models.architecture import MoeFfn
from planner.plan.schema import Engine, Memory, Parallelism, Role
from planner.rl.curves import Learner, Service
from planner.rl.plan import GenerationGroup
from planner.rl.services import learner_of

TRAINER = "megatron-lm"


def roles(solved: Solved) -> Iterator[Role]:
    """All roles of the plan, those that generate first."""
    yield from rollout_roles(solved)
    late, learner = solved.plan.late, learner_of(solved.plan.services)
    if late is not None:
        yield _rollout(solved, LATE, late.group)
    if solved.plan.training is not None:
        yield _actor(solved)
        yield from (_helper(solved, helper) for helper in solved.trainer.helpers)
    yield from (_server(solved, service) for service in solved.engines)
    if learner is not None:
        yield _learner(solved, learner)


def rollout_roles(solved: Solved) -> list[Role]:
    """Roles of the groups that begin a rollout, in the order of the plan's groups."""
    groups = zip(solved.rollout_names, solved.plan.groups, strict=True)
    return [_rollout(solved, name, group) for name, group in groups]


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


def actor_shape(solved: Solved) -> Parallelism:
    """How the actor is cut."""
    option, dp = solved.training.option, solved.training.dp
    if solved.trainer.config is None:
        return Parallelism(tp=option.tp, pp=option.pp, dp=dp)
    return _shape(solved.trainer.at(dp))


def learner_shape(solved: Solved, learner: Learner) -> Parallelism:
    """How a critic on GPUs of its own is cut."""
    return _shape(solved.formulated.learners[learner].at(learner.dp))


def _shape(config: TrainingConfig) -> Parallelism:
    return Parallelism(tp=config.tp, pp=config.pp, cp=config.cp, dp=config.dp, ep=config.ep)


def _actor(solved: Solved) -> Role:
    trainer, choice = solved.trainer, solved.training
    limits: dict[str, float | int | str] = {"micro_tokens": choice.option.micro_tokens // trainer.inner_dp}
    if trainer.config is not None:
        config = trainer.at(choice.dp)
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
        parallelism=actor_shape(solved),
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
    return Role(
        name="critic",
        function="critic",
        model=solved.setting.keys["critic"],
        engine=Engine(name=TRAINER),
        pool=learner.pool,
        replicas=1,
        parallelism=learner_shape(solved, learner),
        limits={
            GPUS: "own",
            "micro_tokens": learner.option.micro_tokens // trainer.inner_dp,
            "recompute": trainer.at(learner.dp).recompute.granularity,
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
