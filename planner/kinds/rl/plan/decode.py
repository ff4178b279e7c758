"""Turns a solution of the RL search into a plan's decision."""

from math import isfinite
from typing import Any

from planner.kinds.rl.agents.stated import dispatch_of, rollouts_of, threshold_of
from planner.kinds.rl.decision import RlDecision, Turns, WeightSync
from planner.kinds.rl.names import priority_of
from planner.kinds.rl.options import Synchrony
from planner.kinds.rl.plan.phases import phases
from planner.kinds.rl.plan.placement import placement
from planner.kinds.rl.plan.roles import roles
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.simulated_parts import in_flight_updates, partial_rollouts
from planner.rl.evaluate import host_bytes, sleep_s

_SYNCHRONY: dict[str, Synchrony] = {
    "sync": "synchronous", "stream_sync": "stream", "k_step_async": "asynchronous", "one_step_async": "one_step"
}  # fmt: skip


def decode(solved: Solved) -> RlDecision:
    """The decision; it knows no solver."""
    tail = solved.plan.tail_fraction if len(solved.rollout_names) > 1 else 0.0
    return RlDecision(
        roles=tuple(roles(solved)),
        placement=tuple(placement(solved)),
        phases=tuple(phases(solved)),
        algorithm=solved.setting.options.algorithm,
        arrangement=solved.arrangement,
        synchrony=_SYNCHRONY[solved.plan.mode.sync],
        staleness=solved.plan.mode.staleness if solved.asynchronous else 0,
        minibatches=solved.setting.options.minibatches,
        **_policies(solved),
        tail_share=tail,
        turns=_turns_taken(solved),
        resident_bytes=_resident_bytes(solved),
        weight_sync=_weight_sync(solved),
        partial_rollouts=partial_rollouts(solved.formulated.problem, solved.plan),
        in_flight_updates=in_flight_updates(solved.formulated.problem, solved.plan),
        late_rollout=solved.late,
        fused_scoring=solved.fused,
        fused_training=solved.fused_training,
        served_scoring=solved.served,
        shares=_shares(solved, tail),
        rollout_scales=dict(solved.formulated.scales) or None,
    )


def _policies(solved: Solved) -> dict[str, Any]:
    """How samples are handed out, wait and move."""
    policy, agents = solved.plan.policy, solved.agents
    if agents is not None:
        return {
            "dispatch": dispatch_of(agents),
            "priority": agents.priority,
            "move_threshold": threshold_of(agents),
            "agents": rollouts_of(agents, solved.evaluation),
        }
    return {
        "dispatch": "fifo" if solved.formulated.problem.dispatch == "fifo" else "longest_first",
        "priority": priority_of(policy) if policy is not None else "fifo",
        "move_threshold": policy.move_threshold if policy is not None and isfinite(policy.move_threshold) else None,
    }


def _resident_bytes(solved: Solved) -> dict[str, float]:
    """What trained models keep on a GPU between their turns, by role, where generation runs elsewhere."""
    if solved.takes_turns or solved.plan.training is None:
        return {}
    kept = {helper.part: helper.kept_bytes for helper in solved.trainer.helpers}
    if kept and solved.modelled_training:
        kept["actor"] = float(solved.trainer.memory(solved.training.dp).state_R.max())
    return kept


def _turns_taken(solved: Solved) -> Turns | None:
    """What moves to the host and back, where generation and training are priced and share devices, and the problem says
    how engines sleep or what hosts take."""
    options = solved.setting.options
    asked = "host" in options.engine_sleep or options.host_bandwidth_bytes_per_s is not None
    if not asked or not solved.takes_turns or not solved.modelled_training:
        return None
    pool, option, keeps = solved.pool(solved.training.option.pool), solved.training.option, solved.plan.mode.keeps
    waiting = sum(helper.weights_bytes for helper in solved.trainer.helpers if helper.offloaded)
    moved_s = option.offload_s + option.offload_sharded_s / solved.training.dp
    return Turns(
        engine_weights="host" if keeps else "drop",
        engine_bytes=max(group.option.host_bytes for group in solved.plan.groups) if keeps else 0.0,
        training_bytes=solved.training.host_bytes - waiting,
        moved_s=moved_s + (sleep_s(solved.plan) if keeps else 0.0),
        host_bytes=host_bytes(solved.plan),
        host_capacity_bytes=pool.node.host_memory_bytes / pool.node.num_gpus,
    )


def _shares(solved: Solved, tail: float) -> dict[str, float]:
    """Of the samples, by the role that starts them; none where there is only one, or where agents share queues."""
    if solved.agents is not None:
        return {}
    names = solved.rollout_names
    if len(names) > 1:
        return {names[0]: 1.0 - tail, names[1]: tail}
    return {names[0]: 1.0} if solved.plan.late is not None else {}


def _weight_sync(solved: Solved) -> WeightSync:
    if solved.plan.training is None:
        return WeightSync(method="broadcast")
    across = {group.option.pool for group in solved.plan.groups} != {solved.training.option.pool}
    return WeightSync(
        method="reshard" if solved.takes_turns else "relay" if across else "broadcast",
        duration_s=solved.evaluation.handover_s,
        overlapped=solved.asynchronous and solved.formulated.problem.weight_sync_overlapped,
    )
