"""Hypergraph partitioning with replication: items drawn in sets, laid out so that a set touches few groups of bins.

Sets        n in N drawn sets of items, g in G groups of bins r in R
Variables   a layout: the item in every slot, each item at least once
Minimise    mean over n of the groups needed to cover set n + price x expected slowest bin / mean bin on fresh sets

Every item has a home group, where items drawn together meet; free slots hold further copies, which even out the groups
and spare sets a group. Copies share their item's weight equally. Weights are counts of a sample of sets, and bins are
balanced for sets to come: a bin's time on fresh sets has the sample's mean and the variance of both samples, so heavy
items get copies, and bins avoid items that are drawn together. Shape suffixes: N drawn set, K item of a set, E item,
G group, R bin, P slot (bin-major), F free slot.
"""

import time
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.layouts.spread import SpreadProblem, bin_times, solve_spread
from planner.solvers.result import SolveResult, Status

PRICE = 20.0
"""Groups touched by a set that the mean time of a bin is worth: 1 % of imbalance weighs as a fifth of a group."""
GROUP_PRICE = 300.0
"""Of a group's load above the mean, squared as a share, when copies are first placed: no bin makes up for it."""
SWEEPS = 60
STEPS = 60_000
INSIDE = 3e-4, 1e-6  # of the mean time of a bin: temperatures inside groups
HOT, COLD = 6e-5, 6e-7  # the same across groups, then in groups touched by the price
MOST_SETS = 8192  # on which the search counts groups
MOST_BITS = 62
SOLVER = "clusters, copies, annealing"


@dataclass(frozen=True, slots=True, eq=False)
class AffinityProblem:
    """Sets of items drawn, the slots, group and speed of each bin; `price` as in `PRICE`.

    `fresh_sets` is the number of sets that come at a time when the layout is judged; as many as are given unless told.
    """

    items_NK: Ints
    num_items: int
    slots_R: Ints
    group_R: Ints
    price: float = PRICE
    speed_R: Floats | None = None
    fresh_sets: int | None = None

    def __post_init__(self) -> None:
        if self.items_NK.ndim != 2 or self.items_NK.size == 0:
            raise PlannerError(f"must have the axes [set, item], found the shape {self.items_NK.shape}", where="sets")
        low, high = int(self.items_NK.min()), int(self.items_NK.max())
        if low < 0 or high >= self.num_items:
            raise PlannerError(
                f"names item {low if low < 0 else high} of {self.num_items}", where="sets", hint="items count from 0"
            )
        if int(self.slots_R.sum()) < self.num_items:
            raise PlannerError(
                f"{int(self.slots_R.sum())} slots cannot hold {self.num_items} items",
                where="slots",
                hint="add slots or bins",
            )
        if len(self.slots_G) > 1 and int(self.slots_G.max()) > self.num_items:
            raise PlannerError(
                f"a group has {int(self.slots_G.max())} slots for {self.num_items} items, and holds none twice",
                where="slots",
                hint="give each group at most as many slots as there are items",
            )
        if not (np.isfinite(self.price) and self.price >= 0):
            raise PlannerError(f"must be at least 0, found {self.price}", where="price", hint="give 0 or more")
        if self.fresh_sets is not None and self.fresh_sets < 1:
            raise PlannerError(f"must be at least 1, found {self.fresh_sets}", where="fresh sets")

    @property
    def slots_G(self) -> Ints:
        return np.bincount(self.group_R, weights=self.slots_R).astype(np.int64)

    @property
    def weight_E(self) -> Floats:
        """How often each item was drawn."""
        return np.bincount(self.items_NK.ravel(), minlength=self.num_items).astype(np.float64)

    @property
    def spread(self) -> SpreadProblem:
        """The problem of balance alone."""
        speed_R = np.ones(len(self.slots_R)) if self.speed_R is None else self.speed_R
        return SpreadProblem(self.weight_E, self.slots_R, speed_R)

    @property
    def noise(self) -> float:
        """Variance of fresh counts around those given, in units of the variance of one sample."""
        return 1.0 + len(self.items_NK) / (self.fresh_sets or len(self.items_NK))


