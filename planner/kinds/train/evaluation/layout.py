"""Pipeline layout: assigns layers to stages so that the slowest rank is fastest within memory.

Ranks that hold one stage each are cut by the partition of `planner.solvers.partition`. Where ranks hold several, and
all layers cost alike, layers are dealt one by one to the rank that then ends first, which is optimal for the slowest
rank; each rank spreads its layers evenly over its stages. Shape suffixes: R rank, L layer.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.kinds.train.figures import ROUNDING
from planner.solvers.partition import PartitionProblem, SecondMemory, partition

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LayoutProblem:
    """Time and bytes of layers and ranks that a layout has to spread."""

    time_RL: Floats  # seconds of a micro-batch in each layer on each rank
    in_flight_L: Floats  # bytes of a micro-batch in flight
    state_L: Floats  # bytes between steps
    more_time_R: Floats  # ends of the model on each rank
    room_R: Floats  # bytes of each rank for its layers
    depth_R: Floats  # micro-batches in flight
    host: SecondMemory | None = None  # of layers, where something is offloaded and the hosts' memory is known

    def room_of_everything(self) -> Floats:
        """Bytes [R] with which every rank could hold all layers."""
        all_bytes = float((self.state_L + self.depth_R.max() * self.in_flight_L).sum())
        return np.full(len(self.room_R), all_bytes)

    def has_no_room(self) -> bool:
        """Whether some rank has no room for what it holds beside layers."""
        return bool((self.room_R < 0).any() or (self.host is not None and (self.host.capacity_S < 0).any()))

    def without_limits(self) -> "LayoutProblem":
        """The problem where every rank can hold all layers."""
        return replace(self, room_R=self.room_of_everything(), host=None)


def cut_layers(load: LayoutProblem, *, first_may_be_empty: bool = False) -> Counts | None:
    """Layers of each rank, one stage a rank; None where they do not fit."""
    ranks = len(load.room_R)
    least = np.ones(ranks, np.int64)
    if first_may_be_empty and ranks > 1:
        least[0] = least[-1] = 0
    if load.has_no_room():
        return None
    problem = PartitionProblem(
        time_OL=load.time_RL[:1],
        in_flight_OL=load.in_flight_L[None, :],
        fixed_L=load.state_L,
        depth_S=load.depth_R,
        more_time_S=load.more_time_R,
        more_bytes_S=np.zeros(ranks),
        capacity_S=load.room_R,
        least_S=least,
        time_SL=load.time_RL,
        second=load.host,
    )
    solution = partition(problem).solution
    return None if solution is None else solution.counts


def deal_layers(load: LayoutProblem, least_R: Sequence[int], *, late: bool = False) -> Counts | None:
    """Layers of each rank, all layers taken as their mean; None where they do not fit.

    Of ranks that would end at the same time the first gets a layer, or the last where `late`.
    """
    layers = len(load.in_flight_L)
    each_R, most_R = load.time_RL.mean(axis=1), _most_layers(load.state_L, load.in_flight_L, load.depth_R, load.room_R)
    if load.host is not None:
        host = load.host
        most_R = np.minimum(most_R, _most_layers(host.fixed_L, host.in_flight_L, load.depth_R, host.capacity_S))
    counts = list(least_R)
    if load.has_no_room() or any(count > most for count, most in zip(counts, most_R, strict=True)):
        return None
    if sum(counts) > layers or int(most_R.sum()) < layers:
        return None
    sign = -1 if late else 1
    waiting = [
        (load.more_time_R[rank] + each_R[rank] * (counts[rank] + 1), sign * rank)
        for rank in range(len(counts))
        if counts[rank] < most_R[rank]
    ]
    heapq.heapify(waiting)
    for _ in range(layers - sum(counts)):
        loaded_s, signed = heapq.heappop(waiting)
        rank = sign * signed
        counts[rank] += 1
        if counts[rank] < most_R[rank]:
            heapq.heappush(waiting, (loaded_s + each_R[rank], signed))
    return tuple(counts)


def _most_layers(state_L: Floats, in_flight_L: Floats, depth_R: Floats, room_R: Floats) -> Ints:
    """How many layers of the mean bytes each rank has room for [R]."""
    each_R = state_L.mean() + depth_R * in_flight_L.mean()
    most_R = np.maximum(room_R, 0.0) / np.maximum(each_R, 1e-9) + ROUNDING
    return np.asarray(np.floor(np.minimum(most_R, len(state_L))).astype(np.int64))


def spread_over_stages(counts_R: Counts, stages_of_rank: Sequence[Sequence[int]], *, early: bool = False) -> Counts:
    """Layers of each stage from those of each rank; stages at the ends of the model get the smaller shares.

    Of the others the last of a rank get the larger ones, or the first where `early`.
    """
    num_stages = max(max(stages) for stages in stages_of_rank) + 1
    counts_S = [0] * num_stages
    for count, stages in zip(counts_R, stages_of_rank, strict=True):
        each, over = divmod(count, len(stages))
        ordered = stages if early else tuple(reversed(stages))
        first = [stage for stage in ordered if stage not in (0, num_stages - 1)]
        order = first + [stage for stage in stages if stage in (0, num_stages - 1)]
        for place, stage in enumerate(order):
            counts_S[stage] = each + (place < over)
    return tuple(counts_S)


def least_layers(stages_of_rank: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Fewest layers of each rank: one a stage, and none in stages that hold an end of the model."""
    last = max(max(stages) for stages in stages_of_rank)
    return tuple(sum(stage not in (0, last) for stage in stages) or 1 for stages in stages_of_rank)
