"""Adapters and requests on engines that share a base model: the engine that is done last, as soon as can be (dLoRA).

Source      Wu et al., "dLoRA: Dynamically Orchestrating Requests and Adapters for LoRA LLM Serving", OSDI 2024,
            section 5.2; merged execution: section 4
Sets        k in K adapters, j in J engines, r in R requests with adapter k(r) on engine h(r)
Parameters  e_r [s] of a request, n_r cache blocks of it;  a_j adapters of an engine at most, N_j its blocks
            B [1/s] blocks that an engine swaps, p [s] that a request costs which leaves its engine
            l engines at least of every adapter with requests
            f of the time of a request, where its engine runs merged with its adapter; none runs merged without it
Variables   y_kj whether adapter k is on j;  x_rj shares of requests;  v_rj those that run merged
            m_kj whether j is merged with k, and so serves k alone;  z_j [s] of swapping;  t [s]
Objective   min t
(C1) sum_j (x_rj + v_rj) = 1
(C2) x_rj <= y_k(r)j;  sum_k y_kj <= a_j
(C3) z_j >= (sum_r n_r (x_rj + v_rj) - N_j) / B
(C4) t >= sum_r e_r (x_rj + f v_rj) + p sum over r not on j of (x_rj + v_rj) + z_j
(C5) v_rj <= m_k(r)j <= y_k(r)j;  x_rj <= 1 - sum_k m_kj;  sum_k m_kj <= 1
(C6) sum_j y_kj >= l
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.result import SolveResult

WHERE = "adapters"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: adapters that it holds at most, and blocks of its KV cache."""

    adapters: int
    blocks: float


@dataclass(frozen=True, slots=True)
class Request:
    """A request that runs or waits: its adapter, the engine it is on, its blocks, and its time [s]."""

    adapter: int
    engine: int
    blocks: float
    exec_s: float


