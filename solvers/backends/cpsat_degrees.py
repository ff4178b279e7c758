"""CP-SAT for sequences on blocks of ranks: one choice a sequence, a hint, a bound; the formulation of `degrees`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.arrays import Floats
from planner.solvers.backends.cpsat import timed_solver
from planner.solvers.backends.mathopt import version

Choices = tuple[tuple[int, int], ...]
"""Degree and block of each sequence."""


class Degrees(Protocol):
    """As `contexts.degrees.DegreeProblem`."""

    @property
    def degrees(self) -> tuple[int, ...]: ...
    @property
    def seconds_NC(self) -> Floats: ...
    @property
    def ranks(self) -> int: ...


UNITS = 10**6  # of the longest rank at the start; seconds are rounded down to whole ones, so that bounds hold


@dataclass(frozen=True, slots=True)
class Improved:
    """Choices, what was proven, and why the search ended."""

    choices: Choices
    bound: float
    stop_reason: str
    solver: str


def improve(
    problem: Degrees,
    choices: Choices,
    fullest_of: Callable[[Choices], float],
    bound: float,
    *,
    time_limit_s: float,
    seed: int = 0,
    threads: int = 1,
) -> Improved:
    """The best choices from those given as a hint."""
    from ortools.sat.python import cp_model

    name, top = f"ortools-cpsat {version()}", fullest_of(choices)
    if time_limit_s <= 0.5:
        return Improved(choices, bound, "time_limit", name)
    unit = UNITS / top
    model = cp_model.CpModel()
    T = model.new_int_var(int(bound * unit), UNITS, "T")
    x: dict[tuple[int, int, int], cp_model.IntVar] = {}
    ranks: list[list[cp_model.LinearExpr]] = [[] for _ in range(problem.ranks)]
    area: list[cp_model.LinearExpr] = []
    for n, seconds_C in enumerate(problem.seconds_NC):
        own = []
        for degree, seconds in zip(problem.degrees, seconds_C, strict=True):
            if seconds > top or not np.isfinite(seconds):
                continue
            spent = int(seconds * unit)
            for block in range(problem.ranks // degree):
                chosen = x[n, degree, block] = model.new_bool_var("")
                own.append(chosen)
                area.append(spent * degree * chosen)
                for rank in range(block * degree, (block + 1) * degree):
                    ranks[rank].append(spent * chosen)
                model.add_hint(chosen, choices[n] == (degree, block))
        model.add_exactly_one(own)
    for load in ranks:
        model.add(sum(load) <= T)  # C1
    model.add(sum(area) <= problem.ranks * T)
    model.minimize(T)
    solver = timed_solver(time_limit_s, seed, threads)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Improved(choices, bound, "time_limit", name)
    placed = {n: (degree, block) for (n, degree, block), chosen in x.items() if solver.value(chosen)}
    placements = tuple(placed[n] for n in range(len(choices)))
    best = placements if fullest_of(placements) < top else choices
    stop = "finished" if status == cp_model.OPTIMAL else "time_limit"
    return Improved(best, max(bound, solver.best_objective_bound / unit), stop, name)
