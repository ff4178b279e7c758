"""Branch and bound over training plans across several pools: the share of each pool is one more axis.

Levels are those of `planner.kinds.train.search.search`. Shape suffixes: N node, P pool.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.config import Schedule
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.pools.speeds import Speeds
from planner.kinds.train.search.bounds import Floor
from planner.kinds.train.search.search import JobCandidate, PlanSearch
from planner.kinds.train.space.contexts import undominated
from planner.kinds.train.space.space import (
    ShardShape,
    Space,
    divisors,
    kept_states,
    offloads,
    powers,
    ranks_of_node,
    schedules,
    space_of,
    zero_stages,
)
from planner.kinds.train.space.tables import sharing_of
from planner.progress import Limits
from planner.solvers.schedules.even_finish import Machines, can_share

FEW_RANKS = 8
"""Up to so many data-parallel ranks of a pool every number is tried, then powers of two and divisors of its GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Combinations of level 1 [N] with what each pool takes [N, P]: ranks of the pipeline, or data-parallel ones."""

    shapes: tuple[ShardShape, ...]
    shape_N: Ints
    pp_N: Ints
    dp_N: Ints
    taken_NP: Ints

    def node(self, index: int) -> tuple[ShardShape, int, int, tuple[int, ...]]:
        """Shape, pp, dp and what each pool takes of one of them."""
        shape = self.shapes[self.shape_N[index]]
        return shape, int(self.pp_N[index]), int(self.dp_N[index]), tuple(self.taken_NP[index].tolist())


class PoolsSearch(PlanSearch):
    """One way across some pools, in this order."""

    def __init__(self, jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> None:
        super().__init__(jobs, common_job(jobs), limits, value)

    def plant(self) -> Space:
        shapes: dict[ShardShape, int] = {}
        space, rows = self.rows()
        columns = [(shapes.setdefault(shape, len(shapes)), *numbers) for shape, numbers in rows]
        table = np.array(columns, np.int64).reshape(len(columns), 3 + len(self.jobs))
        self.nodes = nodes = Nodes(tuple(shapes), table[:, 0], table[:, 1], table[:, 2], table[:, 3:])
        seconds_N, children_N = self.bounds(nodes)
        seconds_N = seconds_N + self.job.rates.get("step_s")
        ranks_N = np.array([shape.tp * shape.cp for shape in shapes], np.int64)[nodes.shape_N]
        gpus_N = ranks_N * nodes.pp_N * nodes.dp_N
        self.set_children(seconds_N * gpus_N if self.job.per_gpu else seconds_N, children_N)
        return space

    @abstractmethod
    def rows(self) -> tuple[Space, list[tuple[ShardShape, tuple[int, ...]]]]:
        """The space, and its combinations with what each pool takes: shape, then pp, dp and the number of each pool."""

    @abstractmethod
    def bounds(self, nodes: Nodes) -> tuple[Floats, Ints]:
        """Least seconds of the micro-batches of a step of each node, and candidates below it [N]."""

    def degrees(self, nodes: Ints) -> tuple[Ints, Ints]:
        tp_K = np.array([shape.tp for shape in self.nodes.shapes], np.int64)
        return tp_K[self.nodes.shape_N[nodes]], self.nodes.pp_N[nodes]

    def _runs(self, pp: int, batches: int) -> Iterator[tuple[Schedule, int]]:
        """Schedules with their stages per rank; those in which two ranks hold the same stages keep to one pool."""
        for schedule, vpp in schedules(self.job, pp, batches, self.chunks):
            if not schedule.startswith("dualpipe"):
                yield schedule, vpp


class StagesSearch(PoolsSearch):
    """One pipeline with ranks on every pool, pools in this order."""

    def rows(self) -> tuple[Space, list[tuple[ShardShape, tuple[int, ...]]]]:
        space = space_of(self.job)
        self.tally.illegal.update(space.illegal)
        rows: list[tuple[ShardShape, tuple[int, ...]]] = []
        for node in np.flatnonzero(undominated(space, self.tables)).tolist():
            stage_gpus = int(space.tp[node] * space.cp[node] * space.dp[node])
            most = tuple(job.num_gpus // stage_gpus for job in self.jobs)
            pp, dp = int(space.pp[node]), int(space.dp[node])
            ways = (taken for taken in divisions(pp, most) if self._launched(stage_gpus, taken))
            rows += [(space.shape(node), (pp, dp, *taken)) for taken in ways]
        return space, rows

    def _launched(self, stage_gpus: int, taken: Sequence[int]) -> bool:
        """Whether all nodes of all pools hold equally many ranks, where the problem names an engine."""
        ranks = zip(self.jobs, taken, strict=True)
        each = {int(ranks_of_node(job, np.array(stage_gpus * stages))) for job, stages in ranks}
        return not self.job.strict or (len(each) == 1 and 0 not in each)

    def bounds(self, nodes: Nodes) -> tuple[Floats, Ints]:
        seconds_N, children_N = np.zeros(len(nodes.pp_N)), np.zeros(len(nodes.pp_N), np.int64)
        for index, shape in enumerate(nodes.shapes):
            rows = np.flatnonzero(nodes.shape_N == index)
            tables = self.tables(shape)
            speeds = Speeds.of(tables, 1, [None] * len(tables), 0, heads=False)
            batches = self.job.options.global_batch // (nodes.dp_N[rows] * shape.micro_batch)
            taken, which = np.unique(nodes.taken_NP[rows], axis=0, return_inverse=True)
            seconds_N[rows] = batches * speeds.slowest_s(taken.astype(np.float64))[which.ravel()]
            for pp, dp in {(int(pp), int(dp)) for pp, dp in zip(nodes.pp_N[rows], nodes.dp_N[rows], strict=True)}:
                number = len(list(self._runs(pp, self.job.options.global_batch // (dp * shape.micro_batch))))
                number *= len(list(kept_states(self.job, shape, dp, pp)))
                children_N[rows[(nodes.pp_N[rows] == pp) & (nodes.dp_N[rows] == dp)]] = number
        return seconds_N, children_N

    def candidates(self, node: int) -> Iterator[JobCandidate]:
        shape, pp, dp, ranks = self.nodes.node(node)
        tables, batches = self.tables(shape), self.job.options.global_batch // (dp * shape.micro_batch)
        for stage, shards, offload in kept_states(self.job, shape, dp, pp):
            sharing = [sharing_of(table, dp, stage, offload, shards) for table in tables]
            runs = list(self._runs(pp, batches))
            if not self.holds_states(tables[0], sharing[0], pp, len(runs)):
                continue
            for schedule, vpp in runs:
                yield StagesAcross(
                    tuple(
                        PlanChoice(table, own, pp, dp, schedule, vpp, stage, offload, table.modes[0], shards=shards)
                        for table, own in zip(tables, sharing, strict=True)
                    ),
                    ranks,
                )


class ReplicasSearch(PoolsSearch):
    """Data-parallel ranks on every pool; states are not gathered or scattered every micro-batch, since pools differ in
    how many micro-batches they do."""

    def rows(self) -> tuple[Space, list[tuple[ShardShape, tuple[int, ...]]]]:
        dp_of_pools: list[dict[tuple[ShardShape, int], list[int]]] = []
        spaces = [space_of(job, _replica_counts(job)) for job in self.jobs]
        for space in spaces:
            self.tally.illegal.update(space.illegal)
            of_pool: dict[tuple[ShardShape, int], list[int]] = {}
            for node in np.flatnonzero(undominated(space, self.tables)).tolist():
                of_pool.setdefault((space.shape(node), int(space.pp[node])), []).append(int(space.dp[node]))
            dp_of_pools.append(of_pool)
        rows: list[tuple[ShardShape, tuple[int, ...]]] = []
        asked = self.job.options.search.dp
        for shape, pp in dp_of_pools[0]:
            for taken in product(*(of_pool.get((shape, pp), []) for of_pool in dp_of_pools)):
                gpus = shape.tp * shape.cp * pp * sum(taken)
                if gpus <= self.job.num_gpus and (asked is None or sum(taken) in asked):
                    rows.append((shape, (pp, sum(taken), *taken)))
        return replace(spaces[0], axes=merged_axes([space.axes for space in spaces])), rows

    def bounds(self, nodes: Nodes) -> tuple[Floats, Ints]:
        seconds_N, children_N = np.zeros(len(nodes.pp_N)), np.zeros(len(nodes.pp_N), np.int64)
        each = [len(list(self._states(pp))) for pp in (1, 2)]
        for index, pp in {(int(i), int(pp)) for i, pp in zip(nodes.shape_N, nodes.pp_N, strict=True)}:
            rows = np.flatnonzero((nodes.shape_N == index) & (nodes.pp_N == pp))
            shape = nodes.shapes[index]
            slowest_P = np.array([Floor(table, pp, further_heads=False).slowest_s for table in self.tables(shape)])
            batches = self.job.options.global_batch // shape.micro_batch
            seconds_N[rows] = batches / (nodes.taken_NP[rows] / slowest_P).sum(axis=1)
            children_N[rows] = [
                each[pp > 1] * len(list(self._shareable(pp, batches, tuple(taken))))
                for taken in nodes.taken_NP[rows].tolist()
            ]
        return seconds_N, children_N

    def _states(self, pp: int) -> Iterator[tuple[int, frozenset[str]]]:
        """ZeRO stages whose exchange comes once a step, all ranks sharing the states, each with what is moved out."""
        asked = self.job.options.search.zero_shards or ("all",)
        for stage in zero_stages(self.job, pp):
            if stage < 2 and "all" in asked:
                yield from ((stage, offload) for offload in offloads(self.job, stage, pp))

    def _shareable(self, pp: int, batches: int, taken: tuple[int, ...]) -> Iterator[tuple[Schedule, int]]:
        for schedule, vpp in self._runs(pp, pp):
            if _can_share(batches, taken, pp if schedule == "interleaved" else 1):
                yield schedule, vpp

    def candidates(self, node: int) -> Iterator[JobCandidate]:
        shape, pp, dp, taken = self.nodes.node(node)
        tables, batches = self.tables(shape), self.job.options.global_batch // shape.micro_batch
        runs = list(self._shareable(pp, batches, taken))
        for stage, offload in self._states(pp):
            sharing = joined_sharing(tables, pp, dp, stage, offload)
            if not self.holds_states(tables[0], sharing, pp, len(runs)):
                continue
            for schedule, vpp in runs:
                yield ReplicasAcross(
                    tuple(
                        PlanChoice(
                            table, sharing, pp, own_dp, schedule, vpp, stage, offload, table.modes[0], batches=4 * pp
                        )
                        for table, own_dp in zip(tables, taken, strict=True)
                    )
                )


def merged_axes(axes: Sequence[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Every value of every axis that one of them has."""
    return {name: tuple(sorted({value for values in axes for value in values[name]})) for name in axes[0]}


