"""Lower bounds on generation and training time that need no simulation.

Array suffixes: Q samples of a queue, G counts of replicas, T training choices.
"""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve
from planner.rl.generation import alone_s, busy_s
from planner.rl.training import TrainingTable
from planner.rl.trajectories import SampleBatch

SLACK = 1 - 1e-12  # bounds and simulations add in different orders; no bound may exceed by rounding alone


def generation_bound_s(
    prompt_Q: Ints,
    output_Q: Ints,
    needed: int,
    curve: DecodeCurve,
    replicas_G: Floats,
    beside_s: float = 0.0,
) -> Floats:
    """No rollout of the queue has `needed` samples done before this [G], seconds.

    (1) A sample with prompt p and output L takes at least its time alone, p / prefill + L (step + sequence) +
    token (L p + L (L - 1) / 2); all of the needed ones are done no sooner than the longest of them.
    (2) Replicas are busy, together, for `busy_s`. No replica is busy beyond the end. What else the replicas have to do
    by then, `beside_s` of one of them, comes to that, wherever the samples go on.
    """
    if needed <= 0 or not len(output_Q):
        return np.zeros(len(replicas_G))
    alone = alone_s(prompt_Q, output_Q, curve)
    busy = busy_s(prompt_Q, output_Q, needed, curve) + beside_s
    return np.asarray(np.maximum(busy / replicas_G, np.partition(alone, needed - 1)[needed - 1]) * SLACK)


def work_bound_s(
    table: TrainingTable, batches: Sequence[SampleBatch], samples: int, minibatches: int
) -> tuple[Floats, Floats]:
    """No order of completion trains an iteration, and no last minibatch alone, in less than this [T], seconds.

    Of several batches that carry samples over, no mean iteration: each trains on `samples` of what all of them hold.

    With t tokens on a replica and M = max(1, ceil(t / m)), a minibatch takes t (1 + bubble / M) / rate, forward and
    update each with their own, and t / M >= min(t, m / 2). The whole has at least the tokens of the smallest samples, a
    minibatch at least those of the smallest samples that fill it.
    """
    total = np.sort(np.concatenate([batch.tokens_N for batch in batches])).astype(float)
    all_tokens = total[: samples * len(batches)].sum() / len(batches)
    part_tokens = total[: samples // minibatches].sum()
    seconds_per_token = table.forward_s_T + 1 / table.train_T
    waited_s = (table.pp_T - 1) * table.forward_s_T + table.bubble_T / table.train_T
    beside_s = waited_s * np.minimum(part_tokens / table.dp_T, table.micro_T / 2) + table.optimizer_s_T
    whole = all_tokens / table.dp_T * seconds_per_token + minibatches * beside_s
    part = part_tokens / table.dp_T * seconds_per_token + beside_s
    return whole * SLACK, part * SLACK