@dataclass(frozen=True, slots=True, eq=False)
class AffinityLayout:
    """The item in every slot, and its figures: groups touched by a set, and the slowest bin over the mean on the sets
    given and, in the mean, on fresh ones."""

    item_P: Ints
    groups_touched: float
    imbalance: float
    fresh_imbalance: float


def home_groups(problem: AffinityProblem) -> Ints:
    """[E] the home of each item: groups filled in order, or clusters of items drawn together where sets then touch
    fewer groups.

    Clusters come of swaps that raise modularity (Newman, PNAS 103, 2006): pairs count by how much more often they are
    drawn together than their frequencies alone make them, so that frequent items do not all meet in one group.
    """
    from planner.solvers.compiled.affinity import cluster, pair_counts

    slots_G = problem.slots_G
    ideal = np.cumsum(slots_G) * (problem.num_items / slots_G.sum())
    last = np.minimum(np.round(ideal).astype(np.int64), np.cumsum(slots_G))
    in_order_E = np.searchsorted(last, np.arange(problem.num_items), side="right").astype(np.int64)
    if len(slots_G) == 1:
        return in_order_E
    clustered_E = in_order_E.copy()
    counts_EE = pair_counts(problem.items_NK, problem.num_items)
    drawn_E = counts_EE.sum(axis=1)
    cluster(clustered_E, counts_EE - np.outer(drawn_E, drawn_E) / max(drawn_E.sum(), 1.0), SWEEPS)
    return min((in_order_E, clustered_E), key=lambda group_E: _homes_touched(problem, group_E))


def _homes_touched(problem: AffinityProblem, group_E: Ints) -> int:
    """Groups touched by all sets together when each item is at home alone."""
    groups = np.sort(group_E[problem.items_NK], axis=1)
    return int((groups[:, 1:] != groups[:, :-1]).sum())


def covariance(problem: AffinityProblem, home_E: Ints) -> Floats:
    """[E, E] how the counts of items vary together from sample to sample of as many sets.

    Sets are drawn independently: for two items, the sets with both less those expected were they independent. A pair's
    lift (the ratio of the two) is drawn towards the mean of pairs at home together, or apart, by as much as counting
    that pair alone is noise: a posterior mean under a gamma prior whose moments are those of all such pairs.
    """
    from planner.solvers.compiled.affinity import pair_counts

    sets, weight_E = len(problem.items_NK), problem.weight_E
    counts_EE = pair_counts(problem.items_NK, problem.num_items)
    expected_EE = np.outer(weight_E, weight_E) / sets
    both_EE = np.zeros_like(counts_EE)
    together_EE = home_E[:, None] == home_E[None]
    apart_EE = ~np.eye(problem.num_items, dtype=np.bool_)
    for pairs_EE in (together_EE & apart_EE, ~together_EE):
        both_EE[pairs_EE] = _shrunk(counts_EE[pairs_EE], expected_EE[pairs_EE])
    np.fill_diagonal(both_EE, weight_E)
    return np.asarray(both_EE - expected_EE)


def _shrunk(count: Floats, expected: Floats) -> Floats:
    """Counts of pairs drawn towards a common lift, see `covariance`."""
    if not expected.any():
        return count
    lift = max(float(count.sum() / expected.sum()), 1e-9)
    spread = float(((count - lift * expected) ** 2 - lift * expected).sum() / (expected**2).sum())
    firmness = lift / max(spread, 1e-9)
    return np.asarray(expected * (count + firmness * lift) / (expected + firmness))


