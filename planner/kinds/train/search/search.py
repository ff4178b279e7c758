"""Best-first branch and bound over the discrete decisions of a training plan.

Three levels: (1) tp, cp, ep, moe_tp, micro-batch, pp, dp, bounded by computing alone; (2) schedule with stages per
rank, ZeRO stage with the ranks that share its states, and offload, bounded by what is exchanged as well; (3) the
recomputation, from the fastest choice that memory can hold on. The plan at a leaf has its layers laid out and its
pipeline played. The node with the least bound is opened next; the search ends when the least bound left is no less than
the best plan, so that what is left out is proven to hold nothing better.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats
from planner.kinds.train.evaluation.evaluate import (
    Choice,
    Evaluation,
    evaluate,
    fits,
    lay_out,
    room_of,
)
from planner.kinds.train.job import Job
from planner.kinds.train.search.best_first import DUST, EXCHANGE, RECOMPUTATION, BestFirst, Tally, prove
from planner.kinds.train.search.bounds import Floor, floor_s
from planner.kinds.train.search.layerwise import Mixes
from planner.kinds.train.space.contexts import undominated
from planner.kinds.train.space.space import (
    LAUNCHABLE,
    Shape,
    Space,
    axis_values,
    offloads,
    schedules,
    shape_of,
    shardings,
    space_of,
)
from planner.kinds.train.space.tables import Sharing, Table, Ways, sharing_of, ways_of
from planner.progress import Limits

LAYOUT_RULE = "contiguous, the slowest rank as fast as can be, then the least sum of squares"


@dataclass(slots=True)
class Found:
    """The best plan, the next best one of another shape, the least bound of what was not opened, and the tally."""

    best: Evaluation | None
    value: float | None
    bound: float
    second: Evaluation | None
    tally: Tally
    space: Space
    stop_reason: str
    needed_bytes: float  # the least memory per GPU of what was tried and did not fit, 0 where all fitted
    mixes: Mixes | None = None  # where layers may have strategies of their own
    uses: tuple[str, ...] = ()  # of several pools, that were weighed


class Search(BestFirst["Leaf"]):
    """Plans on one pool; what is minimised is seconds, or seconds times GPUs."""

    def __init__(self, job: Job, limits: Limits, value: float = float("inf")) -> None:
        super().__init__(limits.tell, value)
        self.job, self.limits = job, limits
        self.space = space_of(job)
        self.chunks = axis_values(job)["vpp"]
        self.tally.illegal |= self.space.illegal
        self.tables: dict[Shape, Table] = {}
        self.ways: dict[tuple[Shape, int, int], Ways] = {}
        self.shared: dict[tuple[Shape, int, int, int, frozenset[str]], Sharing] = {}
        self.best: Evaluation | None = None
        self.second: Evaluation | None = None
        self.needed_bytes = 0.0
        self._plant()

    def run(self) -> Found:
        """The best plan, proven."""
        return self.found(prove([self], self.limits))

    def found(self, stop_reason: str) -> Found:
        """What a search that stopped has found."""
        value = None if self.best is None else self.weigh(self.best.step_s, self.best.choice.num_gpus)
        return Found(self.best, value, self.bound, self.second, self.tally, self.space, stop_reason, self.needed_bytes)

    def weigh(self, step_s: float, gpus: int) -> float:
        """What is minimised."""
        return step_s * gpus if self.job.per_gpu else step_s

    def table(self, shape: Shape) -> Table:
        """The costs of a shape, made once."""
        found = self.tables.get(shape)
        if found is None:
            found = self.tables[shape] = Table(self.job, shape)
        return found

    def _plant(self) -> None:
        """Bounds of all combinations of level 1, in ascending order."""
        space, batch = self.space, self.job.options.global_batch
        batches_N = batch // (space.dp * space.micro_batch)
        gpus_N = space.tp * space.cp * space.pp * space.dp
        columns = np.stack([space.tp, space.cp, space.ep, space.etp, space.micro_batch, space.context, space.pp])
        kept_N = undominated(space, lambda shape: (self.table(shape),))
        columns = columns[:, kept_N]
        kinds, kind_N = np.unique(columns, axis=1, return_inverse=True)
        slowest = np.array([self._slowest(*(int(value) for value in kind)) for kind in kinds.T])
        slowest_N = np.full(len(space), np.inf)
        slowest_N[kept_N] = slowest[kind_N.ravel()] if len(space) else slowest_N
        pairs, pair_N = np.unique(np.stack([space.pp, batches_N]), axis=1, return_inverse=True)
        runs = [len(list(schedules(self.job, int(pp), int(m), self.chunks))) for pp, m in pairs.T]
        columns = np.stack([space.tp, space.cp, space.ep, space.etp, space.dp])
        ranks, ranks_N = np.unique(columns, axis=1, return_inverse=True)
        each = np.array([self._num_shardings(*row) for row in ranks.T.tolist()], np.int64) * len(offloads(self.job))
        bound_N = batches_N * slowest_N + self.job.rates.get("step_s")
        children_N = each[ranks_N.ravel()] * np.array(runs, np.int64)[pair_N.ravel()]
        self.set_nodes(bound_N * gpus_N if self.job.per_gpu else bound_N, children_N, kept_N)

    def _num_shardings(self, tp: int, cp: int, ep: int, etp: int, dp: int) -> int:
        return len(shardings(self.job, Shape(tp, cp, ep, etp, 1), dp))

    def _slowest(self, tp: int, cp: int, ep: int, etp: int, micro_batch: int, context: int, pp: int) -> float:
        table = self.table(shape_of(tp, cp, ep, etp, micro_batch, context))
        paired = "dualpipe" in (self.job.options.search.schedule or LAUNCHABLE)
        return Floor(table, pp, further_heads=False, paired=paired).slowest_s

    def open(self, node: int) -> None:
        """Level 2 of a combination of level 1."""
        space = self.space
        table, pp, dp = self.table(space.shape(node)), int(space.pp[node]), int(space.dp[node])
        floors = {paired: Floor(table, pp, paired=paired) for paired in (False, True)}
        batches = self.job.options.global_batch // (dp * table.shape.micro_batch)
        runs = list(schedules(self.job, pp, batches, self.chunks))
        for zero_stage, shards in shardings(self.job, table.shape, dp):
            for offload in offloads(self.job):
                sharing = self._sharing(table, dp, zero_stage, shards, offload)
                least_bytes = float(table.model_2 @ sharing.state_2) / pp
                if least_bytes > self.job.capacity_bytes:
                    self.tally.unfit += len(runs)
                    self._remember(least_bytes)
                    continue
                for schedule, vpp in runs:
                    choice = Choice(
                        table, sharing, pp, dp, schedule, vpp, zero_stage, offload, table.modes[0], shards=shards
                    )
                    self._push(Leaf(choice, -1), floors[schedule == "dualpipe"])

    def _push(self, leaf: "Leaf", floor: Floor) -> None:
        self.push(self.weigh(floor_s(leaf.choice, floor), leaf.choice.num_gpus), leaf)

    def _sharing(self, table: Table, dp: int, zero_stage: int, shards: int, offload: frozenset[str]) -> Sharing:
        key = (table.shape, dp, zero_stage, shards, offload)
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = sharing_of(table, dp, zero_stage, offload, shards)
        return found

    def play(self, leaf: "Leaf") -> None:
        """The fastest recomputation that may fit is bounded again, then laid out and played."""
        if leaf.place >= 0:
            found = lay_and_play(leaf.choice)
            if found is not None and fits(found):
                self.tally.evaluated += 1
                self._keep(found)
                return
            if found is not None:
                self._remember(float(found.memory.total_R.max()))
        following = self._following(leaf)
        if following is None:
            self.tally.unfit += 1
            return
        choice = following.choice
        mode = None if choice.full_layers else choice.mode
        whole, paired = choice.full_layers * choice.vpp, choice.schedule == "dualpipe"
        self._push(following, Floor(choice.table, choice.pp, mode, whole, paired=paired))

    def _following(self, leaf: "Leaf") -> "Leaf | None":
        """The choice under its next way to recompute that may fit."""
        choice = leaf.choice
        key = (choice.table.shape, choice.pp * choice.vpp, choice.vpp)
        ways = self.ways.get(key)
        if ways is None:
            ways = self.ways[key] = ways_of(choice.table, key[1], key[2])
        may_M, least_bytes = ways_that_may_fit(choice, ways, room_of(choice))
        if not may_M.any():
            self._remember(least_bytes)
        later = np.flatnonzero(may_M[leaf.place + 1 :])
        if not len(later):
            return None
        place = leaf.place + 1 + int(later[0])
        mode, whole = ways.modes[place]
        return Leaf(replace(choice, mode=mode, full_layers=whole), place)

    def _remember(self, used_bytes: float) -> None:
        if not self.needed_bytes or used_bytes < self.needed_bytes:
            self.needed_bytes = used_bytes

    def _keep(self, found: Evaluation) -> None:
        value = self.weigh(found.step_s, found.choice.num_gpus)
        if value < self.value * (1.0 - DUST):
            if self.best is not None and self.best.choice.table.shape != found.choice.table.shape:
                self.second = self.best
            self.best, self.value = found, value
            self.tell(f"step {found.step_s:.4g} s with {found.choice.num_gpus} GPUs")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A choice of level 2 at one of its modes of recomputation; `place` counts through them, -1 before the first."""

    choice: Choice
    place: int

    @property
    def bounded_by(self) -> str:
        """What the bound of the leaf takes into account."""
        return EXCHANGE if self.place < 0 else RECOMPUTATION


