"""Rebuilds an RL problem for its check: given cost curves, and all else as the problem states it."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf

from planner.hardware.cluster import Pool
from planner.kinds.rl.agents.stated import agent_modes
from planner.kinds.rl.drawn import generated, samples
from planner.kinds.rl.options import RlOptions, Synchrony
from planner.problem.schema import Problem
from planner.rl.curves import CurvePool, Curves
from planner.rl.plan import Placement, RlMode, Sync
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.trajectories import SampleBatch


def stated_problem(
    problem: Problem, options: RlOptions, pools: Sequence[Pool], curves: Curves, batches: tuple[SampleBatch, ...]
) -> RlProblem:
    """What is searched. `check` makes it again from the problem and the curves that a plan carries."""
    return RlProblem(
        pools=tuple(_curve_pool(problem, options, pool) for pool in pools),
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
        dispatch="predicted_longest_first" if ranked(options) else "fifo",
        max_groups=2 if options.tail_fractions else 1,
        tail_fractions=options.tail_fractions,
        samples=None if generated(options) == samples(options) else samples(options),
        equal_shares=options.equal_shares,
        policies=policies(options, curves),
        late_thresholds=options.late_thresholds,
        late_change_s=options.late_change_s,
        partial=options.partial_rollouts,
        max_staleness=options.max_staleness if options.partial_rollouts else None,
        scoring=curves.scoring,
        fusion_thresholds=options.fusion_thresholds,
        samples_per_prompt=options.samples_per_prompt,
        services=(*curves.services, *curves.learners),
    )


def _curve_pool(problem: Problem, options: RlOptions, pool: Pool) -> CurvePool:
    """A pool as the search sees it; host memory counts where a model is priced on it, nodes where roles fill them."""
    host_bytes = pool.node.host_memory_bytes / pool.node.num_gpus if problem.models else inf
    node_gpus = pool.node.num_gpus if options.whole_nodes else 0
    domain_K = pool.domain_of_node[pool.job_devices // pool.node.num_gpus].tolist()
    return CurvePool(
        pool.name,
        usable_gpus(problem, pool),
        pool.usd_per_gpu_hour or 0.0,
        host_bytes,
        node_gpus,
        domains=tuple(len(list(run)) for _, run in groupby(domain_K)),
        domain_gpus=max(pool.node.num_gpus, pool.node.scale_up_size),
    )


def ranked(options: RlOptions) -> bool:
    """Whether samples are handed out by their predicted lengths."""
    return options.length_error is not None or options.dispatch == "longest_first"


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
    if options.agents is not None:
        return tuple(agent_modes(options.agents, options.arrangements, options.synchrony))
    synchrony = options.synchrony or ("synchronous", "stream", "asynchronous")
    if "one_step" in synchrony or options.costs.weight_sync or options.generation_only:
        return tuple(_in_order(options, synchrony))
    allowed: list[RlMode] = []
    for placement in ("colocated", "hybrid"):
        if placement in options.arrangements and "synchronous" in synchrony:
            allowed += _in_turn(placement, options)
    if "disaggregated" in options.arrangements:
        allowed += [RlMode("disaggregated", "sync")] if "synchronous" in synchrony else []
        allowed += [RlMode("disaggregated", "stream_sync")] if "stream" in synchrony else []
        ahead = range(1, options.max_staleness + 1) if "asynchronous" in synchrony else ()
        allowed += [ahead_by(staleness, options) for staleness in ahead]
    return tuple(allowed)


def _in_turn(placement: Placement, options: RlOptions) -> list[RlMode]:
    """Generation and training take turns on the same GPUs; engines sleep in each way that is to be tried."""
    return [RlMode(placement, "sync", keeps=sleep == "host") for sleep in dict.fromkeys(options.engine_sleep)]


def ahead_by(staleness: int, options: RlOptions) -> RlMode:
    """Generation so many iterations ahead of training; its engines decode nothing while their weights change."""
    return RlMode("disaggregated", "k_step_async", staleness, options.in_flight_updates, stops=True)


SYNCHRONOUS: dict[str, Sync] = {"synchronous": "sync", "stream": "stream_sync", "one_step": "one_step_async"}


def _in_order(options: RlOptions, synchrony: tuple[Synchrony, ...]) -> Iterator[RlMode]:
    """Every pair as the problem lists them; generation alone has one."""
    if options.generation_only:
        yield RlMode("disaggregated", "sync")
        return
    for arrangement in options.arrangements:
        for kept in synchrony:
            if kept == "asynchronous":
                ahead = range(1, options.max_staleness + 1) if arrangement == "disaggregated" else ()
                yield from (ahead_by(staleness, options) for staleness in ahead)
            elif arrangement == "disaggregated":
                yield RlMode(arrangement, SYNCHRONOUS[kept], int(kept == "one_step"))
            elif kept == "synchronous":
                yield from _in_turn(arrangement, options)
