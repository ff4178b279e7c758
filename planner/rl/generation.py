"""Generation of one iteration: which samples go to which group of replicas, and when each of them finishes.

Array suffixes: N samples of the batch, Q samples in queue order.
"""

from typing import TYPE_CHECKING

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve, Scoring
from planner.rl.plan import Fusion, GenerationGroup, LateReplicas
from planner.rl.problem import Dispatch
from planner.rl.trajectories import SampleBatch

if TYPE_CHECKING:
    from planner.rl.rollouts.fusion import FusedTimes
    from planner.rl.rollouts.rollout import RolloutPolicy, RolloutResult


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
    batch: SampleBatch, queue_Q: Ints, curve: DecodeCurve, replicas: int, policy: "RolloutPolicy | None" = None
) -> Floats:
    """When each sample of the queue finishes [Q], seconds from the start of generation."""
    from planner.rl.compiled.queue import run_queue

    if not len(queue_Q):
        return np.zeros(0)
    if batch.turns is not None:
        from planner.rl.rollouts.rollout import RolloutWorker, simulate

        workers = (RolloutWorker(curve),) * replicas
        played = simulate(workers, batch.turns, [np.asarray(queue_Q)], policy, stop_after=len(queue_Q))
        return np.asarray(played.done_s_N[queue_Q])
    prompt_Q = np.ascontiguousarray(batch.prompt_tokens_N[queue_Q])
    output_Q = np.ascontiguousarray(batch.output_tokens_N[queue_Q])
    done: Floats = run_queue(
        prompt_Q,
        output_Q,
        replicas,
        curve.step_s,
        curve.sequence_s,
        curve.token_s,
        float(curve.prefill_tokens_per_s),
        curve.max_running,
        curve.kv_tokens,
    )
    return done


class FusedBatch:
    """Rollouts of one batch on one group, cut at thresholds and gone on with on fewer replicas; cuts are kept."""

    def __init__(self, batch: SampleBatch, group: GenerationGroup, dispatch: Dispatch, scoring: Scoring) -> None:
        from planner.rl.rollouts.fusion import Inference, Move
        from planner.rl.rollouts.rollout import RolloutWorker

        self._trajectories = batch.trajectories
        self._workers = (RolloutWorker(group.option.curve),) * group.replicas
        self._queue_N = queue_order(batch, dispatch)
        self._inference = Inference(group.option.gpus / scoring.gpu_s, scoring.load_s)
        self._move = Move(scoring.move_s, scoring.move_token_s)
        self._cuts: dict[int, RolloutResult | None] = {}

    def times(self, fusion: Fusion) -> "FusedTimes | None":
        """None where the samples left have not all started, or do not fit on the replicas kept."""
        from planner.rl.rollouts.fusion import cut_at, fused_times

        left = fusion.samples(self._trajectories.size)
        if left not in self._cuts:
            self._cuts[left] = cut_at(self._workers, self._trajectories, [self._queue_N], left)
        cut = self._cuts[left]
        if cut is None or not 0 < fusion.kept < len(self._workers):
            return None
        return fused_times(self._workers, self._trajectories, cut, fusion.kept, self._inference, self._move)


class LateBatch:
    """Rollouts of one batch that other replicas of the same GPUs end; cuts are kept."""

    def __init__(self, batch: SampleBatch, group: GenerationGroup, dispatch: Dispatch) -> None:
        from planner.rl.rollouts.rollout import RolloutWorker

        self._trajectories = batch.trajectories
        self._workers = (RolloutWorker(group.option.curve),) * group.replicas
        self._queue_N = queue_order(batch, dispatch)
        self._cuts: dict[int, RolloutResult | None] = {}

    def cut(self, late: LateReplicas) -> "RolloutResult | None":
        """When the replicas change; None where some of the samples left have not started."""
        from planner.rl.rollouts.fusion import cut_at

        left = late.samples(self._trajectories.size)
        if left not in self._cuts:
            self._cuts[left] = cut_at(self._workers, self._trajectories, [self._queue_N], left)
        return self._cuts[left]

    def done_s(self, late: LateReplicas, change_s: float) -> Floats | None:
        """When each sample is done [N]; None where that change cannot be."""
        from planner.rl.rollouts.fusion import changed_times
        from planner.rl.rollouts.rollout import RolloutWorker

        cut = self.cut(late)
        workers = (RolloutWorker(late.group.option.curve),) * late.group.replicas
        return None if cut is None else changed_times(workers, self._trajectories, cut, change_s)


def batch_finish_times(
    batch: SampleBatch,
    groups: tuple[GenerationGroup, ...],
    dispatch: Dispatch,
    tail_fraction: float,
    policy: "RolloutPolicy | None" = None,
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
