"""Integer program (MILP) of the instance mix (`planner.solvers.mix`): its variables and its model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.mix import (
    MixObjective,
    MixProblem,
    MixRole,
    MixShape,
    group_sizes,
    most_instances,
    planned_rate,
    port_bytes_per_s,
    stage_of,
    validate,
)
from planner.solvers.mix_spare import Standing, add_spare

FlowKey: TypeAlias = tuple[int, int, int, int]  # source pool, target pool, demand, channel


@dataclass(frozen=True, slots=True)
class Vars:
    """The variables of a mix model; rates are in units of `rate_unit_per_s`, the objective of `objective_unit`.

    `m` are the losses of a failure, by shape where one is reckoned with; `y` whether a shape is in use, by shape where
    that matters.
    """

    n: tuple[Expr, ...]
    u: dict[tuple[int, int], Expr]
    f: dict[FlowKey, Expr]
    d: tuple[Expr, ...]
    objective: Expr
    rate_unit_per_s: float
    objective_unit: float
    m: dict[int, Expr] = field(default_factory=dict)
    y: dict[int, Expr] = field(default_factory=dict)

    @property
    def whole(self) -> tuple[Expr, ...]:
        """The integers: instances, and the losses and shapes in use that follow from them."""
        return (*self.n, *self.y.values(), *self.m.values())


def build(problem: MixProblem) -> tuple[LinearModel, Vars]:
    """The mixed-integer model of the instance mix.

    Sets        c in C shapes, F and S its first- and second-stage shapes;  w in W demands;  p, q in P pools;
                k in K channels
    Parameters  g_c devices of an instance, g_cp of them in p in groups of e_cp;  R_cw [1/s] rate of w on one instance
                of c alone, where at least least_c are in use;
                v_c [1/h] price;  b_w [bytes] moved per request;  L_pq, E_c, I_c [bytes/s] of a link, and out of and
                into an instance;  a_pi free slots of node i of pool p;  lambda_w [1/s] rate, sigma_w share, val_w
                value;  h_cw [s] stay of a request, N_w clients
    Variables   n_c integer instances;  u_cw >= 0 instances of c kept busy by w, so that x_cw = R_cw u_cw [1/s];
                f_pqwk >= 0 [1/s] first-stage output of w moved from p to q in k;  d_w >= 0 [1/s] served;  t >= 0 scale;
                y_c binary, c is in use (where shapes are limited in number or least_c > 1; U_c most instances)
    Maximise    t (SCALE)  or  sum_w val_w d_w (VALUE);   minimise  sum_c g_c n_c (DEVICES)  or  sum_c v_c n_c (PRICE)
    (C1)  sum_w u_cw <= n_c                                         for c          capacity shared in time
    (C2)  sum_{c not in F} R_cw u_cw = d_w                          for w          served by whole and second stages
    (C2s) d_w = sigma_w t                                           for w          common scale (SCALE)
    (C3f) sum_{c in F of p, k} R_cw u_cw = sum_q f_pqwk             for p, w, k    first stages feed the links
    (C3s) sum_{c in S of q, k} R_cw u_cw = sum_p f_pqwk             for q, w, k    links feed second stages
    (C4)  sum_{c: e_cp >= s} (g_cp / s) n_c <= sum_i floor(a_pi / s)      for p, s in sizes e_cp      groups fit
    (C5l) sum_wk b_w f_pqwk <= L_pq                                 for p, q       link capacity
    (C5e) sum_w b_w R_cw u_cw <= E_c n_c  (I_c for c in S)          for c          capacity of one instance
    (C6)  limits on sum_c g_c n_c, sum_c v_c n_c, sum_c y_c and the instances of each role
    (C7)  sum_c h_cw R_cw u_cw <= N_w  (>= N_w for DEVICES, PRICE)  for w          Little's law over the clients of w
    (C8)  what a failure leaves of each role carries the same       for shapes with losses: `mix_spare.add_spare`
    (C9)  least_c y_c <= n_c <= U_c y_c                             for c          shapes in use

    (C4) is exact when the sizes of a pool divide one another. Necessary: what groups of size >= s occupy on a node is
    a multiple of s, at most floor(a / s) s. Sufficient: place groups largest first on any node with room; when one of
    size s finds none, every node holds multiples of s with less than s left, so it holds floor(a / s) groups' worth,
    and (C4) for s was already tight without this group. Other sizes are refused.
    Scaling, here alone: rates by the largest R_cw, value and price by their largest, rows C5 by their capacity. A rate
    that must be met (DEVICES, PRICE) counts as LEAST_RATE of the fastest instance where it is less: at the integer
    tolerance of solvers no instance at all would serve it.
    """
    validate(problem)
    model, C, W = LinearModel(), problem.shapes, problem.demands
    unit = max((rate for shape in C for rate in shape.rate_per_s), default=0.0) or 1.0
    R = [[rate / unit for rate in shape.rate_per_s] for shape in C]
    U = [most_instances(problem, shape) for shape in C]
    n = tuple(model.integer_variable(f"n[{c}]", 0, U[c]) for c in range(len(C)))
    u = {
        (c, w): model.continuous(f"u[{c},{w}]", 0.0, U[c])
        for c in range(len(C))
        for w in range(len(W))
        if R[c][w] > 0.0
    }
    x = {(c, w): R[c][w] * busy for (c, w), busy in u.items()}
    cap = [_most_served(problem, R, U, w, unit) for w in range(len(W))]
    f = {
        (p, q, w, k): model.continuous(f"f[{p},{q},{w},{k}]", 0.0, cap[w])
        for p in _pools_of(problem, MixRole.FIRST)
        for q in _pools_of(problem, MixRole.SECOND)
        for w in range(len(W))
        for k in _channels(problem)
        if problem.link_bytes_per_s(p, q) != 0.0 or W[w].transfer_bytes == 0.0
    }
    fixed = [not problem.maximising and demand.rate_per_s is not None for demand in W]
    d = tuple(model.continuous(f"d[{w}]", cap[w] if fixed[w] else 0.0, cap[w]) for w in range(len(W)))
    objective, objective_unit = _set_objective(problem, model, n, d, cap, unit)
    y = {
        c: model.binary(f"y[{c}]") for c in range(len(C)) if problem.limits.shapes is not None or 1 < C[c].least <= U[c]
    }

    for c in range(len(C)):
        model.add(total(u[c, w] for w in range(len(W)) if (c, w) in u) <= n[c], f"C1[{c}]")
    for w in range(len(W)):
        model.add(
            total(x[c, w] for c in range(len(C)) if C[c].role is not MixRole.FIRST and (c, w) in x) == d[w], f"C2[{w}]"
        )
        if problem.objective is MixObjective.SCALE:
            model.add(d[w] == W[w].share * objective, f"C2s[{w}]")
    _add_stages(problem, model, x, f)
    _add_slots(problem, model, n)
    _add_transfer(problem, model, x, f, n, unit)
    _add_limits(problem, model, n)
    _add_shapes(problem, model, n, y, U)
    _add_clients(problem, model, x, unit)
    m = _add_spare(problem, model, R, U, cap, n, u, unit) if any(shape.lost for shape in C) else {}
    return model, Vars(n, u, f, d, objective, unit, objective_unit, m, y)


def _set_objective(
    problem: MixProblem, model: LinearModel, n: Sequence[Expr], d: Sequence[Expr], cap: Sequence[float], unit: float
) -> tuple[Expr, float]:
    """The objective, set on the model, and the unit it is in."""
    if problem.objective is MixObjective.SCALE:
        shared = [cap[w] / demand.share for w, demand in enumerate(problem.demands) if demand.share > 0.0]
        goal, goal_unit = model.continuous("t", 0.0, min(shared, default=0.0)), unit
    elif problem.objective is MixObjective.VALUE:
        largest = max((abs(demand.value) for demand in problem.demands), default=0.0) or 1.0
        goal = total(demand.value / largest * served for demand, served in zip(problem.demands, d, strict=True))
        goal_unit = largest * unit
    elif problem.objective is MixObjective.DEVICES:
        goal, goal_unit = _devices(problem, n), 1.0
    else:
        goal, goal_unit = _price(problem, n)
    model.optimise(goal, maximising=problem.maximising)
    return goal, goal_unit


def _devices(problem: MixProblem, n: Sequence[Expr]) -> Expr:
    return total(shape.devices * count for shape, count in zip(problem.shapes, n, strict=True))


def _price(problem: MixProblem, n: Sequence[Expr]) -> tuple[Expr, float]:
    """The price in units of the dearest shape's, and that unit."""
    dearest = max((shape.price_per_hour for shape in problem.shapes), default=0.0) or 1.0
    return total(
        shape.price_per_hour / dearest * count for shape, count in zip(problem.shapes, n, strict=True)
    ), dearest


