"""Makespan scheduling with item splitting (what EPLB approximates): items copied into the slots of bins.

Every copy carries an equal share of its item's weight, and a bin holds an item at most once. A bin's time is its load
divided by its speed. EPLB (github.com/deepseek-ai/EPLB) is the greedy construction alone.

Sets        e in E items, r in R bins
Parameters  w_e >= 0 weight, v_r > 0 speed, S_r slots, a_er in {0, 1} allowed
Variables   y_er in {0, 1} bin r holds a copy of e;  n_e its copies;  T the slowest bin
Minimise    T
(C1) sum_r y_er = n_e >= 1           for e      every item has a copy
(C2) sum_e y_er = S_r, y_er <= a_er  for r      every slot is filled
(C3) sum_e y_er w_e / n_e <= v_r T   for r      T bounds every bin
Shape suffixes: E item, R bin, P slot (bin-major: the slots of bin 0 come first).
"""

import time
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

TOLERANCE = 3e-4
"""Of the time over its bound at which the search stops: a tenth of what timing a GPU kernel twice differs by."""
STEPS = 1200
SOLVER = "spread local search"


@dataclass(frozen=True, slots=True, eq=False)
class SpreadProblem:
    """Weights of items, and the slots and speed of each bin; raises PlannerError for figures that make no sense.

    `allowed_ER` says which bin may hold which item; None means every one.
    """

    weight_E: Floats
    slots_R: Ints
    speed_R: Floats
    allowed_ER: Bools | None = None
    first_R: Ints = field(init=False)  # first slot of each bin; one entry more than bins
    bin_P: Ints = field(init=False)  # the bin of every slot

    def __post_init__(self) -> None:
        require_weights(self.weight_E)
        _require_bins(self.slots_R, self.speed_R)
        first_R = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.slots_R)]).astype(np.int64)
        object.__setattr__(self, "first_R", first_R)
        object.__setattr__(self, "bin_P", np.repeat(np.arange(len(self.slots_R)), self.slots_R))
        items, slots = len(self.weight_E), int(first_R[-1])
        if slots < items:
            raise PlannerError(
                f"{slots} slots cannot hold {items} items",
                where="slots",
                hint=f"give the bins {items - slots} slots more, or use more bins",
            )
        if slots > items * len(self.slots_R) or int(self.slots_R.max()) > items:
            raise PlannerError(
                f"a bin has {int(self.slots_R.max())} slots for {items} items, and holds none twice",
                where="slots",
                hint=f"give each bin at most {items} slots",
            )
        if self.allowed_ER is not None:
            _require_allowed(self.allowed_ER, items, len(self.slots_R))
        for name in ("weight_E", "speed_R", "allowed_ER"):  # of one layout, for which the search is compiled once
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.require(getattr(self, name), requirements=["C", "W"]))

    @property
    def allowed(self) -> Bools:
        """`allowed_ER` filled in."""
        if self.allowed_ER is not None:
            return self.allowed_ER
        return np.ones((len(self.weight_E), len(self.slots_R)), np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The item in every slot, and the share of its item's weight that the slot carries."""

    item_P: Ints
    share_P: Floats


def require_weights(weight_E: Floats) -> None:
    """Refuses weights that are not one row of finite numbers of at least 0, one of them positive."""
    if weight_E.ndim != 1 or len(weight_E) == 0:
        raise PlannerError(f"weights must be one row, found shape {weight_E.shape}", where="weights")
    if not np.isfinite(weight_E).all() or (weight_E < 0).any():
        wrong = int(np.argmax(~np.isfinite(weight_E) | (weight_E < 0)))
        raise PlannerError(
            f"item {wrong} has the weight {weight_E[wrong]}", where="weights", hint="give finite weights of at least 0"
        )
    if not weight_E.any():
        raise PlannerError("every weight is 0", where="weights", hint="give the weights that were counted")


def _require_bins(slots_R: Ints, speed_R: Floats) -> None:
    if slots_R.shape != speed_R.shape or slots_R.ndim != 1 or len(slots_R) == 0:
        raise PlannerError(
            f"{slots_R.shape} slot counts and {speed_R.shape} speeds",
            where="slots",
            hint="give one of each for every bin",
        )
    if (slots_R < 1).any():
        raise PlannerError("a bin has no slot", where="slots", hint="leave such a bin out")
    if not np.isfinite(speed_R).all() or (speed_R <= 0).any():
        raise PlannerError("a bin has a speed that is not positive", where="speeds", hint="leave such a bin out")


def _require_allowed(allowed_ER: Bools, items: int, bins: int) -> None:
    if allowed_ER.shape != (items, bins):
        raise PlannerError(f"must have the shape {(items, bins)}, found {allowed_ER.shape}", where="allowed")
    if not allowed_ER.any(axis=1).all():
        lost = int(np.argmin(allowed_ER.any(axis=1)))
        raise PlannerError(f"no bin may hold item {lost}", where="allowed", hint="allow it somewhere")


def time_bound(problem: SpreadProblem) -> float:
    """A lower bound on the time of every layout, with equal or with free shares.

    (B1) all bins busy to the end: T >= W / sum of speeds
    (B2) a copy carries at most T x the top speed: sum_e max(1, ceil(w_e / (T v_max))) <= slots
    (B3) a bin carries at most its time and its heaviest S_r items: sum_r min(T v_r, top S_r) >= W
    (B4) items confined to some bins load those bins alone
    """
    from planner.solvers.compiled.spread import slots_bound, width_bound

    slots = int(problem.first_R[-1])
    bound = float(problem.weight_E.sum() / problem.speed_R.sum())
    bound = max(bound, float(slots_bound(problem.weight_E, slots, problem.speed_R.max(), bound)))
    heaviest = np.cumsum(np.sort(problem.weight_E)[::-1])
    bound = max(bound, float(width_bound(heaviest, problem.slots_R, problem.speed_R, bound)))
    if problem.allowed_ER is None:
        return bound
    for mask_R in np.unique(problem.allowed_ER, axis=0):
        confined_E = ~(problem.allowed_ER & ~mask_R).any(axis=1)
        bound = max(bound, float(problem.weight_E[confined_E].sum() / problem.speed_R[mask_R].sum()))
    return bound


def equal_shares(item_P: Ints, num_items: int) -> Floats:
    """1 / copies of the item in every slot; 0 in an empty one (-1)."""
    copies_E = np.bincount(item_P[item_P >= 0], minlength=num_items)
    return np.where(item_P >= 0, 1.0 / np.maximum(copies_E[np.maximum(item_P, 0)], 1), 0.0)


def bin_times(problem: SpreadProblem, item_P: Ints, share_P: Floats | None = None) -> Floats:
    """Time of every bin under a layout; equal shares unless given."""
    if share_P is None:
        share_P = equal_shares(item_P, len(problem.weight_E))
    weight_P = np.where(item_P >= 0, problem.weight_E[np.maximum(item_P, 0)] * share_P, 0.0)
    return np.bincount(problem.bin_P, weights=weight_P, minlength=len(problem.speed_R)) / problem.speed_R


def require_layout(problem: SpreadProblem, item_P: Ints, *, where: str = "layout") -> None:
    """Refuses a layout that does not fit the problem: its length, items without a slot, items twice in a bin."""
    items, slots = len(problem.weight_E), int(problem.first_R[-1])
    if item_P.shape != (slots,):
        raise PlannerError(f"has {item_P.shape} slots, the bins have {slots}", where=where, hint="lay out every slot")
    if int(item_P.min()) < 0 or int(item_P.max()) >= items:
        raise PlannerError(
            f"names item {int(item_P.min()) if item_P.min() < 0 else int(item_P.max())} of {items}",
            where=where,
            hint="items count from 0, and no slot stays empty",
        )
    present_E = np.bincount(item_P, minlength=items)
    if (present_E == 0).any():
        raise PlannerError(
            f"item {int(np.argmin(present_E))} has no slot", where=where, hint="give every item at least one slot"
        )
    twice = np.unique(problem.bin_P * items + item_P, return_counts=True)
    if (twice[1] > 1).any():
        bin_, item = divmod(int(twice[0][np.argmax(twice[1])]), items)
        raise PlannerError(
            f"bin {bin_} holds item {item} twice", where=where, hint="a second copy belongs on another bin"
        )


def solve_spread(
    problem: SpreadProblem,
    *,
    start_P: Ints | None = None,
    tolerance: float = TOLERANCE,
    steps: int = STEPS,
    seed: int = 0,
) -> SolveResult[Spread]:
    """A layout whose slowest bin is as fast as local search finds; the search stops `tolerance` above the bound.

    Copies by the greedy rule, heaviest copy first onto the bin that then ends first, then swaps out of the slowest bin
    and changes of copy counts, from repeated random kicks; O(steps x slots of a bin x slots). `start_P` replaces the
    construction. Deterministic in `seed`. UNKNOWN when `allowed_ER` leaves the construction stuck.
    """
    from planner.solvers.compiled.spread import improve

    started = time.perf_counter()
    bound = time_bound(problem)
    item_P = construct(problem) if start_P is None else start_P.astype(np.int64, copy=True)
    if item_P is None:
        took = time.perf_counter() - started
        return SolveResult(Status.UNKNOWN, "finished", None, None, bound, took, SOLVER)
    if start_P is not None:
        require_layout(problem, item_P, where="start")
    improve(
        item_P, problem.bin_P, problem.first_R, problem.weight_E, problem.speed_R, problem.allowed,
        bound * (1.0 + tolerance), steps, seed,
    )  # fmt: skip
    return result_of(problem, Spread(item_P, equal_shares(item_P, len(problem.weight_E))), bound, started)


def construct(problem: SpreadProblem) -> Ints | None:
    """The layout that local search starts from; None when the allowed bins leave some copy without a place."""
    from planner.solvers.compiled.spread import greedy_copies, longest_first

    if problem.allowed_ER is not None:
        return _construct_confined(problem)
    most_E = np.full(len(problem.weight_E), len(problem.slots_R))
    copies_E = greedy_copies(problem.weight_E, int(problem.first_R[-1]), most_E)
    order_E = np.argsort(-problem.weight_E / copies_E, kind="stable")
    item_P: Ints
    item_P, complete = longest_first(
        problem.weight_E, copies_E, problem.first_R, problem.speed_R, problem.allowed, order_E
    )
    return item_P if complete and (item_P >= 0).all() else None


def _construct_confined(problem: SpreadProblem) -> Ints | None:
    """One copy of each item, confined ones first, then further copies; by matching where the greedy rule gets stuck."""
    from planner.solvers.compiled.spread import fill_free, longest_first

    allowed_ER = problem.allowed
    order_E = np.lexsort((-problem.weight_E, allowed_ER.sum(axis=1)))
    item_P: Ints | None
    item_P, complete = longest_first(
        problem.weight_E, np.ones_like(order_E), problem.first_R, problem.speed_R, allowed_ER, order_E
    )
    if not complete:
        item_P = _match(problem, allowed_ER)
    if item_P is None or not fill_free(item_P, problem.bin_P, problem.weight_E, allowed_ER):
        return None
    return item_P


def _match(problem: SpreadProblem, allowed_ER: Bools) -> Ints | None:
    """A slot for every item by maximum bipartite matching; None where there is none, so that no layout exists."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    slot_E = maximum_bipartite_matching(csr_array(allowed_ER[:, problem.bin_P]), perm_type="column")
    if (slot_E < 0).any():
        return None
    item_P = np.full(int(problem.first_R[-1]), -1, np.int64)
    item_P[slot_E] = np.arange(len(slot_E))
    return item_P


def result_of(
    problem: SpreadProblem, spread: Spread, bound: float, started: float, solver: str = SOLVER
) -> SolveResult[Spread]:
    """The result of a heuristic: OPTIMAL where the layout meets its bound to 1e-9, else FEASIBLE."""
    slowest = float(bin_times(problem, spread.item_P, spread.share_P).max())
    bound = min(bound, slowest)
    status = Status.OPTIMAL if slowest <= bound * (1.0 + 1e-9) else Status.FEASIBLE
    return SolveResult(status, "finished", spread, slowest, bound, time.perf_counter() - started, solver)
