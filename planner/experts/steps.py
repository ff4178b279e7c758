"""Expert placement in every micro-batch: fixed home slots, copies in free slots, token shares by the exact load.

One call plans one layer in some ten microseconds, from loads known before the experts run. Shape suffixes: N layer or
micro-batch, S source rank, E expert, R rank, P slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.experts.ranks import Ranks, require_loads
from planner.solvers.layouts.exports import ROUNDS, TOLERANCE, first_bins, longest_chain


@dataclass(frozen=True, slots=True)
class CopyRules:
    """What copies may do: serve so many tokens at least, stay in domains of so many ranks (any where None), and come
    along chains of so many other ranks (any where None). UltraEP's rules (arXiv:2606.04101), its least being 1024."""

    least_tokens: float = 0.0
    domain: int | None = None
    relays: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepLayouts:
    """Experts (-1: empty) and shares by row and slot, and the time of the slowest rank over the mean."""

    expert_NP: Ints
    quota_NP: Floats
    imbalance_N: Floats


class StepPlanner:
    """Plans layers one after the other without allocating; expert e is at home on rank e // (experts / ranks).

    Construct it once, outside the loop: the first construction in a process loads compiled code. Not thread-safe.
    """

    def __init__(
        self, ranks: Ranks, num_experts: int, *, tolerance: float = TOLERANCE, rules: CopyRules = CopyRules()
    ) -> None:
        if rules.domain is not None and (rules.domain < 1 or ranks.num_ranks % rules.domain):
            raise PlannerError(
                f"domains of {rules.domain} ranks do not divide {ranks.num_ranks}",
                where="domain",
                hint=f"give a divisor of {ranks.num_ranks}",
            )
        if num_experts % ranks.num_ranks:
            raise PlannerError(
                f"{num_experts} experts do not spread evenly over {ranks.num_ranks} ranks",
                where="experts",
                hint="use a number of ranks that divides the experts",
            )
        each = num_experts // ranks.num_ranks
        if ranks.home_slots not in (0, each):
            raise PlannerError(
                f"{ranks.home_slots} home slots for {each} experts of each rank",
                where="home_slots",
                hint=f"give {each}",
            )
        if (ranks.slots_R < each).any():
            raise PlannerError(
                f"a rank has {int(ranks.slots_R.min())} slots for its {each} experts",
                where="slots",
                hint="give the ranks more slots, or use more ranks",
            )
        self.num_experts = num_experts
        self._num_slots = ranks.num_slots
        self._first_R = np.arange(ranks.num_ranks + 1, dtype=np.int64) * each
        self._speed_R = np.ascontiguousarray(ranks.speed_R)
        self._free_R = np.ascontiguousarray(ranks.slots_R - each)
        self._first_slot_R = ranks.first_R
        self._first_G = first_bins(ranks.num_ranks, rules.domain)
        self._rules = (float(rules.least_tokens), longest_chain(ranks.num_ranks, rules.relays), tolerance, ROUNDS)
        width = max(1, int(self._free_R.max()))
        self._item_RJ = np.full((ranks.num_ranks, width), -1, np.int64)
        self._amount_RJ = np.zeros((ranks.num_ranks, width))
        self._expert_P = np.empty(ranks.num_slots, np.int64)
        self._quota_P = np.empty(ranks.num_slots)
        self.plan(np.ones(num_experts))

    def plan(self, load_E: Floats) -> tuple[Ints, Floats, float]:
        """(expert in every slot, share of every slot, time of the slowest rank over the mean) for one layer.

        `load_E` is contiguous float64, in tokens, not checked. The arrays are overwritten by the next call.
        """
        from planner.solvers.compiled.exports import lay_out

        ratio = lay_out(
            load_E, self._first_R, self._speed_R, self._free_R, self._first_slot_R, self._first_G, *self._rules,
            self._item_RJ, self._amount_RJ, self._expert_P, self._quota_P,
        )  # fmt: skip
        return self._expert_P, self._quota_P, float(ratio)

    def plan_rows(self, load_NE: npt.ArrayLike) -> StepLayouts:
        """Layouts of many layers or micro-batches in one compiled loop; PlannerError for bad loads."""
        from planner.solvers.compiled.exports import lay_out_all

        loads = np.ascontiguousarray(load_NE, np.float64)
        require_loads(loads, "row,expert")
        if loads.shape[1] != self.num_experts:
            raise PlannerError(
                f"has {loads.shape[1]} experts, the planner was made for {self.num_experts}", where="load"
            )
        rows = len(loads)
        expert_NP = np.empty((rows, self._num_slots), np.int64)
        quota_NP, ratio_N = np.empty((rows, self._num_slots)), np.empty(rows)
        lay_out_all(
            loads, self._first_R, self._speed_R, self._free_R, self._first_slot_R, self._first_G, *self._rules,
            expert_NP, quota_NP, ratio_N,
        )  # fmt: skip
        return StepLayouts(expert_NP, quota_NP, ratio_N)
