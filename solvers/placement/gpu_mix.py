"""How many instances of each GPU type serve a bucketed workload for the least cost (Mélange), with spares and limits.

Source      Griggs et al., "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU Heterogeneity",
            arXiv:2404.14527, section 5.4; slices of a bucket are alike and counted, which keeps the optimum and takes
            the symmetry away. Prefill and decode on types of their own: Splitwise (ISCA 2024), as types of a pool.
Sets        g in G types (hardware, price, what it is used for), b in B buckets of requests, p in P pools of hardware
            f in F ways in which k instances fail: k_fg of type g, sum_g k_fg = k
Parameters  c_g cost of an instance;  t_gb [1/s] requests of b that an instance of g keeps within the limits, 0 for none
            s_b slices of b, each r_b [1/s];  A_p instances of a pool at most;  l least instances in all
Variables   y_g instances;  x_fgb slices of b on g when f fails;  u_fg instances of g that are left
Objective   min sum_g c_g y_g
(C1) sum_g x_fgb = s_b
(C2) sum_b x_fgb r_b / t_gb <= u_fg
(C3) u_fg <= max(y_g - k_fg, 0);  nothing fails where k = 0
(C4) sum of y_g over g of p <= A_p
(C5) sum_g y_g >= l
With k > 0 any k instances may fail, of whatever types, and what is left serves all slices, placed anew.
Work of slices is pooled over the instances of a type: a slice may be shared between them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, Solution, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult

WHERE = "mix"
ROUNDING = 1e-9  # of an instance


@dataclass(frozen=True, slots=True)
class GpuType:
    """An instance of a GPU type in one use: cost in any unit, requests a second of each bucket (0: not at all)."""

    name: str
    cost: float
    rate_B: tuple[float, ...]
    pool: str = ""  # of hardware that is limited; its own name where empty


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests alike: slices that each go to one type, and requests a second of each slice."""

    name: str
    slices: int
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class GpuMix:
    """The problem; raises PlannerError for figures that cannot be and for buckets that no type serves."""

    types: tuple[GpuType, ...]
    buckets: tuple[Bucket, ...]
    available: Mapping[str, int] = field(default_factory=dict)  # instances of a pool at most
    least: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        for kind in self.types:
            if len(kind.rate_B) != len(self.buckets):
                what = f"type `{kind.name}` has {len(kind.rate_B)} rates for {len(self.buckets)} buckets"
                raise PlannerError(what, where=WHERE, hint="give a rate for every bucket, 0 where it serves none")
            if not (kind.cost >= 0.0 and all(rate >= 0.0 and math.isfinite(rate) for rate in kind.rate_B)):
                raise PlannerError(
                    f"type `{kind.name}` costs {kind.cost:g} and serves {min(kind.rate_B, default=0.0):g} requests/s",
                    where=WHERE,
                    hint="give costs and rates of 0 or more",
                )
        for pool, count in self.available.items():
            if count < 0:
                raise PlannerError(f"{count} instances of `{pool}`", where=WHERE, hint="give 0 or more")
        for index, bucket in enumerate(self.buckets):
            if bucket.slices and not any(kind.rate_B[index] > 0.0 for kind in self.types):
                raise PlannerError(
                    f"no type serves bucket `{bucket.name}`",
                    where=WHERE,
                    hint="give a type that does, or leave the bucket out",
                )

    def most(self, kind: GpuType) -> float:
        """Instances of a type that its pool has, infinite without a limit."""
        return float(self.available.get(kind.pool or kind.name, math.inf))


@dataclass(frozen=True, slots=True)
class Mix:
    """Instances of each type, and slices of each bucket on each type while nothing has failed. [G], [G, B]"""

    instances: tuple[int, ...]
    slices: tuple[tuple[int, ...], ...]


