"""What workloads ask of engines on average, from draws of their lengths, and what their limits leave them.

Expectations are means over `DRAWS` requests of each workload, those of the stationary process up to the error of so
many draws.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import Floats
from planner.kinds.serve.bounds.prices import PricedDemand, SequenceClass
from planner.kinds.serve.simulated.load_streams import divided, drawn
from planner.kinds.serve.steady.search import ServeSetting
from planner.problem.cached_prefixes import CachedPrefixes
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.goodput.step_prices import contexts, pairs

DRAWS = 100_000
LENGTH_SEED = 700_000
THRESHOLDS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of contexts at which prices of contexts may fall
CLASS_EDGES = (0.25, 0.5, 0.75, 0.9, 0.97, 0.995, 1.0)  # quantiles at which classes of answers by length end


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit that so large a share of the requests keeps; None for one on the mean."""

    share: float | None
    bound_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Lengths of one workload [R], and the limits that bound its rate."""

    share: float  # of the requests of all workloads of its model
    input_tokens: Floats
    output_tokens: Floats
    ttft: tuple[SharedLimit, ...]
    tpot: SharedLimit | None
    computed_tokens: Floats | None = None  # of each prompt, where caches spare the rest of it at best
    encoded: Floats | None = None  # tokens of a tower that each request has encoded, where they bring media

    @property
    def prefilled_tokens(self) -> Floats:
        """Of each prompt, what no cache spares [R]."""
        return self.input_tokens if self.computed_tokens is None else self.computed_tokens

    @property
    def several(self) -> float:
        """The share of its requests that have a time per output token."""
        return float(np.mean(self.output_tokens > 1.0))

    def within(self, tokens: int) -> "Workload":
        """Its requests as engines of that context serve them: prompts refused are nothing, answers are cut."""
        if float((self.input_tokens + np.maximum(self.output_tokens, 1.0)).max(initial=0.0)) <= tokens:
            return self
        room = tokens - self.input_tokens
        inputs = np.where(room > 0.0, self.input_tokens, 0.0)
        outputs = np.where(room > 0.0, np.minimum(self.output_tokens, room), 0.0)
        computed = np.where(room > 0.0, self.prefilled_tokens, 0.0)
        encoded = None if self.encoded is None else np.where(room > 0.0, self.encoded, 0.0)
        return Workload(self.share, inputs, outputs, self.ttft, self.tpot, computed, encoded)


def workloads_of(setting: ServeSetting, shares: tuple[float, ...]) -> tuple[Workload, ...]:
    """Every workload of a problem; `shares` are those of all requests.

    Beside memory for prefixes it is the trace, whose prompts have computed what no cache of any size spares.
    """
    if setting.resolved.cached is not None:
        return (_traced(setting, setting.resolved.cached, *shares),)
    mixture = drawn(setting, (1.0,) * len(shares), DRAWS, 0, LENGTH_SEED + setting.resolved.problem.seed)
    return tuple(
        Workload(
            share,
            draws.input_tokens.astype(float),
            draws.output_tokens.astype(float),
            _limits(slo, "ttft"),
            _tpot(slo),
            encoded=None if draws.media is None else draws.media.of_prompts(draws.input_tokens),
        )
        for share, draws, slo in zip(shares, mixture.draws, mixture.slos, strict=True)
    )


def _traced(setting: ServeSetting, cached: CachedPrefixes, share: float) -> Workload:
    """The requests of the trace, each once."""
    (target,), (workload,) = setting.targets, setting.resolved.workloads
    slo = divided(workload.spec.slo, target.margins)
    inputs, outputs = (np.array(facts.traced, dtype=np.float64) for facts in (workload.input, workload.output))
    return Workload(
        share, inputs, outputs, _limits(slo, "ttft"), _tpot(slo), cached.least_computed_R.astype(np.float64)
    )


def _limits(slo: SloSpec, time: str) -> tuple[SharedLimit, ...]:
    """The limits on a time; an attainment holds those on percentiles to its share too."""
    limits = [(quantile_of(of), bound_s) for name, of, bound_s in slo.limits() if name == time]
    least = slo.attainment or 0.0
    return tuple(SharedLimit(None if share is None else max(share, least), bound_s) for share, bound_s in limits)


def _tpot(slo: SloSpec) -> SharedLimit | None:
    """The one limit on the time per output token that is used: of percentiles the strictest, else that on the mean."""
    limits = _limits(slo, "tpot")
    shared = [limit for limit in limits if limit.share is not None]
    return min(shared or limits, key=lambda limit: limit.bound_s, default=None)


@dataclass(frozen=True, slots=True)
class GoodSteps:
    """Decode steps that requests which keep a limit have at least, below a line in their share of all requests."""

    at: float  # the share that the limit asks for
    steps: float  # of the shortest answers that make up that share, by request
    slope: float  # steps of the next one

    @classmethod
    def of(cls, workload: Workload, share: float) -> "GoodSteps":
        """`share` of the requests with several tokens keep the limit."""
        steps = np.sort(workload.output_tokens[workload.output_tokens > 1.0] - 1.0)
        if not len(steps):
            return cls(0.0, 0.0, 0.0)
        count = min(max(math.floor(share * len(steps)), 1), len(steps))
        whole = len(workload.output_tokens)
        return cls(count / whole, float(steps[:count].sum()) / whole, float(steps[count - 1]))


@lru_cache(maxsize=16)  # types of a problem ask for few of them, each from all draws
def priced(
    workload: Workload,
    thresholds: tuple[float, ...],
    *,
    prefills: bool,
    decodes: bool,
    possible: bool,
    contexts_cost: bool = True,
) -> PricedDemand:
    """The demand on engines that prefill or decode; without a class where their steps keep the limit for none.

    Unless `contexts_cost`, nothing is asked for the tokens that decode steps attend to.
    """
    inputs, outputs = workload.input_tokens, np.maximum(workload.output_tokens, 1.0)
    computed = workload.prefilled_tokens
    attending = computed * (inputs - computed) + pairs(computed)
    prompt = (float(computed.mean()), float(attending.mean())) if prefills else (0.0, 0.0)
    if not decodes:
        return PricedDemand(workload.share, (0.0, 0.0, *prompt))
    below = (float(contexts_below(inputs, outputs, threshold).mean()) for threshold in thresholds)
    attended = float(contexts(inputs, outputs).mean()) if contexts_cost else 0.0
    loads = (float((outputs - 1.0).mean()), attended, *prompt, *below)
    limit = workload.tpot
    if limit is None or not possible or workload.several == 0.0:
        return PricedDemand(workload.share, loads)
    if limit.share is not None:
        steps = GoodSteps.of(workload, limit.share).steps
        return PricedDemand(workload.share, loads, (SequenceClass(steps, 1.0, limit.bound_s),))
    return PricedDemand(
        workload.share, loads, _by_length(outputs - 1.0), limit.bound_s * workload.several, all_classed=True
    )


def contexts_below(input_tokens: Floats, output_tokens: Floats, threshold: float) -> Floats:
    """Tokens that all decode steps of a request attend to, of each step no more than the threshold [R]."""
    steps = output_tokens - 1.0
    shorter = np.clip(np.floor(threshold - input_tokens), 0.0, steps)
    return np.asarray(shorter * input_tokens + shorter * (shorter + 1.0) / 2.0 + (steps - shorter) * threshold)


@lru_cache(maxsize=16)
def thresholds_of(workloads: tuple[Workload, ...], corners: tuple[float, ...]) -> tuple[float, ...]:
    """Corners of a table near quantiles of the contexts that decode steps have."""
    middle = np.concatenate([each.input_tokens + each.output_tokens / 2.0 for each in workloads])
    steps = np.concatenate([each.output_tokens for each in workloads])
    order = np.argsort(middle)
    done = np.cumsum(steps[order]) / max(float(steps.sum()), 1e-9)
    near = middle[order][np.searchsorted(done, THRESHOLDS).clip(max=len(order) - 1)]
    places = np.unique(np.searchsorted(corners, near).clip(max=len(corners) - 1))
    return tuple(corners[place] for place in places.tolist())


def _by_length(steps: Floats) -> tuple[SequenceClass, ...]:
    """Classes of requests by their decode steps, those with none left out."""
    some = steps[steps > 0.0]
    ends = np.unique(np.ceil(np.quantile(some, CLASS_EDGES)))
    starts = np.concatenate([[0.0], ends[:-1]])
    return tuple(
        SequenceClass(float(steps[(steps > start) & (steps <= end)].sum()) / len(steps), 1.0 / float(end), 0.0)
        for start, end in zip(starts, ends, strict=True)
    )
