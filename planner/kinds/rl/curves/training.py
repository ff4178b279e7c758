"""Cost curves of training replicas: tokens per second, memory (ranks that share optimizer state), and turns.

A replica is tp x cp x pp GPUs, or as many as its experts are spread over. A micro-batch is the longest sample, or as
many shorter ones packed to its length; attention is priced at the length that the mean token lives in. Training of the
critic, and forward passes of reference and reward, run on the actor's GPUs in turn. Models that only score are cut as
the actor is, which is how verl, NeMo-RL and AReaL launch them; where they leave no room for it, they lie in host memory
between their turns, and a minibatch loads them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from planner.costs.training.activations import stage_bytes
from planner.costs.training.config import (
    USABLE_SHARE,
    Precision,
    RecomputeConfig,
    TrainingConfig,
    computed_in,
    machine_of,
)
from planner.costs.training.memory import RankBytes
from planner.costs.training.memory import memory as training_memory
from planner.costs.training.parameters import rank_parameters, state_bytes
from planner.costs.training.rates import Rates, rates_on
from planner.costs.training.stages import stage_contents
from planner.costs.training.step import data_parallel, message_seconds, stage_passes
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.generation import splits
from planner.kinds.rl.handover import unpinned_bytes_per_s
from planner.kinds.rl.names import OFFLOADED, training_label
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture, MoeFfn
from planner.rl.curves import NEVER_FITS, Critic, TrainingOption
from planner.rl.paired import pairs_with
from planner.rl.trajectories import SampleBatch

HELPER_SHARE = 0.15  # of a device that another model may keep while the actor is in turn
PIPELINES, CONTEXTS, EXPERTS = (1, 2, 4, 8, 16), (1, 2, 4), (1, 4, 8, 16, 32)
"""Degrees pp, cp and ep that are tried where none are asked for."""
Recomputed = Literal["none", "full"]
GRANULARITIES: tuple[Recomputed, ...] = ("none", "full")  # of recomputation, the least first


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of whole samples: the longest, and the one that the mean token lives in, E[n^2] / E[n]."""

    longest: int
    typical: int

    @classmethod
    def of(cls, batches: Sequence[SampleBatch]) -> "Lengths":
        total = np.concatenate([batch.tokens_N for batch in batches]).astype(float)
        longest = int(total.max())
        return cls(longest, max(1, min(longest, round(float((total**2).sum() / total.sum())))))


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
    cp: int = 1
    ep: int = 1
    with_actor: bool = False  # cut as the actor is, on the same ranks
    offloaded: bool = False  # to the host between its turns

    @property
    def gpus(self) -> int:
        """Of a data-parallel rank."""
        return self.tp * self.cp * self.pp


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
        return _with_dp(self.config, dp * self.inner_dp)

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

    def scorers(actor: TrainingConfig, inner: int) -> tuple[Helper, ...]:
        return tuple(_scorer(part, arch, actor, inner, pool, rates) for part, arch in scoring)

    precisions = tuple(dict.fromkeys(setting.options.training_precision))
    critic = setting.model("critic") if "critic" not in apart else None
    if critic is None:
        yield from _trainers(setting.actor, setting, pool, lengths, rates, scorers, precisions)
        return
    learners = _Learners(list(alone(critic, setting, pool, lengths, rates)), setting, pool)
    if learners.fastest is None:
        return

    def beside(actor: TrainingConfig, inner: int) -> tuple[Helper, ...]:
        gpus = actor.num_gpus * inner
        return (_critic(learners.beside(gpus, actor.pp), gpus), *scorers(actor, inner))

    for trainer in _trainers(setting.actor, setting, pool, lengths, rates, beside, precisions):
        yield _with_critic(trainer, learners.beside(trainer.option.gpus, trainer.option.pp), pool)


def alone(arch: Architecture, setting: RlSetting, pool: Pool, lengths: Lengths, rates: Rates) -> Iterator[Trainer]:
    """Every way to train a model with nothing beside it."""
    yield from _trainers(arch, setting, pool, lengths, rates, lambda config, inner: ())


