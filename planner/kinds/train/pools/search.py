"""Branch and bound over training plans across several pools: the share of each pool is one more axis.

Levels are those of `planner.kinds.train.search.search`. Shape suffixes: N node, P pool.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.costs.training.config import Schedule
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.pools.nodes import Nodes, chosen, nodes_of_replicas, nodes_of_stages
from planner.kinds.train.pools.speeds import Speeds
from planner.kinds.train.search.bounds import Floor
from planner.kinds.train.search.search import JobCandidate, PlanSearch
from planner.kinds.train.space.contexts import undominated
from planner.kinds.train.space.distinct import distinct
from planner.kinds.train.space.space import Space, divisors, powers, ranks_of_node, schedules, space_of
from planner.kinds.train.space.states import kept_states, offloads, zero_stages
from planner.kinds.train.space.tables import sharing_of
from planner.progress import Limits
from planner.solvers.schedules.even_finish import Machines, can_share

FEW_RANKS = 8
"""Up to so many data-parallel ranks of a pool every number is tried, then powers of two and divisors of its GPUs."""


class PoolsSearch(PlanSearch):
    """One way across some pools, in this order."""

    def __init__(self, jobs: Sequence[TrainJob], limits: Limits, value: float = float("inf")) -> None:
        super().__init__(jobs, common_job(jobs), limits, value)

    def set_up(self) -> Space:
        space, self.nodes = self.space_and_nodes()
        nodes, seconds_N = self.nodes, self.bounds(self.nodes) + self.job.rates.get("step_s")
        ranks_N = np.array([shape.tp * shape.cp for shape in nodes.shapes], np.int64)[nodes.shape_N]
        gpus_N = ranks_N * nodes.pp_N * nodes.dp_N
        self.set_children(seconds_N * gpus_N if self.job.per_gpu else seconds_N, self.children(nodes))
        return space

    @abstractmethod
    def space_and_nodes(self) -> tuple[Space, Nodes]:
        """The space, and its combinations with what each pool takes."""

    @abstractmethod
    def bounds(self, nodes: Nodes) -> Floats:
        """Least seconds of the micro-batches of a step of each node [N]."""

    @abstractmethod
    def children(self, nodes: Nodes) -> Ints:
        """Candidates below each node [N]."""

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

    def space_and_nodes(self) -> tuple[Space, Nodes]:
        space = space_of(self.job)
        self.tally.illegal.update(space.illegal)
        nodes = nodes_of_stages(space, undominated(space, self.tables), [job.num_gpus for job in self.jobs])
        return space, chosen(nodes, self._launched(nodes)) if self.job.strict else nodes

    def _launched(self, nodes: Nodes) -> Bools:
        """Whether all nodes of all pools hold equally many ranks, as launchers of engines ask for [N]."""
        ranks_N = np.array([shape.tp * shape.cp for shape in nodes.shapes], np.int64)[nodes.shape_N] * nodes.dp_N
        each_PN = np.array([ranks_of_node(job, ranks_N * nodes.taken_NP[:, p]) for p, job in enumerate(self.jobs)])
        return np.asarray((each_PN > 0).all(axis=0) & (each_PN == each_PN[0]).all(axis=0))

    def bounds(self, nodes: Nodes) -> Floats:
        seconds_N = np.zeros(len(nodes.pp_N))
        for index, shape in enumerate(nodes.shapes):
            rows = np.flatnonzero(nodes.shape_N == index)
            tables = self.tables(shape)
            speeds = Speeds.of(tables, 1, [None] * len(tables), 0, heads=False)
            batches = self.job.options.global_batch // (nodes.dp_N[rows] * shape.micro_batch)
            taken, which = distinct(*nodes.taken_NP[rows].T)
            seconds_N[rows] = batches * speeds.slowest_s(taken.T.astype(np.float64))[which]
        return seconds_N

    def children(self, nodes: Nodes) -> Ints:
        kinds, kind_N = distinct(nodes.shape_N, nodes.dp_N, np.minimum(nodes.pp_N, 2))
        states = [len(list(kept_states(self.job, nodes.shapes[shape], dp, pp))) for shape, dp, pp in kinds.T.tolist()]
        sizes = np.array([shape.micro_batch for shape in nodes.shapes], np.int64)
        batches_N = self.job.options.global_batch // (nodes.dp_N * sizes[nodes.shape_N])
        pairs, pair_N = distinct(nodes.pp_N, batches_N)
        runs = [len(list(self._runs(pp, batches))) for pp, batches in pairs.T.tolist()]
        return np.array(states, np.int64)[kind_N] * np.array(runs, np.int64)[pair_N]

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

    def space_and_nodes(self) -> tuple[Space, Nodes]:
        spaces = [space_of(job, _replica_counts(job)) for job in self.jobs]
        for space in spaces:
            self.tally.illegal.update(space.illegal)
        nodes = nodes_of_replicas(spaces, [undominated(space, self.tables) for space in spaces])
        ranks_N = np.array([shape.tp * shape.cp for shape in nodes.shapes], np.int64)[nodes.shape_N] * nodes.dp_N
        legal_N, asked = ranks_N * nodes.pp_N <= self.job.num_gpus, self.job.options.search.dp
        if asked is not None:
            legal_N &= np.isin(nodes.dp_N, asked)
        return replace(spaces[0], axes=merged_axes([space.axes for space in spaces])), chosen(nodes, legal_N)

    def bounds(self, nodes: Nodes) -> Floats:
        kinds, kind_N = distinct(nodes.shape_N, nodes.pp_N)
        slowest_KP = np.array(
            [
                [Floor(table, pp, further_heads=False).slowest_s for table in self.tables(nodes.shapes[index])]
                for index, pp in kinds.T.tolist()
            ]
        ).reshape(-1, len(self.jobs))
        batches = [self.job.options.global_batch // shape.micro_batch for shape in nodes.shapes]
        rate_N = (nodes.taken_NP / slowest_KP[kind_N]).sum(axis=1)
        return np.asarray(np.array(batches, np.float64)[nodes.shape_N] / rate_N)

    def children(self, nodes: Nodes) -> Ints:
        states = np.array([len(list(self._states(pp))) for pp in (1, 2)])
        sizes = np.array([shape.micro_batch for shape in nodes.shapes], np.int64)
        batches_N = self.job.options.global_batch // sizes[nodes.shape_N]
        number_N = np.zeros(len(batches_N), np.int64)
        for pp in np.unique(nodes.pp_N).tolist():
            rows = np.flatnonzero(nodes.pp_N == pp)
            for unit, runs in Counter(_unit(schedule, pp) for schedule, _ in self._runs(pp, pp)).items():
                kinds, kind_N = distinct(batches_N[rows], *np.sort(nodes.taken_NP[rows], axis=1).T)
                able = [_can_share(batches, tuple(taken), unit) for batches, *taken in kinds.T.tolist()]
                number_N[rows] += runs * np.array(able, np.int64)[kind_N]
        return np.asarray(states[np.minimum(nodes.pp_N, 2) - 1] * number_N)

    def _states(self, pp: int) -> Iterator[tuple[int, frozenset[str]]]:
        """ZeRO stages whose exchange comes once a step, all ranks sharing the states, each with what is moved out."""
        asked = self.job.options.search.zero_shards or ("all",)
        for stage in zero_stages(self.job, pp):
            if stage < 2 and "all" in asked:
                yield from ((stage, offload) for offload in offloads(self.job, stage, pp))

    def _shareable(self, pp: int, batches: int, taken: tuple[int, ...]) -> Iterator[tuple[Schedule, int]]:
        for schedule, vpp in self._runs(pp, pp):
            if _can_share(batches, tuple(sorted(taken)), _unit(schedule, pp)):
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


def _unit(schedule: Schedule, pp: int) -> int:
    """In how many micro-batches at a time a pipeline takes them: interleaved ones in rounds."""
    return pp if schedule == "interleaved" else 1


@lru_cache(maxsize=65536)
def _can_share(batches: int, taken: tuple[int, ...], unit: int) -> bool:
    return can_share(batches, [Machines(number, unit) for number in taken])


def _replica_counts(job: TrainJob) -> tuple[int, ...]:
    """Numbers of data-parallel ranks on a pool that are tried."""
    most = job.num_gpus
    few = range(1, min(FEW_RANKS, most) + 1)
    return tuple(sorted({*few, *powers(most), *divisors(most)}))
