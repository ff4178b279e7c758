"""Dispatch policies of a rollout: trajectories to workers, and their order, by predicted lengths alone.

Array suffixes: N trajectories.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve
from planner.rl.rollouts.ranker import keys_of_recall
from planner.rl.rollouts.rollout import RolloutWorker, simulate
from planner.rl.trajectories import SampleBatch, Trajectories
from planner.solvers.schedules.presorted import solve_presorted

TAIL_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True, eq=False)
class Dispatched:
    """Workers with their queues, and who starts from each queue in which order."""

    workers: tuple[RolloutWorker, ...]
    queues: list[Ints]


def fifo(curves: tuple[DecodeCurve, ...], predicted_N: Floats) -> Dispatched:
    """One queue in the order given."""
    return Dispatched(tuple(RolloutWorker(curve) for curve in curves), [np.arange(len(predicted_N))])


def longest_first(curves: tuple[DecodeCurve, ...], predicted_N: Floats) -> Dispatched:
    """One queue, longest predictions first."""
    return Dispatched(tuple(RolloutWorker(curve) for curve in curves), [np.argsort(-predicted_N, kind="stable")])


def instance_s(curve: DecodeCurve, count: float, tokens: float, context: float) -> float:
    """Decode time of `count` samples of `tokens` each on one replica, in waves of its largest batch.

    Source: StreamRL (arXiv 2504.15930): time per token at the batch x length x waves. `context` is the mean number of
    tokens that a sequence holds.
    """
    if count <= 0:
        return 0.0
    slots = max(1, min(curve.max_running, int(curve.kv_tokens // max(context, 1.0))))
    batch = min(count, slots)
    step_s = curve.step_s + (curve.sequence_s + curve.token_s * context) * batch
    return float(step_s * tokens * np.ceil(count / slots))


def skewness_aware(
    curves: tuple[DecodeCurve, ...], predicted_N: Floats, *, tail_share: float = 0.2, prompt: float = 0.0
) -> Dispatched:
    """The predicted longest `tail_share` on workers of their own, in smaller batches; how many is enumerated.

    Source: StreamRL (arXiv 2504.15930), algorithm 2: the tail at the 90th percentile, the rest at the median.
    The slower of both groups counts, since generation ends with the last of them. Equal workers are assumed.
    """
    order = np.argsort(-predicted_N, kind="stable")
    count = round(tail_share * len(order))
    tail, rest = order[:count], order[count:]
    tail_tokens, rest_tokens = (float(np.percentile(predicted_N, part)) for part in (90, 50))

    def slower_s(tail_workers: int) -> float:
        others = len(curves) - tail_workers
        tail_s = instance_s(curves[0], len(tail) / tail_workers, tail_tokens, prompt + tail_tokens / 2)
        rest_s = instance_s(curves[-1], len(rest) / others, rest_tokens, prompt + rest_tokens / 2)
        return max(tail_s, rest_s)

    if not count or len(curves) < 2:
        return longest_first(curves, predicted_N)
    best = min(range(1, len(curves)), key=slower_s)
    workers = tuple(RolloutWorker(curve, int(index >= best)) for index, curve in enumerate(curves))
    return Dispatched(workers, [tail, rest])


def split_simulated(
    curves: tuple[DecodeCurve, ...],
    predicted_N: Floats,
    *,
    prompt: float = 0.0,
    recall: float = 1.0,
    recalled_share: float = 0.2,
    draws: int = 4,
) -> Dispatched:
    """The order, the share of the tail and its workers whose simulated rollout ends first, in the mean over `draws`.

    Lengths are drawn from predictions that miss 1 - `recall` of the longest `recalled_share`. The order given, and
    longest first without a tail group, are among the choices.
    """
    samples = [
        _as_samples(keys_of_recall(predicted_N, recalled_share, recall, seed), prompt)
        for seed in range(draws if recall < 1 else 1)
    ]
    choices = [fifo(curves, predicted_N), longest_first(curves, predicted_N)]
    order = choices[1].queues[0]
    for share in TAIL_SHARES:
        count = round(share * len(order))
        for tail_workers in range(1, len(curves)) if count else ():
            workers = tuple(RolloutWorker(curve, int(index >= tail_workers)) for index, curve in enumerate(curves))
            choices.append(Dispatched(workers, [order[:count], order[count:]]))
    ends_s = [sum(simulate(choice.workers, drawn, choice.queues).end_s for drawn in samples) for choice in choices]
    return choices[int(np.argmin(ends_s))]


def _as_samples(length_N: Floats, prompt: float) -> Trajectories:
    output = np.maximum(1, np.round(length_N)).astype(np.int64)
    return SampleBatch(np.full(len(output), int(prompt), np.int64), output).trajectories


def placed(
    curves: tuple[DecodeCurve, ...], predicted_N: Floats, *, context_share: float = 0.5, prompt: float = 0.0
) -> Dispatched:
    """Neighbours in predicted length share a worker, the longest few on the fastest: `solvers.presorted`.

    Source: Heddle (arXiv 2603.28101). A worker of n trajectories takes, a token of the longest, the step of n sequences
    (at most max_running) that hold `context_share` of the mean predicted length, times the waves that n needs.
    """
    kinds = list(dict.fromkeys(curves))
    context = prompt + context_share * float(predicted_N.mean())
    rates = [_interference(curve, len(predicted_N), context) for curve in kinds]
    order = np.argsort(-predicted_N, kind="stable")
    runs = solve_presorted(predicted_N, [curves.count(kind) for kind in kinds], rates).solution or ()
    used = dict.fromkeys(range(len(kinds)), 0)
    members = {kind: [index for index, curve in enumerate(curves) if curve == kinds[kind]] for kind in used}
    queues: list[Ints] = [np.zeros(0, np.int64) for _ in curves]
    for run in runs:
        queues[members[run.kind][used[run.kind]]] = order[run.first : run.last]
        used[run.kind] += 1
    return Dispatched(tuple(RolloutWorker(curve, index) for index, curve in enumerate(curves)), queues)


def _interference(curve: DecodeCurve, most: int, context: float) -> Floats:
    count = np.arange(1, most + 1)
    slots = max(1, min(curve.max_running, int(curve.kv_tokens // max(context, 1.0))))
    step_s = curve.step_s + (curve.sequence_s + curve.token_s * context) * np.minimum(count, slots)
    return np.asarray(step_s * np.ceil(count / slots))


POLICIES: dict[str, Callable[[tuple[DecodeCurve, ...], Floats], Dispatched]] = {
    "fifo": fifo,
    "longest_first": longest_first,
    "skewness_aware": skewness_aware,
    "split_simulated": split_simulated,
    "placed": placed,
}
