"""Inter-stage fusion (RLHFuse): late samples move together, and freed GPUs start reference and reward inference.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion: when fewer than `threshold` samples remain, those of all but the
`kept` busiest workers move there, and the workers set free begin the inference of references and rewards.
OrchestrRL (arXiv 2601.01209): another tensor parallelism late in a rollout than early.

Array suffixes: N trajectories, W workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.rollouts.resume import not_started, resume, tokens_left, under_way
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutResult, RolloutWorker, simulate
from planner.rl.trajectories import Trajectories


@dataclass(frozen=True, slots=True)
class Inference:
    """Forward passes over finished samples: a worker does `tokens_per_s` once it is free, after `start_s` to load."""

    tokens_per_s: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """What it takes to send a running trajectory to another worker."""

    base_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BestFusion:
    """The best fusion: threshold 0 and all workers kept means none. Times in seconds from the start of generation."""

    threshold: int
    kept: int
    end_s: float
    generation_s: float
    unfused_s: float
    seen: int


def fuse(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    queues: list[Ints],
    inference: Inference,
    move: Move,
    *,
    thresholds: Iterable[int],
    policy: RolloutPolicy | None = None,
) -> BestFusion:
    """The threshold and the number of workers kept with the earliest end of generation and inference, enumerated.

    Each pair is simulated exactly. Pairs are left out whose threshold leaves trajectories that have not started, or
    whose workers have too few slots or too little KV for those that move.
    """
    whole = simulate(workers, trajectories, queues, policy)
    tokens_N = trajectories.final_context_N.astype(float)
    unfused_s = whole.end_s + inference.start_s + float(tokens_N.sum()) / (inference.tokens_per_s * len(workers))
    best = BestFusion(0, len(workers), unfused_s, whole.end_s, unfused_s, 1)
    seen = 1
    for threshold in sorted(set(thresholds)):
        cut = cut_at(workers, trajectories, queues, threshold, policy)
        for kept in range(1, len(workers)) if cut is not None else ():
            assert cut is not None
            times = fused_times(workers, trajectories, cut, kept, inference, move, policy)
            if times is None:
                continue
            seen += 1
            if times.end_s < best.end_s:
                best = BestFusion(threshold, kept, times.end_s, times.generation_s, unfused_s, seen)
    return BestFusion(best.threshold, best.kept, best.end_s, best.generation_s, unfused_s, seen)


def cut_at(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    queues: list[Ints],
    threshold: int,
    policy: RolloutPolicy | None = None,
) -> RolloutResult | None:
    """The rollout when `threshold` trajectories are left; None where some of them have not started, or none is."""
    if not 0 < threshold < trajectories.size:
        return None
    cut = simulate(workers, trajectories, queues, policy, stop_after=trajectories.size - threshold)
    return None if len(not_started(cut)) or not len(under_way(cut)) else cut


@dataclass(frozen=True, slots=True, eq=False)
class FusedTimes:
    """When each sample is generated [N], and when all of them went through inference; seconds."""

    done_s_N: Floats
    end_s: float
    free_s: float  # when the workers that are not kept are set free

    @property
    def generation_s(self) -> float:
        return float(self.done_s_N.max())


def fused_times(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    cut: RolloutResult,
    kept: int,
    inference: Inference,
    move: Move,
    policy: RolloutPolicy | None = None,
) -> FusedTimes | None:
    """What follows `cut` with `kept` workers; None where those that move do not fit there."""
    done_s_N = _moved_together(workers, trajectories, cut, kept, move, policy)
    if done_s_N is None:
        return None
    tokens_N, free_s = trajectories.final_context_N.astype(float), cut.end_s + inference.start_s
    end_s = inference_end_s(done_s_N, tokens_N, len(workers), kept, free_s, inference)
    return FusedTimes(done_s_N, end_s, cut.end_s)


def _moved_together(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    cut: RolloutResult,
    kept: int,
    move: Move,
    policy: RolloutPolicy | None,
) -> Floats | None:
    """When everything is done [N] with the `kept` workers that have most left to do; None where the rest do not fit."""
    left_N = tokens_left(trajectories, cut)
    load_W = np.bincount(cut.worker_N[under_way(cut)], left_N[under_way(cut)], len(workers))
    stay = np.argsort(-load_W, kind="stable")[:kept]
    slots = {int(worker): workers[worker].curve.max_running for worker in stay}
    room = {int(worker): workers[worker].curve.kv_tokens for worker in stay}
    worker_N, ready_s_N = cut.worker_N.copy(), cut.ready_s_N.copy()
    need_N = trajectories.final_context_N
    moving = []
    for trajectory in under_way(cut):
        if int(cut.worker_N[trajectory]) in slots:
            slots[int(cut.worker_N[trajectory])] -= 1
            room[int(cut.worker_N[trajectory])] -= int(need_N[trajectory])
        else:
            moving.append(int(trajectory))
    for trajectory in sorted(moving, key=lambda trajectory: (-left_N[trajectory], trajectory)):
        fitting = [worker for worker in slots if slots[worker] > 0 and room[worker] >= need_N[trajectory]]
        if not fitting:
            return None
        target = max(fitting, key=lambda worker: (slots[worker], room[worker], -worker))
        slots[target] -= 1
        room[target] -= int(need_N[trajectory])
        worker_N[trajectory] = target
        sent_s = (
            max(cut.end_s, float(cut.ready_s_N[trajectory]))
            + move.base_s
            + move.token_s * float(cut.context_N[trajectory])
        )
        ready_s_N[trajectory] = sent_s
    return resume(trajectories, cut, workers, worker_N, ready_s_N, cut.prefill_N, policy, same_workers=True)


def inference_end_s(
    done_s_N: Floats, tokens_N: Floats, workers: int, kept: int, free_s: float, inference: Inference
) -> float:
    """When all samples went through inference: on workers - kept from `free_s` on, on all once generation has ended.

    Work is taken as divisible; a sample counts from its completion on. The workers kept load for start_s in their turn.
    """
    order = np.argsort(done_s_N, kind="stable")
    generation_s = float(done_s_N[order[-1]])
    rate = inference.tokens_per_s * (workers - kept)
    clock, left = free_s, 0.0
    if rate > 0:
        for sample in order:
            clock = max(clock, float(done_s_N[sample])) + float(tokens_N[sample]) / rate
        left = max(0.0, clock - max(generation_s + inference.start_s, free_s)) * rate
        if clock <= generation_s + inference.start_s:
            return clock
    else:
        left = float(tokens_N.sum())
    return max(generation_s + inference.start_s, free_s) + left / (inference.tokens_per_s * workers)


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A change of workers during a rollout: `threshold` left when it happens (0: never), and when the rollout ends."""

    threshold: int
    end_s: float
    unchanged_s: float


