"""Transportation with relays: parts of items handed from their home bins to free slots of others, at every step.

Sets        e in E items with home h(e), r in R bins
Parameters  w_e weight, v_r speed, k_r free slots; c the least piece, q the longest chain of relays, D(r) a domain
Variables   y_er in {0, 1} a free slot of r takes e;  x_er >= 0 the weight of e carried there;  T the slowest bin
Minimise    T
(C1) x_er <= w_e y_er                                       for e, r != h(e)   only where a slot is taken
(C2) sum_e y_er <= k_r                                      for r              free slots
(C3) sum_r x_er <= w_e                                      for e              no more than there is
(C4) sum_{h(e)=r} (w_e - sum_q x_eq) + sum_e x_er <= v_r T  for r              T bounds every bin
(C5) x_er >= c y_er                                         for e, r           no piece is smaller
(C6) y_er = 0                                               for D(r) != D(h(e))   pieces stay in their domain
(C7) excess comes along at most q bins before the one that hands it on
A bin that hands over may take in weight of others before: a relay. (C5) to (C7) are those of UltraEP
(arXiv:2606.04101): chunks of 1024 tokens or more, replicas inside a domain of NVLink, and relays between them. Shape
suffixes: E item (bin-major), R bin, J free slot of a bin.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.layouts.spread import require_weights
from planner.solvers.result import SolveResult, Status

TOLERANCE = 5e-4
"""Of the time over its bound that ends the search; less costs more pieces handed over than it gains."""
ROUNDS = 14
SOLVER = "greedy export with relays"


@dataclass(frozen=True, slots=True, eq=False)
class ExportProblem:
    """Weights of items in order of their homes, how many are at home on each bin, its free slots and its speed.

    `least` is the smallest piece, `relays` the longest chain (any where None), `domain` the bins of a domain (all where
    None), one domain after the other.
    """

    weight_E: Floats
    home_R: Ints
    free_R: Ints
    speed_R: Floats
    least: float = 0.0
    relays: int | None = None
    domain: int | None = None

    def __post_init__(self) -> None:
        require_weights(self.weight_E)
        bins = len(self.home_R)
        if self.domain is not None and (self.domain < 1 or bins % self.domain):
            raise PlannerError(
                f"domains of {self.domain} do not divide {bins} bins", where="domain", hint="give a divisor"
            )
        shapes = {self.home_R.shape, self.free_R.shape, self.speed_R.shape}
        if len(shapes) != 1 or int(self.home_R.sum()) != len(self.weight_E):
            raise PlannerError(
                f"{int(self.home_R.sum())} items at home for {len(self.weight_E)} weights",
                where="homes",
                hint="give every item one home",
            )
        if (self.home_R < 0).any() or (self.free_R < 0).any() or not (self.speed_R > 0).all():
            raise PlannerError("slots must be at least 0 and speeds positive", where="homes")

    @property
    def first_G(self) -> Ints:
        """The first bin of every domain, and the number of bins last."""
        return first_bins(len(self.home_R), self.domain)

    @property
    def chain(self) -> int:
        """Bins of the longest chain of relays."""
        return longest_chain(len(self.home_R), self.relays)


def first_bins(bins: int, domain: int | None) -> Ints:
    """[G + 1] the first bin of every domain, and the number of bins last."""
    return np.arange(0, bins + 1, domain or bins, dtype=np.int64)


def longest_chain(bins: int, relays: int | None) -> int:
    """Bins of the longest chain of relays among so many."""
    return bins if relays is None else relays


@dataclass(frozen=True, slots=True, eq=False)
class Exports:
    """The item in each free slot (-1: empty) and the weight it carries there; the rest stays at home."""

    item_RJ: Ints
    amount_RJ: Floats


def export_times(problem: ExportProblem, exports: Exports) -> Floats:
    """Time of every bin."""
    home_E = np.repeat(np.arange(len(problem.home_R)), problem.home_R)
    load_R = np.bincount(home_E, weights=problem.weight_E, minlength=len(problem.home_R))
    taken: Bools = exports.item_RJ >= 0
    np.subtract.at(load_R, home_E[exports.item_RJ[taken]], exports.amount_RJ[taken])
    load_R += np.where(taken, exports.amount_RJ, 0.0).sum(axis=1)
    return np.asarray(load_R / problem.speed_R)


def solve_export(problem: ExportProblem, *, tolerance: float = TOLERANCE, rounds: int = ROUNDS) -> SolveResult[Exports]:
    """What to hand over so that the slowest bin is fast: greedy transport under bisection; see `compiled.exports`.

    The bound is that of all bins of the fullest domain busy to the end, which free slots and pieces may forbid.
    """
    from planner.solvers.compiled.exports import export_in_groups

    started = time.perf_counter()
    bins, width = len(problem.home_R), int(problem.free_R.max(initial=0))
    item_RJ, amount_RJ = np.full((bins, width), -1, np.int64), np.zeros((bins, width))
    first_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(problem.home_R)]).astype(np.int64)
    export_in_groups(
        problem.weight_E, first_R, problem.speed_R, problem.free_R, problem.first_G, float(problem.least),
        problem.chain, tolerance, rounds, item_RJ, amount_RJ,
    )  # fmt: skip
    exports = Exports(item_RJ, amount_RJ)
    slowest = float(export_times(problem, exports).max())
    bound = min(_fullest_s(problem), slowest)
    status = Status.OPTIMAL if slowest <= bound * (1.0 + 1e-9) else Status.FEASIBLE
    return SolveResult(status, "finished", exports, slowest, bound, time.perf_counter() - started, SOLVER)


def _fullest_s(problem: ExportProblem) -> float:
    """Time of the fullest domain whose bins all end together."""
    home_E = np.repeat(np.arange(len(problem.home_R)), problem.home_R)
    load_R = np.bincount(home_E, weights=problem.weight_E, minlength=len(problem.home_R))
    first = problem.first_G[:-1]
    return float((np.add.reduceat(load_R, first) / np.add.reduceat(problem.speed_R, first)).max())
