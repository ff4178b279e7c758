"""Rollouts that flow: weights are updated while samples are under way, and no replica waits for the longest of a batch.

PipelineRL (arXiv:2509.19128) and AReaL (arXiv:2505.24298) begin samples of the next iterations as others end; NeMo-RL
does with `in_flight_weight_updates`, a prompt at a time, and at most as many prompts under way as `staleness`
iterations have. Caches of samples under way are kept. Where samples are sent to services as they are generated, a
prompt is under way until all have scored it: verl's and NeMo-RL's rollouts end with the rewards of their environments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.window import Flown, Trainer, run_window
from planner.rl.curves import DecodeCurve, Service
from planner.rl.generation import busy_s
from planner.rl.plan import GenerationGroup, RlMode
from planner.rl.problem import RlProblem
from planner.rl.services import Services, as_generated, flowing_busy_s
from planner.rl.training import Flow, Paced
from planner.rl.trajectories import SampleBatch

TRAINERS = (0.0, 0.4, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Training by the period of generators that never wait, at which iterations are simulated."""
KEPT_UP = 1e-3  # by which iterations are longer than training, at most, where generators keep up with it
MEASURED, MOST = 6, 30  # iterations whose mean is taken, at least; those that samples call for, at most
STEADY, MEASURED_SAMPLES = 2048, 4096  # samples before, and in, what the mean is taken of


