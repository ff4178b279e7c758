"""Rows of an instance mix that keep its load when a failure takes instances away: linear scenarios by role.

Instances that stand in for one another are a role: shapes of one stage (of one channel; of one pool, where links
between pools are limited or domains fail) whose demands are connected. A failure takes instances of a role; what is
left of that role carries all that the role carries, and no other role takes anything over. So each role may be hit at
once.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from planner.solvers.backends.model import Expr, LinearModel, total


@dataclass(frozen=True, slots=True)
class Standing:
    """A shape as these rows see it; `rate` by demand and `moved` as in the mix model, in its units."""

    stage: Hashable  # stage, channel and pool: what its instances can stand in for
    rate: tuple[float, ...]
    port: tuple[float, ...]  # share of the port of one instance that it takes when busy with each demand alone
    held: tuple[float, ...]  # share of the clients of each demand inside one instance that is busy with it alone
    most: int  # instances that can be of use
    lost: int  # instances that a failure takes of every `spread`
    spread: int | None  # None: of any number of them


@dataclass(frozen=True, slots=True)
class Role:
    """Shapes that stand in for one another, and the demands that they serve."""

    shapes: tuple[int, ...]
    demands: tuple[int, ...]


def roles_of(stages: Sequence[Hashable], rates: Sequence[Sequence[float]]) -> list[Role]:
    """The roles of shapes that serve anything, by what each can stand in for, in the order of their first shapes."""
    parts: list[tuple[Hashable, set[int], set[int]]] = []
    for c, (stage, of_demand) in enumerate(zip(stages, rates, strict=True)):
        demands = {w for w, rate in enumerate(of_demand) if rate > 0.0}
        if not demands:
            continue
        joined = [part for part in parts if part[0] == stage and part[2] & demands]
        parts = [part for part in parts if part not in joined]
        members = {c}.union(*(part[1] for part in joined))
        parts.append((stage, members, demands.union(*(part[2] for part in joined))))
    roles = [Role(tuple(sorted(members)), tuple(sorted(demands))) for _, members, demands in parts]
    return sorted(roles, key=lambda role: role.shapes)


def add_spare(
    model: LinearModel,
    shapes: Sequence[Standing],
    n: Sequence[Expr],
    u: dict[tuple[int, int], Expr],
    waiting: Sequence[int],
    *,
    maximising: bool,
) -> dict[int, Expr]:
    """Adds (C8) to a mix model, and returns its integers m by shape.

    Sets        g in G roles with shapes C_g and demands W_g;  those of the mix model
    Parameters  l_c instances that a failure takes of every s_c;  R_cw, b_w, E_c, h_cw, N_w of the mix model;
                e_c = min(R_cw, E_c / b_w) where W_g is one demand
    Variables   m_c integer, how many times s_c instances there are, so that a failure takes l_c m_c of them;
                v_ckw >= 0 instances of k kept busy by w when c has lost some;  H_gw clients of w inside g
    (C8m) n_c <= s_c m_c                                                    for c
    where W_g = {w}, without clients
    (C8)  sum_{k in C_g} e_k n_k - e_c l_c m_c >= sum_{k in C_g} R_kw u_kw   for c in C_g
    (C8s) sum_{k in C_g} e_k (1 - l_k / s_k) n_k >= sum_{k in C_g} R_kw u_kw where some s_k is finite
    otherwise, also with what is left in the mean of all domains as (C8s) has it
    (C8c) sum_w v_ckw <= n_k - [k = c] l_c m_c                              for c, k in C_g     what is left
    (C8d) sum_k R_kw v_ckw = sum_k R_kw u_kw                                for c, w in W_g     carries the same
    (C8e) sum_w b_w R_kw v_ckw <= E_k (n_k - [k = c] l_c m_c)               for c, k in C_g     ports
    (C8h) sum_k h_kw R_kw v_ckw <= H_gw  (>= for DEVICES, PRICE)            for c, w that waits
    (C8w) sum_g H_gw <= N_w  (>= for DEVICES, PRICE)                        for w that waits    Little's law

    For one demand the scenarios need no flows of their own: each instance takes as much of it as its rate and its port
    allow, and loads can be shared out at will. Where s_k is finite it is the number of domains of which any may fail,
    and these rows are necessary: some domain holds at least n_c / s_c of a shape, and all domains together hold each
    instance once, so that the mean of what their failures leave is (1 - l_k / s_k) n_k. They suffice where instances
    can be spread that evenly, which a placement has to show.
    """
    m: dict[int, Expr] = {}
    held: dict[int, list[Expr]] = {w: [] for w in waiting}
    for g, role in enumerate(roles_of([shape.stage for shape in shapes], [shape.rate for shape in shapes])):
        for c in role.shapes:
            m[c] = _losses(model, shapes[c], c, n[c])
        if len(role.demands) == 1 and role.demands[0] not in waiting:
            _add_largest(model, shapes, role, n, u, m)
            continue
        inside = {w: model.continuous(f"H[{g},{w}]", 0.0, 1.0) for w in role.demands if w in waiting}
        for w, clients in inside.items():
            held[w].append(clients)
        failures: list[int | None] = [*role.shapes, *([None] if _spread(shapes, role) else [])]
        for lost in failures:
            left = {k: _left(shapes[k], k, lost, n, m) for k in role.shapes}
            name = f"s{g}" if lost is None else str(lost)
            _add_scenario(model, shapes, role, name, left, u, inside, maximising=maximising)
    for w, parts in held.items():
        if parts:
            model.add(total(parts) <= 1.0 if maximising else total(parts) >= 1.0, f"C8w[{w}]")
    return m


def _losses(model: LinearModel, shape: Standing, c: int, n: Expr) -> Expr:
    """m_c and (C8m)."""
    spread = max(shape.most, 1) if shape.spread is None else shape.spread
    m = model.integer_variable(f"m[{c}]", 0, -(-shape.most // spread))
    model.add(n <= float(spread) * m, f"C8m[{c}]")
    return m


def _add_largest(
    model: LinearModel,
    shapes: Sequence[Standing],
    role: Role,
    n: Sequence[Expr],
    u: dict[tuple[int, int], Expr],
    m: dict[int, Expr],
) -> None:
    """(C8) of a role with one demand."""
    (w,) = role.demands
    carried = {c: shapes[c].rate[w] / max(1.0, shapes[c].port[w]) for c in role.shapes if shapes[c].rate[w] > 0.0}
    load = total(shapes[c].rate[w] * u[c, w] for c in carried)
    whole = total(rate * n[c] for c, rate in carried.items())
    for c, rate in carried.items():
        model.add(whole - rate * shapes[c].lost * m[c] >= load, f"C8[{c}]")
    if _spread(shapes, role):
        mean = total(rate * _left(shapes[c], c, None, n, m) for c, rate in carried.items())
        model.add(mean >= load, f"C8s[{role.shapes[0]}]")


def _spread(shapes: Sequence[Standing], role: Role) -> bool:
    return any(shapes[c].spread is not None for c in role.shapes)


def _left(shape: Standing, k: int, lost: int | None, n: Sequence[Expr], m: dict[int, Expr]) -> Expr:
    """What the failure of a shape leaves of shape k; without one, what the failure of a domain leaves in the mean."""
    if lost is None:
        return n[k] if shape.spread is None else (1.0 - shape.lost / shape.spread) * n[k]
    return n[k] - float(shape.lost) * m[k] if k == lost else n[k]


def _add_scenario(
    model: LinearModel,
    shapes: Sequence[Standing],
    role: Role,
    lost: str,
    left: dict[int, Expr],
    u: dict[tuple[int, int], Expr],
    inside: dict[int, Expr],
    *,
    maximising: bool,
) -> None:
    """(C8c) to (C8h) of a role of which a failure leaves `left`."""
    v = {
        (k, w): model.continuous(f"v[{lost},{k},{w}]", 0.0, shapes[k].most)
        for k in role.shapes
        for w in role.demands
        if (k, w) in u and math.isfinite(shapes[k].port[w])
    }
    for k in role.shapes:
        busy = [w for w in role.demands if (k, w) in v]
        model.add(total(v[k, w] for w in busy) <= left[k], f"C8c[{lost},{k}]")
        if any(shapes[k].port[w] > 0.0 for w in busy):
            model.add(total(shapes[k].port[w] * v[k, w] for w in busy) <= left[k], f"C8e[{lost},{k}]")
    for w in role.demands:
        able = [k for k in role.shapes if (k, w) in v]
        carried = total(shapes[k].rate[w] * v[k, w] for k in able)
        model.add(carried == total(shapes[k].rate[w] * u[k, w] for k in able), f"C8d[{lost},{w}]")
        if w in inside:
            clients = total(shapes[k].held[w] * v[k, w] for k in able)
            model.add(clients <= inside[w] if maximising else clients >= inside[w], f"C8h[{lost},{w}]")
