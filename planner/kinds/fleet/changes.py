"""What moves when the split of a day changes: nodes that jobs give up and take, in an order with room, and its cost.

Every node of a job is a copy of it on that node (`solvers.placement.regroup`, as placements move theirs), which fills
it; jobs keep as many nodes of a pool at every step as they have both before and afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.documents.units import clock
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.fleet.decision import Change, NodeMove
from planner.kinds.fleet.formulate import FleetDay, Share, loads, made, served
from planner.kinds.fleet.jobs import SECONDS, Job
from planner.kinds.fleet.placed import Held
from planner.kinds.registry import find_kind
from planner.plan.copies import role_copies
from planner.plan.schema import Envelope
from planner.solvers.placement.regroup import Copy, Regroup, order_moves

NODE = 1.0  # what a job takes of a node: all of it


def changes_of(
    day: FleetDay,
    shares_KWP: Sequence[Sequence[Share]],
    held_KW: Sequence[Sequence[Held]],
    stretches: Sequence[tuple[int, float, float]],
) -> Iterator[Change]:
    """Every change behind the start of the day."""
    names, pools = [job.spec.name for job in day.jobs], day.resolved.pools
    bytes_K = [_bytes_of_a_node(day, job) for job in day.jobs]
    for window, start_s, _ in stretches[1:]:
        problem = regroup(names, [row[window - 1] for row in held_KW], [row[window] for row in held_KW], pools, bytes_K)
        steps = order_moves(problem).solution or ()
        moves = tuple(
            NodeMove(
                job=step.copy.model.partition("@")[0],
                action="bring" if step.brought else "drop",
                pool=step.copy.devices[0][0],
                node=step.copy.devices[0][1],
            )
            for step in steps
        )
        lost_hours, lost_usd = _lost(day, shares_KWP, window)
        yield Change(
            at=clock(start_s),
            moves=moves,
            moved_bytes=sum(step.copy.brought_bytes for step in steps if step.brought),
            least_s=max((_least_s(step.copy, pools) for step in steps if step.brought), default=0.0),
            lost_node_hours=lost_hours,
            lost_usd=lost_usd,
        )


def regroup(
    names: Sequence[str],
    before_K: Sequence[Held],
    after_K: Sequence[Held],
    pools: Sequence[Pool],
    bytes_K: Sequence[Sequence[float]],
) -> Regroup:
    """What stands on nodes and what is to stand there, jobs of several pools apart."""

    def copies(held_K: Sequence[Held]) -> frozenset[Copy]:
        return frozenset(
            Copy(f"{name}@{pool.name}", ((pool.name, node),), NODE, by_pool[p])
            for name, held, by_pool in zip(names, held_K, bytes_K, strict=True)
            for p, pool in enumerate(pools)
            for node in held[p]
        )

    return Regroup(NODE, copies(before_K), copies(after_K))


def _bytes_of_a_node(day: FleetDay, job: Job) -> list[float]:
    """Weights that a node of a job holds, by pool, of its largest plan there; none where it has no plans."""
    held = [0.0] * len(day.resolved.pools)
    for (pool, nodes), plan in sorted(job.plans.items()):
        held[pool] = _weights(plan) / nodes
    return held


def _weights(plan: Envelope) -> float:
    """Bytes of all copies of models that a plan stands on; none of a plan that states no memory."""
    try:
        return sum(
            copy.brought_bytes for copy in role_copies(find_kind(plan.kind).decision.model_validate(plan.decision))
        )
    except PlannerError:
        return 0.0


def _least_s(copy: Copy, pools: Sequence[Pool]) -> float:
    """The time in which the network of a node can bring what it is to hold."""
    node = next(pool.node for pool in pools if pool.name == copy.devices[0][0])
    return copy.brought_bytes / (node.nic_bandwidth_bytes_per_s * node.num_gpus)


def _lost(day: FleetDay, shares_KWP: Sequence[Sequence[Share]], window: int) -> tuple[float, float]:
    """Hours of nodes that start up at the start of a window, and what is not made meanwhile at what a unit is worth."""
    hours = usd = 0.0
    for job, shares in zip(day.jobs, shares_KWP, strict=True):
        was, now = shares[window - 1], shares[window]
        if was == now:
            continue
        start_h = job.spec.start_up_s / SECONDS
        arriving = sum(max(after - before, 0) for before, after in zip(was, now, strict=True))
        hours += start_h * (sum(now) if job.restarts == "job" else arriving)
        usd += _lost_usd(day, job, was, now, window)
    return hours, usd


def _lost_usd(day: FleetDay, job: Job, was: Share, now: Share, window: int) -> float:
    """What a job makes in a window from the first minute on, less what it makes of it."""
    spec, options = job.spec, day.options
    at_once = replace(job, spec=spec.model_copy(update={"start_up_s": 0.0}))
    if spec.load is None:
        units = made(at_once, was, now, options) - made(job, was, now, options)
    else:
        load_LWS = loads(job, options)
        units = float(
            (served(at_once, load_LWS, was, now, options) - served(job, load_LWS, was, now, options))[:, window].mean()
        )
    value = (spec.usd_per_unit or 0.0) + (spec.usd_per_missing if spec.load is not None else 0.0)
    return max(units, 0.0) * value