class _Learners:
    """How the critic may train on a pool."""

    def __init__(self, learners: list[Trainer], setting: RlSetting, pool: Pool) -> None:
        self._fused = setting.options.fused_training
        self._learners = learners
        self._kept = {id(learner): _critic(learner, pool.num_gpus).kept_bytes for learner in learners}
        self._room = pool.node.accelerator.memory_bytes * HELPER_SHARE
        self.fastest = self._best(learners)

    def beside(self, gpus: int, pp: int) -> Trainer:
        """Beside an actor replica of so many GPUs and stages: where both may train at the same time, one that can."""
        assert self.fastest is not None
        if not self._fused:
            return self.fastest
        paired = [learner for learner in self._learners if pairs_with(learner.option.gpus, learner.option.pp, gpus, pp)]
        return self._best(paired) or self.fastest

    def _best(self, learners: list[Trainer]) -> Trainer | None:
        """The fastest of those that keep little of a device, else the one that keeps least."""
        small = [learner for learner in learners if self._kept[id(learner)] <= self._room]
        if small:
            return min(small, key=lambda learner: learner.option.gpus / learner.option.train_tokens_per_s)
        return min(learners, key=lambda learner: self._kept[id(learner)], default=None)


def _critic(learner: Trainer, gpus: int) -> Helper:
    """The critic trained on the actor's GPUs, of which there are at least `gpus`."""
    option = learner.option
    config = learner.at(max(learner.option.min_dp, gpus // option.gpus))
    states = [state_bytes(config, rank_parameters(config, rank)) for rank in (0, config.pp - 1)]
    kept, weights = max(state.total_bytes for state in states), max(state.weights_bytes for state in states)
    train, forward = option.gpus / option.train_tokens_per_s, option.gpus / option.forward_tokens_per_s
    return Helper("critic", option.tp, option.pp, train, forward, weights, kept, config.cp, config.ep)


def _scorer(part: str, arch: Architecture, actor: TrainingConfig, inner: int, pool: Pool, rates: Rates) -> Helper:
    """A model that only runs forward, cut as the actor is, else over as few GPUs of a node as keep little on each."""
    experts = max((layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), default=1)
    ep = actor.ep if experts % actor.ep == 0 else 1
    tokens = actor.micro_batch * actor.sequence_tokens
    if actor.pp <= arch.num_layers and splits(arch, actor.tp, 1, ep) and (ep > 1 or experts == 1 or actor.ep == 1):
        config = replace(actor, arch=arch, ep=ep, recompute=RecomputeConfig(granularity="none"))
        whole = _with_dp(config, max(1, pool.num_gpus // (config.num_gpus * inner)) * inner)
        seconds = float(stage_passes(whole, rates)[:, 0].max()) + message_seconds(whole, rates)
        states = (state_bytes(whole, rank_parameters(whole, rank)) for rank in (0, config.pp - 1))
        weights = max(state.weights_bytes for state in states)
        return Helper(
            part, actor.tp, actor.pp, 0.0, config.num_gpus * seconds / tokens, weights, weights, actor.cp, ep, True
        )
    tp, weights, room = 1, _weight_bytes(arch), pool.node.accelerator.memory_bytes * HELPER_SHARE
    while weights / tp > room and pool.node.num_gpus % (2 * tp) == 0 and splits(arch, 2 * tp, 2 * tp, 1):
        tp *= 2
    sequences = actor.micro_batch
    replica = TrainingConfig(arch, actor.machine, actor.sequence_tokens, sequences, sequences, tp=tp, etp=tp)
    forward_gpu_s = tp * float(stage_passes(replica, rates)[0, 0]) / tokens
    return Helper(part, tp, 1, 0.0, forward_gpu_s, weights / tp, weights / tp)


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
    beside: Callable[[TrainingConfig, int], tuple[Helper, ...]],
    precisions: Sequence[Precision] = ("bf16",),
) -> Iterator[Trainer]:
    """Trainers of one model, with the helpers that lie beside a replica: those that only score where they stay on the
    devices, and in host memory where that leaves room for fewer replicas, or for what is not computed again."""
    again = GRANULARITIES if setting.options.recompute is None else (setting.options.recompute,)
    able = computed_in(pool.node.accelerator)
    shapes = product(_configs(arch, setting, pool, lengths), [name for name in precisions if name in able])
    for (shape, inner), precision in shapes:
        base = replace(shape, precision=precision)
        kept = beside(base, inner)
        stay = list(_fitting(setting, base, inner, kept, pool, rates, again))
        yield from stay
        moved = tuple(_to_host(helper) for helper in kept)
        if moved != kept and not any(_lightest(trainer, again) for trainer in stay):
            for other in _fitting(setting, base, inner, moved, pool, rates, again):
                if not any(_no_heavier(trainer, other) for trainer in stay):
                    yield other


def _fitting(
    setting: RlSetting,
    base: TrainingConfig,
    inner: int,
    helpers: tuple[Helper, ...],
    pool: Pool,
    rates: Rates,
    granularities: tuple[Recomputed, ...],
) -> Iterator[Trainer]:
    """Trainers that fit in memory beside their helpers, by how much they compute again: each on fewer replicas than
    those that compute less again."""
    whole = pool.node.accelerator.memory_bytes * USABLE_SHARE
    room = whole - sum(helper.kept_bytes for helper in helpers)
    in_turn = whole - max((helper.weights_bytes for helper in helpers if helper.offloaded), default=0.0)
    most = pool.num_gpus // (base.num_gpus * inner)
    fewest = NEVER_FITS
    for recomputed in granularities:
        config = replace(base, recompute=RecomputeConfig(granularity=recomputed))
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
    )


def _configs(
    arch: Architecture, setting: RlSetting, pool: Pool, lengths: Lengths
) -> Iterator[tuple[TrainingConfig, int]]:
    """Configurations with one data-parallel rank, and how many ranks make a replica."""
    machine, options = machine_of(pool.node), setting.options
    node = max(pool.node.num_gpus, 1)
    experts = max((layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), default=1)
    packed = max(1, lengths.longest // lengths.typical)
    spread = options.training_ep or ((1,) if experts == 1 else EXPERTS)
    for tp in options.training_tp or tuple(1 << power for power in range(node.bit_length())):
        for pp in options.training_pp or PIPELINES:
            for cp in options.training_cp or CONTEXTS:
                for ep in spread:
                    inner = max(1, ep // (tp * cp))
                    fits = tp * pp * cp * inner <= pool.num_gpus and pp <= arch.num_layers and tp <= node
                    whole = ep % (tp * cp) == 0 or (tp * cp) % ep == 0
                    if not fits or not whole or not splits(arch, tp, 1, ep) or lengths.typical < 2 * cp:
                        continue
                    yield (
                        TrainingConfig(arch, machine, lengths.typical, packed, packed, tp=tp, pp=pp, cp=cp, ep=ep),
                        inner,
                    )


def _with_dp(config: TrainingConfig, ranks: int) -> TrainingConfig:
    """`ranks` data-parallel ranks, with as many micro-batches in flight as the pipeline takes."""
    return replace(config, dp=ranks, global_batch=config.micro_batch * ranks * max(config.pp, 1))


def _least_dp(config: TrainingConfig, inner: int, most: int, room: float, in_turn: float, rates: Rates) -> int:
    """The fewest replicas whose fullest device stays within `room` in training, and whose state alone stays within
    `in_turn`; what they share only falls with their number."""

    def fits(dp: int) -> bool:
        held = training_memory(_with_dp(config, dp * inner), rates)
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
    whole = _with_dp(config, max(most, least) * inner)
    pass_S3 = stage_passes(whole, rates)
    hop = 2.0 * message_seconds(whole, rates)
    slowest = float(pass_S3.sum(axis=1).max()) + hop
    forward = float(pass_S3[:, 0].max()) + hop / 2.0
    tokens = config.micro_batch * config.sequence_tokens * inner
    exchange = [data_parallel(whole, rank_parameters(whole, rank), rates) for rank in (0, config.pp - 1)]
    optimizer = max(rank.reduce_s + rank.gather_s + rank.optimizer_s for rank in exchange)
    shared = _with_dp(config, inner)
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
