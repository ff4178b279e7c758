"""Shortest path with a budget (constrained shortest path): strategies of layers in a chain, changes charged.

Each item of the chain is in one state under one of the state's options. An option has a time and a size; going from one
state to another takes time. The sizes together must stay within the budget.

Sets        l in L items, g in G states, o in O options of a state
Parameters  t_lgo [s], m_lgo [bytes] of item l in state g under o;  c_lgh [s] from g (l - 1) to h (l);  M budget
Variables   g_l, o_l
Minimise    sum over l of t_l(g_l, o_l) + c_l(g_{l-1}, g_l)
Subject to  (C1) sum over l of m_l(g_l, o_l) <= M
Recurrence  labels (size, time) by state that no other label of it dominates, item by item. A label is dropped when
            its time, plus the least of the rest under the price y of a byte, passes the best plan known:
            time + rest_y(l, g) - y (M - size) >= best. The price is the one with the best such bound (C1 dualised), and
            its plans are the first known. Exact; O(labels x G x O) an item. A cutoff takes the place of the best plan
            known where it is less; where nothing is faster than it, the status is UNKNOWN and the bound proves it.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.pareto import DUST, efficient
from planner.solvers.result import SolveResult, Status

SOLVER = "chain dynamic program"
PRICE_STEPS = 40  # bisections of the price, at most
PRICE_GROWTH = 16.0
PRICE_REL_TOL = 1e-4  # any price bounds; nearer ones hardly bound better


@dataclass(frozen=True, slots=True, eq=False)
class ChainProblem:
    """Infinite times stand for options that an item does not have; change_LGG[0] is not read."""

    time_LGO: Floats
    size_LGO: Floats
    change_LGG: Floats
    budget: float

    def __post_init__(self) -> None:
        L, G, _ = self.time_LGO.shape
        if self.size_LGO.shape != self.time_LGO.shape or self.change_LGG.shape != (L, G, G):
            raise PlannerError(
                "figures differ in number", where="chain", hint="give each item the same states and options"
            )
        if np.isnan(self.time_LGO).any() or (self.time_LGO < 0).any() or not (self.size_LGO >= 0).all():
            raise PlannerError("times and sizes must be at least 0", where="chain", hint="fix the negative one")
        if not np.isfinite(self.time_LGO).any(axis=(1, 2)).all():
            raise PlannerError("an item has no option", where="chain", hint="give every item a finite time")


@dataclass(frozen=True, slots=True)
class Chain:
    """State and option of every item."""

    states: tuple[int, ...]
    options: tuple[int, ...]


def chain_time(problem: ChainProblem, chain: Chain) -> float:
    """Time of all items and changes."""
    seconds = 0.0
    for item, (state, option) in enumerate(zip(chain.states, chain.options, strict=True)):
        seconds += float(problem.time_LGO[item, state, option])
        if item:
            seconds += float(problem.change_LGG[item, chain.states[item - 1], state])
    return seconds


def chain_size(problem: ChainProblem, chain: Chain) -> float:
    """Size of all items."""
    items = range(len(chain.states))
    return float(sum(problem.size_LGO[item, chain.states[item], chain.options[item]] for item in items))


def solve_chain(problem: ChainProblem, cutoff: float = np.inf) -> SolveResult[Chain]:
    """The fastest chain within the budget, proven; INFEASIBLE where none is within it, UNKNOWN where none beats the
    cutoff."""
    started_s = time.perf_counter()
    sizes = np.where(np.isfinite(problem.time_LGO), problem.size_LGO, np.inf)
    if float(sizes.min(axis=(1, 2)).sum()) > problem.budget * (1.0 + DUST):
        took_s = time.perf_counter() - started_s
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took_s, solver=SOLVER)
    price, known, bound = _price(problem, cutoff)
    chain = _labels(problem, price, known, cutoff) if bound < cutoff else None
    took_s = time.perf_counter() - started_s
    if chain is None:
        return SolveResult(Status.UNKNOWN, "cutoff", None, None, max(bound, cutoff), took_s, solver=SOLVER)
    value = chain_time(problem, chain)
    return SolveResult(Status.OPTIMAL, "finished", chain, value, value, took_s, solver=SOLVER)


def _priced(problem: ChainProblem, price: float) -> tuple[Floats, Ints]:
    """Least time + price x size of an item in a state over its options [L, G], and that option."""
    with np.errstate(invalid="ignore"):
        cost_LGO = problem.time_LGO + price * problem.size_LGO
    return cost_LGO.min(axis=2), cost_LGO.argmin(axis=2)


def _rest(problem: ChainProblem, price: float) -> Floats:
    """Least priced cost of all items after l when l is in g [L, G]."""
    cost_LG, _ = _priced(problem, price)
    rest_LG = np.zeros_like(cost_LG)
    for item in range(len(cost_LG) - 2, -1, -1):
        after_GG = problem.change_LGG[item + 1] + (cost_LG[item + 1] + rest_LG[item + 1])[None, :]
        rest_LG[item] = after_GG.min(axis=1)
    return rest_LG


def _cheapest(problem: ChainProblem, price: float) -> Chain:
    """The chain of least priced cost."""
    cost_LG, option_LG = _priced(problem, price)
    rest_LG = _rest(problem, price)
    state = int((cost_LG[0] + rest_LG[0]).argmin())
    states = [state]
    for item in range(1, len(cost_LG)):
        state = int((problem.change_LGG[item, state] + cost_LG[item] + rest_LG[item]).argmin())
        states.append(state)
    return Chain(tuple(states), tuple(int(option_LG[item, state]) for item, state in enumerate(states)))


def _price(problem: ChainProblem, cutoff: float) -> tuple[float, Chain | None, float]:
    """A price of a byte near the one with the best bound, the fastest chain within the budget met on the way, and that
    bound; stops where the bound reaches the cutoff."""
    best: Chain | None = None
    best_s, bound = np.inf, -np.inf
    low, high = 0.0, 1e-30
    finite = problem.time_LGO[np.isfinite(problem.time_LGO)]
    scale = float(finite.sum()) / max(problem.budget, 1e-300)

    def tried(price: float) -> bool:
        nonlocal best, best_s, bound
        chain = _cheapest(problem, price)
        seconds, size = chain_time(problem, chain), chain_size(problem, chain)
        bound = max(bound, seconds + price * (size - problem.budget))
        if size > problem.budget * (1.0 + DUST):
            return False
        if seconds < best_s:
            best, best_s = chain, seconds
        return True

    if tried(0.0):
        return 0.0, best, bound
    high = scale * 1e-6
    while bound < cutoff and not tried(high) and high < scale * 1e12:
        low, high = high, PRICE_GROWTH * high
    for _ in range(PRICE_STEPS):
        if bound >= cutoff or high <= low * (1.0 + PRICE_REL_TOL):
            break
        middle = (low * high) ** 0.5 if low > 0.0 else high / PRICE_GROWTH
        low, high = (low, middle) if tried(middle) else (middle, high)
    return high, best, bound


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Labels of one item, state by state: where each came from, and its option."""

    size_P: Floats
    time_P: Floats
    state_P: Ints
    option_P: Ints
    from_P: Ints


