"""Best-first branch and bound over the discrete decisions of a training plan.

Three levels: (1) tp, cp, ep, moe_tp, micro-batch, pp, dp, bounded by computing alone; (2) schedule with stages per
rank, ZeRO stage with the ranks that share its states, and offload, bounded by what is exchanged as well; (3) the
recomputation, from the fastest choice that memory can hold on, and beyond it while memory still keeps layers from
where they would be fastest. The plan at a leaf has its layers laid out and its
pipeline simulated. What level 1 and 2 are is said by a subclass: on one pool (`one_pool`), or across several
(`planner.kinds.train.pools.search`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.costs.training.config import RecomputeConfig
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.evaluation import Evaluation, fits, fits_hosts
from planner.kinds.train.figures import MARGIN, ROUNDING
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.layerwise import Mixes
from planner.kinds.train.search.tally import (
    BOUND,
    COMPUTING,
    DOMINATED,
    EVALUATED,
    EXCHANGE,
    MEMORY,
    NOT_ON_RACKS,
    RECOMPUTATION,
    CandidateTally,
)
from planner.kinds.train.space.mean_table import table_of
from planner.kinds.train.space.space import Space, axis_values
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, RecomputeMode, Sharing, Ways, ways_of
from planner.kinds.train.whole_run.recompute_table import by_length
from planner.progress import Limits
from planner.solvers.best_first import BestFirst, search_all

LAYOUT_RULE = "contiguous, the slowest rank as fast as can be, then the least sum of squares"


@dataclass(frozen=True)
class Compared:
    """A plan, and the seconds of its step with what is decided beside its layout; None where it cannot have that."""

    plan: Evaluation
    with_s: float | None

    @property
    def objective(self) -> float | None:
        """What the search minimises, with it."""
        return None if self.with_s is None else self.plan.objective * self.with_s / self.plan.step_s


@dataclass(slots=True)
class SearchResult:
    """The best plan, the next best one of another shape, the least bound of what was not opened, and the tally.

    `value` is the best plan's objective; where plans were compared, that is without what is decided beside layouts.
    """

    best: Evaluation | None
    value: float | None
    bound: float
    second: Evaluation | None
    tally: CandidateTally
    space: Space
    stop_reason: str
    needed_bytes: float  # the least memory per GPU of what was tried and did not fit, 0 where all fitted
    needed_host_bytes: float = 0.0  # the least host memory for a GPU of what devices hold and hosts do not; likewise
    mixes: Mixes | None = None  # where layers may have strategies of their own
    uses: tuple[str, ...] = ()  # of several pools, that were weighed
    passed: tuple[Evaluation, ...] = ()  # what the plan was preferred to, the fastest of all first
    inside: tuple["Inside", ...] = ()  # where it was: the searches of the part of the space that it is the best of
    compared: tuple[Compared, ...] = ()  # the best plans of a degree that what is decided beside layouts hangs on

    @property
    def decided_value(self) -> float:
        """What is minimised, of the best plan with what is decided beside its layout; infinite without a plan."""
        values = [*(row.objective for row in self.compared if row.plan is self.best), self.value]
        return next((value for value in values if value is not None), float("inf"))


@dataclass(frozen=True, slots=True)
class Inside:
    """A search of a part of the space: the jobs, one a pool, with what they may have there, and what came of it."""

    jobs: tuple[TrainJob, ...]
    result: SearchResult

    @property
    def job(self) -> TrainJob:
        """That on the first pool."""
        return self.jobs[0]


@dataclass(frozen=True)
class JobCandidate(ABC):
    """A job of level 2, under one recomputation: everything but its layout. One part for each pool that it runs on."""

    parts: tuple[PlanChoice, ...]

    @property
    @abstractmethod
    def whole(self) -> PlanChoice:
        """The whole job as priced on the first pool."""

    @abstractmethod
    def room_U(self) -> Floats:
        """Bytes of each unit of the pipeline for its layers."""

    @abstractmethod
    def floor_s(self, mode: RecomputeMode | None, full_layers: int) -> float:
        """Least seconds of a step under any layout, where at least this is computed again."""

    @abstractmethod
    def priced(self, worthy: float = float("inf")) -> Evaluation | None:
        """The job laid out and simulated; None where its layers do not fit.

        Layouts that only ties tell apart are weighed where the first has an objective of `worthy` at most.
        """

    def crowded(self, evaluation: Evaluation) -> bool:
        """Whether memory may keep layers of the job as evaluated from where they would be fastest."""
        return True

    def under(self, mode: RecomputeMode, full_layers: int) -> "JobCandidate":
        """The job with another recomputation."""
        parts = tuple(
            replace(part, mode=part.table.mode(mode.recompute), full_layers=full_layers) for part in self.parts
        )
        return replace(self, parts=parts)


TIES_WITHIN = 1.03  # times the best objective: ties of good plans are worth less, and each takes a simulation


@dataclass(frozen=True, slots=True)
class Leaf:
    """A candidate at one of its ways to recompute; `place` counts through them, -1 before the first.

    `counted`: in the tally already, since a faster way fits. `unplaced`: the plan, evaluated before it has its place,
    and `least` what it is anywhere at least.
    """

    candidate: JobCandidate
    place: int
    counted: bool = False
    unplaced: Evaluation | None = None
    least: float = 0.0

    @property
    def bounded_by(self) -> str:
        """What the bound of the leaf takes into account."""
        return EXCHANGE if self.place < 0 else RECOMPUTATION


class PlanSearch(BestFirst[Leaf]):
    """Plans on the pools of `jobs`; what is minimised is seconds, or seconds times GPUs.

    Subclasses bound the nodes of level 1 as they are made, with `set_nodes` and `set_children`.
    """

    def __init__(self, jobs: Sequence[TrainJob], job: TrainJob, limits: Limits, value: float = float("inf")) -> None:
        """`job`: what is legal on all pools, with all their GPUs."""
        super().__init__(value, MARGIN)
        self.jobs, self.job, self.limits = tuple(jobs), job, limits
        self.chunks = axis_values(job)["vpp"]
        self.most_bytes = max(job.capacity_bytes for job in jobs)
        self.most_host_bytes = max(job.host_bytes for job in jobs)
        self.tally = CandidateTally()
        self.tables_of_shape: dict[ShardShape, tuple[CostTable, ...]] = {}
        self.ways: dict[tuple[ShardShape, int, int], Ways] = {}
        self.best: Evaluation | None = None
        self.second: Evaluation | None = None
        self.needed_bytes = self.needed_host_bytes = 0.0
        self.least_evaluated = float("inf")  # under any racks of the plans evaluated
        self.space = self.set_up()
        kept_N = np.zeros(len(self.bound_N), np.bool_)
        kept_N[self.queue] = True
        dominated = np.flatnonzero(~kept_N)
        self._put_nodes(self.tally, DOMINATED, dominated, np.full(len(dominated), np.inf))

    @abstractmethod
    def set_up(self) -> Space:
        """Level 1, its bounds set."""

    @property
    def bound(self) -> float:
        return min(super().bound, self.least_evaluated)

    def least_anywhere(self, evaluation: Evaluation) -> float | None:
        """The least objective that a plan has wherever its ranks stand; None where they have no room."""
        return evaluation.objective

    def placed(self, evaluation: Evaluation) -> Evaluation:
        """The plan where it is to stand."""
        return evaluation

    @abstractmethod
    def degrees(self, nodes: Ints) -> tuple[Ints, Ints]:
        """tp and pp of nodes."""

    @abstractmethod
    def candidates(self, node: int) -> Iterator[JobCandidate]:
        """Level 2 of a node."""

    def set_children(self, bound_N: Floats, children_N: Ints, kept_N: Bools | None = None) -> None:
        """The nodes of level 1, each with its bound and the candidates below it; those not kept are dominated."""
        self.set_nodes(bound_N, kept_N)
        self.children_N = children_N
        self.tally.candidates = int(children_N.sum())

    def run(self) -> SearchResult:
        """The best plan, proven."""
        return self.result(prove([self], self.limits))

    def result(self, stop_reason: str) -> SearchResult:
        """What a search that stopped came to; it may go on, since what waits is counted in this answer alone."""
        value = None if self.best is None else self.best.objective
        needed = (self.needed_bytes, self.needed_host_bytes)
        tally = self._tally_with_rest()
        return SearchResult(self.best, value, self.bound, self.second, tally, self.space, stop_reason, *needed)

    def weigh(self, step_s: float, gpus: int) -> float:
        """What is minimised."""
        return step_s * gpus if self.job.per_gpu else step_s

    def tables(self, shape: ShardShape) -> tuple[CostTable, ...]:
        """The costs of a shape on each pool, made once."""
        if shape not in self.tables_of_shape:
            self.tables_of_shape[shape] = tuple(table_of(job, shape) for job in self.jobs)
        return self.tables_of_shape[shape]

    def open(self, node: int) -> None:
        for candidate in self.candidates(node):
            self.push(self.weigh(candidate.floor_s(None, 0), candidate.whole.num_gpus), Leaf(candidate, -1))

    def holds_states(self, table: CostTable, sharing: Sharing, pp: int, candidates: int) -> bool:
        """Whether the mean rank has room for what it keeps between steps; else so many candidates are unfit."""
        least_bytes = float(table.model_2 @ sharing.state_2) / pp
        least_host_bytes = float(sharing.of("host_bytes", table.model_2)) / pp
        if least_bytes <= self.most_bytes and least_host_bytes <= self.most_host_bytes:
            return True
        if candidates:
            self.tally.put(MEMORY, table.shape.tp, pp, candidates=candidates)
        self._remember(least_bytes, least_host_bytes, least_host_bytes <= self.most_host_bytes)
        return False

    def close(self, leaf: Leaf) -> None:
        """The plan of the leaf, laid out; where it does not fit, or memory moves layers, a slower way too."""
        candidate = leaf.candidate
        if leaf.unplaced is not None:
            self.least_evaluated = min(self.least_evaluated, leaf.least)  # another place may be as good as that
            self._keep(self.placed(leaf.unplaced))
            return
        evaluation = candidate.priced(TIES_WITHIN * self.value) if leaf.place >= 0 else None
        if evaluation is not None and fits(evaluation):
            final = evaluation if not self.job.mean_of_lengths else by_length(evaluation)
            least = self.least_anywhere(final)
            if least is None:
                self._put(NOT_ON_RACKS, leaf)
                return
            self._put(EVALUATED, leaf, least)
            self._keep_or_place(final, least, leaf)
            moves = "activations" in candidate.whole.offload  # what is computed again does not go to the host and back
            if moves or candidate.crowded(evaluation):
                self._push_next(Leaf(candidate, leaf.place, counted=True))
            return
        if evaluation is not None:
            memory = evaluation.memory
            self._remember(float(memory.total_R.max()), float(memory.host_R.max()), fits_hosts(evaluation))
        self._push_next(leaf)

    def _keep_or_place(self, evaluation: Evaluation, least: float, leaf: Leaf) -> None:
        """The plan kept as it is, or placed later, when nothing else left can be as good as it is anywhere."""
        if least > evaluation.objective or least >= self.value:
            self.push(least, replace(leaf, counted=True, unplaced=evaluation, least=least))
            return
        self.least_evaluated = min(self.least_evaluated, least)
        self._keep(self.placed(evaluation))

    def _push_next(self, leaf: Leaf) -> None:
        """The next slower way to recompute that may fit, bounded again."""
        whole = leaf.candidate.whole
        key = (whole.table.shape, whole.pp * whole.vpp, whole.vpp)
        if key not in self.ways:
            self.ways[key] = ways_of(whole.table, key[1], key[2])
        ways = self.ways[key]
        may_M, least_bytes = ways_that_may_fit(whole, ways, leaf.candidate.room_U())
        if not may_M.any():
            self._remember(least_bytes)
        later = np.flatnonzero(may_M[leaf.place + 1 :])
        if not len(later):
            self._put(MEMORY, leaf)
            return
        place = leaf.place + 1 + int(later[0])
        mode, full_layers = ways.modes[place]
        bound_s = leaf.candidate.floor_s(None if full_layers else mode, full_layers * whole.vpp)
        slower = Leaf(leaf.candidate.under(mode, full_layers), place, leaf.counted)
        self.push(self.weigh(bound_s, whole.num_gpus), slower)

    def leave(self, leaf: Leaf, bound: float) -> None:
        _put_leaf(self.tally, f"{BOUND}{leaf.bounded_by}", leaf, bound)

    def _tally_with_rest(self) -> CandidateTally:
        """The tally with what waits counted as left out by its bound."""
        tally = CandidateTally()
        tally.add(self.tally)
        waiting = self.queue[self.opened :]
        self._put_nodes(tally, COMPUTING, waiting, self.bound_N[waiting])
        for bound, _, leaf in self.heap:
            _put_leaf(tally, f"{BOUND}{leaf.bounded_by}", leaf, bound)
        return tally

    def _put(self, end: str, leaf: Leaf, least: float = np.inf) -> None:
        _put_leaf(self.tally, end, leaf, least)

    def _put_nodes(self, tally: CandidateTally, bound: str, nodes: Ints, least_N: Floats) -> None:
        tally.put_nodes(f"{BOUND}{bound}", *self.degrees(nodes), self.children_N[nodes], least_N)

    def _remember(self, used_bytes: float, host_bytes: float = 0.0, fits_host: bool = True) -> None:
        """What was tried and would fit with more memory of devices, or of hosts, alone."""
        if fits_host:
            self.needed_bytes = min(self.needed_bytes or used_bytes, used_bytes)
        elif used_bytes <= self.most_bytes:
            self.needed_host_bytes = min(self.needed_host_bytes or host_bytes, host_bytes)

    def _keep(self, evaluation: Evaluation) -> None:
        if evaluation.objective < self.value * (1.0 - MARGIN):
            if self.best is not None and self.best.choice.table.shape != evaluation.choice.table.shape:
                self.second = self.best
            self.best, self.value = evaluation, evaluation.objective
            self.limits.tell(f"step {evaluation.step_s:.4g} s with {evaluation.choice.num_gpus} GPUs")


def _put_leaf(tally: CandidateTally, end: str, leaf: Leaf, least: float) -> None:
    """The end of a leaf; of what is counted already, `least` alone."""
    whole = leaf.candidate.whole
    end = EVALUATED if leaf.counted else end
    tally.put(end, whole.table.shape.tp, whole.pp, candidates=int(not leaf.counted), least=least)


def prove(searches: Sequence[PlanSearch], limits: Limits, dives: int = 0) -> str:
    """Search on wherever the least bound is left, until no search can beat the best value of all; why it stopped.

    `dives`: as of `search_all`. Searches that stopped go on from where they are.
    """
    deadline = float("inf") if limits.time_limit_s is None else time.perf_counter() + limits.time_limit_s
    return search_all(searches, max(MARGIN, limits.gap), deadline, dives)


def ways_that_may_fit(choice: PlanChoice, ways: Ways, room_U: Floats) -> tuple[Bools, float]:
    """Which ways to recompute leave room for all layers of each kind [M], and about the least bytes that any needs.

    room_U: bytes of each unit of the pipeline for its layers and what is at work. Each is given as many layers of one
    kind as it has room for, as if there were no other kinds.
    """
    table, pipe = choice.table, choice.pipe
    moved = "activations" in choice.offload
    work = table.work(choice.zero_stage, RecomputeConfig(), moved)
    work_M = work.layer_bytes + (np.zeros(len(ways.again_M)) if moved else ways.again_M)
    room_MU = room_U[None, :] - work_M[:, None]
    room_MU[:, pipe.last] = room_U[pipe.last] - np.maximum(work_M, work.loss_bytes)
    fits_M: Bools = np.asarray((room_MU >= 0).all(axis=1))
    stages_U = np.array([len(stages) for stages in pipe.units])
    state_K = table.resident_K2 @ choice.sharing.state_2
    used_MU = -room_MU
    for kind, number in enumerate(table.job.count_of_kind):
        in_flight_M = np.zeros(len(fits_M)) if moved else ways.in_flight_MK[:, kind]
        kept = table.activations[kind]
        saved = 0.0 if moved else kept.total_bytes - kept.input_bytes
        more_MU = ways.whole_M[:, None] * (stages_U * pipe.depth_U)[None, :] * saved
        each_MU = np.maximum(state_K[kind] + pipe.depth_U[None, :] * in_flight_M[:, None], 1e-9)
        most_MU = np.floor((room_MU + more_MU) / each_MU + ROUNDING)
        fits_M &= most_MU.clip(0, number).sum(axis=1) >= number
        used_MU = used_MU + each_MU * number / choice.pp - more_MU * number / table.job.arch.num_layers
    return fits_M, float(table.job.capacity_bytes + used_MU.max(axis=1).min())
