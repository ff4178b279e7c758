"""Interrupts a rollout and resumes it elsewhere: on fewer or other workers, or in the next iteration.

Array suffixes: N trajectories, W workers.
"""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.rollouts.rollout import Arrivals, RolloutPolicy, RolloutResult, RolloutWorker, simulate
from planner.rl.trajectories import Trajectories

NOWHERE = -1


def under_way(cut: RolloutResult) -> Ints:
    """Trajectories that started and are not done."""
    return np.flatnonzero(np.isinf(cut.done_s_N) & (cut.worker_N != NOWHERE))


def not_started(cut: RolloutResult) -> Ints:
    """Trajectories that no worker had admitted."""
    return np.flatnonzero(np.isinf(cut.done_s_N) & (cut.worker_N == NOWHERE))


def tokens_left(trajectories: Trajectories, cut: RolloutResult) -> Ints:
    """Output tokens that each trajectory has still to make [N]."""
    turn_T = trajectories.first_N[:-1] + cut.turn_N
    left_N = trajectories.remaining_T[turn_T] - cut.made_N
    return np.where(np.isinf(cut.done_s_N), left_N, 0)


def resume(
    trajectories: Trajectories,
    cut: RolloutResult,
    workers: tuple[RolloutWorker, ...],
    worker_N: Ints,
    ready_s_N: Floats,
    prefill_N: Ints,
    policy: RolloutPolicy | None = None,
    *,
    same_workers: bool,
) -> Floats:
    """When every trajectory is done [N], those under way going on at `worker_N` of `workers` from `ready_s_N` on.

    `prefill_N` tokens of their context are prefilled first. Trajectories that had not started must not exist. With
    `same_workers`, workers that prefill at the cut go on with it, those who stay keep their slots meanwhile, and KV is
    reserved for all who had some, where they go.
    """
    moving = under_way(cut)
    done_s_N = cut.done_s_N.copy()
    if not len(moving):
        return done_s_N
    time_s_N, busy_until_s_W = ready_s_N, np.zeros(len(workers))
    holds_N = np.zeros(len(ready_s_N), bool)
    if same_workers:
        stay_N = cut.running_N & (worker_N == cut.worker_N)
        waits_N = ~cut.running_N & (ready_s_N <= cut.end_s)  # those who run keep their slots, so they come first
        after_s = np.nextafter(cut.end_s, np.inf)
        time_s_N = np.where(stay_N, np.minimum(ready_s_N, cut.end_s), np.where(waits_N, after_s, ready_s_N))
        holds_N = cut.running_N | (policy is None or policy.keep_kv)
        busy_until_s_W = np.where(cut.busy_until_s_W > cut.end_s, cut.busy_until_s_W, 0.0)
    arrivals = Arrivals(
        time_s_N=time_s_N[moving],
        worker_N=worker_N[moving],
        context_N=cut.context_N[moving],
        prefill_N=prefill_N[moving],
        turn_N=cut.turn_N[moving],
        made_N=cut.made_N[moving],
        holds_N=holds_N[moving],
        busy_until_s_W=busy_until_s_W,
    )
    rest = simulate(workers, subset(trajectories, moving), [], policy, arrivals=arrivals)
    done_s_N[moving] = rest.done_s_N
    return done_s_N


def subset(trajectories: Trajectories, chosen: Ints) -> Trajectories:
    """Some of the trajectories, whole."""
    spans = [np.arange(trajectories.first_N[trajectory], trajectories.first_N[trajectory + 1]) for trajectory in chosen]
    turns = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    first = np.cumsum([0, *(len(span) for span in spans)])
    return Trajectories(
        trajectories.prompt_N[chosen],
        first,
        trajectories.output_T[turns],
        trajectories.tool_s_T[turns],
        trajectories.observation_T[turns],
        trajectories.predicted_T[turns],
    )


def remainder(trajectories: Trajectories, cut: RolloutResult, chosen: Ints) -> Trajectories:
    """What is left of some trajectories as trajectories of their own: their context so far is the prompt."""
    parts = subset(trajectories, chosen)
    turn_N, made_N = cut.turn_N[chosen], cut.made_N[chosen]
    starts, ends = parts.first_N[:-1] + turn_N, parts.first_N[1:]
    spans = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
    keep = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    first = np.cumsum([0, *(parts.first_N[1:] - parts.first_N[:-1] - turn_N)])
    output_T = parts.output_T[keep].copy()
    output_T[first[:-1]] -= made_N
    return Trajectories(
        cut.context_N[chosen], first, output_T, parts.tool_s_T[keep], parts.observation_T[keep], parts.predicted_T[keep]
    )


def joined(parts: Sequence[Trajectories]) -> Trajectories:
    """All trajectories of `parts`, one after the other."""
    lengths = np.concatenate([np.diff(part.first_N) for part in parts])
    return Trajectories(
        np.concatenate([part.prompt_N for part in parts]),
        np.append(0, np.cumsum(lengths)),
        np.concatenate([part.output_T for part in parts]),
        np.concatenate([part.tool_s_T for part in parts]),
        np.concatenate([part.observation_T for part in parts]),
        np.concatenate([part.predicted_T for part in parts]),
    )
