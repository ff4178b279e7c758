"""Mixes that cost less than a plan that kept its limits, in the order of what steady state promises of them.

Sets        c instance types by function and shape;  f limits, as stated and relaxed more and more;
            S sets of types: one that does both, two of those, or one that prefills and one that decodes
Parameters  r_fc(n) [1/s] what n instances of a type do under limits f, at the batch and chunk that steady state finds
            best there;  v_c what an instance costs;  r [1/s] the load;  b_c [1/s] the most that an instance does while
            the limits are kept, as is proven (`kinds.serve.bounds`)
Mixes       n_c > 0 for c in S, with  sum_c n_c v_c < cost of the plan,  sum_c n_c b_c >= r  and, for some f,
            sum_c r_fc(n_c) >= r,  of each stage, and r_fc(n_c) > 0 for c in S
Order       the strictest f that promises the load, then the cheapest

A mix of which another one with as many instances of each type was refuted stands refuted too. Shape suffixes: C type
of a mix, M mix, G stage, R candidate of a type by how many instances it takes together, none before the first.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.simulated.placements import Deployment, with_placement
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Channel
from planner.kinds.serve.steady.search import Outcome
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.verified.kept import Kept
from planner.solvers.mix import MixObjective

InstanceType: TypeAlias = tuple[str, InstanceShape, Channel | None, int]
"""Function, shape, hand-over and drafts."""
STAGES = {"colocated": {"first", "second"}, "prefill": {"first"}, "decode": {"second"}}
MOST_MIXES = 20_000  # listed
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Mix:
    """Types with their numbers of instances, what they cost, and the first of the limits that promise the load."""

    counts: tuple[tuple[InstanceType, int], ...]
    cost: float
    level: int

    @property
    def types(self) -> frozenset[InstanceType]:
        return frozenset(each for each, _ in self.counts)

    def within(self, other: "Mix") -> bool:
        """Whether the other has as many instances of each type."""
        own, most = dict(self.counts), dict(other.counts)
        return own.keys() == most.keys() and all(count <= most[each] for each, count in own.items())


@dataclass(slots=True)
class Cheaper:
    """Mixes that cost less than a plan, and what became of them."""

    levels: tuple[Outcome, ...]  # the strictest first
    best: Kept
    bounds: ProblemBounds
    refuted: list[Mix] = field(default_factory=list)
    _rows: list[dict[InstanceType, list[int]]] = field(default_factory=list)
    _prices: dict[InstanceType, float] = field(default_factory=dict)
    _loads: dict[tuple[int, InstanceType], tuple[Ints, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_devices = self.best.outcome.formulated.problem.objective is MixObjective.DEVICES
        for outcome in self.levels:
            rows: dict[InstanceType, list[int]] = {}
            pairs = zip(outcome.formulated.candidates, outcome.formulated.problem.shapes, strict=True)
            for row, (candidate, shape) in enumerate(pairs):
                if candidate.function in STAGES and min(candidate.rates_per_s) > 0.0:
                    rows.setdefault(_type_of(candidate), []).append(row)
                    price = candidate.devices if by_devices else shape.price_per_hour
                    self._prices[_type_of(candidate)] = price
            self._rows.append(rows)

    def promising(self) -> Iterator[Mix]:
        """Mixes that cost less than the best plan that is known when they are asked for, and none refuted."""
        for mix in sorted(self._mixes(), key=lambda mix: (mix.level, mix.cost, str(mix.counts))):
            cheaper = mix.cost < self.best.value * (1.0 - ROUNDING)
            if cheaper and not any(mix.within(other) for other in self.refuted):
                yield mix

    def left(self) -> int:
        """How many mixes cost less than the best plan, and are neither excluded nor simulated."""
        return sum(1 for _ in self.promising())

    def outcome(self, mix: Mix) -> Outcome:
        """The mix under the limits that promise its load, at the load and what it costs."""
        of, rates = self.levels[mix.level], self.best.outcome.solution.served_per_s
        counts = tuple((self._fastest(mix.level, each, count), count) for each, count in mix.counts)
        deployment = Deployment(counts, sum(rates), tuple(range(len(rates))))
        placed = with_placement(replace(of, result=self.best.outcome.result), (deployment,), rates)
        return replace(placed, result=replace(placed.result, objective=mix.cost), tally=self.best.outcome.tally)

    def _mixes(self) -> Iterator[Mix]:
        """As many as are listed, those of one type first."""
        known = sorted({each for rows in self._rows for each in rows}, key=str)
        alone = [(each,) for each in known if STAGES[each[0]] == STAGES["colocated"]]
        pairs = [
            (a, b)
            for a, b in itertools.combinations(known, 2)
            if STAGES[a[0]] | STAGES[b[0]] == STAGES["colocated"] and a[2] == b[2]
            if (a[0] == "colocated") == (b[0] == "colocated")
        ]
        every = (mix for types in (*alone, *pairs) for mix in self._of(types))
        yield from itertools.islice(every, MOST_MIXES)

    def _of(self, types: Sequence[InstanceType]) -> Iterator[Mix]:
        """Every number of instances of these types that costs less, that some limits promise and no bound excludes."""
        prices_C = np.array([self._prices[each] for each in types])
        most_C = (self.best.value / prices_C + ROUNDING).astype(np.int64)
        count_CM = np.indices(tuple(most_C)).reshape(len(types), -1) + 1
        cost_M = (count_CM * prices_C[:, None]).sum(axis=0)
        less_M = cost_M < self.best.value * (1.0 - ROUNDING)
        count_CM, cost_M = count_CM[:, less_M], cost_M[less_M]
        level_M = np.full(len(cost_M), len(self.levels))
        for level in reversed(range(len(self.levels))):
            level_M[self._promised(level, types, count_CM)] = level
        able = np.flatnonzero(level_M < len(self.levels))
        if len(able):  # bounds price types, as no promise does
            able = able[self._possible(types, count_CM[:, able])]
        for mix in able.tolist():
            counts = tuple(zip(types, count_CM[:, mix].tolist(), strict=True))
            yield Mix(counts, float(cost_M[mix]), int(level_M[mix]))

    def _possible(self, types: Sequence[InstanceType], count_CM: Ints) -> Bools:
        """Whether the bounds of instances together allow the load."""
        alone = len({each for each in types if each[0] != "prefill"}) == 1
        most_C = np.array([self.bounds.most_per_s(each[0], each[1], alone=alone) for each in types])
        return _each_stage(types, count_CM * most_C[:, None]) >= self._load_per_s

    def _promised(self, level: int, types: Sequence[InstanceType], count_CM: Ints) -> Bools:
        """Whether steady state promises the load of each mix under these limits, and that no type of it is idle."""
        pairs = zip(types, count_CM, strict=True)
        done_CM = np.array([count_M / self._fewest(level, each, count_M) for each, count_M in pairs])
        return np.asarray((done_CM.min(axis=0) > 0.0) & (_each_stage(types, done_CM) >= 1.0 - ROUNDING))

    @property
    def _load_per_s(self) -> float:
        return sum(self.best.outcome.solution.served_per_s) * (1.0 - ROUNDING)

    def _fewest(self, level: int, each: InstanceType, count_M: Ints) -> Floats:
        """Instances of a type that would do the whole load under these limits, where there are so many; else infinitely
        many, as where its candidates take more of them together."""
        if (level, each) not in self._loads:
            listed = self.levels[level].formulated.candidates
            rows = sorted((listed[row].together, self._for_load(level, row)) for row in self._rows[level].get(each, ()))
            together_R = np.array([together for together, _ in rows], np.int64)
            self._loads[level, each] = together_R, np.minimum.accumulate([np.inf, *(fewest for _, fewest in rows)])
        together_R, fewest_R = self._loads[level, each]
        return fewest_R[np.searchsorted(together_R, count_M, side="right")]

    def _for_load(self, level: int, row: int) -> float:
        """Instances of a candidate that would do the whole load."""
        rates = self.best.outcome.solution.served_per_s
        own = self.levels[level].formulated.candidates[row].rates_per_s
        return sum(rate / most for rate, most in zip(rates, own, strict=True))

    def _fastest(self, level: int, each: InstanceType, count: int) -> int:
        """The candidate of a type of which so many instances do most."""
        listed = self.levels[level].formulated.candidates
        rows = [row for row in self._rows[level][each] if listed[row].together <= count]
        return max(rows, key=lambda row: (count / self._for_load(level, row), row))


def _each_stage(types: Sequence[InstanceType], done_CM: Floats) -> Floats:
    """What the stage of each mix with the least of it has."""
    does_GC = np.array([[stage in STAGES[each[0]] for each in types] for stage in sorted(STAGES["colocated"])])
    return np.asarray(np.min([done_CM[does_C].sum(axis=0) for does_C in does_GC], axis=0))


def _type_of(candidate: Candidate) -> InstanceType:
    return candidate.function, candidate.shape, candidate.channel, candidate.draft_tokens
