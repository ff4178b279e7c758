"""Mixes of GPU types as plans: solved, stated again from their own instances and slices, and checked.

Rates are those that an instance of each pool was measured to serve of each bucket within its limits, alone.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.errors import Conflict, Infeasible, PlannerError
from planner.kinds.place.decision import BucketSlices, PlaceDecision
from planner.kinds.place.envelope import bound_again, certificate, place_envelope
from planner.kinds.place.mix.types import mix_options, problem_of, size_of
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    Axis,
    Block,
    Engine,
    Envelope,
    Evidence,
    Objective,
    Parallelism,
    Prediction,
    Role,
)
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.placement.gpu_mix import GpuMix, cheapest_mix
from planner.solvers.result import Status

METRIC = "usd_per_hour"
SOLVER = "integer program over counted slices"
ROUNDING = 1e-9  # of an instance
OPEN = "the integer program ended before its bound met a mix"
SHARE_ROUNDS = 10  # of a bisection
BOUND = LeftOut("certificate.bound", "whether no mix costs less")
ASSUMPTIONS = (
    "an instance serves buckets side by side as far as the parts of its time add up to 1, as measured for each alone",
    "a slice of a bucket goes to one type; with failures, the other instances of every type serve all slices anew",
)
PHASES = "rates of prefill and decode instances contain what it takes to hand caches over"
SPOT = "where spot instances are gone, what is left of every type serves all slices anew, and no other instance fails"


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The cheapest mix; raises Infeasible where the pools have too few instances."""
    problem = problem_of(resolved)
    result = cheapest_mix(problem, time_limit_s=limits.time_limit_s)
    if result.solution is None:
        most = _most_share(problem, limits)
        conflict: list[Conflict] = [
            {
                "limit": f"{bucket.slices * bucket.rate_per_s:g}/s of `{bucket.name}`",
                "nearest": f"{most * bucket.slices * bucket.rate_per_s:.4g}/s" if most else "less of it",
            }
            for bucket in problem.buckets
        ]
        conflict.append({"limit": "GPUs of the pools", "nearest": "more of them, or fewer failures"})
        raise Infeasible(conflict, proved=result.status is Status.INFEASIBLE)
    instances, slices = result.solution.instances, result.solution.slices
    return envelope(resolved, problem, instances, slices, result.bound, stop_reason=result.stop_reason)


def _most_share(problem: GpuMix, limits: Limits) -> float:
    """About the most of all rates, alike, that some mix serves; 0 where not even a thousandth is."""
    low, high = 0.0, 1.0
    for _ in range(SHARE_ROUNDS):
        middle = (low + high) / 2.0
        buckets = tuple(replace(bucket, rate_per_s=middle * bucket.rate_per_s) for bucket in problem.buckets)
        part = cheapest_mix(replace(problem, buckets=buckets), time_limit_s=limits.time_limit_s)
        low, high = (low, middle) if part.solution is None else (middle, high)
    return low


