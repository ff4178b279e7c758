"""Rebuilds an RL problem for its check: given cost curves, and all else as the problem states it."""

from collections.abc import Sequence
from math import inf

from planner.hardware.cluster import Pool
from planner.kinds.rl.decision import RlOptions
from planner.kinds.rl.drawn import generated, samples
from planner.problem.schema import Problem
from planner.rl.curves import CurvePool, Curves
from planner.rl.plan import RlMode
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.trajectories import SampleBatch


def stated_problem(
    problem: Problem, options: RlOptions, pools: Sequence[Pool], curves: Curves, batches: tuple[SampleBatch, ...]
) -> RlProblem:
    """What is searched. `check` makes it again from the problem and the curves that a plan carries."""
    return RlProblem(
        pools=tuple(CurvePool(pool.name, usable_gpus(problem, pool), pool.usd_per_gpu_hour or 0.0) for pool in pools),
        generation=curves.generation,
        training=curves.training,
        batches=batches,
        minibatches=options.minibatches,
        modes=modes(options),
        weight_sync_s=curves.weight_sync_s,
        weight_sync_overlapped=options.weight_sync_overlapped,
        switch_s=curves.switch_s,
        objective="iteration_time" if problem.objective.minimize == "iteration_time" else "cost_per_iter",
        max_iteration_s=options.max_iteration_s,
        dispatch="fifo" if options.length_error is None else "predicted_longest_first",
        max_groups=2 if options.tail_fractions else 1,
        tail_fractions=options.tail_fractions,
        samples=None if generated(options) == samples(options) else samples(options),
        equal_shares=True,
        policies=policies(options, curves),
        late_thresholds=options.late_thresholds,
        late_change_s=options.late_change_s,
        partial=options.partial_rollouts,
        max_staleness=options.max_staleness if options.partial_rollouts else None,
        scoring=curves.scoring,
        fusion_thresholds=options.fusion_thresholds,
    )


def policies(options: RlOptions, curves: Curves) -> tuple[RolloutPolicy, ...]:
    """How samples that call tools may wait and move; none where the problem leaves no choice."""
    tools = options.tools
    if tools is None or (tools.priorities == ("fifo",) and not tools.move_thresholds):
        return ()
    return tuple(
        RolloutPolicy(True, priority == "longest_first", threshold, curves.move_s, curves.move_token_s)
        for priority in dict.fromkeys(tools.priorities)
        for threshold in (inf, *dict.fromkeys(tools.move_thresholds))
    )


def usable_gpus(problem: Problem, pool: Pool) -> int:
    """GPUs of the pool that one job may use, capped by the limits."""
    usable, cap = len(pool.job_devices), problem.limits.gpus
    return usable if cap is None else min(usable, cap)


def modes(options: RlOptions) -> tuple[RlMode, ...]:
    """Arrangements with the synchrony that goes with them; none where nothing does."""
    synchrony = options.synchrony or ("synchronous", "stream", "asynchronous")
    allowed: list[RlMode] = []
    if "colocated" in options.arrangements and "synchronous" in synchrony:
        allowed.append(RlMode("colocated", "sync"))
    if "hybrid" in options.arrangements and "synchronous" in synchrony:
        allowed.append(RlMode("hybrid", "sync"))
    if "disaggregated" in options.arrangements:
        allowed += [RlMode("disaggregated", "sync")] if "synchronous" in synchrony else []
        allowed += [RlMode("disaggregated", "stream_sync")] if "stream" in synchrony else []
        ahead = range(1, options.max_staleness + 1) if "asynchronous" in synchrony else ()
        allowed += [RlMode("disaggregated", "k_step_async", staleness) for staleness in ahead]
    return tuple(allowed)