def change_workers(
    early: tuple[RolloutWorker, ...],
    late: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    queues: list[Ints],
    *,
    thresholds: Iterable[int],
    change_s: float,
    recompute: bool = True,
    policy: RolloutPolicy | None = None,
) -> WorkerChange:
    """When to go from the workers `early` to `late`: the threshold with the earliest end, each simulated exactly.

    Everything pauses for `change_s`; contexts are prefilled again with `recompute`, else their KV moves along. Those
    under way are handed out longest first, each to the worker with the fewest.
    """
    unchanged_s = simulate(early, trajectories, queues, policy).end_s
    best = WorkerChange(0, unchanged_s, unchanged_s)
    for threshold in sorted(set(thresholds)):
        cut = cut_at(early, trajectories, queues, threshold, policy)
        done_s_N = changed_times(late, trajectories, cut, change_s, recompute=recompute, policy=policy) if cut else None
        if done_s_N is not None and float(done_s_N.max()) < best.end_s:
            best = WorkerChange(threshold, float(done_s_N.max()), unchanged_s)
    return best


def changed_times(
    late: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    cut: RolloutResult,
    change_s: float,
    *,
    recompute: bool = True,
    policy: RolloutPolicy | None = None,
) -> Floats | None:
    """When each sample is done [N] with the workers `late` after `cut`; None where a sample does not fit them."""
    left_N = tokens_left(trajectories, cut)
    moving = sorted(
        (int(trajectory) for trajectory in under_way(cut)), key=lambda trajectory: (-left_N[trajectory], trajectory)
    )
    worker_N = cut.worker_N.copy()
    worker_N[moving] = np.arange(len(moving)) % len(late)
    if any(
        trajectories.final_context_N[trajectory] > late[worker_N[trajectory]].curve.kv_tokens for trajectory in moving
    ):
        return None
    ready_s_N = np.maximum(cut.ready_s_N, cut.end_s) + change_s
    prefill_N = cut.context_N if recompute else cut.prefill_N
    return resume(trajectories, cut, late, worker_N, ready_s_N, prefill_N, policy, same_workers=False)