def cheapest_mix(problem: GpuMix, *, time_limit_s: float | None = None) -> SolveResult[Mix]:
    """The mix of least cost, proven; INFEASIBLE where the pools have too few instances."""
    model = LinearModel()
    most = _most_useful(problem)
    instances = [model.integer_variable(f"y[{kind.name},{g}]", 0.0, most[g]) for g, kind in enumerate(problem.types)]
    slices = [_placed(model, problem, instances, most, failing, f) for f, failing in enumerate(_failing(problem))]
    for pool, count in problem.available.items():
        members = [y for y, kind in zip(instances, problem.types, strict=True) if (kind.pool or kind.name) == pool]
        if members:
            model.add(total(members) <= float(count), f"C4[{pool}]")
    model.add(total(instances) >= float(problem.least), "C5")
    model.objective = total(kind.cost * y for kind, y in zip(problem.types, instances, strict=True)).terms
    result = solve(model, time_limit_s=time_limit_s)
    return SolveResult(
        result.status,
        result.stop_reason,
        None if result.solution is None else _mix(result.solution, instances, slices[0]),
        result.objective,
        result.bound,
        result.solve_s,
        result.solver,
    )


def _mix(solution: Solution, instances: Sequence[Expr], slices: Sequence[Sequence[Expr | None]]) -> Mix:
    rows = [[0 if x is None else round(solution.value(x)) for x in row] for row in slices]
    return Mix(tuple(round(solution.value(y)) for y in instances), tuple(map(tuple, rows)))


def _failing(problem: GpuMix) -> Iterator[tuple[int, ...]]:
    """How many of each type fail; nothing first."""
    yield (0,) * len(problem.types)
    if problem.failures:
        for chosen in itertools.combinations_with_replacement(range(len(problem.types)), problem.failures):
            yield tuple(chosen.count(g) for g in range(len(problem.types)))


def _most_useful(problem: GpuMix) -> list[float]:
    """Instances of each type beyond which a mix is never the cheapest: they serve nothing more, or cost too much.

    The cost of the cheapest type alone, where one is enough, with its spares and the least in all, is never exceeded.
    """
    alone = [_alone(problem, kind) for kind in problem.types]
    enough = (
        kind.cost * count
        for kind, count in zip(problem.types, alone, strict=True)
        if count <= problem.most(kind)
        and all(r > 0.0 or not b.slices for r, b in zip(kind.rate_B, problem.buckets, strict=True))
    )
    dearest = min(enough, default=math.inf)
    return [
        min(problem.most(kind), count, _affordable(dearest, kind.cost))
        for kind, count in zip(problem.types, alone, strict=True)
    ]


def _affordable(budget: float, cost: float) -> float:
    return math.inf if math.isinf(budget) or cost == 0.0 else math.floor(budget / cost + ROUNDING)


def _alone(problem: GpuMix, kind: GpuType) -> int:
    """Instances of a type that serve all that it can serve, with the spares, and no fewer than the least in all."""
    work = sum(
        bucket.slices * bucket.rate_per_s / rate
        for bucket, rate in zip(problem.buckets, kind.rate_B, strict=True)
        if rate > 0.0
    )
    return max(math.ceil(work - ROUNDING) + problem.failures, problem.least)


def _placed(
    model: LinearModel,
    problem: GpuMix,
    instances: Sequence[Expr],
    most: Sequence[float],
    failing: Sequence[int],
    f: int,
) -> list[list[Expr | None]]:
    """Slices on types when these instances fail: (C1) to (C3)."""
    placed: list[list[Expr | None]] = []
    for g, (kind, y, fails) in enumerate(zip(problem.types, instances, failing, strict=True)):
        row = [
            model.integer_variable(f"x[{f},{g},{b}]", 0.0, bucket.slices)
            if bucket.slices and bucket.rate_per_s <= rate * most[g]
            else None
            for b, (bucket, rate) in enumerate(zip(problem.buckets, kind.rate_B, strict=True))
        ]
        placed.append(row)
        work = total(
            bucket.rate_per_s / rate * x
            for bucket, rate, x in zip(problem.buckets, kind.rate_B, row, strict=True)
            if x is not None
        )
        if not fails:
            model.add(work <= y, f"C2[{f},{g}]")
            continue
        enough = model.binary(f"enough[{f},{g}]")  # instances that more than the failing ones are there
        model.add(work <= y - fails * enough, f"C3[{f},{g}]")
        model.add(work <= max(most[g] - fails, 0.0) * enough, f"C3 none[{f},{g}]")
    for b, bucket in enumerate(problem.buckets):
        columns = [row[b] for row in placed]
        parts = [x for x in columns if x is not None]
        if bucket.slices:
            model.add(total(parts) == float(bucket.slices), f"C1[{f},{b}]")
    return placed
