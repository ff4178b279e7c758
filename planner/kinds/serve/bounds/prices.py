"""Least engine seconds of a request in any sequence of steps that keeps a limit on the time per output token.

Sets        s in S steps: of n sequences with c cached tokens each that decode, and t prompt tokens that attend to m
            tokens each on average; w in W workloads;  j in J_w classes of the sequences of w;  k in K thresholds
            i in I concave functions below what engines that step together do together (`bounds.engines`)
Parameters  f_s [s] time of a step, multilinear between the corners of a table (`simulate.fleet.step_grid`); of engines
            that step together, with what they do together at the least that the others may add
            f_si [s] own time of a step and function i of its tokens; for engines that step alone f_s alone
            D_w, K_w, P_w, Q_w   means over the requests of w: decode steps, tokens that they attend to, prompt tokens,
            and tokens that those attend to;  h_k, a corner of contexts, and H_wk tokens that the decode steps attend
            to, of each step no more than h_k
            G_j  decode steps that class j has at least, by request of w;  o_j [1], k_j [s]  weights of the class
Variables   a, b, b_k, p, e >= 0 [s] prices of a sequence in a step, of a token that it attends to, of one below h_k, of
            a prompt token, of one that it attends to;  g_j >= 0 [s] what a sequence of the class pays beyond;
            u_w >= 0 price of the limit;  q_i >= 0 weight of a function, or of f_s, sum_i q_i <= 1
Maximise    sum_w share_w (a D_w + b K_w + p P_w + e Q_w + sum_k b_k H_wk + sum_{j in J_w} g_j G_j - u_w k_w)
(S1)  n phi(c) + p t + e t m <= sum_i q_i f_si                                  for s       sequences of no class
(S2)  n (g_j + phi(c)) + p t + e t m <= sum_i q_i f_si + u_w (o_j f_s - k_j) n  for s, j    all of one class
      with phi(c) = a + b c + sum_k b_k min(c, h_k)

Prices that fall with the context keep a few sequences in small batches from standing for the contexts of all.

Theorem. Let r_w be the rates of requests of a stationary process that engines with N seconds a second serve, y_j the
decode steps of class j a second, and V_w the sum over them of (o_j f - k_j). Then
sum_w r_w (a D_w + b K_w + p P_w + e Q_w + sum_k b_k H_wk) + sum_j g_j y_j - sum_w u_w V_w <= N.
Proof. Sequences of several contexts in a step pay n phi of their mean at most, since phi is concave. A step whose
sequences are of several classes is a mean of those of one class, weighted by sequences, since (S1) and (S2) are linear
in how many each class has. Between corners both sides are linear in c, t and m one at a time (thresholds are corners),
and in n but for n f: corners of a fine axis of n stand for it, from which the most that n f can bend between them is
taken. So the rows hold for every step of an engine that steps alone.
Of M engines that step together with x_r tokens, x on average, each is busy for its own time and J(x), what they do
together. With h_i concave, h_i(0) >= 0 and h_i <= J, sum_r h_i(x_r) <= M h_i(x) <= M J(x): together they are busy for
no less than the sum of f_si, and of a weighted mean of these. Between corners chords of h_i lie below it. The sum of
the rows over the steps of a long time, divided by it, is the theorem: all that arrives is served, as nothing stays away
for ever in a stationary process, and steps take N seconds a second at most. A cache that is thrown away and computed
again gives a token without a decode step; its prompt tokens, those of the whole sequence, are taken to cost no less.

  A percentile q of TPOT, at most L: one class, of the requests that keep it, o = 1, k = L. Each of them has V <= 0.
  They have G steps at least: those of the shortest, as many as must keep it.
  The mean of TPOT, at most L: classes by length up to l_j steps, o_j = 1 / l_j, k_j = 0, and V <= L by request, as the
  mean step of a request is no shorter than its steps over l_j.

Prices come from this linear program by cutting planes, and are divided by the most by which a step violates its row, so
that they are feasible whenever the method ends (Farley, Operations Research 38(5), 1990).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.arrays import Floats, Indices

CUTS = 100  # of each round
CLOSE = 1.003  # by which a step may violate its row at the end, before prices are divided by it
MOST_PRICE = 1e3  # of a limit


class Effort(NamedTuple):
    """What a bound of a type takes to work out: less of it gives one that allows more."""

    rounds: int
    starting: int  # rows of each variant
    idle: bool  # whether it knows how long prompts take on idle engines


WHOLE = Effort(25, 400, idle=True)
ESTIMATED = Effort(2, 60, idle=False)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Corners of the steps that engines of a type can make [S]."""

    loads: Floats  # [S, 4 + K]: n, n c, t, t m, and n min(c, h_k)
    seconds: Floats
    sequence_seconds: Floats  # n f, less what it can bend between corners
    shared: Floats  # [I, S] f_si; the first is `seconds`

    @property
    def sequences(self) -> Floats:
        return np.asarray(self.loads[:, 0])

    def take(self, rows: Indices) -> "Steps":
        """Some of the corners."""
        return Steps(self.loads[rows], self.seconds[rows], self.sequence_seconds[rows], self.shared[:, rows])


