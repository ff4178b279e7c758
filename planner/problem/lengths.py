"""Lengths of requests under a context limit: what an engine refuses, what it cuts, and the moments of what it serves.

A prompt that leaves no room for a token below the limit C is refused, and an answer ends where both reach C. With X and
Y tokens of prompt and answer, drawn independently or from the same row of a trace, served are X given X < C and
min(Y, C - X). Arrays are over limits or nodes of an integral [N].
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol, TypeAlias

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.problem.schema import Lengths, MomentLengths, ShapeLengths, TraceLengths, UniformLengths, WorkloadSpec
from planner.problem.shapes import find_shape

Partial: TypeAlias = tuple[Floats, Floats, Floats]
NODES = 1024  # of the integral over prompts
LEAST_Z = -8.0  # standard deviations of a normal, below which there is 6e-16 of it


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """What the costs need of a length distribution: its mean and coefficient of variation."""

    mean_tokens: float
    cv: float
    digest: str | None = None  # of the trace or shape that it was read from
    traced: tuple[int, ...] = field(default=(), repr=False)  # its lengths: of a trace row by row, of a shape ascending


@dataclass(frozen=True, slots=True)
class ServedLengths:
    """The requests of a workload under a context limit; mean and CV are those of what is served."""

    refused_share: float  # of all requests: prompts that leave no room for a token
    cut_share: float  # of all requests: answers that end at the limit
    input: LengthFacts
    output: LengthFacts


class Distribution(Protocol):
    """A distribution of lengths."""

    def above(self, tokens: Floats) -> Partial:
        """P(Y > t), E[Y; Y > t] and E[Y^2; Y > t] at every t [N]."""

    def nodes(self, most: float) -> tuple[Floats, Floats]:
        """Lengths up to `most` and their weights, which add up to 1 [N]."""


@dataclass(frozen=True, slots=True)
class Even:
    """Every whole number of [low, high] equally likely."""

    low: int
    high: int

    def above(self, tokens: Floats) -> Partial:
        """Sums of whole numbers and of their squares in closed form."""
        width = float(self.high - self.low + 1)
        count = np.clip(self.high - np.floor(tokens), 0.0, width)
        below = self.high - count
        return (
            count / width,
            count * (below + 1 + self.high) / 2 / width,
            (_squares(self.high) - _squares(below)) / width,
        )

    def nodes(self, most: float) -> tuple[Floats, Floats]:
        """Every length, or `NODES` of them at even distances."""
        high = min(self.high, math.floor(most))
        values = np.unique(np.rint(np.linspace(self.low, high, min(high - self.low + 1, NODES))))
        return values, np.full(len(values), 1.0 / len(values))


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Lengths as often as they are listed."""

    ascending: Floats

    def above(self, tokens: Floats) -> Partial:
        """Sums from the end of the list."""
        first = np.searchsorted(self.ascending, tokens, side="right")
        sums = (np.append(np.cumsum(self.ascending[::-1] ** power)[::-1], 0.0) for power in range(3))
        zeroth, mean, square = (column[first] / len(self.ascending) for column in sums)
        return zeroth, mean, square

    def nodes(self, most: float) -> tuple[Floats, Floats]:
        """Every length that is listed."""
        values, counts = np.unique(self.ascending[self.ascending <= most], return_counts=True)
        return values, counts / counts.sum()


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal lengths, rounded to whole tokens where they are held against a limit."""

    mean: float
    cv: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(math.log1p(self.cv**2))

    def z(self, tokens: Floats) -> Floats:
        """Standard deviations of the logarithm from its mean."""
        return (np.log(np.maximum(tokens, 1e-12) / self.mean) + self.sigma**2 / 2.0) / self.sigma

    def above(self, tokens: Floats) -> Partial:
        """E[Y^k; Y > t] = E[Y^k] Phi(k sigma - z(t))."""
        z = self.z(tokens + 0.5)
        square = self.mean**2 * (1.0 + self.cv**2)
        return normal(-z), self.mean * normal(self.sigma - z), square * normal(2.0 * self.sigma - z)

    def nodes(self, most: float) -> tuple[Floats, Floats]:
        """Middles of intervals of equal width of the logarithm."""
        top = float(np.clip(self.z(np.array([most + 0.5]))[0], LEAST_Z + 1.0, -LEAST_Z))
        edges = np.linspace(LEAST_Z, top, NODES + 1)
        weights = np.diff(normal(edges))
        middles = (edges[1:] + edges[:-1]) / 2.0
        return self.mean * np.exp(self.sigma * middles - self.sigma**2 / 2.0), weights / weights.sum()


def normal(z: Floats) -> Floats:
    """Distribution function of the standard normal [N]."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()])


