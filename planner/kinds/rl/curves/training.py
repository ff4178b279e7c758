"""Cost curves of training replicas: tokens per second, memory (ranks that share optimizer state), and turns.

A replica is tp x cp x pp GPUs, or as many as its experts are spread over. A micro-batch is a sample that ends where
samples are cut off, or as many shorter ones packed to its length, which is what launchers are told; attention is priced
at the length that the mean token lives in. Training of the critic, and forward passes of reference and reward, run on
the actor's GPUs in turn. The critic and models that only score are cut as the actor is where they can be, since verl,
NeMo-RL, slime and OpenRLHF start all of them in its degrees; where models that only score leave no room for it, they
lie in host memory between their turns, and a minibatch loads them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from planner.costs.training.activations import stage_bytes
from planner.costs.training.config import (
    USABLE_SHARE,
    Precision,
    RecomputeConfig,
    TrainingConfig,
    computed_in,
)
from planner.costs.training.memory import RankBytes
from planner.costs.training.memory import memory as training_memory
from planner.costs.training.parameters import rank_parameters, state_bytes
from planner.costs.training.rates import Rates, rates_on
from planner.costs.training.stages import stage_contents
from planner.costs.training.step import data_parallel, message_seconds, stage_passes
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.generation import splits
from planner.kinds.rl.curves.shapes import Lengths, configs, stages_of, with_dp
from planner.kinds.rl.handover import unpinned_bytes_per_s
from planner.kinds.rl.names import OFFLOADED, training_label
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture, MoeFfn
from planner.rl.curves import NEVER_FITS, Critic, TrainingOption
from planner.rl.paired import pairs_with

HELPER_SHARE = 0.15  # of a device that another model may keep while the actor is in turn
Recomputed = Literal["none", "full"]
GRANULARITIES: tuple[Recomputed, ...] = ("none", "full")  # of recomputation, the least first


@dataclass(frozen=True, slots=True)
class Helper:
    """A model beside the actor on the training GPUs: what a token costs there, in GPU seconds, and what it keeps."""

    part: str  # critic, reference, reward or teacher
    tp: int
    pp: int
    train_gpu_s: float
    forward_gpu_s: float
    weights_bytes: float  # of a device
    kept_bytes: float  # of a device, while others are in turn
    peak_bytes: float  # of a device, in its own turn
    cp: int = 1
    ep: int = 1
    with_actor: bool = False  # cut as the actor is, on the same ranks
    offloaded: bool = False  # to the host between its turns
    recompute: str = ""  # of one that is trained
    layers_of_stage: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """Of a data-parallel rank."""
        return self.tp * self.cp * self.pp


Beside = Callable[[TrainingConfig, int], tuple[Helper, ...]]
"""Models beside an actor, whose replica has so many data-parallel ranks."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """A kind of training replica; `config` has dp 1 of them, None for measured curves."""

    option: TrainingOption
    config: TrainingConfig | None
    inner_dp: int = 1  # data-parallel ranks of one replica, where experts spread over several
    helpers: tuple[Helper, ...] = ()
    critic: Critic | None = None  # how the critic's pipelines would run at the same time
    rates: Rates | None = None  # the shipped ones where None

    def at(self, dp: int) -> TrainingConfig:
        """The configuration with `dp` replicas."""
        assert self.config is not None
        return with_dp(self.config, dp * self.inner_dp)

    def memory(self, dp: int) -> RankBytes:
        """Every rank of the pipeline with `dp` replicas."""
        return training_memory(self.at(dp), self.rates)

    @property
    def actor_gpu_s(self) -> tuple[float, float]:
        """GPU seconds of a token in training and in log-probabilities, the actor alone."""
        option = self.option
        train = option.gpus / option.train_tokens_per_s - sum(helper.train_gpu_s for helper in self.helpers)
        return train, option.gpus / option.forward_tokens_per_s - sum(helper.forward_gpu_s for helper in self.helpers)


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
    scoring = [(part, arch) for part in parts if (arch := setting.model(part)) is not None]

    known: dict[tuple[object, ...], tuple[Helper, ...]] = {}

    def scorers(actor: TrainingConfig, inner: int) -> tuple[Helper, ...]:
        key = _cut(replace(actor, recompute=RecomputeConfig()))
        if key not in known:
            known[key] = tuple(_scorer(part, arch, actor, inner, pool, rates) for part, arch in scoring)
        return known[key]

    precisions = tuple(dict.fromkeys(setting.options.training_precision))
    critic = setting.model("critic") if "critic" not in apart else None
    if critic is None:
        yield from _trainers(setting.actor, setting, pool, lengths, rates, scorers, precisions)
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

    for trainer in _trainers(setting.actor, setting, pool, lengths, rates, beside, precisions):
        assert trainer.config is not None
        yield _with_critic(trainer, learners.beside(trainer.config, trainer.inner_dp), pool)


def alone(
    arch: Architecture, setting: RlSetting, pool: Pool, lengths: Lengths, rates: Rates, *, lighter: bool = False
) -> Iterator[Trainer]:
    """Every way to train a model with nothing beside it; `lighter` as of `_trainers`."""
    yield from _trainers(arch, setting, pool, lengths, rates, lambda config, inner: (), lighter=lighter)


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


def measured_trainers(setting: RlSetting) -> Iterator[Trainer]:
    """The curves that the problem brings along."""
    for measured in setting.options.costs.training:
        gpus, scores = measured.tp * measured.pp, measured.score_tokens_per_s
        stated = measured.model_dump(exclude={"score_tokens_per_s"})
        score_gpu_s = gpus / scores if scores is not None else 0.0
        yield Trainer(TrainingOption(gpus=gpus, score_gpu_s=score_gpu_s, **stated), None)


def _trainers(
    arch: Architecture,
    setting: RlSetting,
    pool: Pool,
    lengths: Lengths,
    rates: Rates,
    beside: Beside,
    precisions: Sequence[Precision] = ("bf16",),
    *,
    lighter: bool = False,
) -> Iterator[Trainer]:
    """Trainers of one model, with the helpers that lie beside a replica: those that only score where they stay on the
    devices, and in host memory where that leaves room for fewer replicas, or for what is not computed again.

    `lighter`: those that compute more again also where they need no fewer replicas.
    """
    again = GRANULARITIES if setting.options.recompute is None else (setting.options.recompute,)
    able = computed_in(pool.node.accelerator)
    shapes = product(configs(arch, setting, pool, lengths), [name for name in precisions if name in able])
    for (shape, inner), precision in shapes:
        base = replace(shape, precision=precision)
        tried = [(granularity,) for granularity in again] if lighter else [again]
        stay = [trainer for each in tried for trainer in _fitting(setting, base, inner, beside, pool, rates, each)]
        yield from stay
        movable = any(helper != _to_host(helper) for helper in beside(base, inner))
        if movable and not any(_lightest(trainer, again) for trainer in stay):
            for other in _fitting(setting, base, inner, _moved(beside), pool, rates, again):
                if not any(_no_heavier(trainer, other) for trainer in stay):
                    yield other


def _moved(beside: Beside) -> Beside:
    """What only scores in host memory between its turns."""
    return lambda actor, inner: tuple(map(_to_host, beside(actor, inner)))


def _fitting(
    setting: RlSetting,
    base: TrainingConfig,
    inner: int,
    beside: Beside,
    pool: Pool,
    rates: Rates,
    granularities: tuple[Recomputed, ...],
) -> Iterator[Trainer]:
    """Trainers that fit in memory beside their helpers, by how much they compute again: each on fewer replicas than
    those that compute less again."""
    whole = pool.node.accelerator.memory_bytes * USABLE_SHARE
    most = pool.num_gpus // (base.num_gpus * inner)
    fewest = NEVER_FITS
    for recomputed in granularities:
        config = replace(base, recompute=RecomputeConfig(granularity=recomputed))
        helpers = beside(config, inner)
        room = whole - sum(helper.kept_bytes for helper in helpers)
        in_turn = room - max((helper.peak_bytes - helper.kept_bytes for helper in helpers), default=0.0)
        least = _least_dp(config, inner, most, room, in_turn, rates)
        if least < fewest:
            fewest = least
            option = _option(setting, config, inner, least, most, pool, recomputed, rates)
            option = _with_helpers(setting, option, helpers, pool)
            yield Trainer(option, config, inner, helpers, rates=rates)
        if fewest == 1:
            return


def _to_host(helper: Helper) -> Helper:
    """The helper with its weights in host memory between its turns; the critic's state stays."""
    return helper if helper.part == "critic" else replace(helper, kept_bytes=0.0, offloaded=True)


