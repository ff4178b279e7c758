"""A workload's demand in numbers: lengths, limits, and KV bytes moved between prefill and decode."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.costs.rates.spread import ErrorSpread
from planner.costs.rates.step import StepTime
from planner.costs.serving.media import Encoding
from planner.costs.serving.speculation import Drafter
from planner.engines.handover import Way
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.steady.attained import Outputs
from planner.kinds.serve.steady.time_limits import (
    ATTAINMENT,
    MEAN,
    UNLIMITED,
    TimeLimit,
    attaining,
    strictest_s,
    time_limits,
)
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.problem.cached_prefixes import CachedPrefixes
from planner.problem.lengths import ServedLengths, quantile_lengths, served_lengths
from planner.problem.resolve import Workload
from planner.problem.schema import PoolLinkSpec
from planner.solvers.stochastic.gap_averages import Answers

ATTENTION = "decode_attention"  # the operator of a decode step that takes longer the more is cached
ANSWERS = 64  # lengths of answers that stand for all, equally likely
PACE_MISSES = 0.1  # of the requests that an attainment lets miss their limits, those that may by the pace of decoding
NO_TIME_S = 1e-9  # left of a limit that a wait uses up: no instance keeps it
LATENCY_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8)
"""The part of a limit on the whole request that prefill may use: the grid on which the two stages are coupled."""


@dataclass(frozen=True, slots=True)
class Target:
    """One workload on its model: lengths, limits and variability as plain numbers."""

    name: str
    index: int
    isl: float
    osl: float
    context: float  # mean cached tokens of a decoding sequence
    resident_tokens: float  # cache reserved for a decoding sequence: its whole length, so that none is ever preempted
    context_tokens: int  # that prompt and answer may have together; lengths are those of what is served below it
    ttft_limits: tuple[TimeLimit, ...]  # strictest quantile first; at least one, infinite when the problem sets none
    tpot_limits: tuple[TimeLimit, ...]  # strictest quantile first
    itl_limits: tuple[TimeLimit, ...]  # on gaps between tokens, strictest quantile first
    latency_limits: tuple[TimeLimit, ...]
    attainment: float | None
    answers: Answers
    joining_steps: float  # of a decoding batch, at most, until the first one with a request prefilled elsewhere
    arrival_cv2: float
    service_cv2: float
    transfer_bytes: float
    draft_bytes: float  # of a drafter, that move with them
    rate_per_s: float | None
    clients: int | None
    share: float
    margins: "Margins"
    prefix_hits: float = 0.0  # share of a prompt that is found in a prefix cache
    lengths: Outputs | None = None  # of answers, where a limit depends on more than their mean
    encoding: Encoding | None = None  # of what its requests bring beside text
    cached: CachedPrefixes | None = None  # what fetches prompts from memory tiers; limits are those behind its waits

    @property
    def prefilled_tokens(self) -> float:
        """Tokens of a prompt that prefill computes, its last one at least; all of them attend to the whole prompt."""
        return max(self.isl * (1.0 - self.prefix_hits), 1.0)

    @property
    def before_tokens(self) -> float:
        """Tokens before those that prefill computes, to which these attend; as unlike prompts of a trace do in all."""
        return self.isl - self.prefilled_tokens if self.cached is None else self.cached.before_tokens

    @property
    def met_besides(self) -> float:
        """Sequences that a request meets on average beyond the mean number: itself, more of bursts, none of clients.

        Where arrivals are Poisson a request finds the mean number and comes on top, and so it is while it is there,
        the number being negative binomial (`solvers.stochastic.gap_averages`).
        """
        return self.answers.peakedness if self.clients is None else 0.0

    def recalled_s(self, decode: StepTime) -> Floats:
        """Seconds of decode steps [N] that attention to the prompts of their sequences takes, as it grows with them."""
        return decode.by_operator.get(ATTENTION, np.zeros(len(decode.device_s))) * (self.isl / self.context)

    def fetch_s(self, quantile: float | None) -> float:
        """The wait for memory tiers before a request is queued, at a quantile or in the mean."""
        return 0.0 if self.cached is None else self.cached.fetch_s(quantile)

    def beside(self, cached: CachedPrefixes) -> "Target":
        """With prompts whose beginnings memory tiers hold: less to compute, unlike lengths of it, and waits for tiers.

        Limits on first tokens and whole requests are left what those waits leave of them, at the same statistic.
        """

        def behind(limits: tuple[TimeLimit, ...]) -> tuple[TimeLimit, ...]:
            return tuple(
                replace(limit, limit_s=max(limit.limit_s - cached.fetch_s(limit.quantile), NO_TIME_S))
                for limit in limits
            )

        return replace(
            self,
            prefix_hits=cached.hit_share,
            service_cv2=cached.computed_cv**2,
            ttft_limits=behind(self.ttft_limits),
            latency_limits=behind(self.latency_limits),
            cached=cached,
        )

    @property
    def outputs(self) -> Outputs:
        """Lengths of answers; all are mean ones where no limit depends on more."""
        return self.lengths or Outputs((self.osl,), (1.0,))

    def for_first_stage(self, share: float) -> "Target":
        """The limits of prefill when it may use `share` of every limit on the whole request."""
        share /= self.margins.first_stage
        limits = [replace(limit, limit_s=limit.limit_s * share) for limit in self.latency_limits]
        if self.outputs.vary:
            limits += [replace(MEAN, limit_s=limit.limit_s) for limit in limits if limit.quantile is not None]
        _, first = self._shares_of_stages()
        return replace(self, ttft_limits=attaining((*self.ttft_limits, *limits), first))

    def for_second_stage(self, share: float) -> "Target":
        """The limits of decode when prefill may use `share` of every limit on the whole request."""
        every, first = self._shares_of_stages()
        rest, mean_s = [], math.inf
        for limit in attaining(self.latency_limits, first):
            tokens = self.osl if limit.quantile is None else max(self.outputs.quantile(limit.quantile), self.osl)
            each_s = limit.limit_s * (1.0 - share) / max(tokens - 1.0, 1e-9)
            if not self.outputs.vary and limit.quantile is not None and math.isfinite(each_s):
                rest.append(replace(limit, limit_s=each_s))
            mean_s = min(mean_s, each_s)
        own = replace(self, tpot_limits=(*attaining(self.tpot_limits, every), *rest))
        return own.no_slower_than(mean_s)

    def _shares_of_stages(self) -> tuple[float, float]:
        """The shares of requests that must keep limits on the time per output token, and others, for an attainment.

        Their product is the attainment. The first takes what the limit on first tokens leaves anyway, else
        `PACE_MISSES` of the requests that may miss.
        """
        wanted = self.attained_share
        if wanted <= 0.0:
            return 0.0, 0.0
        if all(limit.statistic != ATTAINMENT for limit in self.tpot_limits):
            every = 1.0
        else:
            bound_s = strictest_s(self.ttft_limits)
            anyway = max((limit.quantile or 0.0 for limit in self.ttft_limits if limit.limit_s <= bound_s), default=0.0)
            free = wanted / anyway if anyway > wanted and not self.latency_limits else 1.0
            if not any(limit.statistic == ATTAINMENT for limit in (*self.ttft_limits, *self.latency_limits)):
                free = wanted
            every = min(1.0 - PACE_MISSES * (1.0 - wanted), max(free, wanted))
        first = wanted / every
        both = self.outputs.vary and any(limit.statistic == ATTAINMENT for limit in self.latency_limits)
        return every, math.sqrt(first) if both else first

    @property
    def attained_share(self) -> float:
        """The share of requests that must keep every limit on a quantile at once; 0 for none."""
        every = (*self.ttft_limits, *self.tpot_limits, *self.latency_limits)
        return max((limit.quantile or 0.0 for limit in every if limit.statistic == ATTAINMENT), default=0.0)

    def no_slower_than(self, tpot_s: float) -> "Target":
        """With a limit on the mean time per output token too; an infinite one is none."""
        if math.isinf(tpot_s):
            return self
        return replace(self, tpot_limits=(*self.tpot_limits, replace(MEAN, limit_s=tpot_s)))

    @property
    def tpot_limit_s(self) -> float:
        """The strictest limit on any statistic of the time per output token; inf for none."""
        return min((limit.limit_s for limit in self.tpot_limits), default=math.inf)


@dataclass(frozen=True, slots=True)
class Channel:
    """How prefill hands over: the pool that decodes, and the share of a limit on the whole request that prefill has.

    A limit on the whole request couples the two stages; a channel splits it, so that each stage has its own. So does a
    drafter that must have seen the prompt: where it has, its cache is handed over too. So does a connector, that joins
    some shapes of prefill with some of decode.
    """

    index: int
    target_pool: int
    share: float
    drafted: bool = False
    way: Way | None = None  # None joins all

    def moved_bytes(self, target: Target) -> float:
        """Cache of a prompt that goes this way."""
        return target.transfer_bytes + (target.draft_bytes if self.drafted else 0.0)


def channels_of(
    targets: Sequence[Target],
    num_pools: int,
    drafted: Sequence[bool] = (False,),
    ways: Sequence[Way | None] = (None,),
) -> tuple[Channel, ...]:
    """Every pool that decodes, by every way, with every split of the limits on whole requests that a target has."""
    coupled = any(target.latency_limits for target in targets)
    shares = LATENCY_SHARES if coupled else (1.0,)
    every = itertools.product(ways, drafted, shares, range(num_pools))
    return tuple(Channel(index, pool, share, seen, way) for index, (way, seen, share, pool) in enumerate(every))


@dataclass(frozen=True, slots=True)
class TransferPath:
    """The way of a prompt's cache from one pool to another (or within one)."""

    bandwidth_bytes_per_s: float  # of one rank that holds cache
    shared_bytes_per_s: float  # of all ranks together; inf where only their own links limit them
    latency_s: float

    def transfer_s(self, size_bytes: float, shards: Shards) -> Floats:
        """Moving `size_bytes` from the tensor-parallel ranks that hold it."""
        return size_bytes / np.minimum(shards.tp * self.bandwidth_bytes_per_s, self.shared_bytes_per_s) + self.latency_s


