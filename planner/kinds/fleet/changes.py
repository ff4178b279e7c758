"""What moves when the split of a day changes: nodes that jobs give up and take, in an order with room, and its cost.

A node has one job. Nodes are given up first, then taken: jobs that get more nodes of a pool give up none there
(`placed`), so that they keep as many at every step as they have both before and afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

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


def changes_of(
    day: FleetDay,
    shares_KWP: Sequence[Sequence[Share]],
    held_KW: Sequence[Sequence[Held]],
    stretches: Sequence[tuple[int, float, float]],
) -> Iterator[Change]:
    """Every change behind the start of the day."""
    names, pools = [job.spec.name for job in day.jobs], day.resolved.pools
    bytes_KP = [_bytes_of_a_node(day, job) for job in day.jobs]
    for window, start_s, _ in stretches[1:]:
        before_K, after_K = ([row[w] for row in held_KW] for w in (window - 1, window))
        drops = list(_moves("drop", names, before_K, after_K, pools))
        brings = list(_moves("bring", names, after_K, before_K, pools))
        brought = [(bytes_KP[names.index(move.job)][p], pools[p]) for p, move in brings]
        lost_hours, lost_usd = _lost(day, shares_KWP, window)
        yield Change(
            at=clock(start_s),
            moves=tuple(move for _, move in (*drops, *brings)),
            moved_bytes=sum(each for each, _ in brought),
            least_s=max((_least_s(each, pool) for each, pool in brought), default=0.0),
            lost_node_hours=lost_hours,
            lost_usd=lost_usd,
        )


def _moves(
    action: Literal["drop", "bring"],
    names: Sequence[str],
    held_K: Sequence[Held],
    other_K: Sequence[Held],
    pools: Sequence[Pool],
) -> Iterator[tuple[int, NodeMove]]:
    """The nodes that jobs have of `held_K` alone, each with the place of its pool."""
    nodes = [
        (name, p, node)
        for name, held, other in zip(names, held_K, other_K, strict=True)
        for p, own in enumerate(held)
        for node in own - other[p]
    ]
    for name, p, node in sorted(nodes, key=lambda row: (f"{row[0]}@{pools[row[1]].name}", str(row[2]))):
        yield p, NodeMove(job=name, action=action, pool=pools[p].name, node=node)


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


def _least_s(brought_bytes: float, pool: Pool) -> float:
    """The time in which the network of a node can bring what it is to hold."""
    return brought_bytes / (pool.node.nic_bandwidth_bytes_per_s * pool.node.num_gpus)


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
