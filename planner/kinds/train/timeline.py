"""The passes of a training plan's pipeline, micro-batch by micro-batch, from what the plan states of its ranks.

A rank's times are shared evenly by its stages, and hand-overs lie within passes: what a plan states is by rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.documents.trace_events import Span
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.plan.schema import Envelope
from planner.solvers.pass_orders import BACKWARD, FORWARD, INPUT, JOINED, WEIGHT
from planner.solvers.schedules.pipeline import Orders, SimulatedPipeline, StageTimes, orders, simulate, size_conflict

NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT: "backward input",
    WEIGHT: "backward weight",
    JOINED: "forward beside backward",
}
MOST_PASSES = 200_000


@dataclass(frozen=True, slots=True)
class Pass:
    """What a rank does of a stage and a micro-batch."""

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start_s: float
    duration_s: float


def has_pipeline(decision: TrainDecision) -> bool:
    """Whether the plan states what each rank of a pipeline does, for all micro-batches alike."""
    return len(decision.pipeline_ranks) > 1 and decision.pools != "replicas" and not decision.recompute_rows


def passes(decision: TrainDecision) -> Iterator[Pass]:
    """Every pass of a step, rank by rank.

    Raises PlannerError for a plan without a pipeline, and for more passes than a viewer shows.
    """
    if not has_pipeline(decision):
        what = "the plan states no pipeline that runs all micro-batches alike"
        raise PlannerError(what, where="decision.pipeline_ranks", hint="give a solved plan with pp above 1")
    ranks, chunks = len(decision.pipeline_ranks), decision.degrees.vpp
    number = 3 * decision.num_micro_batches * ranks * chunks
    if number > MOST_PASSES:
        what = f"a step has {number} passes, and {MOST_PASSES} can be shown"
        raise PlannerError(what, where="decision.num_micro_batches", hint="`planner report` draws the first of them")
    yield from _passes(decision, decision.num_micro_batches)


def first_passes(decision: TrainDecision, most: int) -> list[Pass]:
    """The passes of a step of so many micro-batches at most, as many as the schedule takes."""
    ranks, chunks = len(decision.pipeline_ranks), decision.degrees.vpp
    for batches in range(min(most, decision.num_micro_batches), decision.num_micro_batches + 1):
        if size_conflict(decision.schedule, ranks, chunks, batches) is None:
            return list(_passes(decision, batches))
    return []


def spans(envelope: Envelope, decision: TrainDecision) -> Iterator[Span]:
    """Every pass of a step as a span, a lane a rank; raises what `passes` does."""
    for each in passes(decision):
        figures = {"micro_batch": each.micro_batch, "stage": each.stage}
        lane = f"rank {each.rank} of the pipeline"
        yield Span(envelope.name, each.rank, each.kind, each.start_s, each.duration_s, lane, "pass", figures)


def _passes(decision: TrainDecision, batches: int) -> Iterator[Pass]:
    order = orders(decision.schedule, len(decision.pipeline_ranks), decision.degrees.vpp, batches)
    times = _stage_times(decision, order)
    yield from _rows(order, simulate(order, times), times)


def _stage_times(decision: TrainDecision, order: Orders) -> StageTimes:
    """Of each stage, the mean over the ranks that hold it: two, of a schedule that feeds from both ends."""
    seconds_S3, holders_S = np.zeros((order.num_stages, 3)), np.zeros(order.num_stages)
    for rank, stages in zip(decision.pipeline_ranks, order.stages_of_rank, strict=True):
        for stage in stages:
            seconds_S3[stage] += np.array((rank.forward_s, rank.backward_input_s, rank.backward_weight_s)) / len(stages)
            holders_S[stage] += 1
    forward_S, input_S, weight_S = (seconds_S3 / np.maximum(holders_S, 1.0)[:, None] * _shared(order)).T
    return StageTimes(forward_S, input_S, weight_S, np.zeros(order.num_stages - 1))


def _shared(order: Orders) -> float:
    """Stages of a rank over those of them that a micro-batch passes: it passes one of two copies."""
    return len(order.stages_of_rank[0]) * len(order.stages_of_rank) / order.num_stages


def _rows(order: Orders, timeline: SimulatedPipeline, times: StageTimes) -> Iterator[Pass]:
    backward_s = times.input_s + times.weight_s
    seconds = {FORWARD: times.forward_s, INPUT: times.input_s, WEIGHT: times.weight_s, JOINED: times.forward_s}
    for rank, count in enumerate(order.count_R.tolist()):
        rows = zip(order.row_RN3[rank, :count].tolist(), timeline.start_RN[rank, :count].tolist(), strict=True)
        for (kind, stage, batch), start_s in rows:
            yield Pass(rank, NAMES[kind], stage, batch, start_s, float(seconds.get(kind, backward_s)[stage]))