def link_bytes_per_s(pool: Pool) -> float:
    """Bandwidth of one device to devices of other instances: the fabric, or the scale-up links of a lone domain."""
    alone = pool.num_nodes * pool.node.num_gpus <= pool.node.scale_up_size
    return pool.node.scale_up_bandwidth_bytes_per_s if alone else _fabric_bytes_per_s(pool)


def handover(source: Pool, target: Pool, link: PoolLinkSpec | None) -> TransferPath:
    """The way between two pools; `link` is what the problem states of the network between them."""
    if source is target:
        return TransferPath(link_bytes_per_s(source), math.inf, source.node.nic_latency_s)
    narrower = min(_fabric_bytes_per_s(source), _fabric_bytes_per_s(target))
    latency_s = max(source.node.nic_latency_s, target.node.nic_latency_s)
    if link is None:
        return TransferPath(narrower, math.inf, latency_s)
    return TransferPath(narrower, link.bandwidth_bytes_per_s, latency_s + link.latency_s)


def _fabric_bytes_per_s(pool: Pool) -> float:
    return pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription


@dataclass(frozen=True, slots=True)
class Margins:
    """By how much limits are divided so that they are kept in spite of the error of predictions.

    Where own runs tell layouts apart, limits on TPOT and whole requests are divided by that of each layout
    (`PoolCosts.margin`), and are undivided here but for the share that prefill alone has of whole requests.
    """

    ttft: float = 1.0
    tpot: float = 1.0
    first_stage: float = 1.0  # beyond `tpot`, of limits on whole requests for prefill alone
    by_layout: float | None = None  # the confidence, where layouts have their own

    @classmethod
    def of(cls, confidence: float | None, spreads: Mapping[str, ErrorSpread], *, by_layout: bool = False) -> "Margins":
        """The upper end of the 80 % interval of steady state keeps a limit with 90 %; others by a Gaussian.

        Raises PlannerError when the calibration does not say how far predictions err.
        """
        if confidence is None:
            return cls()
        if not {"ttft", "tpot"} <= set(spreads):
            raise PlannerError(
                "the calibration has no intervals, so no confidence can be kept",
                where="slo.confidence",
                hint="leave `confidence` out, or take a calibration with a section `intervals`",
            )
        ttft, tpot = (spreads[name].margin(confidence) for name in ("ttft", "tpot"))
        return cls(ttft, first_stage=tpot, by_layout=confidence) if by_layout else cls(ttft, tpot)


