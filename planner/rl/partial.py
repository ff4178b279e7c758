"""Successive rollouts that start more samples than an iteration trains on: over-sampling and partial rollouts.

An iteration ends when `samples` are done. Over-sampling throws the others away; a partial rollout keeps what they made
and goes on with it in the next iteration, under new weights, so that their context is prefilled again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.rl.resume import joined, remainder, subset
from planner.rl.rollout import RolloutPolicy, Trajectories, Worker, simulate

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One rollout: its time, the tokens trained on, and how many of them older weights made; tokens thrown away."""

    generation_s: float
    tokens: int
    stale_tokens: int
    wasted_tokens: int
    carried: int


def successive(
    workers: tuple[Worker, ...],
    fresh: Sequence[Trajectories],
    samples: int,
    *,
    keep: bool,
    policy: RolloutPolicy | None = None,
) -> list[Iteration]:
    """Every iteration starts what is carried over, then as many of its `fresh` trajectories as make up their number.

    With `keep`, unfinished trajectories are carried over, those under way before those that had not started. Samples
    are taken as they finish, so that short ones are over-represented when they are not kept.
    """
    found: list[Iteration] = []
    carried: Trajectories | None = None
    made_before = np.zeros(0, np.int64)
    for batch in fresh:
        waiting = carried.size if carried is not None else 0
        new = subset(batch, np.arange(max(0, batch.size - waiting)))
        pool = joined([carried, new]) if carried is not None else new
        made_before = np.append(made_before, np.zeros(new.size, np.int64))
        result = simulate(workers, pool, [np.arange(pool.size)], policy, stop_after=min(samples, pool.size))
        done = np.flatnonzero(np.isfinite(result.done_s_N))
        total_N = pool.remaining_T[pool.first_N[:-1]]
        made_N = total_N - np.where(
            np.isfinite(result.done_s_N), 0, pool.remaining_T[pool.first_N[:-1] + result.turn_N] - result.made_N
        )
        rest = np.flatnonzero(np.isinf(result.done_s_N))
        rest = rest[np.argsort(result.worker_N[rest] < 0, kind="stable")]
        found.append(
            Iteration(
                generation_s=result.end_s,
                tokens=int((total_N + made_before)[done].sum()),
                stale_tokens=int(made_before[done].sum()),
                wasted_tokens=0 if keep else int(made_N[rest].sum()),
                carried=len(rest) if keep else 0,
            )
        )
        carried = remainder(pool, result, rest) if keep and len(rest) else None
        made_before = (made_before + made_N)[rest] if carried is not None else np.zeros(0, np.int64)
    return found