def solve_affinity(problem: AffinityProblem, *, steps: int = STEPS, seed: int = 0) -> SolveResult[AffinityLayout]:
    """A layout with few groups for each set, weighed against the slowest bin on fresh sets by `price`.

    Clusters as homes, copies one by one, bins of each group packed, then annealing inside groups and over all slots;
    O(items^2 + sets) and, for the annealing, O(steps x sets of an item). The objective is groups touched + price x
    fresh imbalance; the bound is that of sets that fit into the widest groups, on bins that are all as busy.
    Deterministic in `seed`.
    """
    started = time.perf_counter()
    home_E = home_groups(problem)
    covariance_EE = covariance(problem, home_E) * problem.noise
    item_P = _start(problem, home_E)
    layout = judged(problem, item_P, covariance_EE)
    if problem.items_NK.shape[1] <= MOST_BITS and len(problem.slots_G) <= MOST_BITS and len(problem.slots_R) > 1:
        other = judged(problem, _annealed(problem, item_P, home_E, covariance_EE, steps, seed), covariance_EE)
        layout = min((layout, other), key=lambda layout: _objective(problem, layout))
    objective = _objective(problem, layout)
    bound = -(-problem.items_NK.shape[1] // int(problem.slots_G.max())) + problem.price
    took = time.perf_counter() - started
    return SolveResult(Status.FEASIBLE, "finished", layout, objective, min(bound, objective), took, SOLVER)


def _objective(problem: AffinityProblem, layout: AffinityLayout) -> float:
    return layout.groups_touched + problem.price * layout.fresh_imbalance


def _start(problem: AffinityProblem, home_E: Ints) -> Ints:
    """Homes, copies in the free slots of each group, and both packed onto the bins of the group."""
    from planner.solvers.compiled.affinity import place_copies, savings

    slots_G, weight_E, speed_R = problem.slots_G, problem.weight_E, problem.spread.speed_R
    if len(slots_G) == 1:
        return _pack(weight_E, problem.slots_R, speed_R)
    free_G = slots_G - np.bincount(home_E, minlength=len(slots_G))
    saved_EG = savings(problem.items_NK, home_E, len(slots_G))
    speed_G = np.bincount(problem.group_R, weights=speed_R)
    poisson = problem.noise * len(speed_R) / weight_E.sum()
    calm = problem.price * _rate(len(speed_R), poisson) * poisson / weight_E.sum() / 2.0
    item_F, copies_E = place_copies(weight_E, home_E, free_G, speed_G, saved_EG, GROUP_PRICE, calm, SWEEPS)
    group_F = np.repeat(np.arange(len(slots_G)), free_G)
    first_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(problem.slots_R)])
    item_P = np.empty(int(slots_G.sum()), np.int64)
    for group in range(len(slots_G)):
        members = np.concatenate([np.nonzero(home_E == group)[0], item_F[group_F == group]])
        bins = np.nonzero(problem.group_R == group)[0]
        slot = np.concatenate([np.arange(first_R[r], first_R[r + 1]) for r in bins])
        item_P[slot] = members[_pack((weight_E / copies_E)[members], problem.slots_R[bins], speed_R[bins])]
    return item_P


def _rate(bins: int, variance: float) -> float:
    """The rate of Chernoff's bound that is tight for equal normal bins: sqrt(2 ln bins) over the deviation of one."""
    return sqrt(2.0 * log(max(bins, 2))) / sqrt(max(variance, 1e-9))


def _pack(weight_H: Floats, slots_R: Ints, speed_R: Floats) -> Ints:
    """Which of the weights goes into which slot, each at least once."""
    weights = weight_H if weight_H.any() else np.ones(len(weight_H))
    packed = solve_spread(SpreadProblem(weights, slots_R, speed_R)).solution
    assert packed is not None
    return packed.item_P