def served_lengths(
    prompts: Lengths,
    answers: Lengths,
    input_facts: LengthFacts,
    output_facts: LengthFacts,
    context_tokens: int,
    prefill_tokens: int | None = None,
) -> ServedLengths:
    """What engines serve of requests of these lengths when prompt and answer may have so many tokens together.

    `prefill_tokens` is the context of engines that prefill for them, where that is another one: prompts must fit both.
    """
    prompt_limit = min(context_tokens, prefill_tokens or context_tokens)
    return _served(_shape(prompts), _shape(answers), input_facts, output_facts, context_tokens, prompt_limit)


def quantile_lengths(lengths: Lengths, facts: LengthFacts, count: int) -> Floats:
    """Lengths that are equally likely and stand for all, ascending: means of so many parts, or middles of them [K]."""
    shares = (np.arange(count) + 0.5) / count
    match _distribution(_shape(lengths), facts):
        case Even(low, high):
            return np.full(1, float(low)) if low == high else low - 0.5 + (high - low + 1) * shares
        case Listed(ascending):
            rows, parts = len(ascending), min(count, len(ascending))
            sums = np.interp(
                np.linspace(0.0, rows, parts + 1), np.arange(rows + 1), np.append(0.0, np.cumsum(ascending))
            )
            return np.asarray(np.diff(sums) * parts / rows)
        case LogNormal(mean, _) as drawn:
            z = np.array([NormalDist().inv_cdf(share) for share in shares])
            middles = np.exp(drawn.sigma * z)
            return np.asarray(mean * middles / middles.mean())
        case _:
            raise TypeError("a distribution without quantiles")


def length_quantile(lengths: Lengths, facts: LengthFacts, quantile: float) -> float:
    """The length that this share of all is no longer than."""
    return float(length_quantiles(lengths, facts, np.array([quantile]))[0])


def length_quantiles(lengths: Lengths, facts: LengthFacts, quantiles: Floats) -> Floats:
    """The lengths that these shares of all are no longer than [Q]."""
    match _distribution(_shape(lengths), facts):
        case Even(low, high):
            return low + np.minimum(np.floor(quantiles * (high - low + 1)), float(high - low))
        case Listed(ascending):
            return ascending[np.maximum(np.ceil(quantiles * len(ascending)).astype(np.intp) - 1, 0)]
        case LogNormal(mean, _) as drawn:
            z = np.array([NormalDist().inv_cdf(share) for share in quantiles.tolist()])
            return np.asarray(mean * np.exp(drawn.sigma * z - drawn.sigma**2 / 2.0))
        case _:
            raise TypeError("a distribution without quantiles")


def end_of_samples(workload: WorkloadSpec, side: str) -> int:
    """Where the `input_tokens` or `output_tokens` of samples that train a model end.

    Log-normal ones end at mean x (1 + 4 cv), as trainers cap them. Raises PlannerError for lengths of a trace.
    """
    lengths = workload.input_tokens if side == "input_tokens" else workload.output_tokens
    match lengths:
        case int():
            return lengths
        case UniformLengths():
            return lengths.high
        case MomentLengths():
            return max(1, round(lengths.mean * (1 + 4 * lengths.cv)))
        case ShapeLengths():
            return max(find_shape(lengths.shape).lengths(side))
        case _:
            raise PlannerError("lengths of a trace", where="inputs.workloads", hint="give the lengths by mean and cv")


