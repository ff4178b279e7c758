"""Cost curves of training replicas: tokens per second, memory (ranks that share optimizer state), and turns.

A replica is tp x cp x pp GPUs, or as many as its experts are spread over. A micro-batch is a sample that ends where
samples are cut off, or as many shorter ones packed to its length, which is what launchers are told; attention is priced
at the length that the mean token lives in. Other models on the same GPUs (`beside`) take their turns there; where those
that only score leave no room for training, they lie in host memory between their turns, and a minibatch loads them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

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
from planner.costs.training.rates import Rates
from planner.costs.training.step import data_parallel, message_seconds, stage_passes
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.shapes import Lengths, configs, with_dp
from planner.kinds.rl.handover import unpinned_bytes_per_s
from planner.kinds.rl.names import OFFLOADED, training_label
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture
from planner.rl.curves import NEVER_FITS, Critic, TrainingOption

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


def alone(
    arch: Architecture, setting: RlSetting, pool: Pool, lengths: Lengths, rates: Rates, *, lighter: bool = False
) -> Iterator[Trainer]:
    """Every way to train a model with nothing beside it; `lighter` as of `trainers`."""
    yield from trainers(arch, setting, pool, lengths, rates, lambda config, inner: (), lighter=lighter)


def measured_trainers(setting: RlSetting) -> Iterator[Trainer]:
    """The curves that the problem brings along."""
    for measured in setting.options.costs.training:
        gpus, scores = measured.tp * measured.pp, measured.score_tokens_per_s
        stated = measured.model_dump(exclude={"score_tokens_per_s"})
        score_gpu_s = gpus / scores if scores is not None else 0.0
        yield Trainer(TrainingOption(gpus=gpus, score_gpu_s=score_gpu_s, **stated), None)


def trainers(
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