def _annealed(
    problem: AffinityProblem, item_P: Ints, home_E: Ints, covariance_EE: Floats, steps: int, seed: int
) -> Ints:
    from planner.solvers.compiled.affinity import savings
    from planner.solvers.compiled.affinity_search import AffinityState, anneal, fill

    items, bins, groups = problem.num_items, len(problem.slots_R), len(problem.slots_G)
    spread, weight_E = problem.spread, problem.weight_E
    sets_NK = np.ascontiguousarray(problem.items_NK[:: -(-len(problem.items_NK) // MOST_SETS)])
    drawn = sets_NK.ravel()
    first_E = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(drawn, minlength=items))]).astype(np.int64)
    state = AffinityState(
        spread.bin_P, problem.group_R.astype(np.int64), spread.speed_R.sum() / (weight_E.sum() * spread.speed_R),
        weight_E, covariance_EE, sets_NK, first_E, np.argsort(drawn, kind="stable") // sets_NK.shape[1],
        item_P.copy(), np.zeros(items, np.int64), np.zeros((items, bins), np.bool_),
        np.zeros((items, groups), np.int64), np.zeros(items, np.int64),
        np.zeros(bins), np.zeros(bins), np.zeros((bins, items)), np.zeros(bins),
    )  # fmt: skip
    fill(state)
    rate = _rate(bins, float(state.variance_R.mean()))
    most_saved = float(savings(sets_NK, home_E, groups).max())
    anneal(state, rate, 1.0, steps, *INSIDE, 0.0, True, seed)
    price = max(problem.price, 1e-3)
    anneal(state, rate, problem.price, steps, HOT * price, COLD * price, most_saved, False, seed)
    return state.item_P


def judged(problem: AffinityProblem, item_P: Ints, covariance_EE: Floats) -> AffinityLayout:
    """A layout with its figures."""
    spread = problem.spread
    copies_E = np.bincount(item_P, minlength=problem.num_items)
    mean_s = problem.weight_E.sum() / spread.speed_R.sum()
    share_RE = np.zeros((len(spread.slots_R), problem.num_items))
    share_RE[spread.bin_P, item_P] = 1.0 / copies_E[item_P]
    scaled_RE = share_RE / (mean_s * spread.speed_R[:, None])
    variance_R = np.einsum("re,ef,rf->r", scaled_RE, covariance_EE, scaled_RE, optimize=True)
    mean_R = bin_times(spread, item_P) / mean_s
    touched = groups_touched(problem.items_NK, item_P, problem.slots_R, problem.group_R, problem.num_items)
    fresh = expected_slowest(mean_R, np.sqrt(np.maximum(variance_R, 0.0)))
    return AffinityLayout(item_P, touched, float(mean_R.max()), fresh)


def expected_slowest(mean_R: Floats, deviation_R: Floats) -> float:
    """Mean of the largest of independent normal times, by the integral of its distribution to about 1e-4."""
    from scipy.special import ndtr

    deviation_R = np.maximum(deviation_R, 1e-12)
    low, high = float((mean_R - 8.0 * deviation_R).min()), float((mean_R + 8.0 * deviation_R).max())
    time_T, step = np.linspace(low, high, 4001, retstep=True)
    below = np.prod(ndtr((time_T[:, None] - mean_R) / deviation_R), axis=1)
    return float(high - step * (below.sum() - 0.5 * (below[0] + below[-1])))


def groups_touched(items_NK: Ints, item_P: Ints, slots_R: Ints, group_R: Ints, num_items: int) -> float:
    """Mean number of groups that a set needs, covering it greedily by the group that holds most of what is missing."""
    groups = int(group_R.max()) + 1
    resident_EG = np.zeros((num_items, groups), np.bool_)
    resident_EG[item_P, np.repeat(group_R, slots_R)] = True
    missing_NK: Bools = np.ones(items_NK.shape, np.bool_)
    needed_N = np.zeros(len(items_NK))
    for _ in range(groups):
        covered_NKG = resident_EG[items_NK] & missing_NK[:, :, None]
        count_NG = covered_NKG.sum(axis=1)
        best_N = count_NG.argmax(axis=1)
        needed_N += count_NG.max(axis=1) > 0
        missing_NK &= ~covered_NKG[np.arange(len(items_NK)), :, best_N]
    return float(needed_N.mean())
