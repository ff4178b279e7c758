"""Evaluates an RL plan exactly: rules that it breaks, iteration time and cost."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.rl.curves import NEVER_FITS, Learner
from planner.rl.generation import batch_finish_times, cut_rollouts, group_queues, queue_order
from planner.rl.in_flight import flows
from planner.rl.layout.domains import straddling
from planner.rl.layout.roles import laid_roles
from planner.rl.partial import partial_rollout
from planner.rl.plan import Fusion, GenerationGroup, Halves, LateReplicas, RlEvaluation, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.rollouts.fusion import FusedTimes
from planner.rl.services import charged_gpus, gpus_of_services, learner_of, service_roles, service_sets
from planner.rl.training import (
    Rollout,
    TrainingTable,
    fused_rollout_of,
    iteration_s,
    minibatch_parts_s,
    minibatch_s,
    rollout_of,
)
from planner.rl.trajectories import SampleBatch

SECONDS_PER_HOUR = 3600.0


def evaluate(problem: RlProblem, plan: RlPlan) -> RlEvaluation:
    """`plan` priced under `problem`; rules that it breaks are listed, and its times are given all the same."""
    rollout = _rollout(problem, plan)
    evaluation = priced(problem, plan, rollout)
    broken = (*_broken(problem, plan, evaluation), *_too_old(problem, plan, rollout))
    return replace(evaluation, broken=broken)


def priced(problem: RlProblem, plan: RlPlan, rollout: Rollout) -> RlEvaluation:
    """`plan` with this rollout, whatever rules it breaks."""
    used = gpus_of_pool(plan)
    generation_B = rollout.generation_s_B
    if plan.training is None:
        iteration, train_B, handover = float(rollout.whole_s_B.mean()), np.zeros(len(generation_B)), 0.0
        halves = None
    else:
        table = TrainingTable.of((plan.training,), [pool.name for pool in problem.pools], problem.bubbles)
        table = table if plan.fusion is None else table.unscored()
        learner = learner_of(plan.services)
        work = minibatch_s(table, rollout.tokens_BK, learner)
        halves = None if learner is None else _halves(table, learner, rollout.tokens_BK)
        handover = handover_s(problem, plan)
        overlapped = problem.weight_sync_overlapped
        iteration = float(iteration_s(plan.mode, rollout, work, np.array([handover]), overlapped=overlapped)[0])
        train_B = work[0].sum(axis=1)
    charged = {name: float(count) for name, count in used.items()}
    for name, count in gpus_of_services(plan.services).items():
        charged[name] += charged_gpus(plan.services)[name] - count
    cost = hourly_usd(problem, charged) * iteration / SECONDS_PER_HOUR
    return RlEvaluation(
        objective=iteration if problem.objective == "iteration_time" else cost,
        iteration_s=iteration,
        cost_usd=cost,
        generation_s=_generation_s(plan.mode, rollout),
        training_s=float(train_B.mean()),
        handover_s=handover,
        gpus_of_pool=used,
        broken=(),
        generation_s_of_batch=tuple(generation_B.tolist()),
        training_s_of_batch=tuple(train_B.tolist()),
        scored_s=float(rollout.whole_s_B.mean()),
        handed_s=0.0 if rollout.handed_s_B is None else float(rollout.handed_s_B.mean()),
        halves=halves,
    )


def _halves(table: TrainingTable, learner: Learner, tokens_BK: Floats) -> Halves:
    """What actor and critic take by themselves, means over the batches."""
    parts = (*minibatch_parts_s(table, tokens_BK), *minibatch_parts_s(TrainingTable.of_learner(learner), tokens_BK))
    return Halves(*(float(part[0].sum(axis=1).mean()) for part in parts))


def _generation_s(mode: RlMode, rollout: Rollout) -> float:
    """Of a mean iteration; where samples flow, what generators take for a batch, drained or not."""
    drained_s = float(rollout.generation_s_B.mean())
    return min(drained_s, rollout.flows[mode.staleness].generation_s) if mode.in_flight else drained_s


def _rollout(problem: RlProblem, plan: RlPlan) -> Rollout:
    """Its generation, batch by batch or carried over; plain where a rule stands against the fusion of the plan."""
    if problem.partial:
        return partial_rollout(problem, plan.groups[0], plan.services)
    parts, needed = problem.minibatches if plan.training is not None else 1, problem.trained_samples
    fused = fused_times_of(problem, plan)
    if fused is not None and None not in fused:
        return fused_rollout_of(problem.batches, fused, parts, needed, plan.services)
    rollout = rollout_of(problem.batches, finish_times_of(problem, plan), parts, needed, plan.services)
    return replace(rollout, flows=flows(problem, plan.groups, (plan.mode,), plan.services))


def finish_times_of(problem: RlProblem, plan: RlPlan) -> list[Floats]:
    """When each sample of each batch is generated; plain where the change of the plan late in a rollout cannot be."""
    finish_s = [
        batch_finish_times(batch, plan.groups, problem.dispatch, plan.tail_fraction, plan.policy)
        for batch in problem.batches
    ]
    if plan.late is None:
        return finish_s
    late = late_done_s(problem, plan.groups[0], plan.late)
    return [plain if changed is None else changed for changed, plain in zip(late, finish_s, strict=True)]


def late_done_s(problem: RlProblem, group: GenerationGroup, late: LateReplicas) -> list[Floats | None]:
    """When each sample of each batch is done; None where the change cannot be."""
    return [rollouts.late_done_s(late, problem.late_change_s) for rollouts in cut_rollouts(problem, group)]


def fused_times_of(problem: RlProblem, plan: RlPlan) -> list[FusedTimes | None] | None:
    """Fused times by batch, None where the samples left do not fit; None for plans that do not fuse, or must not."""
    scoring = problem.scoring_on(plan.groups[0].option.pool, plan.services)
    if plan.fusion is None or scoring is None:
        return None
    return [rollouts.fused(plan.fusion, scoring) for rollouts in cut_rollouts(problem, plan.groups[0])]


def gpus_of_pool(plan: RlPlan) -> dict[str, int]:
    """GPUs that `plan` takes of each pool; generation and training share them unless disaggregated."""
    generating = _sum_by_pool(plan.groups)
    training = _sum_by_pool((plan.training,)) if plan.training is not None else {}
    apart = gpus_of_services(plan.services)
    pools = sorted(generating.keys() | training.keys() | apart.keys())
    beside = operator.add if plan.mode.placement == "disaggregated" else max
    return {pool: beside(generating.get(pool, 0), training.get(pool, 0)) + apart.get(pool, 0) for pool in pools}


def _sum_by_pool(parts: tuple[GenerationGroup | TrainingChoice, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        total[part.option.pool] = total.get(part.option.pool, 0) + part.gpus
    return total


def hourly_usd(problem: RlProblem, gpus: Mapping[str, float]) -> float:
    """What the GPUs cost an hour."""
    pools = problem.pool_of
    return sum(count * pools[name].usd_per_gpu_hour for name, count in gpus.items())


def handover_s(problem: RlProblem, plan: RlPlan) -> float:
    """From the end of training to the next generation: new weights sent, or turns taken; both where some are shared."""
    if plan.training is None:
        return 0.0
    option = plan.training.option
    turns = problem.switch_s + option.offload_s + option.offload_sharded_s / plan.training.dp
    turns += sleep_s(plan) if plan.mode.keeps else 0.0
    if plan.mode.placement == "colocated":
        return turns
    sync = weight_sync_s(problem, {group.option.pool for group in plan.groups}, option.pool)
    return (sync if sync is not None else 0.0) + (turns if plan.mode.placement == "hybrid" else 0.0)


def sleep_s(plan: RlPlan) -> float:
    """Both moves of the weights of engines that sleep with them on the host; those that move longest."""
    groups = [*plan.groups] if plan.late is None else [*plan.groups, plan.late.group]
    return max(group.option.sleep_s for group in groups)


def host_bytes(plan: RlPlan) -> float:
    """Host memory that a plan whose roles take turns needs for each GPU, at most."""
    assert plan.training is not None
    states = plan.training.host_bytes
    if not plan.mode.keeps:
        return states
    return states + max(group.option.host_bytes for group in plan.groups)


def weight_sync_s(problem: RlProblem, generating: set[str], training: str) -> float | None:
    """Seconds until new weights are everywhere, set by pools apart from the trainer's; None without a network."""
    apart = [(pool, training) for pool in generating if pool != training] or [(training, training)]
    if any(pair not in problem.weight_sync_s for pair in apart):
        return None
    return max(problem.weight_sync_s[pair] for pair in apart)


