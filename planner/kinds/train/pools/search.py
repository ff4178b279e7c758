"""Branch and bound over jobs across several pools: what each pool takes is one axis more.

Levels are those of `planner.kinds.train.search.search`: (1) the degrees with the ranks on each pool, bounded by
computing; (2)
schedule, sharding and offload, bounded by what is exchanged as well; (3) recomputation. Shape suffixes: N node, P pool.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from planner.arrays import Ints
from planner.costs.training.config import Schedule
from planner.kinds.train.evaluation.evaluate import Choice, Evaluation, fits
from planner.kinds.train.job import Job
from planner.kinds.train.pools.across import Across, ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.pools.speeds import Speeds
from planner.kinds.train.search.best_first import EXCHANGE, RECOMPUTATION, BestFirst
from planner.kinds.train.search.bounds import Floor
from planner.kinds.train.search.search import Found, ways_that_may_fit
from planner.kinds.train.space.contexts import undominated
from planner.kinds.train.space.space import (
    Shape,
    Space,
    axis_values,
    divisors,
    offloads,
    powers,
    schedules,
    shardings,
    space_of,
    zero_stages,
)
from planner.kinds.train.space.tables import Table, Ways, sharing_of, ways_of
from planner.progress import Limits
from planner.solvers.schedules.even_finish import Machines, can_share

FEW_RANKS = 8
"""Up to so many data-parallel ranks of a pool every number is tried, then powers of two and divisors of its GPUs."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A job of level 2 at one of its ways to recompute; `place` counts through them, -1 before the first."""

    across: Across
    place: int

    @property
    def bounded_by(self) -> str:
        """What the bound of the leaf takes into account."""
        return EXCHANGE if self.place < 0 else RECOMPUTATION


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Combinations of level 1 [N] with what each pool takes [N, P]: ranks of the pipeline, or data-parallel ones."""

    shapes: tuple[Shape, ...]
    shape_N: Ints
    pp_N: Ints
    dp_N: Ints
    taken_NP: Ints


class PoolsSearch(BestFirst[Leaf]):
    """One way across some pools, in this order."""

    def __init__(self, jobs: Sequence[Job], limits: Limits, value: float = float("inf")) -> None:
        super().__init__(limits.tell, value)
        self.jobs = tuple(jobs)
        self.job = common_job(self.jobs)
        self.chunks = axis_values(self.job)["vpp"]
        self.best: Evaluation | None = None
        self.needed_bytes = 0.0
        self.tables: dict[Shape, tuple[Table, ...]] = {}
        self.ways: dict[tuple[Shape, int, int], Ways] = {}
        self.space, self.nodes = self.plant()

    @abstractmethod
    def plant(self) -> tuple[Space, Nodes]:
        """Level 1, its bounds set."""

    @abstractmethod
    def jobs_at(self, node: int) -> Iterator[Across]:
        """Level 2 of a node."""

    def found(self, stop_reason: str) -> Found:
        """What a search that stopped has found."""
        value = None if self.best is None else self.weigh(self.best.step_s, self.best.choice.num_gpus)
        return Found(self.best, value, self.bound, None, self.tally, self.space, stop_reason, self.needed_bytes)

    def table(self, shape: Shape) -> tuple[Table, ...]:
        """The costs of a shape on each pool, made once."""
        if shape not in self.tables:
            self.tables[shape] = tuple(Table(job, shape) for job in self.jobs)
        return self.tables[shape]

    def weigh(self, step_s: float, gpus: int) -> float:
        """What is minimised."""
        return step_s * gpus if self.job.per_gpu else step_s

    def open(self, node: int) -> None:
        for across in self.jobs_at(node):
            whole = across.whole
            least_bytes = float(whole.table.model_2 @ whole.sharing.state_2) / whole.pp
            if least_bytes > max(job.capacity_bytes for job in self.jobs):
                self.tally.unfit += 1
                self._remember(least_bytes)
            else:
                self.push(self.weigh(across.floor_s(None, 0), whole.num_gpus), Leaf(across, -1))

    def play(self, leaf: Leaf) -> None:
        """The fastest recomputation that may fit is bounded again, then laid out and played."""
        if leaf.place >= 0:
            found = leaf.across.priced()
            if found is not None and fits(found):
                self.tally.evaluated += 1
                self._keep(found)
                return
        across, whole = leaf.across, leaf.across.whole
        key = (whole.table.shape, whole.pp * whole.vpp, whole.vpp)
        if key not in self.ways:
            self.ways[key] = ways_of(whole.table, key[1], key[2])
        ways = self.ways[key]
        may_M, least_bytes = ways_that_may_fit(whole, ways, across.room_U())
        later = np.flatnonzero(may_M[leaf.place + 1 :])
        if not len(later):
            self.tally.unfit += 1
            self._remember(least_bytes)
            return
        place = leaf.place + 1 + int(later[0])
        mode, full_layers = ways.modes[place]
        bound_s = across.floor_s(None if full_layers else mode, full_layers * whole.vpp)
        self.push(self.weigh(bound_s, whole.num_gpus), Leaf(across.under(mode, full_layers), place))

    def _remember(self, used_bytes: float) -> None:
        self.needed_bytes = min(self.needed_bytes or used_bytes, used_bytes)

    def _keep(self, found: Evaluation) -> None:
        value = self.weigh(found.step_s, found.choice.num_gpus)
        if value < self.value:
            self.best, self.value = found, value
            self.tell(f"step {found.step_s:.4g} s with {found.choice.num_gpus} GPUs of {len(self.jobs)} pools")

    def _runs(self, pp: int, batches: int) -> Iterator[tuple[Schedule, int]]:
        """Schedules with their stages per rank; those in which two ranks hold the same stages keep to one pool."""
        for schedule, vpp in schedules(self.job, pp, batches, self.chunks):
            if not schedule.startswith("dualpipe"):
                yield schedule, vpp


class StagesSearch(PoolsSearch):
    """One pipeline with ranks on every pool, pools in this order."""

    def plant(self) -> tuple[Space, Nodes]:
        space, pools = space_of(self.job), len(self.jobs)
        self.tally.illegal |= space.illegal
        shapes: dict[Shape, int] = {}
        rows = []
        for node in np.flatnonzero(undominated(space, self.table)).tolist():
            stage_gpus = int(space.tp[node] * space.cp[node] * space.dp[node])
            most = tuple(job.num_gpus // stage_gpus for job in self.jobs)
            pp, dp = int(space.pp[node]), int(space.dp[node])
            shape = shapes.setdefault(space.shape(node), len(shapes))
            rows += [(shape, pp, dp, *taken) for taken in divisions(pp, most)]
        table = np.array(rows, np.int64).reshape(len(rows), 3 + pools)
        nodes = Nodes(tuple(shapes), table[:, 0], table[:, 1], table[:, 2], table[:, 3:])
        self._bound(nodes)
        return space, nodes

    def _bound(self, nodes: Nodes) -> None:
        bound_N = np.zeros(len(nodes.pp_N))
        children_N = np.zeros(len(nodes.pp_N), np.int64)
        for index, shape in enumerate(nodes.shapes):
            mine = np.flatnonzero(nodes.shape_N == index)
            tables = self.table(shape)
            speeds = Speeds.of(tables, 1, [None] * len(tables), 0, heads=False)
            batches = self.job.options.global_batch // (nodes.dp_N[mine] * shape.micro_batch)
            taken, which = np.unique(nodes.taken_NP[mine], axis=0, return_inverse=True)
            slowest = speeds.slowest_s(taken.astype(np.float64))[which.ravel()]
            seconds = batches * slowest + self.job.rates.get("step_s")
            gpus = shape.tp * shape.cp * nodes.pp_N[mine] * nodes.dp_N[mine]
            bound_N[mine] = seconds * gpus if self.job.per_gpu else seconds
            for pp, dp in {(int(pp), int(dp)) for pp, dp in zip(nodes.pp_N[mine], nodes.dp_N[mine], strict=True)}:
                number = len(list(self._runs(pp, self.job.options.global_batch // (dp * shape.micro_batch))))
                number *= len(shardings(self.job, shape, dp)) * len(offloads(self.job))
                children_N[mine[(nodes.pp_N[mine] == pp) & (nodes.dp_N[mine] == dp)]] = number
        self.set_nodes(bound_N, children_N)

    def jobs_at(self, node: int) -> Iterator[Across]:
        nodes = self.nodes
        shape, pp, dp = nodes.shapes[nodes.shape_N[node]], int(nodes.pp_N[node]), int(nodes.dp_N[node])
        ranks = tuple(int(number) for number in nodes.taken_NP[node])
        tables, batches = self.table(shape), self.job.options.global_batch // (dp * shape.micro_batch)
        for (stage, shards), offload in product(shardings(self.job, shape, dp), offloads(self.job)):
            sharing = [sharing_of(table, dp, stage, offload, shards) for table in tables]
            for schedule, vpp in self._runs(pp, batches):
                yield StagesAcross(
                    tuple(
                        Choice(table, own, pp, dp, schedule, vpp, stage, offload, table.modes[0], shards=shards)
                        for table, own in zip(tables, sharing, strict=True)
                    ),
                    ranks,
                )


class ReplicasSearch(PoolsSearch):
    """Data-parallel ranks on every pool; states are not gathered or scattered every micro-batch, since pools differ in
    how many micro-batches they do."""

    def plant(self) -> tuple[Space, Nodes]:
        found: list[dict[tuple[Shape, int], list[int]]] = []
        spaces = [space_of(replace(job, machine=self.job.machine), _replica_counts(job)) for job in self.jobs]
        for space in spaces:
            for name, number in space.illegal.items():
                self.tally.illegal[name] = self.tally.illegal.get(name, 0) + number
            of_pool: dict[tuple[Shape, int], list[int]] = {}
            for node in np.flatnonzero(undominated(space, self.table)).tolist():
                of_pool.setdefault((space.shape(node), int(space.pp[node])), []).append(int(space.dp[node]))
            found.append(of_pool)
        shapes: dict[Shape, int] = {}
        rows, asked = [], self.job.options.search.dp
        for shape, pp in found[0]:
            for taken in product(*(of_pool.get((shape, pp), []) for of_pool in found)):
                gpus = shape.tp * shape.cp * pp * sum(taken)
                if gpus <= self.job.num_gpus and (asked is None or sum(taken) in asked):
                    rows.append((shapes.setdefault(shape, len(shapes)), pp, sum(taken), *taken))
        table = np.array(rows, np.int64).reshape(len(rows), 3 + len(self.jobs))
        nodes = Nodes(tuple(shapes), table[:, 0], table[:, 1], table[:, 2], table[:, 3:])
        self._bound(nodes)
        return replace(spaces[0], axes=merged_axes([space.axes for space in spaces])), nodes

    def _bound(self, nodes: Nodes) -> None:
        bound_N = np.zeros(len(nodes.pp_N))
        children_N = np.zeros(len(nodes.pp_N), np.int64)
        each = len(self._stages()) * len(offloads(self.job))
        for index, pp in {(int(i), int(pp)) for i, pp in zip(nodes.shape_N, nodes.pp_N, strict=True)}:
            mine = np.flatnonzero((nodes.shape_N == index) & (nodes.pp_N == pp))
            shape = nodes.shapes[index]
            slowest_P = np.array([Floor(table, pp, further_heads=False).slowest_s for table in self.table(shape)])
            batches = self.job.options.global_batch // shape.micro_batch
            seconds = batches / (nodes.taken_NP[mine] / slowest_P).sum(axis=1) + self.job.rates.get("step_s")
            gpus = shape.tp * shape.cp * pp * nodes.dp_N[mine]
            bound_N[mine] = seconds * gpus if self.job.per_gpu else seconds
            children_N[mine] = [
                each * len(list(self._shareable(pp, batches, tuple(map(int, taken))))) for taken in nodes.taken_NP[mine]
            ]
        self.set_nodes(bound_N, children_N)

    def _stages(self) -> tuple[int, ...]:
        """ZeRO stages whose exchange comes once a step, all ranks sharing the states."""
        asked = self.job.options.search.zero_shards or ("all",)
        return tuple(stage for stage in zero_stages(self.job) if stage < 2 and "all" in asked)

    def _shareable(self, pp: int, batches: int, taken: tuple[int, ...]) -> Iterator[tuple[Schedule, int]]:
        for schedule, vpp in self._runs(pp, pp):
            if _can_share(batches, taken, pp if schedule == "interleaved" else 1):
                yield schedule, vpp

    def jobs_at(self, node: int) -> Iterator[Across]:
        nodes = self.nodes
        shape, pp = nodes.shapes[nodes.shape_N[node]], int(nodes.pp_N[node])
        taken = tuple(int(number) for number in nodes.taken_NP[node])
        tables, batches = self.table(shape), self.job.options.global_batch // shape.micro_batch
        for stage, offload in product(self._stages(), offloads(self.job)):
            sharing = joined_sharing(tables, pp, sum(taken), stage, offload)
            for schedule, vpp in self._shareable(pp, batches, taken):
                yield ReplicasAcross(
                    tuple(
                        Choice(table, sharing, pp, dp, schedule, vpp, stage, offload, table.modes[0], batches=4 * pp)
                        for table, dp in zip(tables, taken, strict=True)
                    )
                )


def merged_axes(axes: Sequence[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Every value of every axis that one of them has."""
    return {name: tuple(sorted({value for one in axes for value in one[name]})) for name in axes[0]}


def common_job(jobs: Sequence[Job]) -> Job:
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


def _replica_counts(job: Job) -> tuple[int, ...]:
    """Numbers of data-parallel ranks on a pool that are tried."""
    most = job.num_gpus
    few = range(1, min(FEW_RANKS, most) + 1)
    return tuple(sorted({*few, *powers(most), *divisors(most)}))