def make_target(
    workload: Workload,
    index: int,
    arch: Architecture,
    spreads: Mapping[str, ErrorSpread],
    drafter: Drafter | None = None,
    *,
    context_tokens: int,
    confidence: float | None,
    joining_steps: float = 1.0,
    by_layout: bool = False,
) -> Target:
    """The target of one resolved workload; its limits are divided by the margins of the `confidence`.

    `by_layout`: own runs tell layouts apart, so that the search divides limits by theirs.

    Lengths are those of what engines with a context of `context_tokens` serve of it.

    A limit on the whole request has the margin of the time per output token, which is most of it.

    A sequence found decoding is length-biased: its mean output is osl (1 + cv^2), and half of it is cached already.
    """
    slo, load = workload.spec.slo, workload.spec.load
    margins = Margins.of(confidence, spreads, by_layout=by_layout)
    served = served_of(workload, context_tokens)
    isl, osl = served.input.mean_tokens, served.output.mean_tokens
    arrival_cv2 = 1.0 if load is None or load.rate_per_s is None else load.arrival_cv**2
    decoding_osl = osl * (1.0 + served.output.cv**2)
    quantiles = [(time_limits(limit, None, 1.0) or (MEAN,))[0].quantile for limit in (slo.ttft, slo.tpot, slo.latency)]
    together = sum(quantile is not None for quantile in quantiles) > 1
    room = max(context_tokens - served.input.mean_tokens, 2.0)
    moved = kv_bytes(arch, np.array([isl])) + state_bytes_per_sequence(arch, np.array([1.0]))
    return Target(
        name=workload.spec.name,
        index=index,
        isl=isl,
        osl=osl,
        context=min(isl + decoding_osl / 2.0, float(context_tokens)),
        resident_tokens=min(isl + decoding_osl, float(context_tokens)),
        context_tokens=context_tokens,
        ttft_limits=time_limits(slo.ttft, slo.attainment, margins.ttft, together) or (UNLIMITED,),
        tpot_limits=time_limits(slo.tpot, slo.attainment, margins.tpot, together),
        itl_limits=time_limits(slo.itl, None, margins.tpot),
        latency_limits=time_limits(slo.latency, slo.attainment, margins.tpot, together),
        margins=margins,
        attainment=slo.attainment,
        answers=_answers(workload, served, arrival_cv2, context_tokens),
        joining_steps=joining_steps,
        arrival_cv2=arrival_cv2,
        service_cv2=served.input.cv**2,
        transfer_bytes=float(moved[0]),
        draft_bytes=0.0 if drafter is None else float(drafter.kv_bytes(Shards.of(1), isl, np.ones(1))[0]),
        rate_per_s=None if load is None else load.rate_per_s,
        clients=None if load is None else load.concurrency,
        share=workload.spec.share,
        prefix_hits=workload.spec.prefix_hits or 0.0,
        encoding=None if workload.media is None else Encoding(workload.media, isl),
        lengths=Outputs.of(workload.spec.output_tokens, workload.output, room) if slo.latency is not None else None,
    )


