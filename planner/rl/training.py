"""Training time of one iteration for many parallelisms at once, and the iteration time in each mode.

Array suffixes: N samples, B batches, K minibatches, T training choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import Learner
from planner.rl.plan import RlMode, TrainingChoice
from planner.rl.rollouts.fusion import FusedTimes
from planner.rl.services import Services, busy_s, handed_over, handed_s, scored_s, scorers
from planner.rl.trajectories import SampleBatch


@dataclass(frozen=True, slots=True)
class Flow:
    """Rollouts that never end: means over iterations, in seconds, of generators that never wait for weights.

    `paced` has what iterations take with a trainer, by the seconds for which weights are sent.
    """

    period_s: float  # from the end of one batch to that of the next
    residence_s: float  # from when the first sample of a batch may begin to when its last one can be trained on
    paced: Mapping[float, "Paced"] = field(default_factory=dict)
    generation_s: float = inf  # the period where no sample waited for its scores

    def times(self, factor: float) -> "Flow":
        """The same where all but sending weights takes so many times as long."""
        paced = {sent_s: paced.times(factor) for sent_s, paced in self.paced.items()}
        return Flow(self.period_s * factor, self.residence_s * factor, paced, self.generation_s * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Paced:
    """Mean iterations with trainers that take `train_s_K`, rising, simulated; between two of them in proportion, and
    beyond the last, which generators keep up with, as much longer as training is."""

    train_s_K: Floats
    iteration_s_K: Floats

    def iteration_s(self, train_s_T: Floats) -> Floats:
        """Of trainers that take these seconds."""
        beyond = np.maximum(0.0, train_s_T - self.train_s_K[-1])
        return np.asarray(np.interp(train_s_T, self.train_s_K, self.iteration_s_K) + beyond)

    def times(self, factor: float) -> "Paced":
        """The same where everything takes so many times as long."""
        return Paced(self.train_s_K * factor, self.iteration_s_K * factor)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What training needs of generation: per batch its end, per minibatch its tokens and when it is complete.

    `flows`, by staleness, are there for the modes whose weights are updated in flight.
    """

    generation_s_B: Floats
    tokens_BK: Floats
    ready_s_BK: Floats
    possible: bool = True
    oldest: int = 0  # iterations by which weights that made some of a sample are behind, before any synchrony
    scored_s_B: Floats | None = None  # when services have scored all of it; as it is generated where there are none
    serving_s: float = 0.0  # of the busiest servers for a mean batch
    handed_s_B: Floats | None = None  # for which training waits for services that take batches whole
    flows: Mapping[int, Flow] = field(default_factory=dict)

    @property
    def whole_s_B(self) -> Floats:
        """When training can take up all samples."""
        return self.generation_s_B if self.scored_s_B is None else self.scored_s_B


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTable:
    """Training choices as columns."""

    choices: tuple[TrainingChoice, ...]
    dp_T: Floats
    pp_T: Floats
    bubble_T: Floats  # of an update, in micro-batches
    micro_T: Floats
    forward_s_T: Floats  # of a token on a replica
    train_T: Floats  # tokens/s
    optimizer_s_T: Floats
    score_s_T: Floats  # of a token on a replica, part of forward_s_T
    offload_s_T: Floats
    host_bytes_T: Floats  # for each GPU, where roles take turns
    gpus_T: Ints
    pool_T: Ints

    @classmethod
    def of(
        cls,
        choices: tuple[TrainingChoice, ...],
        pools: list[str],
        bubbles: Mapping[TrainingChoice, float] = MappingProxyType({}),
    ) -> "TrainingTable":
        """`pools` are the names by which `pool_T` counts; `bubbles` of updates, where not the option's own."""
        options = [choice.option for choice in choices]
        dp_T = np.array([choice.dp for choice in choices], float)
        sharded = np.array([option.offload_sharded_s for option in options], float)
        host_sharded = np.array([option.host_sharded_bytes for option in options], float)
        return cls(
            choices,
            dp_T,
            np.array([option.pp for option in options], float),
            np.array([bubbles.get(choice, choice.option.update_bubble) for choice in choices], float),
            np.array([option.micro_tokens for option in options], float),
            1 / np.array([option.forward_tokens_per_s for option in options], float),
            np.array([option.train_tokens_per_s for option in options], float),
            np.array([option.optimizer_s for option in options], float),
            np.array([option.score_gpu_s / option.gpus for option in options], float),
            np.array([option.offload_s for option in options], float) + sharded / np.maximum(dp_T, 1),
            np.array([option.host_bytes for option in options], float) + host_sharded / np.maximum(dp_T, 1),
            np.array([choice.gpus for choice in choices], np.int64),
            np.array([pools.index(option.pool) for option in options], np.int64),
        )

    @classmethod
    def of_learner(cls, learner: Learner) -> "TrainingTable":
        """A critic on GPUs of its own."""
        return cls.of((TrainingChoice(learner.option, learner.dp),), [learner.pool])

    def unscored(self) -> "TrainingTable":
        """The same trainings where others score."""
        return replace(
            self,
            forward_s_T=np.maximum(0.0, self.forward_s_T - self.score_s_T),
            score_s_T=np.zeros_like(self.score_s_T),
        )


