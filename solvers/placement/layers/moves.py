"""Layers that nodes hold, moved one by one away from aligned stages, as long as no fewer tokens a second flow."""

import random

from planner.solvers.placement.layers.flow import carried, short_enough
from planner.solvers.placement.layers.problem import Held, LayerProblem, rate_of

MOVES = 2000  # tried at most
PATIENCE = 400  # tried since the last that carries more


def moved(problem: LayerProblem, held: Held) -> Held:
    """Spans that carry at least as much: nodes take spans between boundaries at hand or beside them, or each other's,
    and boundaries shift by a layer. Moves that carry as much as before are made, so that several can carry more."""
    best, now = held, carried(problem, held)
    draws = random.Random(0)
    idle = 0  # moves since the last that carries more
    for _ in range(MOVES):
        if idle >= PATIENCE:
            break
        idle += 1
        other = _neighbour(problem, best, draws)
        if other == best or not short_enough(problem, other):
            continue
        flow = carried(problem, other)
        if flow >= now:
            idle = 0 if flow > now else idle
            best, now = other, flow
    return best


def _neighbour(problem: LayerProblem, held: Held, draws: random.Random) -> Held:
    other, kind = [*held], draws.random()
    a = draws.randrange(len(held))
    if kind < 0.25 and len(held) > 1:
        b = draws.randrange(len(held))
        other[a], other[b] = held[b], held[a]
    elif kind < 0.5:
        cut = draws.choice(sorted({edge for span in held if span is not None for edge in span}))
        if 0 < cut < problem.layers:
            to = cut + draws.choice((-1, 1))
            other = [None if span is None else _shifted(span, cut, to) for span in held]
    else:
        other[a] = _drawn(problem, held, draws)
    for node, span in zip(problem.nodes, other, strict=True):
        if span is not None and (span[0] >= span[1] or rate_of(node, span[1] - span[0]) <= 0.0):
            return held
    return tuple(other)


def _shifted(span: tuple[int, int], cut: int, to: int) -> tuple[int, int]:
    start, end = span
    return (to if start == cut else start, to if end == cut else end)


def _drawn(problem: LayerProblem, held: Held, draws: random.Random) -> tuple[int, int]:
    """A span between two boundaries at hand, one in four with another boundary."""
    edges = {0, problem.layers, *(edge for span in held if span is not None for edge in span)}
    if draws.random() < 0.25 and problem.layers > 1:
        edges.add(draws.randrange(1, problem.layers))
    start, end = sorted(draws.sample(sorted(edges), 2))
    return start, end
