"""Critical path through the passes of a pipeline: when each rank ends, how long it is busy, what is resident at most.

Sets        r in R ranks, s in S stages, b in micro-batches, n in N passes of a rank in their fixed order
Parameters  f_s, i_s, w_s [s] forward pass, gradients of inputs and of weights;  h_s [s] handover between s and s + 1
            j_s [s] saved where a forward pass of s runs together with a backward pass
Recurrence  start(n) = max(end(n - 1 on the same rank), end(what it needs) + h where another rank did that)
Objective   max over r of end(r): the longest path through the passes, in O(passes)

What a pass needs: forwards the same micro-batch at s - 1, backwards at s + 1 (at the last stage its own forward pass);
gradients of weights need nobody. Orders of passes are `planner.solvers.pass_orders`. The bubble formulas of
the papers are limits of this model (tests hold it to them).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.pass_orders import CHUNKS, ROUNDS, phases_of

SCHEDULES = (*ROUNDS, "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev")
_PASSES_KEPT = 64  # orders in memory


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """The passes of every rank: rows (kind, stage, micro-batch) [R, N, 3], the first count_R[r] of each rank."""

    row_RN3: Ints
    count_R: Ints
    num_stages: int
    batches: int
    stages_of_rank: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Seconds by stage [S] for one micro-batch; handover_s [S - 1] is 0 where one rank holds both stages."""

    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    handover_s: Floats
    joined_s: Floats | None = None  # saved where a forward pass runs together with a backward pass

    def __post_init__(self) -> None:
        sizes = {len(self.forward_s), len(self.input_s), len(self.weight_s), len(self.handover_s) + 1}
        if len(sizes) != 1 or min(sizes) < 1:
            raise PlannerError("times of stages differ in number", where="stages", hint="give each stage its times")
        arrays = (self.forward_s, self.input_s, self.weight_s, self.handover_s)
        if any((array < 0).any() or not np.isfinite(array).all() for array in arrays):
            raise PlannerError("a stage takes a negative time", where="stages", hint="give times of at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPipeline:
    """When each pass starts [R, N], and each rank's first start, last end and busy time [R]."""

    start_RN: Floats
    first_s_R: Floats
    end_s_R: Floats
    busy_s_R: Floats

    @property
    def makespan_s(self) -> float:
        return float(self.end_s_R.max())


@lru_cache(maxsize=_PASSES_KEPT)
def orders(schedule: str, ranks: int, chunks: int, batches: int) -> Orders:
    """The passes of `batches` micro-batches over `ranks` x `chunks` stages.

    Raises PlannerError for an unknown schedule and for numbers that the schedule has no order for.
    """
    require_sizes(schedule, ranks, chunks, batches)
    from planner.solvers.compiled import pipeline

    if schedule in ROUNDS:
        row_RN3 = pipeline.rounds(ranks, chunks, batches)
        count_R = np.full(ranks, row_RN3.shape[1])
    else:
        programs = [phases_of(schedule, ranks, batches, rank) for rank in range(ranks)]
        width = max(len(steps) for program, _ in programs for _, steps in program)
        program_RPK = np.zeros((ranks, max(len(program) for program, _ in programs), 2 + 2 * width), np.int64)
        for rank, (program, _) in enumerate(programs):
            for index, (times, steps) in enumerate(program):
                flat = [value for step in steps for value in step]
                program_RPK[rank, index, : 2 + len(flat)] = [max(times, 0), len(steps), *flat]
        arms_RA3 = np.array([arms for _, arms in programs], np.int64)
        row_RN3, count_R = pipeline.phases(program_RPK, arms_RA3, 3 * chunks * batches)
    return Orders(row_RN3, count_R, ranks * chunks, batches, stages_of_ranks(schedule, ranks, chunks))


def require_sizes(schedule: str, ranks: int, chunks: int, batches: int) -> None:
    """Raises PlannerError where `schedule` has no order for these numbers, with the nearest that it has."""
    problem = size_conflict(schedule, ranks, chunks, batches)
    if problem is not None:
        raise PlannerError(problem[0], where="schedule", hint=problem[1])


def size_conflict(schedule: str, ranks: int, chunks: int, batches: int) -> tuple[str, str] | None:
    """(what is wrong, how to fix it) with these numbers of ranks, chunks and micro-batches; None if nothing is."""
    if schedule not in SCHEDULES:
        return f"unknown schedule `{schedule}`", f"use one of {', '.join(SCHEDULES)}"
    if min(ranks, chunks, batches) < 1:
        return f"{ranks} ranks, {chunks} chunks, {batches} micro-batches", "give at least one of each"
    wanted = CHUNKS.get(schedule)
    if wanted is not None and chunks != wanted:
        return f"`{schedule}` has {wanted} chunks a rank, found {chunks}", f"give {wanted} chunks a rank"
    if schedule == "interleaved" and chunks < 2:
        return "`interleaved` needs several chunks a rank, found 1", "give 2 or more chunks, or use `1f1b`"
    if schedule == "interleaved" and batches % ranks:
        nearest = max(ranks, batches // ranks * ranks)
        what = f"`interleaved` takes micro-batches in rounds of {ranks}, there are {batches}"
        return what, f"use {nearest} micro-batches"
    if schedule.startswith("dualpipe") and (batches < 2 * ranks or (schedule == "dualpipe" and batches % 2)):
        what = f"`{schedule}` feeds {'an even number of ' if schedule == 'dualpipe' else ''}at least {2 * ranks}"
        return (
            f"{what} micro-batches, there are {batches}",
            f"use {max(2 * ranks, batches + batches % 2)} micro-batches",
        )
    if schedule == "dualpipe" and ranks % 2:
        return f"`dualpipe` feeds from both ends and needs an even number of ranks, found {ranks}", "use an even number"
    return None


def stages_of_ranks(schedule: str, ranks: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    """The stages that each rank holds, in the order in which a micro-batch passes them."""
    if schedule in ("zb_v", "dualpipev"):
        return tuple((rank, 2 * ranks - 1 - rank) for rank in range(ranks))
    if schedule == "dualpipe":
        return tuple(tuple(sorted({rank, ranks - 1 - rank})) for rank in range(ranks))
    return tuple(tuple(range(rank, ranks * chunks, ranks)) for rank in range(ranks))


def simulate(order: Orders, times: StageTimes) -> SimulatedPipeline:
    """The pipeline simulated once; raises PlannerError for times of another number of stages."""
    from planner.solvers.compiled import pipeline

    if len(times.forward_s) != order.num_stages:
        raise PlannerError(
            f"times of {len(times.forward_s)} stages for {order.num_stages}",
            where="stages",
            hint="give each stage its times",
        )
    joined_s = np.zeros(order.num_stages) if times.joined_s is None else times.joined_s
    start_RN = np.zeros(order.row_RN3.shape[:2])
    end_R, busy_R = pipeline.simulate(
        order.row_RN3,
        order.count_R,
        order.batches,
        _floats(times.forward_s),
        _floats(times.input_s),
        _floats(times.weight_s),
        _floats(joined_s),
        _floats(times.handover_s),
        start_RN,
    )
    assert len(end_R), "every order of passes can be simulated"
    return SimulatedPipeline(start_RN, start_RN[:, 0].copy(), end_R, busy_R)


def peak_resident(order: Orders, resident_S: Floats, kept_S: Floats) -> Floats:
    """The most that is resident on each rank [R]: forward passes take resident_S, backward passes give it back.

    kept_S is the part of resident_S that the gradients of the weights still need once those of the inputs are done.
    """
    return np.asarray(resident_over_passes(order, resident_S, kept_S).max(axis=1))


def resident_over_passes(order: Orders, resident_S: Floats, kept_S: Floats) -> Floats:
    """What is resident on each rank during each of its passes [R, N]."""
    from planner.solvers.compiled import pipeline

    level_RN = np.zeros(order.row_RN3.shape[:2])
    pipeline.fill_resident(order.row_RN3, order.count_R, _floats(resident_S), _floats(kept_S), level_RN)
    return level_RN


def _floats(array: Floats) -> Floats:
    """As the compiled loops take them, so that they are compiled once."""
    return np.ascontiguousarray(array, dtype=np.float64)