def flows(
    problem: RlProblem, groups: tuple[GenerationGroup, ...], modes: Sequence[RlMode], services: Services
) -> Mapping[int, Flow]:
    """By the staleness of those `modes` whose weights are updated in flight; none for several groups."""
    wanted = {mode.staleness for mode in modes if mode.in_flight} if len(groups) == 1 else set()
    return {staleness: flow_of(problem, groups[0], staleness, services) for staleness in sorted(wanted)}


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Batches in turn as samples in the order in which they are handed out, simulated on a group of replicas.

    The first `ahead` batches are left out of what is told, and as many follow on those that are.
    """

    prompt_Q: Ints
    output_Q: Ints
    flown: Flown
    first_B: Ints  # sample of each batch
    ahead: int
    window: int  # prompts under way

    def ends_s(self, done_s_Q: Floats) -> Floats:
        """When each batch, and all before it, are done [B]."""
        return np.asarray(np.maximum.accumulate(np.maximum.reduceat(done_s_Q, self.first_B)))

    def period_s(self, done_s_Q: Floats) -> float:
        """From the end of one batch to that of the next, on average."""
        end_s_B = self.ends_s(done_s_Q)
        last = len(end_s_B) - 1 - self.ahead
        return float(end_s_B[last] - end_s_B[self.ahead]) / (last - self.ahead)

    @property
    def residence_s(self) -> float:
        """From when the first sample of a batch starts to when its last one can be trained on, on average."""
        return self.after_s(self.flown.scored_s_Q)

    def after_s(self, done_s_Q: Floats) -> float:
        """From when the first sample of a batch starts to when it, and all before it, are done, on average."""
        begun_s_B = np.minimum.reduceat(self.flown.started_s_Q, self.first_B)
        steady = slice(self.ahead + 1, len(begun_s_B) - self.ahead)
        return float((self.ends_s(done_s_Q) - begun_s_B)[steady].mean())


@dataclass(frozen=True, slots=True)
class Streaming:
    """Batches in turn on one group of replicas, which begins samples of `staleness` batches ahead of training."""

    batches: tuple[SampleBatch, ...]
    per_prompt: int  # samples
    group: GenerationGroup
    staleness: int
    services: tuple[Service, ...] = ()  # that samples are sent to as they are generated

    @classmethod
    def of(cls, problem: RlProblem, group: GenerationGroup, staleness: int, services: Services) -> "Streaming":
        """The batches of a problem."""
        return cls(problem.batches, problem.samples_per_prompt, group, staleness, as_generated(services))

    @property
    def window(self) -> int:
        """Prompts under way at a time."""
        return self.staleness * max(1, self.batches[0].size // self.per_prompt)

    def least_s(self, stop_s: float = 0.0) -> float:
        """What replicas, which stop for weights, or servers are busy for in a mean iteration, at least."""
        replicas_s = mean_busy_s(self.batches, self.group.option.curve) / self.group.replicas
        return max(replicas_s + stop_s, flowing_busy_s(self.services, self.batches))

    def taken(self, count: int) -> list[SampleBatch]:
        """So many batches in turn."""
        return [self.batches[place % len(self.batches)] for place in range(count)]

    def run(self, batches: Sequence[SampleBatch], trainer: Trainer) -> Flown:
        """These batches in turn."""
        replicas, curve = self.group.replicas, self.group.option.curve
        return run_window(
            *lengths_of(batches), self.per_prompt, self.window, replicas, curve, trainer, self.services
        )  # fmt: skip

    def iteration_s(self, train_s: float, stop_s: float, delay_s: float) -> float:
        """Mean iteration in the long run with a trainer that takes `train_s`, by the tokens of each batch."""
        count, size = len(self.batches), self.batches[0].size
        before = max(2 * (self.staleness + 1), min(MOST, STEADY // size))
        wanted = max(MEASURED, 2 * count, min(MOST, MEASURED_SAMPLES // size))
        first, measured = count * ceil(before / count), count * ceil(wanted / count)
        batches = self.taken(first + measured + self.staleness + 1)
        tokens_B = np.array([float(batch.tokens_N.sum()) for batch in batches])
        train_s_B = train_s * tokens_B / tokens_B[:count].mean()
        size_B = np.array([batch.size for batch in batches])
        sent_s_B = self.run(batches, Trainer(size_B, train_s_B, self.staleness, stop_s, delay_s)).sent_s_B
        return float(sent_s_B[first + measured - 1] - sent_s_B[first - 1]) / measured


def flow_of(problem: RlProblem, group: GenerationGroup, staleness: int, services: Services) -> Flow:
    """Batches of `problem` in turn on one group of replicas, by themselves and with trainers.

    The period is no shorter than what replicas or servers are busy for, however the few batches simulated end.
    """
    sent_s = {seconds for (pool, _), seconds in problem.weight_sync_s.items() if pool == group.option.pool}
    streaming = Streaming.of(problem, group, staleness, services)
    return _flow(streaming, tuple(sorted(sent_s)), problem.weight_sync_overlapped)


@lru_cache(maxsize=1024)  # plans that differ in training alone have the same
def _flow(streaming: Streaming, sent_s: tuple[float, ...], overlapped: bool) -> Flow:
    chain = _chain(streaming)
    period_s = max(chain.period_s(chain.flown.scored_s_Q), streaming.least_s())
    waits = {seconds: (0.0, seconds) if overlapped else (seconds, 0.0) for seconds in sent_s}
    paced = {each: _paced(streaming, period_s, *wait) for each, wait in waits.items()}
    generation_s = _flow(replace(streaming, services=()), (), overlapped).period_s if streaming.services else period_s
    return Flow(period_s, chain.residence_s, paced, generation_s)


def _paced(streaming: Streaming, period_s: float, stop_s: float, delay_s: float) -> Paced:
    """Iterations with trainers that take more and more, up to one that generators keep up with."""
    train_s_K, iteration_s_K, least_s = [], [], streaming.least_s(stop_s)
    for share in TRAINERS:
        train_s_K.append(share * period_s)
        least_s = max(least_s, streaming.iteration_s(train_s_K[-1], stop_s, delay_s))
        iteration_s_K.append(least_s)
        if least_s <= (train_s_K[-1] + stop_s) * (1.0 + KEPT_UP):
            break
    return Paced(np.array(train_s_K), np.array(iteration_s_K))


def chain_of(problem: RlProblem, group: GenerationGroup, staleness: int, services: Services) -> Chain:
    """Every batch of `problem`, behind `staleness` + 1 and before as many more less one, simulated."""
    return _chain(Streaming.of(problem, group, staleness, services))


def _chain(streaming: Streaming) -> Chain:
    ahead = streaming.staleness
    batches = streaming.taken(2 * ahead + len(streaming.batches) + 1)
    size_B = np.array([batch.size for batch in batches])
    never_waited_for = Trainer(size_B, np.zeros(len(batches)), len(batches))
    first_B = np.cumsum([0, *size_B[:-1]])
    return Chain(*lengths_of(batches), streaming.run(batches, never_waited_for), first_B, ahead, streaming.window)


def lengths_of(batches: Sequence[SampleBatch]) -> tuple[Ints, Ints]:
    """Prompts and outputs [Q] of batches in a row."""
    prompt_Q = np.concatenate([batch.prompt_tokens_N for batch in batches])
    return prompt_Q, np.concatenate([batch.output_tokens_N for batch in batches])


def mean_busy_s(batches: Sequence[SampleBatch], curve: DecodeCurve) -> float:
    """Seconds of a mean iteration for which replicas are busy, together, at least."""
    busy = [busy_s(b.prompt_tokens_N, b.output_tokens_N, b.size, curve) for b in batches]
    return sum(busy) / len(busy)