def _lightest(trainer: Trainer, granularities: tuple[Recomputed, ...]) -> bool:
    """Whether more room could change nothing."""
    assert trainer.config is not None
    return trainer.option.min_dp == 1 and trainer.config.recompute.granularity == granularities[0]


def _no_heavier(trainer: Trainer, other: Trainer) -> bool:
    """Whether it runs on as few replicas as the other, and computes no more again."""
    assert trainer.config is not None
    assert other.config is not None
    again = GRANULARITIES.index(trainer.config.recompute.granularity)
    more = GRANULARITIES.index(other.config.recompute.granularity)
    return again <= more and trainer.option.min_dp <= other.option.min_dp


def _with_helpers(
    setting: RlSetting, option: TrainingOption, helpers: tuple[Helper, ...], pool: Pool
) -> TrainingOption:
    """The option when helpers take their turns on the same GPUs, and leave them too while generators are in turn.

    Those in host memory are loaded for every minibatch.
    """
    host = unpinned_bytes_per_s(setting, pool)
    loaded = sum(helper.weights_bytes for helper in helpers if helper.offloaded)
    train = sum(helper.train_gpu_s for helper in helpers) / option.gpus
    forward = sum(helper.forward_gpu_s for helper in helpers) / option.gpus
    return replace(
        option,
        train_tokens_per_s=1.0 / (1.0 / option.train_tokens_per_s + train),
        forward_tokens_per_s=1.0 / (1.0 / option.forward_tokens_per_s + forward),
        score_gpu_s=forward * option.gpus,
        optimizer_s=option.optimizer_s + loaded / host,
        offload_s=option.offload_s + 2.0 * sum(helper.kept_bytes for helper in helpers) / host,
        host_bytes=option.host_bytes + loaded + sum(helper.kept_bytes for helper in helpers),
        label=f"{option.label}{OFFLOADED}" if loaded else option.label,
        beside_tp=max((helper.tp for helper in helpers), default=1),
    )


