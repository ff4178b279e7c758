"""Over-sampling and partial rollouts: successive rollouts that start more samples than an iteration trains on.

An iteration ends when `samples` are done. Over-sampling throws the others away; a partial rollout keeps what they made
and goes on with it in the next iteration, under new weights, so that their context is prefilled again.

Array suffixes: D samples that are done, N all of a rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.plan import GenerationGroup
from planner.rl.problem import RlProblem
from planner.rl.rollouts.resume import joined, remainder, subset
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker, simulate
from planner.rl.training import Rollout, minibatches_of
from planner.rl.trajectories import Trajectories


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """One rollout: its time, the output tokens trained on, and how many of them older weights made; tokens thrown away.

    `started` is what it goes on with, then what it begins; `oldest` counts iterations since the first weights that a
    sample trained on was made with.
    """

    started: Trajectories
    generation_s: float
    tokens: int
    stale_tokens: int
    wasted_tokens: int
    carried: int
    oldest: int
    done_s_D: Floats
    context_D: Ints  # tokens of each sample trained on

    def retimed(self, done_s_N: Floats) -> "Iteration":
        """The same with what it starts done at other times [N]; as many, the first to finish, are trained on."""
        done = np.argsort(done_s_N, kind="stable")[: len(self.done_s_D)]
        end_s = float(done_s_N[done[-1]])
        return replace(self, generation_s=end_s, done_s_D=done_s_N[done], context_D=self.started.final_context_N[done])


def successive(
    workers: tuple[RolloutWorker, ...],
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
    iterations: list[Iteration] = []
    carried: Trajectories | None = None
    made_before, age = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for batch in fresh:
        waiting = carried.size if carried is not None else 0
        new = subset(batch, np.arange(max(0, batch.size - waiting)))
        pool = joined([carried, new]) if carried is not None else new
        none = np.zeros(new.size, np.int64)
        made_before, age = np.append(made_before, none), np.append(age, none)
        result = simulate(workers, pool, [np.arange(pool.size)], policy, stop_after=min(samples, pool.size))
        is_done_N = np.isfinite(result.done_s_N)
        done, rest = np.flatnonzero(is_done_N), np.flatnonzero(~is_done_N)
        rest = rest[np.argsort(result.worker_N[rest] < 0, kind="stable")]
        total_N = pool.remaining_T[pool.first_N[:-1]]
        left_N = pool.remaining_T[pool.first_N[:-1] + result.turn_N] - result.made_N
        made_N = total_N - np.where(is_done_N, 0, left_N)
        iterations.append(
            Iteration(
                started=pool,
                generation_s=result.end_s,
                tokens=int((total_N + made_before)[done].sum()),
                stale_tokens=int(made_before[done].sum()),
                wasted_tokens=0 if keep else int(made_N[rest].sum()),
                carried=len(rest) if keep else 0,
                oldest=int(age[done].max(initial=0)),
                done_s_D=result.done_s_N[done],
                context_D=pool.final_context_N[done],
            )
        )
        carried = remainder(pool, result, rest) if keep and len(rest) else None
        made_before = (made_before + made_N)[rest] if carried is not None else np.zeros(0, np.int64)
        age = np.where(made_before > 0, age[rest] + 1, 0) if carried is not None else np.zeros(0, np.int64)
    return iterations


def partial_iterations(problem: RlProblem, group: GenerationGroup) -> list[Iteration]:
    """Partial rollouts of the batches of `problem`, one after the other; the first has nothing carried over."""
    fresh = [batch.trajectories for batch in problem.batches]
    return successive((RolloutWorker(group.option.curve),) * group.replicas, fresh, problem.trained_samples, keep=True)


def partial_rollout(problem: RlProblem, group: GenerationGroup) -> Rollout:
    """What training needs of them."""
    return rollout_of_iterations(partial_iterations(problem, group), problem.minibatches)


def rollout_of_iterations(iterations: Sequence[Iteration], minibatches: int) -> Rollout:
    """What training in so many minibatches needs of them."""
    parts = [minibatches_of(iteration.done_s_D, iteration.context_D, minibatches) for iteration in iterations]
    rollout = Rollout(
        np.array([iteration.generation_s for iteration in iterations]),
        np.stack([tokens for tokens, _ in parts]).astype(float),
        np.stack([ready for _, ready in parts]),
    )
    return replace(rollout, oldest=max(iteration.oldest for iteration in iterations))
