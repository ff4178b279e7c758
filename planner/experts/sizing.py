"""How many redundant experts (slots) pay, and whether rebalancing pays at all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.experts.layout import plan_layout
from planner.experts.ranks import make_ranks
from planner.experts.replay import served_imbalance
from planner.experts.step_time import MoeCosts


@dataclass(frozen=True, slots=True)
class Size:
    """One number of slots a rank: the balance that it allows, on the loads planned on and on those that came next."""

    slots_per_rank: int
    redundant_slots: int  # of a layer, all ranks together
    imbalance_mean: float
    imbalance_worst: float
    bound_mean: float
    next_mean: float | None  # planned on a window, served the next; None with one window
    next_worst: float | None
    memory_bytes: float | None  # of the redundant slots of a rank, all layers
    step_s: float | None  # on the next window where there is one


@dataclass(frozen=True, slots=True)
class MoveValue:
    """Whether to go from one layout to another: seconds saved until the next change, and seconds it takes."""

    gain_s: float
    cost_s: float

    @property
    def pays(self) -> bool:
        return self.gain_s > self.cost_s


def size(
    load_WLE: Floats,
    ranks: int,
    *,
    ranks_per_node: int | None = None,
    most_extra: int = 4,
    costs: MoeCosts | None = None,
) -> Iterator[Size]:
    """Every number of slots a rank, from the fewest that hold the experts to `most_extra` more; equal shares."""
    experts = load_WLE.shape[2]
    fewest = -(-experts // ranks)
    for slots in range(fewest, min(fewest + most_extra, experts) + 1):
        on = make_ranks(ranks, slots, ranks_per_node=ranks_per_node)
        layouts = [plan_layout(load_LE, on) for load_LE in load_WLE]
        own = np.array([layout.imbalance_L for layout in layouts])
        bound = np.array([layout.bound_L for layout in layouts])
        later = np.array(
            [
                served_imbalance(on, layout.expert_LP, load_LE)
                for layout, load_LE in zip(layouts[:-1], load_WLE[1:], strict=True)
            ]
        )
        redundant = slots * ranks - experts
        yield Size(
            slots_per_rank=slots,
            redundant_slots=redundant,
            imbalance_mean=float(own.mean()),
            imbalance_worst=float(own.max()),
            bound_mean=float(bound.mean()),
            next_mean=float(later.mean()) if later.size else None,
            next_worst=float(later.max()) if later.size else None,
            memory_bytes=None if costs is None else redundant / ranks * load_WLE.shape[1] * costs.expert_bytes,
            step_s=None if costs is None else costs.step_s(later.mean(axis=0) if later.size else own.mean(axis=0)),
        )


def worth_moving(
    costs: MoeCosts,
    before_L: Sequence[float] | Floats,
    after_L: Sequence[float] | Floats,
    moved_bytes: float,
    steps: int,
) -> MoveValue:
    """Whether imbalances `after_L` in place of `before_L` save more in `steps` steps than moving the weights takes."""
    if steps < 1:
        raise PlannerError(
            f"must be at least 1, found {steps}", where="steps", hint="count the steps until the next one"
        )
    gain_s = (costs.step_s(before_L) - costs.step_s(after_L)) * steps
    return MoveValue(gain_s, costs.move_s(moved_bytes))