@dataclass(frozen=True, slots=True)
class Adapters:
    """The problem; raises PlannerError for figures that cannot be, and where engines hold too few adapters."""

    adapters: int
    engines: tuple[Engine, ...]
    requests: tuple[Request, ...]
    migration_s: float
    blocks_per_s: float
    merged: float | None = None  # of the time of a request; None where engines do not merge
    least: int = 1  # engines of every adapter with requests

    def __post_init__(self) -> None:
        for number, request in enumerate(self.requests):
            if not (0 <= request.adapter < self.adapters and 0 <= request.engine < len(self.engines)):
                raise PlannerError(
                    f"request {number} is of adapter {request.adapter} on engine {request.engine}",
                    where=WHERE,
                    hint=f"adapters are 0 to {self.adapters - 1}, engines 0 to {len(self.engines) - 1}",
                )
            if request.blocks < 0 or request.exec_s < 0:
                what = f"request {number} has {request.blocks:g} blocks and takes {request.exec_s:g} s"
                raise PlannerError(what, where=WHERE, hint="give 0 or more")
        room, asked = sum(engine.adapters for engine in self.engines), len({r.adapter for r in self.requests})
        if self.least > len(self.engines):
            what = f"{self.least} engines of every adapter, and there are {len(self.engines)}"
            raise PlannerError(what, where=WHERE, hint=f"ask for {len(self.engines)} at most")
        if asked * self.least > room:
            each = f" on {self.least} engines each" if self.least > 1 else ""
            raise PlannerError(
                f"requests are of {asked} adapters{each}, and all engines together hold {room}",
                where=WHERE,
                hint=f"let engines hold {asked * self.least - room} more",
            )
        if not self.blocks_per_s > 0 or self.migration_s < 0:
            what = f"{self.blocks_per_s:g} blocks a second, {self.migration_s:g} s for a migration"
            raise PlannerError(what, where=WHERE, hint="give a rate above 0 and a time of 0 or more")
        if self.merged is not None and not 0.0 < self.merged <= 1.0:
            what = f"merged requests take {self.merged:g} of their time"
            raise PlannerError(what, where=WHERE, hint="give a share above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class AdapterPlacement:
    """Engines of every adapter [K][J], shares of requests [R][J], and the adapter that an engine is merged with [J]."""

    hosts: tuple[tuple[bool, ...], ...]
    shares: tuple[tuple[float, ...], ...]
    merged: tuple[int | None, ...]


def place_adapters(
    problem: Adapters, *, time_limit_s: float | None = None, gap: float = 0.0
) -> SolveResult[AdapterPlacement]:
    """The placement whose last engine is done soonest; objective and bound in seconds."""
    model, engines = LinearModel(), range(len(problem.engines))
    y = [[model.binary(f"y[{k},{j}]") for j in engines] for k in range(problem.adapters)]
    x = [[model.continuous(f"x[{r},{j}]", 0.0, 1.0) for j in engines] for r in range(len(problem.requests))]
    m, v = _merging(model, problem)
    last_s = model.continuous("t")
    for r, request in enumerate(problem.requests):
        model.add(total([*x[r], *v[r]]) == 1.0, f"C1[{r}]")
        for j in engines:
            model.add(x[r][j] <= y[request.adapter][j], f"C2[{r},{j}]")
    for j, engine in enumerate(problem.engines):
        model.add(total(row[j] for row in y) <= float(engine.adapters), f"C2 room[{j}]")
        swap_s = model.continuous(f"z[{j}]")
        shares = [total([row[j], *w[j : j + 1]]) for row, w in zip(x, v, strict=True)]
        blocks = total(request.blocks * share for request, share in zip(problem.requests, shares, strict=True))
        model.add(problem.blocks_per_s * swap_s >= blocks - engine.blocks, f"C3[{j}]")
        own = [request.exec_s * row[j] for request, row in zip(problem.requests, x, strict=True)]
        own += [
            problem.merged * r.exec_s * w[j] for r, w in zip(problem.requests, v, strict=True) if problem.merged and w
        ]
        moved = [problem.migration_s * s for r, s in zip(problem.requests, shares, strict=True) if r.engine != j]
        model.add(last_s >= total([*own, *moved, swap_s]), f"C4[{j}]")
    if problem.merged is not None:
        _merge_rules(model, problem, x, y, m, v)
    for k in sorted({request.adapter for request in problem.requests}):
        model.add(total(y[k]) >= float(problem.least), f"C6[{k}]")
    model.objective = last_s.terms
    result = solve(model, time_limit_s=time_limit_s, gap=gap)
    placement = None
    if result.solution is not None:
        value = result.solution.value
        placement = AdapterPlacement(
            tuple(tuple(value(each) > 0.5 for each in row) for row in y),
            tuple(tuple(value(total([row[j], *w[j : j + 1]])) for j in engines) for row, w in zip(x, v, strict=True)),
            tuple(next((k for k, row in enumerate(m) if value(row[j]) > 0.5), None) for j in engines),
        )
    return SolveResult(
        result.status, result.stop_reason, placement, result.objective, result.bound, result.solve_s, result.solver
    )


def _merging(model: LinearModel, problem: Adapters) -> tuple[list[list[Expr]], list[list[Expr]]]:
    """m and v; empty rows where engines do not merge."""
    if problem.merged is None:
        return [], [[] for _ in problem.requests]
    engines = range(len(problem.engines))
    m = [[model.binary(f"m[{k},{j}]") for j in engines] for k in range(problem.adapters)]
    v = [[model.continuous(f"v[{r},{j}]", 0.0, 1.0) for j in engines] for r in range(len(problem.requests))]
    return m, v


def _merge_rules(
    model: LinearModel,
    problem: Adapters,
    x: Sequence[Sequence[Expr]],
    y: Sequence[Sequence[Expr]],
    m: Sequence[Sequence[Expr]],
    v: Sequence[Sequence[Expr]],
) -> None:
    for j in range(len(problem.engines)):
        merged = total(row[j] for row in m)
        model.add(merged <= 1.0, f"C5 once[{j}]")
        for k in range(problem.adapters):
            model.add(m[k][j] <= y[k][j], f"C5 there[{k},{j}]")
        for r, request in enumerate(problem.requests):
            model.add(v[r][j] <= m[request.adapter][j], f"C5[{r},{j}]")
            model.add(x[r][j] + merged <= 1.0, f"C5 alone[{r},{j}]")