def rollout_of(
    batches: tuple[SampleBatch, ...],
    finish_s: Sequence[Floats | None],
    minibatches: int,
    samples: int | None = None,
    services: Services = (),
) -> Rollout:
    """Minibatches in the order of completion, the last takes the remainder; `samples` first to finish are taken.

    A sample is complete when all services that it is sent to have scored it; those that take batches whole begin when
    all are. A batch that cannot be generated so (None) makes the rollout impossible.
    """
    done_s = [np.zeros(batch.size) if s_N is None else s_N for batch, s_N in zip(batches, finish_s, strict=True)]
    complete_s = [
        batch.taken_s(scored_s(services, done_s_N, batch.tokens_N))
        for batch, done_s_N in zip(batches, done_s, strict=True)
    ]
    parts = [
        minibatches_of(complete_s_N, batch.tokens_N, minibatches, samples)
        for batch, complete_s_N in zip(batches, complete_s, strict=True)
    ]
    ready, tokens = np.array([ready for _, ready in parts]), np.array([tokens for tokens, _ in parts], float)
    possible = all(done_s_N is not None for done_s_N in finish_s)
    if not scorers(services):
        return Rollout(ready[:, -1].copy(), tokens, ready, possible)
    generated_s_B = np.array(
        [
            done_s_N[np.argsort(complete_s_N, kind="stable")[:samples]].max()
            for done_s_N, complete_s_N in zip(done_s, complete_s, strict=True)
        ]
    )
    serving_s = sum(busy_s(services, batch.tokens_N) for batch in batches) / len(batches)
    scored_s_B, handed_s_B = ready[:, -1].copy(), None
    if handed_over(services):
        ready = np.repeat(scored_s_B[:, None], minibatches, axis=1)
        orders = [np.argsort(complete_s_N, kind="stable")[:samples] for complete_s_N in complete_s]
        handed = [handed_s(services, batch.tokens_N[order]) for batch, order in zip(batches, orders, strict=True)]
        handed_s_B = np.array(handed)
    return Rollout(
        generated_s_B, tokens, ready, possible, scored_s_B=scored_s_B, serving_s=serving_s, handed_s_B=handed_s_B
    )


def fused_rollout_of(
    batches: tuple[SampleBatch, ...],
    fused: Sequence[FusedTimes | None],
    minibatches: int,
    samples: int,
    services: Services = (),
) -> Rollout:
    """The same where scoring is fused with generation: a batch ends when its last sample is scored, by all."""
    done_s = [None if times is None else times.done_s_N for times in fused]
    rollout = rollout_of(batches, done_s, minibatches, samples, services)
    end_s_B = np.array([np.inf if times is None else times.end_s for times in fused])
    scored_s_B = None if rollout.scored_s_B is None else np.maximum(rollout.scored_s_B, end_s_B)
    return replace(rollout, generation_s_B=end_s_B, scored_s_B=scored_s_B)