def _add_stages(
    problem: MixProblem, model: LinearModel, x: dict[tuple[int, int], Expr], f: dict[FlowKey, Expr]
) -> None:
    C, W, P = problem.shapes, range(len(problem.demands)), range(len(problem.pools))

    def load(role: MixRole, pool: int, w: int, k: int) -> Expr:
        members = [c for c, shape in enumerate(C) if (shape.role, shape.pool, shape.channel) == (role, pool, k)]
        return total(x[c, w] for c in members if (c, w) in x)

    for w, k in itertools.product(W, _channels(problem)):
        for p in _pools_of(problem, MixRole.FIRST):
            sent = total(f[p, q, w, k] for q in P if (p, q, w, k) in f)
            model.add(load(MixRole.FIRST, p, w, k) == sent, f"C3f[{p},{w},{k}]")
        for q in _pools_of(problem, MixRole.SECOND):
            received = total(f[p, q, w, k] for p in P if (p, q, w, k) in f)
            model.add(load(MixRole.SECOND, q, w, k) == received, f"C3s[{q},{w},{k}]")


def _add_slots(problem: MixProblem, model: LinearModel, n: Sequence[Expr]) -> None:
    C = problem.shapes
    for p, pool in enumerate(problem.pools):
        parts = [(c, part) for c in range(len(C)) for part in C[c].slots if part.pool == p]
        for s in group_sizes(problem, p):
            taken = total(part.devices // s * n[c] for c, part in parts if part.group_devices >= s)
            model.add(taken <= pool.groups(s), f"C4[{p},{s}]")


def _add_transfer(
    problem: MixProblem,
    model: LinearModel,
    x: dict[tuple[int, int], Expr],
    f: dict[FlowKey, Expr],
    n: Sequence[Expr],
    unit: float,
) -> None:
    W = range(len(problem.demands))
    b = [demand.transfer_bytes * unit for demand in problem.demands]
    for p, q in sorted({(p, q) for p, q, _, _ in f}):
        capacity = problem.link_bytes_per_s(p, q)
        if capacity:
            moved = total(b[key[2]] / capacity * flow for key, flow in f.items() if key[:2] == (p, q))
            model.add(moved <= 1.0, f"C5l[{p},{q}]")
    for c in range(len(problem.shapes)):
        port = port_bytes_per_s(problem.shapes[c])
        if port is not None:
            scale = port or max(b) or 1.0
            moved = total(b[w] / scale * x[c, w] for w in W if (c, w) in x)
            model.add(moved <= port / scale * n[c], f"C5e[{c}]")


def _add_limits(problem: MixProblem, model: LinearModel, n: Sequence[Expr]) -> None:
    limits, shapes = problem.limits, problem.shapes
    if limits.devices is not None:
        model.add(_devices(problem, n) <= limits.devices, "C6[devices]")
    if limits.price_per_hour is not None:
        price, dearest = _price(problem, n)
        model.add(price <= limits.price_per_hour / dearest, "C6[price]")
    for role, number in limits.min_instances:
        model.add(total(n[c] for c, shape in enumerate(shapes) if shape.role is role) >= number, f"C6[min {role}]")
    for role, number in limits.max_instances:
        model.add(total(n[c] for c, shape in enumerate(shapes) if shape.role is role) <= number, f"C6[max {role}]")


def _add_shapes(
    problem: MixProblem, model: LinearModel, n: Sequence[Expr], y: Mapping[int, Expr], U: Sequence[int]
) -> None:
    if problem.limits.shapes is not None:
        model.add(total(y.values()) <= float(problem.limits.shapes), "C6[shapes]")
    for c, used in y.items():
        model.add(n[c] <= float(U[c]) * used, f"C9[{c}]")
        model.add(n[c] >= float(problem.shapes[c].least) * used, f"C9l[{c}]")


def _add_clients(problem: MixProblem, model: LinearModel, x: dict[tuple[int, int], Expr], unit: float) -> None:
    for w, demand in enumerate(problem.demands):
        if demand.clients is not None:
            inside = total(
                shape.held_s[w] * unit / demand.clients * x[c, w]
                for c, shape in enumerate(problem.shapes)
                if (c, w) in x
            )
            model.add(inside <= 1.0 if problem.maximising else inside >= 1.0, f"C7[{w}]")


def _add_spare(
    problem: MixProblem,
    model: LinearModel,
    R: list[list[float]],
    U: list[int],
    cap: Sequence[float],
    n: Sequence[Expr],
    u: dict[tuple[int, int], Expr],
    unit: float,
) -> dict[int, Expr]:
    W = problem.demands
    waiting = [w for w, demand in enumerate(W) if demand.clients is not None]
    standing = []
    for c, shape in enumerate(problem.shapes):
        port = port_bytes_per_s(shape)
        moved = [demand.transfer_bytes * rate * unit for demand, rate in zip(W, R[c], strict=True)]
        used = [0.0 if port is None or not size else size / port if port else math.inf for size in moved]
        held = [
            shape.held_s[w] * R[c][w] * unit / (demand.clients or 1.0) if w in waiting else 0.0
            for w, demand in enumerate(W)
        ]
        most = U[c] if shape.spread is not None else _most_useful(problem, shape, R[c], used, cap, U[c])
        stage = stage_of(problem, shape)
        standing.append(Standing(stage, tuple(R[c]), tuple(used), tuple(held), most, shape.lost, shape.spread))
    return add_spare(model, standing, n, u, waiting, maximising=problem.maximising)


def _most_useful(
    problem: MixProblem, shape: MixShape, R: Sequence[float], used: Sequence[float], cap: Sequence[float], most: int
) -> int:
    """How many instances can be of use: those that carry all demands alone and those lost; more would stand idle."""
    if problem.limits.min_instances:
        return most
    busy = math.fsum(
        served / rate * max(1.0, port) for served, rate, port in zip(cap, R, used, strict=True) if rate > 0.0
    )
    return most if busy >= most else min(most, math.floor(busy) + 1 + shape.lost)


def _most_served(problem: MixProblem, R: list[list[float]], U: list[int], w: int, unit: float) -> float:
    """What can be served of a demand in scaled units: its rate where given, else all last stages at full load."""
    rate = planned_rate(problem, w)
    most = math.fsum(R[c][w] * U[c] for c, shape in enumerate(problem.shapes) if shape.role is not MixRole.FIRST)
    if rate is None:
        return most
    return min(
        rate / unit, most if problem.maximising else 2.0 * most + 1.0
    )  # far above all it could be, as infeasible


def _pools_of(problem: MixProblem, role: MixRole) -> list[int]:
    return sorted({shape.pool for shape in problem.shapes if shape.role is role})


def _channels(problem: MixProblem) -> list[int]:
    return sorted({shape.channel for shape in problem.shapes if shape.role is not MixRole.WHOLE})
