"""Branch and bound over training plans on one pool: nodes are legal parallelisms, leaves schedule, ZeRO, offload."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import layout_problem, layouts, room_of
from planner.kinds.train.evaluation.evaluate import evaluate, with_fewest_moved
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.bounds import Floor, floor_s
from planner.kinds.train.search.search import JobCandidate, PlanSearch
from planner.kinds.train.search.tally import NOT_ON_RACKS
from planner.kinds.train.search.uplink_bounds import floor_with_waits_s
from planner.kinds.train.space.contexts import undominated
from planner.kinds.train.space.distinct import distinct
from planner.kinds.train.space.mean_table import MeanTable
from planner.kinds.train.space.space import Space, allowed_schedules, schedules, space_of
from planner.kinds.train.space.states import ShardShape, kept_states, shard_shape
from planner.kinds.train.space.tables import CostTable, RecomputeMode, Sharing, sharing_of
from planner.kinds.train.whole_run.on_racks import cells_of, has_uplinks, least_waits_s, uplinks_of, waiting
from planner.progress import Limits


@dataclass(frozen=True)
class OnePool(JobCandidate):
    """A job on one pool; `floor` is of its plain passes, nothing computed again."""

    floor: Floor

    @property
    def whole(self) -> PlanChoice:
        return self.parts[0]

    def room_U(self) -> Floats:
        return room_of(self.whole)

    def floor_s(self, mode: RecomputeMode | None, full_layers: int) -> float:
        floor = self.floor
        if (mode is not None or full_layers) and not self.whole.table.job.mean_of_lengths:  # short ones keep more
            floor = Floor(floor.table, floor.pp, mode, full_layers, paired=floor.paired)
        least_s = floor_s(self.whole, floor)
        if has_uplinks(self.whole.table.job):
            least_s = floor_with_waits_s(self.whole, floor, least_s)
        return self.whole.with_samples_s(least_s)

    def priced(self, worthy: float = float("inf")) -> Evaluation | None:
        ways = (evaluate(with_fewest_moved(self.whole, counts), counts) for counts in layouts(self.whole))
        first = next(ways, None)
        if first is None or (fits(first) and first.objective > worthy):
            return first
        return min((first, *ways), key=lambda priced: (not fits(priced), round(priced.step_s / first.step_s, 9)))

    def crowded(self, evaluation: Evaluation) -> bool:
        load = layout_problem(self.whole)
        return evaluation.counts_S not in layouts(self.whole, load.without_limits())


class OnePoolSearch(PlanSearch):
    """Plans on one pool."""

    def __init__(self, job: TrainJob, limits: Limits, value: float = float("inf")) -> None:
        self.shared: dict[tuple[ShardShape, int, int, int, frozenset[str]], Sharing] = {}
        super().__init__((job,), job, limits, value)

    def least_anywhere(self, evaluation: Evaluation) -> float | None:
        if not has_uplinks(self.job):
            return super().least_anywhere(evaluation)
        if evaluation.objective >= self.value:
            return evaluation.objective  # whatever it waits
        uplinks = uplinks_of(evaluation)
        return None if uplinks is None else replace(evaluation, uplinks_s=least_waits_s(uplinks)).objective

    def placed(self, evaluation: Evaluation) -> Evaluation:
        return waiting(evaluation)

    def set_up(self) -> Space:
        space, job = space_of(self.job), self.job
        self.tally.illegal.update(space.illegal)
        batches_N = job.options.global_batch // (space.dp * space.micro_batch)
        gpus_N = space.tp * space.cp * space.pp * space.dp
        columns = (space.tp, space.cp, space.ep, space.etp, space.micro_batch, space.context, space.pp)
        kept_N = undominated(space, self._tables_by_length)
        kinds, kind_N = distinct(*(column[kept_N] for column in columns))
        slowest = np.array([self._slowest(*(int(value) for value in kind)) for kind in kinds.T])
        slowest_N = np.full(len(space), np.inf)
        slowest_N[kept_N] = slowest[kind_N] if len(space) else slowest_N
        pairs, pair_N = distinct(space.pp, batches_N)
        runs = [len(list(schedules(job, int(pp), int(m), self.chunks))) for pp, m in pairs.T]
        ranks, ranks_N = distinct(space.tp, space.cp, space.ep, space.etp, space.dp, np.minimum(space.pp, 2))
        each = [
            len(list(kept_states(job, ShardShape(tp, cp, ep, etp, 1), dp, pp)))
            for tp, cp, ep, etp, dp, pp in ranks.T.tolist()
        ]
        bound_N = batches_N * slowest_N + job.rates.get("step_s")
        if job.options.loading is not None:
            batch, loading = job.options.global_batch, job.options.arriving
            bound_N = np.maximum(bound_N, [loading.ready_s(batch / dp, batch) for dp in space.dp.tolist()])
        children_N = np.array(each, np.int64)[ranks_N] * np.array(runs, np.int64)[pair_N]
        self.set_children(bound_N * gpus_N if job.per_gpu else bound_N, children_N, kept_N)
        return space

    def _tables_by_length(self, shape: ShardShape) -> tuple[CostTable, ...]:
        """The costs of a shape, for each length where there are several: what is dominated is so at all of them."""
        (table,) = self.tables(shape)
        return tuple(own for _, own in table.by_length) if isinstance(table, MeanTable) else (table,)

    def _slowest(self, tp: int, cp: int, ep: int, etp: int, micro_batch: int, context: int, pp: int) -> float:
        (table,) = self.tables(shard_shape(tp, cp, ep, etp, micro_batch, context))
        paired = "dualpipe" in allowed_schedules(self.job)
        return Floor(table, pp, further_heads=False, paired=paired).slowest_s

    def degrees(self, nodes: Ints) -> tuple[Ints, Ints]:
        return self.space.tp[nodes], self.space.pp[nodes]

    def candidates(self, node: int) -> Iterator[JobCandidate]:
        space = self.space
        (table,), pp, dp = self.tables(space.shape(node)), int(space.pp[node]), int(space.dp[node])
        if has_uplinks(self.job) and not self._stands(table, pp, dp):
            self.tally.put(NOT_ON_RACKS, table.shape.tp, pp, candidates=int(self.children_N[node]))
            return
        floors = {paired: Floor(table, pp, paired=paired) for paired in (False, True)}
        batches = self.job.options.global_batch // (dp * table.shape.micro_batch)
        runs = list(schedules(self.job, pp, batches, self.chunks))
        for stage, shards, offload in kept_states(self.job, table.shape, dp, pp):
            sharing = self._sharing(table, dp, stage, shards, offload)
            if not self.holds_states(table, sharing, pp, len(runs)):
                continue
            for schedule, vpp in runs:
                choice = PlanChoice(
                    table, sharing, pp, dp, schedule, vpp, stage, offload, table.modes[0], shards=shards
                )
                yield OnePool((choice,), floors[schedule == "dualpipe"])

    def _stands(self, table: CostTable, pp: int, dp: int) -> bool:
        """Whether racks hold the stages and groups, whatever else is chosen."""
        sharing = self._sharing(table, dp, 0, 0, frozenset())
        return cells_of(PlanChoice(table, sharing, pp, dp, "1f1b", 1, 0, frozenset(), table.modes[0])) is not None

    def _sharing(self, table: CostTable, dp: int, zero_stage: int, shards: int, offload: frozenset[str]) -> Sharing:
        key = (table.shape, dp, zero_stage, shards, offload)
        if key not in self.shared:
            self.shared[key] = sharing_of(table, dp, zero_stage, offload, shards)
        return self.shared[key]