def _broken(problem: RlProblem, plan: RlPlan, evaluation: RlEvaluation) -> Iterator[str]:
    yield from broken_pools(problem, evaluation.gpus_of_pool)
    yield from broken_places(problem, plan, evaluation.gpus_of_pool)
    if plan.policy is not None and plan.policy not in problem.policies:
        yield "samples wait or move by a policy that is not allowed"
    if plan.mode not in problem.modes:
        yield f"`{plan.mode.placement}` with `{plan.mode.sync}` is not allowed"
    yield from _broken_lengths(problem, plan)
    if plan.mode.in_flight and (len(plan.groups) > 1 or plan.late is not None):
        yield "samples flow through one group of replicas, which end no rollout"
    if plan.training is not None:
        yield from broken_training(problem, plan, plan.training)
    if plan.fusion is not None:
        yield from _broken_fusion(problem, plan, plan.fusion)
    if plan.late is not None:
        yield from _broken_late(problem, plan, plan.late)
    if plan.services not in service_sets(problem.services, [plan.training.option] if plan.training is not None else []):
        yield "services that the problem does not offer, or that do not go with the training, score samples"
    yield from broken_deadline(problem, evaluation)


def broken_pools(problem: RlProblem, used: dict[str, int]) -> Iterator[str]:
    """Rules about the GPUs of pools."""
    pools = problem.pool_of
    for name, count in used.items():
        if count > pools[name].gpus:
            yield f"pool `{name}` has {pools[name].gpus} GPUs, the plan takes {count}"