def _labels(problem: ChainProblem, price: float, known: Chain | None, cutoff: float) -> Chain | None:
    """The best chain by labels, None where none beats the cutoff; `known` is within the budget."""
    L, G, _ = problem.time_LGO.shape
    most_s = min(np.inf if known is None else chain_time(problem, known), cutoff)
    rest_LG = _rest(problem, price)
    sizes = np.where(np.isfinite(problem.time_LGO), problem.size_LGO, np.inf).min(axis=(1, 2))
    room_L = problem.budget * (1.0 + DUST) - np.concatenate([np.cumsum(sizes[::-1])[::-1][1:], [0.0]])
    layers: list[_Layer] = []
    for item in range(L):
        rows = [_grown(problem, layers[-1] if layers else None, item, state) for state in range(G)]
        layer = _Layer(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))
        bound_P = layer.time_P + rest_LG[item][layer.state_P] - price * (problem.budget - layer.size_P)
        kept_P = (layer.size_P <= room_L[item]) & (bound_P <= most_s * (1.0 + 1e-9))
        layers.append(_Layer(*(getattr(layer, name)[kept_P] for name in _Layer.__slots__)))
    if not len(layers[-1].time_P):
        return known if known is not None and chain_time(problem, known) < cutoff else None
    chain = _walked(layers)
    return chain if chain_time(problem, chain) < cutoff else None


def _grown(
    problem: ChainProblem, before: _Layer | None, item: int, state: int
) -> tuple[Floats, Floats, Ints, Ints, Ints]:
    """Labels of `item` in `state` that no other of that state dominates."""
    option_O = efficient(problem.size_LGO[item, state], problem.time_LGO[item, state])
    time_O, size_O = problem.time_LGO[item, state, option_O], problem.size_LGO[item, state, option_O]
    if before is None:
        size, seconds, option, origin = size_O, time_O, option_O, np.zeros(len(option_O), np.int64)
    else:
        came_P = before.time_P + problem.change_LGG[item][before.state_P, state]
        first_P = efficient(before.size_P, came_P)
        size = (before.size_P[first_P][:, None] + size_O[None, :]).ravel()
        seconds = (came_P[first_P][:, None] + time_O[None, :]).ravel()
        option, origin = np.tile(option_O, len(first_P)), np.repeat(first_P, len(option_O))
    kept = efficient(size, seconds)
    return size[kept], seconds[kept], np.full(len(kept), state), option[kept], origin[kept]


def _walked(layers: list[_Layer]) -> Chain:
    """The fastest label of the last item, followed back."""
    point = int(layers[-1].time_P.argmin())
    states, options = [], []
    for layer in reversed(layers):
        states.append(int(layer.state_P[point]))
        options.append(int(layer.option_P[point]))
        point = int(layer.from_P[point])
    return Chain(tuple(reversed(states)), tuple(reversed(options)))
