"""The expert-parallel (EP) ranks of a layer: slots, relative speeds, and nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError

MOST_NODES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Slots, relative speed and node of every rank; the slots of a layout count rank by rank.

    The first `home_slots` of each rank never change their expert in layouts made step by step.
    """

    slots_R: Ints
    speed_R: Floats
    node_R: Ints
    home_slots: int = 0

    def __post_init__(self) -> None:
        if not len(self.slots_R) == len(self.speed_R) == len(self.node_R) > 0:
            raise PlannerError(
                f"{len(self.slots_R)} slot counts, {len(self.speed_R)} speeds and {len(self.node_R)} nodes",
                where="ranks",
                hint="give one of each for every rank",
            )
        if (self.slots_R < 1).any() or not np.isfinite(self.speed_R).all() or (self.speed_R <= 0).any():
            raise PlannerError(
                "slots and speeds must be positive", where="ranks", hint="leave a rank without a slot or speed out"
            )
        if (self.node_R < 0).any():
            raise PlannerError("a rank has a negative node", where="ranks", hint="nodes count from 0")
        ranks_N = np.bincount(self.node_R, minlength=1) if int(self.node_R.max()) < MOST_NODES else np.zeros(1)
        if (ranks_N == 0).any():
            raise PlannerError(
                f"node {int(np.argmin(ranks_N))} has no rank, and node {int(self.node_R.max())} has",
                where="ranks",
                hint="number the nodes from 0 without gaps",
            )

    @property
    def num_ranks(self) -> int:
        return len(self.slots_R)

    @property
    def num_slots(self) -> int:
        return int(self.slots_R.sum())

    @property
    def num_nodes(self) -> int:
        return int(self.node_R.max()) + 1

    @property
    def rank_P(self) -> Ints:
        """The rank of every slot."""
        return np.repeat(np.arange(self.num_ranks), self.slots_R)

    @property
    def first_R(self) -> Ints:
        """The first slot of every rank, and the number of slots last."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.slots_R)]).astype(np.int64)

    @property
    def slots_N(self) -> Ints:
        """Slots of every node."""
        return np.bincount(self.node_R, weights=self.slots_R).astype(np.int64)

    def with_more_slots(self, more: int) -> "Ranks":
        """The same ranks with `more` slots each."""
        return Ranks(self.slots_R + more, self.speed_R, self.node_R, self.home_slots)


def make_ranks(
    ranks: int,
    slots_per_rank: int | Sequence[int],
    *,
    ranks_per_node: int | None = None,
    speeds: Sequence[float] | None = None,
    node_of_rank: Sequence[int] | None = None,
    home_slots: int = 0,
) -> Ranks:
    """Ranks from plain numbers; all on one node, and equally fast, unless told."""
    if ranks < 1 or (ranks_per_node is not None and ranks_per_node < 1):
        raise PlannerError(
            f"{ranks} ranks, {ranks_per_node or ranks} on a node", where="ranks", hint="give at least 1 of each"
        )
    slots_R = np.full(ranks, slots_per_rank) if isinstance(slots_per_rank, int) else np.asarray(slots_per_rank)
    node_R = np.asarray(node_of_rank) if node_of_rank is not None else np.arange(ranks) // (ranks_per_node or ranks)
    speed_R = np.ones(ranks) if speeds is None else np.asarray(speeds, np.float64)
    return Ranks(slots_R.astype(np.int64), speed_R, node_R.astype(np.int64), home_slots)


def require_loads(load: Floats, axes: str, *, where: str = "load") -> None:
    """Refuses loads of the wrong number of axes (`axes` names them), NaN, negative ones, and rows without any load."""
    if load.ndim != len(axes.split(",")):
        raise PlannerError(f"must have the axes [{axes}], found the shape {load.shape}", where=where)
    if load.size == 0:
        raise PlannerError(f"is empty: {load.shape}", where=where, hint="give the loads of at least one layer")
    wrong = ~np.isfinite(load) | (load < 0)
    if wrong.any():
        entry = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise PlannerError(f"is {load[entry]} at {list(entry)}", where=where, hint="loads are finite and at least 0")
    idle = load.sum(axis=-1) == 0
    if idle.any():
        row = [int(index) for index in np.argwhere(idle)[0]]
        raise PlannerError(
            f"has no load at all at {row} of [{axes.rpartition(',')[0]}]",
            where=where,
            hint="leave out dense layers, and windows too short to hold tokens of every layer",
        )


def require_slots(slots: Ints, num_experts: int, holder: str = "rank") -> None:
    """Refuses fewer slots than experts, and a rank (or node) with more slots than experts: it would hold one twice."""
    total, most = int(slots.sum()), int(slots.max())
    if (slots < 1).any():
        raise PlannerError(f"a {holder} has no slot", where="slots", hint=f"leave such a {holder} out")
    if total < num_experts:
        raise PlannerError(
            f"{total} slots cannot hold {num_experts} experts",
            where="slots",
            hint=f"give the {holder}s {num_experts - total} slots more, or use more {holder}s",
        )
    if most > num_experts:
        raise PlannerError(
            f"a {holder} has {most} slots for {num_experts} experts, and holds none twice",
            where="slots",
            hint=f"give each {holder} at most {num_experts} slots",
        )


def linear_layout(ranks: Ranks, num_experts: int) -> Ints:
    """Experts in order over the ranks, as engines start: evenly, -1 in the slots left over."""
    if ranks.num_slots < num_experts:
        raise PlannerError(
            f"{ranks.num_slots} slots cannot hold {num_experts} experts", where="slots", hint="add slots or ranks"
        )
    expert_P = np.full(ranks.num_slots, -1, np.int64)
    each, more = divmod(num_experts, ranks.num_ranks)
    expert = 0
    for rank, first in enumerate(ranks.first_R[:-1]):
        count = min(each + (rank < more), int(ranks.slots_R[rank]))
        expert_P[first : first + count] = np.arange(expert, expert + count)
        expert += count
    empty = np.nonzero(expert_P < 0)[0]
    expert_P[empty[: num_experts - expert]] = np.arange(expert, num_experts)
    return expert_P
