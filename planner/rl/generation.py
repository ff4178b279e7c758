"""The generation phase of one iteration: samples assigned to replica groups, and when each finishes.

Array suffixes: N samples of the batch, Q samples in queue order.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.queue import run_queue
from planner.rl.curves import DecodeCurve, Scoring
from planner.rl.plan import Fusion, GenerationGroup, LateReplicas, RolloutCut
from planner.rl.problem import Dispatch, RlProblem
from planner.rl.rollouts.fusion import FusedTimes, Inference, Move, changed_times, cut_at, fused_times
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutResult, RolloutWorker, simulate
from planner.rl.trajectories import SampleBatch


def queue_order(batch: SampleBatch, dispatch: Dispatch) -> Ints:
    """Samples [N] in the order in which they are handed out; ties keep the order of the batch."""
    if dispatch == "fifo":
        return np.arange(batch.size)
    return np.argsort(-batch.predicted_N, kind="stable")


def group_queues(batch: SampleBatch, dispatch: Dispatch, tail_fraction: float) -> tuple[Ints, Ints]:
    """Queues of the first and of the tail group: round(tail_fraction * N) samples with the largest key are the tail."""
    order = queue_order(batch, dispatch)
    count = round(tail_fraction * batch.size)
    in_tail = np.zeros(batch.size, bool)
    in_tail[np.argsort(-batch.predicted_N, kind="stable")[:count]] = True
    return order[~in_tail[order]], order[in_tail[order]]


def finish_times(
    batch: SampleBatch, queue_Q: Ints, curve: DecodeCurve, replicas: int, policy: RolloutPolicy | None = None
) -> Floats:
    """When each sample of the queue finishes [Q], seconds from the start of generation."""
    if not len(queue_Q):
        return np.zeros(0)
    if batch.turns is not None:
        workers = (RolloutWorker(curve),) * replicas
        rollout = simulate(workers, batch.turns, [np.asarray(queue_Q)], policy, stop_after=len(queue_Q))
        return np.asarray(rollout.done_s_N[queue_Q])
    return run_queue(batch.prompt_tokens_N[queue_Q], batch.output_tokens_N[queue_Q], replicas, curve)


def alone_s(prompt_N: Ints, output_N: Ints, curve: DecodeCurve) -> Floats:
    """Seconds of each sample on a replica of its own [N]."""
    prompt, output = prompt_N.astype(float), output_N.astype(float)
    alone = prompt / curve.prefill_tokens_per_s + output * (curve.sequence_s + curve.step_s)
    alone += curve.token_s * (output * prompt + output * (output - 1) / 2)
    return alone


def busy_s(prompt_Q: Ints, output_Q: Ints, needed: int, curve: DecodeCurve) -> float:
    """Seconds for which replicas are busy, together, at least, until `needed` samples of the queue are done.

    It is the sum of what samples add, and `step_s` for every step of a replica. A step holds at most max_running
    sequences and kv_tokens reserved tokens, so there are at least max(sum L / max_running, sum L (p + L) / kv_tokens)
    steps. With fewer needed than the queue holds, each sum takes the smallest terms.
    """
    prompt, output = prompt_Q.astype(float), output_Q.astype(float)
    own = prompt / curve.prefill_tokens_per_s + output * curve.sequence_s
    own += curve.token_s * (output * prompt + output * (output - 1) / 2)
    slots = _sum_smallest(output, needed) / curve.max_running
    steps = max(slots, _sum_smallest(output * (prompt + output), needed) / curve.kv_tokens)
    return _sum_smallest(own, needed) + curve.step_s * steps


def _sum_smallest(values: Floats, count: int) -> float:
    return float(values.sum() if count >= len(values) else np.partition(values, count - 1)[:count].sum())


class CutRollouts:
    """Rollouts of one batch on one group that go on otherwise once few samples are left; each cut is simulated once."""

    def __init__(self, batch: SampleBatch, group: GenerationGroup, dispatch: Dispatch) -> None:
        self._trajectories = batch.trajectories
        self._group = group
        self._queue_N = queue_order(batch, dispatch)
        self._cuts: dict[int, RolloutResult | None] = {}

    def cut(self, change: RolloutCut) -> RolloutResult | None:
        """The rollout up to the change; None where some of the samples left have not started."""
        left = change.samples(self._trajectories.size)
        if left not in self._cuts:
            self._cuts[left] = cut_at(self._group.workers, self._trajectories, [self._queue_N], left)
        return self._cuts[left]

    def fused(self, fusion: Fusion, scoring: Scoring) -> FusedTimes | None:
        """Generated on fewer replicas, scored on the others; None where the samples left do not fit on those."""
        cut = self.cut(fusion)
        if cut is None or not 0 < fusion.kept < self._group.replicas:
            return None
        inference = Inference(self._group.option.gpus / scoring.gpu_s, scoring.load_s)
        move = Move(scoring.move_s, scoring.move_token_s)
        return fused_times(self._group.workers, self._trajectories, cut, fusion.kept, inference, move)

    def late_done_s(self, late: LateReplicas, change_s: float) -> Floats | None:
        """When each sample is done [N] with the late replicas; None where that change cannot be."""
        cut = self.cut(late)
        return None if cut is None else changed_times(late.group.workers, self._trajectories, cut, change_s)


def cut_rollouts(problem: RlProblem, group: GenerationGroup) -> list[CutRollouts]:
    """Those of every batch."""
    return [CutRollouts(batch, group, problem.dispatch) for batch in problem.batches]


def batch_finish_times(
    batch: SampleBatch,
    groups: tuple[GenerationGroup, ...],
    dispatch: Dispatch,
    tail_fraction: float,
    policy: RolloutPolicy | None = None,
) -> Floats:
    """When each sample of the batch finishes [N]; with one group, `tail_fraction` has no meaning."""
    if len(groups) == 1:
        queues: tuple[Ints, ...] = (queue_order(batch, dispatch),)
    else:
        queues = group_queues(batch, dispatch, tail_fraction)
    done_s_N = np.zeros(batch.size)
    for group, queue_Q in zip(groups, queues, strict=True):
        done_s_N[queue_Q] = finish_times(batch, queue_Q, group.option.curve, group.replicas, policy)
    return done_s_N
