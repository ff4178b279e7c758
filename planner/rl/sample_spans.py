"""A rollout sample by sample: which replica makes each turn of it, and from when to when.

Array suffixes: N samples of a batch, T turns of all samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.rl.agentic import AgenticPlan, AgenticProblem, policy_of, workers_for
from planner.rl.evaluate import fused_times_of, late_done_s
from planner.rl.generation import group_queues, queue_order
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutWorker, TurnRecord, simulate
from planner.rl.trajectories import SampleBatch, Trajectories

SAME = 1e-9  # relative; ends this near are one
CHANGED = -1  # in place of a replica, where the samples left go on on other ones


@dataclass(frozen=True, slots=True)
class SampleSpan:
    """A turn of a sample on a replica of a group, from its prefill on; seconds from the start of the rollout.

    `prompt_tokens` are those before the turn, `finished` is false where the iteration ends before the turn does.
    """

    sample: int
    turn: int
    group: int
    replica: int
    start_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    finished: bool = True


def sample_spans(problem: RlProblem, plan: RlPlan, batch: int = 0) -> list[SampleSpan]:
    """Every turn of every sample of one batch, by group, replica and start; those that never start have none.

    What goes on on other replicas (fused scoring, replicas late in a rollout) is one span more.
    """
    samples = problem.batches[batch]
    spans = list(_of_groups(problem, plan, samples))
    cut, changed_s_N = plan.late or plan.fusion, _changed_s(problem, plan, batch)
    if cut is not None and changed_s_N is not None:
        spans = list(_with_change(spans, changed_s_N, samples.size - cut.samples(samples.size)))
    ends_s = sorted(_last_ends(spans, samples.size))
    needed = min(problem.trained_samples, samples.size) if plan.training is not None else samples.size
    spans = list(_until(spans, ends_s[needed - 1]))
    return sorted(spans, key=lambda span: (span.group, span.replica, span.start_s, span.sample))


def _of_groups(problem: RlProblem, plan: RlPlan, batch: SampleBatch) -> Iterator[SampleSpan]:
    tail = group_queues(batch, problem.dispatch, plan.tail_fraction)
    queues = tail if len(plan.groups) > 1 else (queue_order(batch, problem.dispatch),)
    for place, (group, queue_Q) in enumerate(zip(plan.groups, queues, strict=True)):
        if len(queue_Q):
            yield from _of_group(plan, place, group, batch, queue_Q.tolist())


def _of_group(
    plan: RlPlan, place: int, group: GenerationGroup, batch: SampleBatch, queue: Sequence[int]
) -> Iterator[SampleSpan]:
    trajectories = batch.trajectories
    workers = (RolloutWorker(group.option.curve),) * group.replicas
    result = simulate(workers, trajectories, [np.asarray(queue)], plan.policy, stop_after=len(queue))
    yield from _turns(trajectories, queue, result.turns, [(place, replica) for replica in range(group.replicas)])


def agent_spans(problem: AgenticProblem, plan: AgenticPlan, batch: int = 0) -> list[SampleSpan]:
    """Every turn of every trajectory of one batch, by group, replica and start."""
    trajectories = problem.batches[batch]
    workers, queues = workers_for(plan, trajectories, batch)
    result = simulate(workers, trajectories, queues, policy_of(problem, plan.priority, plan.move_threshold))
    places = [(place, replica) for place, group in enumerate(plan.groups) for replica in range(group.replicas)]
    spans = _turns(trajectories, range(trajectories.size), result.turns, places)
    return sorted(spans, key=lambda span: (span.group, span.replica, span.start_s, span.sample))


def _turns(
    trajectories: Trajectories, samples: Sequence[int], turns: TurnRecord, place_of_worker: list[tuple[int, int]]
) -> Iterator[SampleSpan]:
    """The turns of these samples; `place_of_worker` is the group of each worker, and its number there."""
    for sample in samples:
        context = int(trajectories.prompt_N[sample])
        first, last = int(trajectories.first_N[sample]), int(trajectories.first_N[sample + 1])
        for turn in range(first, last):
            output = int(trajectories.output_T[turn])
            start_s, end_s = float(turns.started_s_T[turn]), float(turns.ended_s_T[turn])
            place, replica = place_of_worker[int(turns.worker_T[turn])]
            yield SampleSpan(sample, turn - first, place, replica, start_s, end_s, context, output)
            context += output + int(trajectories.observation_T[turn])


def _changed_s(problem: RlProblem, plan: RlPlan, batch: int) -> Floats | None:
    """When samples are done [N] where a cut comes into the rollout; None without one."""
    if plan.late is not None:
        return late_done_s(problem, plan.groups[0], plan.late)[batch]
    fused = fused_times_of(problem, plan)
    times = None if fused is None else fused[batch]
    return None if times is None else times.done_s_N


def _with_change(spans: Sequence[SampleSpan], done_s_N: Floats, before: int) -> Iterator[SampleSpan]:
    """Spans up to the change, when `before` samples are done; of samples that end otherwise, one more from there."""
    ends_s = _last_ends(spans, len(done_s_N))
    cut_s = sorted(ends_s)[before - 1]
    moved = {sample for sample, end_s in enumerate(ends_s) if abs(end_s - done_s_N[sample]) > SAME * end_s}
    last: dict[int, SampleSpan] = {}
    for span in spans:
        if span.sample in moved:
            last[span.sample] = span
        if span.sample not in moved or span.end_s <= cut_s:
            yield span
        elif span.start_s < cut_s:
            yield replace(span, end_s=cut_s, finished=False)
    for sample, span in sorted(last.items()):
        yield replace(span, replica=CHANGED, start_s=cut_s, end_s=float(done_s_N[sample]))


def _last_ends(spans: Sequence[SampleSpan], size: int) -> list[float]:
    ends_s = [0.0] * size
    for span in spans:
        ends_s[span.sample] = max(ends_s[span.sample], span.end_s)
    return ends_s


def _until(spans: Sequence[SampleSpan], end_s: float) -> Iterator[SampleSpan]:
    """Spans cut off where the iteration has the samples that it needs."""
    for span in spans:
        if span.end_s <= end_s:
            yield span
        elif span.start_s < end_s:
            yield replace(span, end_s=end_s, finished=False)