def broken_places(problem: RlProblem, plan: RlPlan, used: dict[str, int]) -> Iterator[str]:
    """Rules about whole nodes and scale-up domains; `used` are GPUs of a pool that the plan takes."""
    roles = [(group.option.pool, group.gpus, group.option.gpus) for group in plan.groups]
    if plan.training is not None:
        roles.append((plan.training.option.pool, plan.training.gpus, plan.training.option.tp))
    for name, gpus, replica in (*roles, *service_roles(plan.services)):
        pool = problem.pool_of[name]
        if not pool.fills_nodes(gpus, replica) and used[name] > pool.whole_node_gpus:
            yield f"{gpus} GPUs of pool `{name}`, in replicas of {replica}, fill no nodes of {pool.whole_node_gpus}"
    for laid in laid_roles(plan):
        if straddling(problem.pool_of[laid.pool], laid):
            widths = " and ".join(map(str, dict.fromkeys(laid.widths)))
            yield f"groups of {widths} from GPU {laid.first} of pool `{laid.pool}` on straddle scale-up domains"


def broken_deadline(problem: RlProblem, evaluation: RlEvaluation) -> Iterator[str]:
    """The rule about the longest iteration."""
    most, iteration = problem.max_iteration_s, evaluation.iteration_s
    if most is not None and iteration > most:
        yield f"the iteration takes {iteration:.6g} s, at most {most:.6g} s allowed"


def _too_old(problem: RlProblem, plan: RlPlan, rollout: Rollout) -> Iterator[str]:
    behind = plan.mode.staleness + rollout.oldest
    if problem.max_staleness is not None and behind > problem.max_staleness:
        yield f"samples begin {behind} iterations before they are trained on, at most {problem.max_staleness} allowed"


