"""Mixes of GPU types as plans: solved, stated again from their own instances and slices, and checked.

Rates are those that an instance of each pool was measured to serve of each bucket within its limits, alone.
"""

from collections.abc import Iterator, Sequence

from planner.errors import Conflict, Infeasible, PlannerError
from planner.kinds.place.decision import BucketSlices, MixOptions, PlaceDecision, PlaceOptions
from planner.kinds.place.envelope import place_envelope
from planner.plan.blocks import block_on
from planner.plan.findings import Finding
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import (
    Axis,
    Block,
    Certificate,
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
from planner.solvers.placement.gpu_mix import Bucket, GpuMix, GpuType, cheapest_mix
from planner.solvers.result import Status, relative_gap

METRIC = "usd_per_hour"
SOLVER = "integer program over counted slices"
TOLERANCE = 1e-6
ROUNDING = 1e-9  # of an instance
BOUND = LeftOut("certificate.bound", "whether no mix costs less")
ASSUMPTIONS = (
    "an instance serves buckets side by side as far as the parts of its time add up to 1, as measured for each alone",
    "a slice of a bucket goes to one type; with failures, the other instances of every type serve all slices anew",
)


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The cheapest mix; raises Infeasible where the pools have too few instances."""
    problem = problem_of(resolved)
    result = cheapest_mix(problem, time_limit_s=limits.time_limit_s)
    if result.solution is None:
        conflict: list[Conflict] = [
            {"limit": f"{bucket.slices * bucket.rate_per_s:g}/s of `{bucket.name}`", "nearest": "less of it"}
            for bucket in problem.buckets
        ]
        conflict.append({"limit": "GPUs of the pools", "nearest": "more of them, or fewer failures"})
        raise Infeasible(conflict, proved=result.status is Status.INFEASIBLE)
    return envelope(resolved, problem, result.solution.instances, result.solution.slices, result.bound)


def problem_of(resolved: Resolved) -> GpuMix:
    """Raises PlannerError for pools without price or rates, and for rates of what is no pool or bucket."""
    options, where = _options(resolved), resolved.where
    if resolved.problem.objective.minimize != "cost":
        raise PlannerError(
            "mixes of GPU types are the cheapest", where=where(("objective",)), hint="write `minimize: cost`"
        )
    if resolved.workloads:
        hint = "remove it, and write `options.mix.buckets`"
        raise PlannerError("mixes serve buckets of requests", where=where(("workloads",)), hint=hint)
    names = [pool.name for pool in resolved.pools]
    for name, table in (("rates", options.rates), ("gpus_per_instance", options.gpus_per_instance)):
        unknown = sorted(set(table) - set(names))
        if unknown:
            place = where(("options", "mix", name, unknown[0]))
            raise PlannerError(f"no pool is called `{unknown[0]}`", where=place, hint=f"pools are {', '.join(names)}")
    types, available = [], {}
    for index, pool in enumerate(resolved.pools):
        if pool.name not in options.rates:
            place, hint = where(("options", "mix", "rates")), f"add `{pool.name}:` with a rate for every bucket"
            raise PlannerError(f"pool `{pool.name}` has no rates", where=place, hint=hint)
        if pool.usd_per_gpu_hour is None:
            place, hint = where(("cluster", "pools", index)), "add `price: 3USD/h`, of a GPU"
            raise PlannerError(f"pool `{pool.name}` has no price", where=place, hint=hint)
        foreign = sorted(set(options.rates[pool.name]) - set(options.buckets))
        if foreign:
            place = where(("options", "mix", "rates", pool.name, foreign[0]))
            raise PlannerError(f"no bucket is called `{foreign[0]}`", where=place, hint="name a bucket of `buckets`")
        size = options.gpus_per_instance.get(pool.name, 1)
        rates = tuple(options.rates[pool.name].get(name, 0.0) for name in sorted(options.buckets))
        types.append(GpuType(pool.name, size * pool.usd_per_gpu_hour, rates))
        available[pool.name] = pool.num_gpus // size
    buckets = tuple(
        Bucket(name, bucket.slices, bucket.rate_per_s / bucket.slices)
        for name, bucket in sorted(options.buckets.items())
    )
    return GpuMix(tuple(types), buckets, available, options.least, options.failures)


def restate(resolved: Resolved, stated: Envelope, decision: PlaceDecision) -> Restated:
    """The plan of its own instances and slices; raises PlannerError for slices that no instances serve."""
    problem = problem_of(resolved)
    instances, slices = _chosen(problem, decision)
    _require_served(problem, instances, slices)
    made = envelope(resolved, problem, instances, slices, stated.certificate.bound)
    if stated.certificate.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(resolved: Resolved, stated: Envelope) -> Iterator[Finding]:
    """Whether the bound is that of the problem: solved again."""
    again, bound = cheapest_mix(problem_of(resolved)).bound, stated.certificate.bound
    if again is None or bound is None:
        return
    what = f"states the bound {bound:.9g}, its rates and prices give {again:.9g}"
    right = abs(bound - again) <= TOLERANCE * max(abs(again), 1.0)
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


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
        sent = sum(row[index] for row in slices)
        if sent != bucket.slices:
            what, hint = f"{sent} of {bucket.slices} slices of `{bucket.name}` go to a type", "send all of them"
            raise PlannerError(what, where="decision.slices", hint=hint)


def envelope(
    resolved: Resolved,
    problem: GpuMix,
    instances: Sequence[int],
    slices: Sequence[Sequence[int]],
    bound: float | None,
) -> Envelope:
    """The plan of a mix, without the types that it has none of."""
    value = sum(kind.cost * count for kind, count in zip(problem.types, instances, strict=True))
    used = [g for g, count in enumerate(instances) if count]
    options, engine = _options(resolved), resolved.problem.engine
    roles = tuple(
        Role(
            name=problem.types[g].name,
            function="mix",
            model=next(iter(resolved.models)),
            engine=Engine(name=engine.name, version=engine.version),
            pool=problem.types[g].name,
            replicas=instances[g],
            parallelism=Parallelism(tp=options.gpus_per_instance.get(problem.types[g].name, 1)),
        )
        for g in used
    )
    bound = None if bound is None else min(bound, value)
    return place_envelope(
        resolved,
        PlaceDecision(
            roles=roles,
            placement=tuple(_block(resolved, role) for role in roles),
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
        Certificate(
            claim="no mix of instances that serves all slices at the stated rates costs less than the bound",
            status="feasible",
            objective=Objective(metric=METRIC, sense="minimize", value=value),
            bound=bound,
            gap=relative_gap(value, bound),
            tolerance=TOLERANCE,
            axes={"instances": [kind.name for kind in problem.types], "slices": [b.slices for b in problem.buckets]},
            candidates=len(problem.types),
        ),
        solver=SOLVER,
        evidence=Evidence(basis={"measured": 1.0}, sources=("rates that the problem states",)),
        assumptions=(*ASSUMPTIONS, *resolved.price_notes),
    )


def _options(resolved: Resolved) -> MixOptions:
    options = PlaceOptions.model_validate(resolved.problem.options).mix
    assert options is not None
    return options


def _chosen(problem: GpuMix, decision: PlaceDecision) -> tuple[list[int], list[list[int]]]:
    """Instances of each type and slices of each bucket on it."""
    counts = {role.pool: role.replicas for role in decision.roles}
    taken = {(row.to, row.bucket): row.slices for row in decision.slices}
    rows = [[taken.get((kind.name, bucket.name), 0) for bucket in problem.buckets] for kind in problem.types]
    return [counts.get(kind.name, 0) for kind in problem.types], rows


def _block(resolved: Resolved, role: Role) -> Block:
    pool = next(pool for pool in resolved.pools if pool.name == role.pool)
    size = role.parallelism.tp
    devices = pool.job_devices.tolist()[: role.replicas * size]
    axes = (Axis(name="replica", size=role.replicas, stride=size), Axis(name="tp", size=size, stride=1))
    return block_on(devices, role.name, role.pool, tuple(axis for axis in axes if axis.size > 1))