def served_of(workload: Workload, context_tokens: int, prefill_tokens: int | None = None) -> ServedLengths:
    """What engines with that context serve of a workload, those that prefill for them with another one."""
    spec, lengths = workload.spec, (workload.input, workload.output)
    return served_lengths(spec.input_tokens, spec.output_tokens, *lengths, context_tokens, prefill_tokens)


def _answers(workload: Workload, served: ServedLengths, arrival_cv2: float, context_tokens: int) -> Answers:
    """Answers of several tokens, none beyond the context behind a mean prompt; one of two where there are none."""
    room = max(context_tokens - served.input.mean_tokens, 2.0)
    lengths = quantile_lengths(workload.spec.output_tokens, workload.output, ANSWERS)
    tokens = tuple(min(length, room) for length in lengths.tolist() if length >= 2.0) or (2.0,)
    return Answers(tokens, served.output.cv**2, served.input.cv**2, arrival_cv2)


def relaxed(targets: Sequence[Target], factor: float) -> tuple[Target, ...]:
    """Targets with every limit so many times as large."""
    return tuple(
        replace(
            target,
            ttft_limits=tuple(replace(limit, limit_s=limit.limit_s * factor) for limit in target.ttft_limits),
            tpot_limits=tuple(replace(limit, limit_s=limit.limit_s * factor) for limit in target.tpot_limits),
            itl_limits=tuple(replace(limit, limit_s=limit.limit_s * factor) for limit in target.itl_limits),
            latency_limits=tuple(replace(limit, limit_s=limit.limit_s * factor) for limit in target.latency_limits),
        )
        for target in targets
    )