def _broken_late(problem: RlProblem, plan: RlPlan, late: LateReplicas) -> Iterator[str]:
    early = plan.groups[0]
    alike = (early.option.pool, early.gpus) == (late.group.option.pool, late.group.gpus)
    if len(plan.groups) > 1 or not alike or early == late.group or problem.samples is not None:
        yield "late replicas are others of the same GPUs, of one group, without over-sampling"
    if late.threshold not in problem.late_thresholds or plan.fusion is not None:
        yield f"a share of {late.threshold:g} left is no threshold of other replicas, or they would score too"
    if any(done_s is None for done_s in late_done_s(problem, early, late)):
        yield f"the samples left at a share of {late.threshold:g} do not fit on the late replicas"


def _broken_fusion(problem: RlProblem, plan: RlPlan, fusion: Fusion) -> Iterator[str]:
    if plan.mode.placement == "disaggregated" or len(plan.groups) > 1 or problem.samples is not None:
        yield "scoring beside generation takes one group of replicas, turns with training, and no over-sampling"
    if fusion.threshold not in problem.fusion_thresholds:
        yield f"a share of {fusion.threshold:g} left is no threshold that is allowed"
    if not 0 < fusion.kept < plan.groups[0].replicas:
        yield f"{fusion.kept} of {plan.groups[0].replicas} replicas are kept"
    times = fused_times_of(problem, plan)
    if times is None:
        yield f"nothing is scored on pool `{plan.groups[0].option.pool}`"
    elif None in times:
        yield f"the samples left at a share of {fusion.threshold:g} do not fit on {fusion.kept} replicas"


def _broken_lengths(problem: RlProblem, plan: RlPlan) -> Iterator[str]:
    if any(group.replicas < 1 for group in plan.groups):
        yield "a generation group has no replica"
    for batch in problem.batches:
        for group, longest in zip(plan.groups, _longest(problem, plan, batch), strict=True):
            if longest > group.option.curve.kv_tokens:
                yield f"a sample of {longest} tokens exceeds the {group.option.curve.kv_tokens} of its replica"


def _longest(problem: RlProblem, plan: RlPlan, batch: SampleBatch) -> list[int]:
    total_N = batch.tokens_N
    if len(plan.groups) == 1:
        queues = [queue_order(batch, problem.dispatch)]
    else:
        queues = list(group_queues(batch, problem.dispatch, plan.tail_fraction))
    return [int(total_N[queue_Q].max(initial=0)) for queue_Q in queues]


def broken_training(problem: RlProblem, plan: RlPlan, training: TrainingChoice) -> Iterator[str]:
    """Rules about the samples of a minibatch, memory, and how training and generation lie to each other."""
    limit = problem.trained_samples // problem.minibatches
    if training.dp > limit:
        yield f"dp {training.dp} for {limit} samples a minibatch"
    elif problem.equal_shares and limit % (training.dp * training.option.ranks):
        yield f"{training.dp * training.option.ranks} ranks do not divide {limit} samples a minibatch"
    if training.option.min_dp >= NEVER_FITS:
        yield f"tp {training.option.tp} pp {training.option.pp} fits in memory at no data parallelism"
    elif training.dp < training.option.min_dp:
        yield f"dp {training.dp} does not fit in memory, {training.option.min_dp} does"
    generating = {group.option.pool for group in plan.groups}
    room = problem.pool_of[training.option.pool].host_bytes
    if plan.mode.placement != "disaggregated" and host_bytes(plan) > room:
        yield f"what leaves the GPUs takes {host_bytes(plan):.4g} B of host memory for each, {room:.4g} B are there"
    if plan.mode.placement == "colocated":
        same = generating == {training.option.pool} and sum(group.gpus for group in plan.groups) == training.gpus
        if not same:
            yield "colocated generation and training need the same GPUs of one pool"
    elif weight_sync_s(problem, generating, training.option.pool) is None:
        yield "generation and training have no network in common"