def common_job(jobs: Sequence[TrainJob]) -> TrainJob:
    """The first pool's job with all GPUs and the smallest domain: what is legal on all of them."""
    most = sum(job.num_gpus for job in jobs)
    limit = jobs[0].resolved.problem.limits.gpus
    domain = min(job.machine.domain_gpus for job in jobs)
    machine = replace(jobs[0].machine, domain_gpus=domain)
    return replace(jobs[0], machine=machine, num_gpus=min(most, limit or most))


@lru_cache(maxsize=4096)
def divisions(total: int, most: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every way to give `total` ranks to pools in order, at least one and at most so many each."""
    if len(most) == 1:
        return ((total,),) if 1 <= total <= most[0] else ()
    firsts = range(1, min(most[0], total - len(most) + 1) + 1)
    return tuple((first, *rest) for first in firsts for rest in divisions(total - first, most[1:]))


@lru_cache(maxsize=65536)
def _can_share(batches: int, taken: tuple[int, ...], unit: int) -> bool:
    return can_share(batches, [Machines(number, unit) for number in taken])


def _replica_counts(job: TrainJob) -> tuple[int, ...]:
    """Numbers of data-parallel ranks on a pool that are tried."""
    most = job.num_gpus
    few = range(1, min(FEW_RANKS, most) + 1)
    return tuple(sorted({*few, *powers(most), *divisors(most)}))