def lay_and_play(choice: Choice) -> Evaluation | None:
    """The choice with its layers laid out; None where they do not fit."""
    counts_S = lay_out(choice)
    return None if counts_S is None else evaluate(choice, counts_S)


def ways_that_may_fit(choice: Choice, ways: Ways, room_U: Floats) -> tuple[Bools, float]:
    """Which ways to recompute leave room for all layers of each kind [M], and about the least bytes that any needs.

    room_U: bytes of each unit of the pipeline for its layers. Each is given as many layers of one kind as it has room
    for, as if there were no other kinds.
    """
    table, pipe = choice.table, choice.pipe
    moved = "activations" in choice.offload
    room_MU = room_U[None, :] - ways.again_M[:, None]
    fits_M: Bools = np.asarray((room_MU >= 0).all(axis=1))
    stages_U = np.array([len(stages) for stages in pipe.units])
    state_K = table.held_K2 @ choice.sharing.state_2
    used_MU = -room_MU
    for kind, number in enumerate(table.job.count_of_kind):
        held_M = np.zeros(len(fits_M)) if moved else ways.held_MK[:, kind]
        kept = table.kept[kind]
        saved = 0.0 if moved else kept.total_bytes - kept.input_bytes
        more_MU = ways.whole_M[:, None] * (stages_U * pipe.depth_U)[None, :] * saved
        each_MU = np.maximum(state_K[kind] + pipe.depth_U[None, :] * held_M[:, None], 1e-9)
        most_MU = np.floor((room_MU + more_MU) / each_MU + 1e-9)
        fits_M &= most_MU.clip(0, number).sum(axis=1) >= number
        used_MU = used_MU + each_MU * number / choice.pp - more_MU * number / table.job.arch.num_layers
    return fits_M, float(table.job.capacity_bytes + used_MU.max(axis=1).min())