def restate(resolved: Resolved, stated: Envelope, decision: PlaceDecision) -> Restated:
    """The plan of its own instances and slices; raises PlannerError for slices that no instances serve."""
    problem = problem_of(resolved)
    instances, slices = _chosen(problem, decision)
    _require_served(problem, instances, slices)
    _require_spare(problem, instances)
    bound, stop_reason = stated.certificate.bound, stated.certificate.stop_reason
    made = envelope(resolved, problem, instances, slices, bound, stop_reason=stop_reason)
    if bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem: solved again."""
    again = cheapest_mix(problem_of(resolved)).bound
    yield bound_again(stated.certificate, again, "its rates and prices")


def _require_served(problem: GpuMix, instances: Sequence[int], slices: Sequence[Sequence[int]]) -> None:
    """Refuses types with fewer instances than the slices take that they are sent, and slices that go nowhere."""
    for kind, count, row in zip(problem.types, instances, slices, strict=True):
        taken = sum(
            number * bucket.rate_per_s / rate if rate else float("inf")
            for number, bucket, rate in zip(row, problem.buckets, kind.rate_B, strict=True)
            if number
        )
        if taken > count + ROUNDING:
            what, hint = f"slices take {taken:.4g} of {count} instances of `{kind.name}`", "add an instance"
            raise PlannerError(what, where="decision.roles", hint=hint)
    for index, bucket in enumerate(problem.buckets):
        sent = {
            use: sum(row[index] for kind, row in zip(problem.types, slices, strict=True) if kind.use == use)
            for use in ("whole", "prefill", "decode")
        }
        if sent["whole"] + sent["prefill"] != bucket.slices:
            what = f"{sent['whole'] + sent['prefill']} of {bucket.slices} slices of `{bucket.name}` go to a type"
            raise PlannerError(what, where="decision.slices", hint="send all of them")
        if sent["prefill"] != sent["decode"]:
            what = f"{sent['prefill']} slices of `{bucket.name}` are prefilled apart, and {sent['decode']} decoded"
            raise PlannerError(what, where="decision.slices", hint="send each to both phases, or to neither")


def _require_spare(problem: GpuMix, instances: Sequence[int]) -> None:
    """Refuses instances too few of which are left when some fail or spot ones are gone, or that pools do not have."""
    available = {kind.name: count for kind, count in zip(problem.types, instances, strict=True)}
    alone = tuple(replace(kind, pool=kind.name, market="") for kind in problem.types)
    if cheapest_mix(GpuMix(alone, problem.buckets, available, 0, problem.failures)).solution is None:
        what = "not every slice is served when instances fail or spot ones are gone"
        raise PlannerError(what, where="decision.roles", hint="add an instance")
    counts = Counter[str]()
    for kind, count in zip(problem.types, instances, strict=True):
        counts.update(dict.fromkeys(kind.pools, count))
    for limits, right in ((problem.available, operator.le), (problem.at_least, operator.ge)):
        for pool, limit in limits.items():
            if not right(counts[pool], limit):
                name, market = pool.partition("\0")[::2]
                what = f"{counts[pool]} {market} instances of `{name}`, where {limit} are the limit".replace("  ", " ")
                raise PlannerError(what, where="decision.roles", hint="change their number")


def envelope(
    resolved: Resolved,
    problem: GpuMix,
    instances: Sequence[int],
    slices: Sequence[Sequence[int]],
    bound: float | None,
    *,
    stop_reason: str = "finished",
) -> Envelope:
    """The plan of a mix, without the types that it has none of."""
    value = sum(kind.cost * count for kind, count in zip(problem.types, instances, strict=True))
    used = [g for g, count in enumerate(instances) if count]
    options, engine = mix_options(resolved), resolved.problem.engine
    roles = tuple(
        Role(
            name=problem.types[g].name,
            function="mix",
            model=next(iter(resolved.models)),
            engine=Engine(name=engine.name, version=engine.version),
            pool=problem.types[g].pool,
            replicas=instances[g],
            parallelism=Parallelism(tp=size_of(options, problem.types[g].pool)),
            limits={} if problem.types[g].use == "whole" else {"use": problem.types[g].use},
        )
        for g in used
    )
    bound = None if bound is None else min(bound, value)
    return place_envelope(
        resolved,
        PlaceDecision(
            roles=roles,
            placement=tuple(_blocks(resolved, roles)),
            slices=tuple(
                BucketSlices(bucket=bucket.name, to=problem.types[g].name, slices=slices[g][b])
                for b, bucket in enumerate(problem.buckets)
                for g in used
                if slices[g][b]
            ),
        ),
        (
            Prediction(metric=METRIC, value=value),
            Prediction(metric="gpus", value=float(sum(role.replicas * role.parallelism.devices for role in roles))),
        ),
        certificate(
            "no mix of instances that serves all slices at the stated rates costs less{bound}",
            Objective(metric=METRIC, sense="minimize", value=value),
            bound,
            OPEN,
            {"instances": [kind.name for kind in problem.types], "slices": [b.slices for b in problem.buckets]},
            len(problem.types),
            stop_reason,
        ),
        solver=SOLVER,
        evidence=Evidence(basis={"measured": 1.0}, sources=("rates that the problem states",)),
        assumptions=(*_assumptions(problem), *resolved.price_notes),
    )


def _assumptions(problem: GpuMix) -> tuple[str, ...]:
    phases = (PHASES,) if any(kind.use != "whole" for kind in problem.types) else ()
    return (*ASSUMPTIONS, *phases, *((SPOT,) if any(kind.lost for kind in problem.types) else ()))


def _chosen(problem: GpuMix, decision: PlaceDecision) -> tuple[list[int], list[list[int]]]:
    """Instances of each type and slices of each bucket on it."""
    counts = {role.name: role.replicas for role in decision.roles}
    taken = {(row.to, row.bucket): row.slices for row in decision.slices}
    rows = [[taken.get((kind.name, bucket.name), 0) for bucket in problem.buckets] for kind in problem.types]
    return [counts.get(kind.name, 0) for kind in problem.types], rows


def _blocks(resolved: Resolved, roles: Sequence[Role]) -> Iterator[Block]:
    """The instances of a pool on its devices in order, one role behind the other."""
    taken = Counter[str]()
    for role in roles:
        pool = next(pool for pool in resolved.pools if pool.name == role.pool)
        size, first = role.parallelism.tp, taken[pool.name]
        taken[pool.name] += role.replicas * size
        devices = pool.job_devices.tolist()[first : taken[pool.name]]
        axes = (Axis(name="replica", size=role.replicas, stride=size), Axis(name="tp", size=size, stride=1))
        yield block_on(devices, role.name, pool.name, tuple(axis for axis in axes if axis.size > 1))