def minibatches_of(
    done_s_N: Floats, tokens_N: Ints, minibatches: int, samples: int | None = None
) -> tuple[Ints, Floats]:
    """Tokens of each minibatch, and when it is complete [K]."""
    order = np.argsort(done_s_N, kind="stable")[:samples]
    first = np.arange(minibatches) * (len(order) // minibatches)
    return np.add.reduceat(tokens_N[order], first), done_s_N[order][np.append(first[1:], len(order)) - 1]


def minibatch_s(table: TrainingTable, tokens_BK: Floats, learner: Learner | None = None) -> Floats:
    """Seconds of log-probabilities and update [T, B, K].

    A `learner` on GPUs of its own finds values and updates meanwhile, and either waits for the other in between: what
    OpenRLHF's `make_experience` and `ppo_train` do without `colocate_all`, a batch at a time.
    """
    forward, update = minibatch_parts_s(table, tokens_BK)
    if learner is None:
        return forward + update
    values, learned = minibatch_parts_s(TrainingTable.of_learner(learner), tokens_BK)
    return np.asarray(np.maximum(forward, values) + np.maximum(update, learned))


def minibatch_parts_s(table: TrainingTable, tokens_BK: Floats) -> tuple[Floats, Floats]:
    """Seconds of log-probabilities, and of the update [T, B, K]."""
    each = tokens_BK[None] / table.dp_T[:, None, None]
    micro = np.maximum(1.0, np.ceil(each / table.micro_T[:, None, None]))
    forward = each * table.forward_s_T[:, None, None] * (micro + table.pp_T[:, None, None] - 1) / micro
    waiting = (micro + table.bubble_T[:, None, None]) / micro
    update = each / table.train_T[:, None, None] * waiting + table.optimizer_s_T[:, None, None]
    return np.asarray(forward), np.asarray(update)


def streamed_s(ready_s_BK: Floats, work_s_TBK: Floats) -> Floats:
    """When the last minibatch is trained [T, B], each started once it is complete and the one before is done."""
    clock_TB = np.zeros(work_s_TBK.shape[:2])
    for part in range(ready_s_BK.shape[1]):
        clock_TB = np.maximum(clock_TB, ready_s_BK[None, :, part]) + work_s_TBK[:, :, part]
    return clock_TB


def iteration_s(
    mode: RlMode, rollout: Rollout, work_s_TBK: Floats, handover_s_T: Floats, *, overlapped: bool = False
) -> Floats:
    """Mean iteration time [T]; `overlapped` weight synchronisation delays asynchronous training alone."""
    generation_B, whole_B = rollout.generation_s_B, rollout.whole_s_B
    if rollout.handed_s_B is not None:  # the trainer waits before its first minibatch
        first_K = np.arange(work_s_TBK.shape[2]) == 0
        work_s_TBK = work_s_TBK + rollout.handed_s_B[:, None] * first_K
    if mode.sync == "stream_sync":
        return np.asarray((streamed_s(rollout.ready_s_BK, work_s_TBK) + handover_s_T[:, None]).mean(axis=1))
    train_TB = work_s_TBK.sum(axis=2)
    if mode.sync == "sync":
        return np.asarray((whole_B + train_TB + handover_s_T[:, None]).mean(axis=1))
    hidden = handover_s_T if overlapped else np.zeros_like(handover_s_T)
    exposed = handover_s_T - hidden
    if mode.sync == "one_step_async":
        train_TB = train_TB + hidden[:, None]
        return np.asarray((np.maximum(np.roll(whole_B, -1), train_TB) + exposed[:, None]).mean(axis=1))
    if mode.in_flight:
        return flowing_s(rollout.flows[mode.staleness], train_TB.mean(axis=1), exposed, hidden)
    stop = exposed if mode.stops else np.zeros_like(exposed)
    ahead = ahead_s(generation_B, train_TB + exposed[:, None], hidden, mode.staleness, stop, whole_B)
    return np.maximum(ahead, rollout.serving_s)


def flowing_s(flow: Flow, train_s_T: Floats, exposed_s_T: Floats, hidden_s_T: Floats) -> Floats:
    """Mean iteration [T] where weights are updated in flight (PipelineRL, arXiv:2509.19128; AReaL, arXiv:2505.24298).

    It is what generators and trainer take together, and no less than either of them takes by itself.
    """
    iteration_s_T = train_s_T + exposed_s_T
    for exposed_s, hidden_s in {*zip(exposed_s_T.tolist(), hidden_s_T.tolist(), strict=True)}:
        with_it_T = (exposed_s_T == exposed_s) & (hidden_s_T == hidden_s)
        paced_s = flow.paced[exposed_s + hidden_s].iteration_s(train_s_T[with_it_T])
        iteration_s_T[with_it_T] = np.maximum(iteration_s_T[with_it_T], paced_s)
    return iteration_s_T


def ahead_s(
    generation_s_B: Floats,
    train_s_TB: Floats,
    delay_s_T: Floats,
    staleness: int,
    stop_s_T: Floats,
    scored_s_B: Floats | None = None,
) -> Floats:
    """Long-run mean iteration [T] when generation may run `staleness` iterations ahead of training, batches in turn.

    Generation of iteration i starts `stop_s_T` after that of i - 1, and `delay_s_T` after training i - 1 - staleness;
    training i after that of i - 1 and after generation i, or when services have scored it: `scored_s_B` from where it
    starts, while generators go on. The rate of such a max-plus system is its largest cycle mean, found exactly by Karp,
    Discrete Mathematics 23 (1978): with x_m the state after m periods from zero, max over components of
    min_j (x_m - x_j) / (m - j), m the length of the state.
    """
    whole_s_B = generation_s_B if scored_s_B is None else scored_s_B
    generated = np.zeros(len(train_s_TB))
    trained = [np.zeros(len(train_s_TB)) for _ in range(staleness + 1)]  # the last ones, oldest first
    states = [np.stack([generated, *trained])]
    size = staleness + 2
    for _ in range(size):
        for batch, generation_s in enumerate(generation_s_B):
            started = np.maximum(generated + stop_s_T, trained[0] + delay_s_T)
            generated, scored = started + generation_s, started + whole_s_B[batch]
            done = np.maximum(scored, trained[-1]) + train_s_TB[:, batch]
            trained = [*trained[1:], done]
        states.append(np.stack([generated, *trained]))
    means = [(states[size] - states[period]) / (size - period) for period in range(size)]
    return np.asarray(np.min(means, axis=0).max(axis=0) / len(generation_s_B))