@dataclass(frozen=True, slots=True)
class SequenceClass:
    """Sequences that a limit is about."""

    steps: float  # G, by request of the workload
    weight: float  # o
    limit_s: float  # k


@dataclass(frozen=True, slots=True)
class PricedDemand:
    """What a request of a workload asks for on average, and its limit on the time per output token."""

    share: float  # of the requests
    loads: tuple[float, ...]  # D, K, P, Q, and H by threshold
    classes: tuple[SequenceClass, ...] = ()
    spent_s: float = 0.0  # V that its requests have on average at most
    all_classed: bool = False  # no sequence of it is outside its classes


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Feasible prices: those of loads [4 + K], and by workload of its classes and its limit."""

    of_loads: tuple[float, ...]
    of_classes: tuple[tuple[float, ...], ...]
    of_limits: tuple[float, ...]
    unlimited: float = 1.0  # the part of those of loads that holds (S1), whatever limits leave requests

    def base_s(self, demand: PricedDemand) -> float:
        """Engine seconds of the loads of a request, beside those of its classes and less those of its limit."""
        return sum(price * load for price, load in zip(self.of_loads, demand.loads, strict=True))


def step_prices(steps: Steps, demands: Sequence[PricedDemand], effort: Effort = WHOLE) -> StepPrices:
    """Prices at which the demands are dear, feasible for all `steps`."""
    program = _Program.of(steps, demands)
    chosen = program.first_rows(effort.starting)
    values, shared_s = np.zeros(program.width), steps.seconds
    for _ in range(effort.rounds):
        answer = _dearest(program, np.concatenate([program.rows(*each) for each in enumerate(chosen)]))
        if answer is None:
            break
        values, weights = answer[: program.width], answer[program.width :]
        shared_s = np.einsum("i,is->s", weights / max(float(weights.sum()), 1.0), steps.shared)
        worst, cuts = program.violated(values, shared_s)
        if worst <= CLOSE:
            break
        chosen = [np.unique(np.concatenate([old, new])) for old, new in zip(chosen, cuts, strict=True)]
    worst, _ = program.violated(values, shared_s)
    prices = program.prices(values / max(worst, 1.0))
    alone = max(program.asked_alone(prices, shared_s), 1.0)
    return replace(prices, unlimited=1.0 / alone)


def _dearest(program: "_Program", rows: Floats) -> Floats | None:
    """The best columns under some rows, weights last: the multipliers of the dual program, which is low and wide.

    Columns x, each of them `most` at most, and weights q:  max worth x  with  rows (x, q) <= 0,  sum q <= 1.
    """
    from scipy.optimize import linprog

    weights = rows.shape[1] - program.width
    worth = np.concatenate([program.worth, np.zeros(weights)])
    bounded = np.flatnonzero([most is not None for most in program.most])
    least = np.concatenate([np.zeros(len(rows)), [1.0], [program.most[column] or 0.0 for column in bounded]])
    matrix = np.zeros((len(worth), len(least)))
    matrix[:, : len(rows)] = rows.T
    matrix[program.width :, len(rows)] = 1.0
    matrix[bounded, len(rows) + 1 + np.arange(len(bounded))] = 1.0
    answer = linprog(least, A_ub=-matrix, b_ub=-worth, bounds=(0.0, None), method="highs-ds")
    return None if answer.x is None else np.maximum(-np.asarray(answer.ineqlin.marginals), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """The linear program: columns are prices times `scale`, a variant is (S1) or (S2) of a class."""

    steps: Steps
    demands: Sequence[PricedDemand]
    variants: list[tuple[int, int] | None]  # workload and class; None of no class
    scale: Floats  # [width] price by value of a column
    worth: Floats
    most: list[float | None]

    @classmethod
    def of(cls, steps: Steps, demands: Sequence[PricedDemand]) -> "_Program":
        variants: list[tuple[int, int] | None] = [] if all(d.all_classed for d in demands) else [None]
        variants += [(w, j) for w, demand in enumerate(demands) for j in range(len(demand.classes))]
        count = sum(len(demand.classes) for demand in demands)
        loads = np.array([sum(d.share * d.loads[k] for d in demands) for k in range(steps.loads.shape[1])])
        classes = [d.share * each.steps for d in demands for each in d.classes]
        limits = [-d.share * d.spent_s for d in demands]
        worth = np.concatenate([loads, classes, limits])
        width = len(loads) + count
        scale = np.ones(width + len(demands))
        scale[:width] = 1.0 / np.maximum(worth[:width], 1e-9)
        most: list[float | None] = [None] * width + [MOST_PRICE * bool(d.classes) for d in demands]
        return cls(steps, demands, variants, scale, worth * scale, most)

    @property
    def width(self) -> int:
        return len(self.scale)

    @property
    def first(self) -> int:
        """The column of the first class."""
        return int(self.steps.loads.shape[1])

    def first_rows(self, most: int) -> list[Indices]:
        size = len(self.steps.seconds)
        rows = np.unique(np.linspace(0, size - 1, min(most, size)).astype(np.intp))
        return [rows] * len(self.variants)

    def rows(self, variant: int, chosen: Indices) -> Floats:
        """Rows [R, width + I] of a variant, divided by the seconds of their steps: at most 0."""
        steps, which = self.steps.take(chosen), self.variants[variant]
        matrix = np.zeros((len(chosen), self.width))
        matrix[:, : self.first] = steps.loads
        if which is not None:
            w, j = which
            each = self.demands[w].classes[j]
            matrix[:, self._place(w, j)] = steps.sequences
            matrix[:, self.width - len(self.demands) + w] = (
                each.limit_s * steps.sequences - each.weight * steps.sequence_seconds
            )
        return np.concatenate([matrix * self.scale, -steps.shared.T], axis=1) / steps.seconds[:, None]

    def violated(self, values: Floats, shared_s: Floats) -> tuple[float, list[Indices]]:
        """The most that a step asks of its weighted seconds [S], and the steps that ask most, by variant."""
        prices, worst, cuts = values * self.scale, 0.0, []
        sequences = self.steps.sequences
        own = np.einsum("sk,k->s", self.steps.loads, prices[: self.first])  # BLAS would take every core for it
        for which in self.variants:
            asked = own
            if which is not None:
                w, j = which
                each, limit = self.demands[w].classes[j], prices[self.width - len(self.demands) + w]
                asked = own + sequences * (prices[self._place(w, j)] + limit * each.limit_s)
                asked = asked - limit * each.weight * self.steps.sequence_seconds
            ratio = asked / shared_s
            size = min(CUTS, len(ratio))
            top = np.argpartition(ratio, len(ratio) - size)[len(ratio) - size :]
            cuts.append(top[ratio[top] > 1.0 + 1e-9])
            worst = max(worst, float(ratio.max()))
        return worst, cuts

    def asked_alone(self, prices: StepPrices, shared_s: Floats) -> float:
        """The most that a step of sequences of no class asks of its weighted seconds [S]."""
        return float((np.einsum("sk,k->s", self.steps.loads, np.array(prices.of_loads)) / shared_s).max())

    def prices(self, values: Floats) -> StepPrices:
        prices = (values * self.scale).tolist()
        classes, start = [], self.first
        for demand in self.demands:
            classes.append(tuple(prices[start : start + len(demand.classes)]))
            start += len(demand.classes)
        return StepPrices(tuple(prices[: self.first]), tuple(classes), tuple(prices[start:]))

    def _place(self, w: int, j: int) -> int:
        return self.first + sum(len(demand.classes) for demand in self.demands[:w]) + j