Shape: TypeAlias = int | tuple[int, int] | tuple[float, float, str] | tuple[str] | str
"""A distribution as a key: one length, an even range, moments, the name of a shape, or that of a trace."""


def _shape(lengths: Lengths) -> Shape:
    match lengths:
        case UniformLengths():
            return lengths.low, lengths.high
        case MomentLengths():
            return (lengths.mean, lengths.cv, "moments") if lengths.cv > 0.0 else max(round(lengths.mean), 1)
        case TraceLengths():
            return lengths.trace
        case ShapeLengths():
            return (lengths.shape,)
        case _:
            return lengths


@lru_cache(maxsize=256)
def _served(
    prompts: Shape, answers: Shape, inputs: LengthFacts, outputs: LengthFacts, limit: int, prompt_limit: int
) -> ServedLengths:
    if isinstance(prompts, str) and prompts == answers:
        return _served_rows(inputs, outputs, limit, prompt_limit)
    first, second = _distribution(prompts, inputs), _distribution(answers, outputs)
    refused, mean_beyond, square_beyond = (float(part[0]) for part in first.above(np.array([prompt_limit - 1.0])))
    kept = 1.0 - refused
    if kept <= 0.0:
        return ServedLengths(1.0, 0.0, inputs, outputs)
    prompt_N, weight_N = first.nodes(prompt_limit - 1.0)
    room_N = limit - prompt_N
    over_N, mean_over_N, square_over_N = second.above(room_N)
    cut = float(weight_N @ over_N)
    if refused == 0.0 and cut == 0.0:
        return ServedLengths(0.0, 0.0, inputs, outputs)
    answer = outputs.mean_tokens - float(weight_N @ (mean_over_N - room_N * over_N))
    answer_square = _square(outputs) - float(weight_N @ (square_over_N - room_N**2 * over_N))
    return ServedLengths(
        refused,
        kept * cut,
        _facts((inputs.mean_tokens - mean_beyond) / kept, (_square(inputs) - square_beyond) / kept),
        _facts(answer, answer_square),
    )


def _served_rows(inputs: LengthFacts, outputs: LengthFacts, limit: int, prompt_limit: int) -> ServedLengths:
    """Prompt and answer of a row stay together."""
    prompt_R, answer_R = np.array(inputs.traced, dtype=float), np.array(outputs.traced, dtype=float)
    taken = prompt_R < prompt_limit
    if not taken.any():
        return ServedLengths(1.0, 0.0, inputs, outputs)
    room_R = limit - prompt_R[taken]
    cut = answer_R[taken] > room_R
    if taken.all() and not cut.any():
        return ServedLengths(0.0, 0.0, inputs, outputs)
    first, second = prompt_R[taken], np.minimum(answer_R[taken], room_R)
    facts = [_facts(float(side.mean()), float((side**2).mean())) for side in (first, second)]
    return ServedLengths(1.0 - float(taken.mean()), float(cut.sum()) / len(taken), *facts)


def _distribution(shape: Shape, facts: LengthFacts) -> Distribution:
    match shape:
        case str() | (str(),):
            return Listed(np.sort(np.array(facts.traced, dtype=float)))
        case int():
            return Even(shape, shape)
        case (mean, cv, _):
            return LogNormal(mean, cv)
        case (low, high):
            return Even(low, high)


def _squares(number: "Floats | int") -> Floats:
    """1 + 4 + 9 + ... + number^2."""
    whole = np.asarray(number, dtype=float)
    return whole * (whole + 1.0) * (2.0 * whole + 1.0) / 6.0


def _square(facts: LengthFacts) -> float:
    return facts.mean_tokens**2 * (1.0 + facts.cv**2)


def _facts(mean: float, square: float) -> LengthFacts:
    return LengthFacts(mean, math.sqrt(max(square / mean**2 - 1.0, 0.0)))
