"""Trainers of the actor with the other models on its GPUs: a critic that trains there, and models that only score.

All take turns, but for fused pipelines of actor and critic. They are cut as the actor is where they can be, since verl,
NeMo-RL, slime and OpenRLHF start all of them in its degrees.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from planner.costs.training.activations import stage_bytes
from planner.costs.training.config import USABLE_SHARE, RecomputeConfig, TrainingConfig
from planner.costs.training.memory import memory as training_memory
from planner.costs.training.parameters import rank_parameters, state_bytes
from planner.costs.training.rates import Rates, rates_on
from planner.costs.training.stages import stage_contents
from planner.costs.training.step import message_seconds, stage_passes
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.generation import splits
from planner.kinds.rl.curves.shapes import Lengths, stages_of, with_dp
from planner.kinds.rl.curves.training import Helper, Trainer, alone, trainers
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture, MoeFfn
from planner.rl.curves import Critic
from planner.rl.paired import pairs_with

HELPER_SHARE = 0.15  # of a device that another model may keep while the actor is in turn


def modelled_trainers(setting: RlSetting, pool: Pool, lengths: Lengths) -> Iterator[Trainer]:
    """Every way to train the actor on `pool` that fits there at some data parallelism, the other models beside it.

    Parts that are served, and a critic on GPUs of its own, are beside it only where the problem says they may be.
    """
    options: list[list[str | None]] = [[s.part, None] if s.or_beside else [s.part] for s in setting.options.served]
    if setting.model("critic") is not None:
        options.append(["critic" if whose == "own" else None for whose in dict.fromkeys(setting.options.critic_gpus)])
    for chosen in product(*options):
        apart = frozenset(part for part in chosen if part is not None)
        for trainer in _beside_all_but(apart, setting, pool, lengths):
            yield replace(trainer, option=replace(trainer.option, apart=" ".join(sorted(apart))))


def _beside_all_but(apart: frozenset[str], setting: RlSetting, pool: Pool, lengths: Lengths) -> Iterator[Trainer]:
    """Trainers with the other models beside them, but for the parts that are served."""
    rates = rates_on(pool, setting.actor, setting.resolved.problem.costs.calibration, setting.store)
    parts = [part for part in ("reference", "reward", "teacher") if part not in apart]
    scoring = [(part, arch) for part in parts if (arch := setting.trained(part)) is not None]

    known: dict[tuple[object, ...], tuple[Helper, ...]] = {}

    def scorers(actor: TrainingConfig, inner: int) -> tuple[Helper, ...]:
        key = _cut(replace(actor, recompute=RecomputeConfig()))
        if key not in known:
            known[key] = tuple(_scorer(part, arch, actor, inner, pool, rates) for part, arch in scoring)
        return known[key]

    precisions = tuple(dict.fromkeys(setting.options.training_precision))
    critic = setting.trained("critic") if "critic" not in apart else None
    policy = setting.trained("actor")
    assert policy is not None
    if critic is None:
        yield from trainers(policy, setting, pool, lengths, rates, scorers, precisions)
        return
    every = alone(critic, setting, pool, lengths, rates, lighter=True)
    learners = _Learners(list(every), setting, pool, rates)
    if not learners.any:
        return

    def beside(actor: TrainingConfig, inner: int) -> tuple[Helper, ...]:
        learner = learners.beside(actor, inner)
        alike = learners.in_turn and _cut_alike(learner, actor)
        own = replace(_critic(learner, actor.num_gpus * inner), with_actor=alike)
        return (own, *scorers(actor, inner))

    for trainer in trainers(policy, setting, pool, lengths, rates, beside, precisions):
        assert trainer.config is not None
        yield _with_critic(trainer, learners.beside(trainer.config, trainer.inner_dp), pool)


class _Learners:
    """How the critic may train on a pool."""

    def __init__(self, learners: list[Trainer], setting: RlSetting, pool: Pool, rates: Rates) -> None:
        self.in_turn = not setting.options.fused_training
        self.any = bool(learners)
        self._learners, self._gpus, self._rates = learners, pool.num_gpus, rates
        self._helper = {id(learner): _critic(learner, pool.num_gpus) for learner in learners}
        self._small, self._room = (pool.node.accelerator.memory_bytes * share for share in (HELPER_SHARE, USABLE_SHARE))
        self._beside: dict[tuple[object, ...], Trainer] = {}

    def beside(self, actor: TrainingConfig, inner: int) -> Trainer:
        """Beside an actor: cut as it is, or one that can train at the same time where both may; any other where there
        is none."""
        key = _cut(actor)
        if key not in self._beside:
            gpus = actor.tp * actor.pp * actor.cp * inner
            held = training_memory(with_dp(actor, max(self._gpus // gpus, 1) * inner), self._rates)
            self._beside[key] = self._best(self._suiting(actor, gpus), self._room - float(held.state_R.max()))
        return self._beside[key]

    def _suiting(self, actor: TrainingConfig, gpus: int) -> list[Trainer]:
        """Those that go with the actor; that compute as much again, since some launchers have one flag for both."""
        suits = [learner for learner in self._learners if self._suits(learner, actor, gpus)]
        same = [each for each in suits if each.config is not None and each.config.recompute == actor.recompute]
        return same or suits or self._learners

    def _suits(self, learner: Trainer, actor: TrainingConfig, gpus: int) -> bool:
        if self.in_turn:
            return _cut_alike(learner, actor)
        return pairs_with(learner.option.gpus, learner.option.pp, gpus, actor.pp)

    def _best(self, learners: list[Trainer], room: float) -> Trainer:
        """The fastest of those that have room in their turn and keep little of a device, else the one that keeps least;
        where none has room, the one that takes least."""
        fitting = [learner for learner in learners if self._helper[id(learner)].peak_bytes <= room]
        small = [learner for learner in fitting if self._helper[id(learner)].kept_bytes <= self._small]
        if small:
            return min(small, key=lambda learner: learner.option.gpus / learner.option.train_tokens_per_s)
        if fitting:
            return min(fitting, key=lambda learner: self._helper[id(learner)].kept_bytes)
        return min(learners, key=lambda learner: self._helper[id(learner)].peak_bytes)


def _cut(config: TrainingConfig) -> tuple[object, ...]:
    """What else a model on the GPUs of this one hangs on."""
    return config.tp, config.pp, config.cp, config.ep, config.precision, config.recompute


def _cut_alike(learner: Trainer, actor: TrainingConfig) -> bool:
    assert learner.config is not None
    config = learner.config
    return (config.tp, config.pp, config.cp) == (actor.tp, actor.pp, actor.cp)


def _critic(learner: Trainer, gpus: int) -> Helper:
    """The critic trained on the actor's GPUs, of which there are at least `gpus`."""
    option = learner.option
    dp = max(learner.option.min_dp, gpus // option.gpus)
    config, peak = learner.at(dp), float(learner.memory(dp).total_R.max())
    states = [state_bytes(config, rank_parameters(config, rank)) for rank in (0, config.pp - 1)]
    kept, weights = max(state.total_bytes for state in states), max(state.weights_bytes for state in states)
    train, forward = option.gpus / option.train_tokens_per_s, option.gpus / option.forward_tokens_per_s
    return Helper(
        "critic", option.tp, option.pp, train, forward, weights, kept, peak, config.cp, config.ep,
        recompute=config.recompute.granularity, layers_of_stage=config.layers_of_stage,
    )  # fmt: skip


def _scorer(part: str, arch: Architecture, actor: TrainingConfig, inner: int, pool: Pool, rates: Rates) -> Helper:
    """A model that only runs forward, cut as the actor is, else over as few GPUs of a node as keep little on each."""
    experts = max((layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), default=1)
    ep = actor.ep if experts % actor.ep == 0 else 1
    tokens = actor.micro_batch * actor.sequence_tokens
    stages = stages_of(arch.num_layers, actor.pp)
    if stages and splits(arch, actor.tp, 1, ep) and (ep > 1 or experts == 1 or actor.ep == 1):
        config = replace(actor, arch=arch, ep=ep, recompute=RecomputeConfig(), layers_of_stage=stages)
        whole = with_dp(config, max(1, pool.num_gpus // (config.num_gpus * inner)) * inner)
        seconds = float(stage_passes(whole, rates)[:, 0].max()) + message_seconds(whole, rates)
        states = (state_bytes(whole, rank_parameters(whole, rank)) for rank in (0, config.pp - 1))
        weights = max(state.weights_bytes for state in states)
        return Helper(
            part, actor.tp, actor.pp, 0.0, config.num_gpus * seconds / tokens, weights, weights, weights, actor.cp, ep,
            with_actor=True,
        )  # fmt: skip
    tp, weights, room = 1, _weight_bytes(arch), pool.node.accelerator.memory_bytes * HELPER_SHARE
    while weights / tp > room and pool.node.num_gpus % (2 * tp) == 0 and splits(arch, 2 * tp, 2 * tp, 1):
        tp *= 2
    replica = replace(
        actor, arch=arch, tp=tp, etp=tp, pp=1, cp=1, ep=1, recompute=RecomputeConfig(), layers_of_stage=()
    )
    forward_gpu_s = tp * float(stage_passes(replica, rates)[0, 0]) / tokens
    return Helper(part, tp, 1, 0.0, forward_gpu_s, weights / tp, weights / tp, weights / tp)


def _with_critic(trainer: Trainer, learner: Trainer, pool: Pool) -> Trainer:
    """The trainer with what the critic's own pipeline waits in turn, and with both at the same time."""
    option, other = trainer.option, learner.option
    assert trainer.config is not None
    assert learner.config is not None
    shares = {helper.part: helper.train_gpu_s * option.train_tokens_per_s / option.gpus for helper in trainer.helpers}
    micro_batches = option.gpus * other.micro_tokens / (other.gpus * option.micro_tokens)  # of the actor to one of its
    bubble = (other.pp - 1) * shares["critic"] * micro_batches
    train, forward = trainer.actor_gpu_s
    critic_forward = other.gpus / other.forward_tokens_per_s
    memory = trainer.memory(option.min_dp)
    room = pool.node.accelerator.memory_bytes * USABLE_SHARE - sum(helper.kept_bytes for helper in trainer.helpers)
    critic = Critic(
        pp=other.pp,
        gpus=other.gpus,
        micro_tokens=other.micro_tokens,
        forward_gpu_s=critic_forward,
        backward_gpu_s=other.gpus / other.train_tokens_per_s - critic_forward,
        actor_forward_gpu_s=forward,
        actor_backward_gpu_s=train - forward,
        in_flight_bytes=_in_flight_bytes(learner.config),
        actor_in_flight_bytes=_in_flight_bytes(trainer.config),
        room_bytes=room - float((memory.total_R - memory.activations_R).max()),
    )
    return replace(trainer, option=replace(option, critic_share=shares["critic"], critic_bubble=bubble), critic=critic)


def _in_flight_bytes(config: TrainingConfig) -> float:
    """Activations of one micro-batch on a device of the first stage."""
    return stage_bytes(config, stage_contents(config)[0])


def _weight_bytes(arch: Architecture) -> float:
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import weight_bytes

    return float(weight_bytes(arch, Shards.of(1))[0])