def _least_dp(config: TrainingConfig, inner: int, most: int, room: float, in_turn: float, rates: Rates) -> int:
    """The fewest replicas whose fullest device stays within `room` in training, and whose state alone stays within
    `in_turn`; what they share only falls with their number."""

    def fits(dp: int) -> bool:
        held = training_memory(with_dp(config, dp * inner), rates)
        return float(held.total_R.max()) <= room and float(held.state_R.max()) <= in_turn

    if most < 1 or not fits(most):
        return NEVER_FITS
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _option(
    setting: RlSetting,
    config: TrainingConfig,
    inner: int,
    least: int,
    most: int,
    pool: Pool,
    recomputed: str,
    rates: Rates,
) -> TrainingOption:
    """The curve of one configuration; the exchange of gradients as with all GPUs of the pool."""
    whole = with_dp(config, max(most, least) * inner)
    pass_S3 = stage_passes(whole, rates)
    hop = 2.0 * message_seconds(whole, rates)
    slowest = float(pass_S3.sum(axis=1).max()) + hop
    forward = float(pass_S3[:, 0].max()) + hop / 2.0
    tokens = config.micro_batch * config.sequence_tokens * inner
    exchange = [data_parallel(whole, rank_parameters(whole, rank), rates) for rank in (0, config.pp - 1)]
    optimizer = max(rank.reduce_s + rank.gather_s + rank.optimizer_s for rank in exchange)
    shared = with_dp(config, inner)
    states = [state_bytes(shared, rank_parameters(config, rank)) for rank in {0, config.pp // 2, config.pp - 1}]
    weights, sharded = max(rank.weights_bytes for rank in states), max(rank.optimizer_bytes for rank in states)
    host = unpinned_bytes_per_s(setting, pool)
    return TrainingOption(
        pool=pool.name,
        gpus=config.num_gpus * inner,
        train_tokens_per_s=tokens / slowest,
        forward_tokens_per_s=tokens / forward,
        micro_tokens=tokens,
        tp=config.tp,
        pp=config.pp,
        min_dp=least,
        optimizer_s=optimizer + rates.get("step_s"),
        offload_s=2.0 * weights / host,
        offload_sharded_s=2.0 * sharded / host,
        host_bytes=weights,
        host_sharded_bytes=sharded,
        label=training_label(config.cp, config.ep, recomputed, config.precision),
        ranks=inner,
    )


def _weight_bytes(arch: Architecture) -> float:
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import weight_bytes

    return float(weight_bytes(arch, Shards.of(1))[0])
