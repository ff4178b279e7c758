"""How many instances of each GPU type serve a bucketed workload for the least cost (Mélange), with spares and limits.

Source      Griggs et al., "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU Heterogeneity",
            arXiv:2404.14527, section 5.4; slices of a bucket are alike and counted, which keeps the optimum and takes
            the symmetry away. Prefill and decode on types of their own: Patel et al., "Splitwise: Efficient Generative
            LLM Inference Using Phase Splitting", ISCA 2024, section 4, where a slice has a type for each phase.
Sets        g in G types (hardware, price, use), of which W serve whole requests, E prefill and D decode
            b in B buckets of requests, p in P pools of hardware, and markets
            f in F ways to lose instances: none; any k of them, k_fg of type g, sum_g k_fg = k; what spot types may lose
Parameters  c_g cost of an instance;  t_gb [1/s] requests of b that an instance of g keeps within the limits, 0 for none
            s_b slices of b, each r_b [1/s];  A_p instances of a pool at most, l_p at least
            l least instances in all;  q_g part of the instances of g that may be gone at once (spot)
Variables   y_g instances;  x_fgb slices of b on g in way f;  u_fg instances of g that are left;  v_g that are gone
Objective   min sum_g c_g y_g
(C1) sum of x_fgb over g in W and E = s_b;  sum of x_fgb over g in E = sum over g in D
(C2) sum_b x_fgb r_b / t_gb <= u_fg
(C3) u_fg <= max(y_g - k_fg, 0);  nothing fails where k = 0
(C4) l_p <= sum of y_g over g of p <= A_p
(C5) sum_g y_g >= l
(C6) where spot instances are gone, u_fg <= y_g - v_g with v_g >= q_g y_g, whole
With k > 0 any k instances may fail, of whatever types, and what is left serves all slices, placed anew; the same where
each spot type has lost its part, rounded up. Not both at once.
Work of slices is pooled over the instances of a type: a slice may be shared between them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
    use: Literal["whole", "prefill", "decode"] = "whole"  # of requests
    market: str = ""  # a second pool that is limited, such as what is sold at spot prices
    lost: float = 0.0  # part of its instances that may be gone at once

    @property
    def pools(self) -> tuple[str, ...]:
        """What it counts against."""
        own = self.pool or self.name
        return (own, self.market) if self.market else (own,)


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
    at_least: Mapping[str, int] = field(default_factory=dict)  # instances of a pool

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
            if not 0.0 <= kind.lost <= 1.0:
                what = f"type `{kind.name}` may lose {kind.lost:g} of its instances"
                raise PlannerError(what, where=WHERE, hint="give a part from 0 to 1")
        for pool, count in (*self.available.items(), *self.at_least.items()):
            if count < 0:
                raise PlannerError(f"{count} instances of `{pool}`", where=WHERE, hint="give 0 or more")
        for index, bucket in enumerate(self.buckets):
            uses = {kind.use for kind in self.types if kind.rate_B[index] > 0.0}
            if bucket.slices and "whole" not in uses and not {"prefill", "decode"} <= uses:
                raise PlannerError(
                    f"no type serves bucket `{bucket.name}`",
                    where=WHERE,
                    hint="give a type that does, or leave the bucket out",
                )

    def most(self, kind: GpuType) -> float:
        """Instances of a type that there can be, infinite without a limit."""
        return min(float(self.available.get(pool, math.inf)) for pool in kind.pools)


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
    if any(kind.lost for kind in problem.types):
        slices.append(_placed(model, problem, instances, most, None, len(slices)))
    for pool, count in problem.available.items():
        model.add(total(_of_pool(problem, instances, pool)) <= float(count), f"C4[{pool}]")
    for pool, count in problem.at_least.items():
        model.add(total(_of_pool(problem, instances, pool)) >= float(count), f"C4 least[{pool}]")
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


def _of_pool(problem: GpuMix, instances: Sequence[Expr], pool: str) -> list[Expr]:
    return [y for y, kind in zip(instances, problem.types, strict=True) if pool in kind.pools]


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

    The cost of the cheapest type alone, where one is enough, with its spares and the least in all, and of what other
    pools are to have, is never exceeded.
    """
    alone = [_alone(problem, kind) for kind in problem.types]
    enough = (
        kind.cost * count
        for kind, count in zip(problem.types, alone, strict=True)
        if count <= problem.most(kind)
        and kind.use == "whole"
        and kind.lost < 1.0
        and all(r > 0.0 or not b.slices for r, b in zip(kind.rate_B, problem.buckets, strict=True))
    )
    dearest = min(enough, default=math.inf) + sum(_asked_cost(problem, pool) for pool in problem.at_least)
    return [
        min(problem.most(kind), count, _affordable(dearest, kind.cost))
        for kind, count in zip(problem.types, alone, strict=True)
    ]


def _asked_cost(problem: GpuMix, pool: str) -> float:
    """Of the instances that a pool is to have, at most."""
    return problem.at_least[pool] * max((kind.cost for kind in problem.types if pool in kind.pools), default=0.0)


def _affordable(budget: float, cost: float) -> float:
    return math.inf if math.isinf(budget) or cost == 0.0 else math.floor(budget / cost + ROUNDING)


def _alone(problem: GpuMix, kind: GpuType) -> int:
    """Instances of a type that serve all that it can serve, whatever is lost, and no fewer than are asked for."""
    work = sum(
        bucket.slices * bucket.rate_per_s / rate
        for bucket, rate in zip(problem.buckets, kind.rate_B, strict=True)
        if rate > 0.0
    )
    kept = math.ceil((work + 1.0) / (1.0 - kind.lost)) if 0.0 < kind.lost < 1.0 else 0
    asked = max(problem.least, *(problem.at_least.get(pool, 0) for pool in kind.pools))
    return max(math.ceil(work - ROUNDING) + problem.failures, kept, asked)


def _placed(
    model: LinearModel,
    problem: GpuMix,
    instances: Sequence[Expr],
    most: Sequence[float],
    failing: Sequence[int] | None,
    f: int,
) -> list[list[Expr | None]]:
    """Slices on types when these instances fail, or with None spot types have lost their parts: (C1) to (C3), (C6)."""
    placed: list[list[Expr | None]] = []
    for g, (kind, y) in enumerate(zip(problem.types, instances, strict=True)):
        fails = 0 if failing is None else failing[g]
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
        if failing is None and kind.lost:
            gone = model.integer_variable(f"v[{g}]", 0.0, most[g])
            model.add(gone >= kind.lost * y, f"C6 gone[{g}]")
            model.add(work <= y - gone, f"C6[{g}]")
            continue
        if not fails:
            model.add(work <= y, f"C2[{f},{g}]")
            continue
        enough = model.binary(f"enough[{f},{g}]")  # instances that more than the failing ones are there
        model.add(work <= y - fails * enough, f"C3[{f},{g}]")
        model.add(work <= max(most[g] - fails, 0.0) * enough, f"C3 none[{f},{g}]")
    for b, bucket in enumerate(problem.buckets):
        if not bucket.slices:
            continue
        parts: dict[str, list[Expr]] = {"whole": [], "prefill": [], "decode": []}
        for kind, row in zip(problem.types, placed, strict=True):
            x = row[b]
            if x is not None:
                parts[kind.use].append(x)
        model.add(total((*parts["whole"], *parts["prefill"])) == float(bucket.slices), f"C1[{f},{b}]")
        if parts["prefill"] or parts["decode"]:
            model.add(total(parts["prefill"]) == total(parts["decode"]), f"C1 phases[{f},{b}]")
    return placed
