"""Whether groups can hold all models at all: an integer program over the groups that devices can make.

Sets        g in G slots, for each usable shape c as many as devices can make alone;  m in M models
Variables   y_g whether slot g is a group;  x_mg whether m lives on it
Constraints (C1) to (C5) of `shared_groups`, the memory of a slot counted only where it is a group
Any solution will do: which groups are good is for `group_search`, which starts from it where it finds none of its own.
"""

from planner.solvers.backends.model import LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.placement.group_streams import Group
from planner.solvers.placement.shared_groups import SharedGroups
from planner.solvers.result import SolveResult

MOST_S = 5.0  # after which nothing is proven


def homes(problem: SharedGroups, time_limit_s: float = MOST_S) -> SolveResult[tuple[Group, ...]]:
    """Groups that hold every model as often as is asked for, once at least; INFEASIBLE where none do."""
    model = LinearModel()
    slots = [shape for shape in problem.usable for _ in range(problem.most_of((), shape))]
    size = [problem.shapes[shape].devices for shape in slots]
    y = [model.binary(f"y[{g}]") for g in range(len(slots))]
    x = [[model.binary(f"x[{m},{g}]") for g in range(len(slots))] for m in range(problem.models)]
    model.add(total(a * each for a, each in zip(size, y, strict=True)) <= float(problem.devices), "C1")
    for least, room in problem.room_at:
        large = [a * each for a, each in zip(size, y, strict=True) if a >= least]
        model.add(total(large) <= float(room), f"C4[{least}]")
    for g, shape in enumerate(slots):
        weights, hosted = problem.shapes[shape].weight_bytes_M, problem.hosts(shape)
        held = [float(weights[m]) / problem.memory_bytes * x[m][g] for m in range(problem.models) if hosted[m]]
        model.add(total(held) <= y[g], f"C2[{g}]")
        for m in range(problem.models):
            model.add(x[m][g] <= (y[g] if hosted[m] else 0.0), f"C2[{m},{g}]")
        for a, b in sorted(problem.apart):
            model.add(x[a][g] + x[b][g] <= 1.0, f"C5[{a},{b},{g}]")
        if g and slots[g - 1] == shape:
            model.add(y[g] <= y[g - 1], f"alike[{g}]")
    for m in range(problem.models):
        model.add(total(x[m]) >= float(max(problem.least_hosts, 1)), f"C3[{m}]")
    model.minimise(total(y))
    result = solve(model, time_limit_s=time_limit_s)
    groups = None
    if result.solution is not None:
        value = result.solution.value
        groups = tuple(
            Group(shape, tuple(m for m in range(problem.models) if value(x[m][g]) > 0.5))
            for g, shape in enumerate(slots)
            if value(y[g]) > 0.5
        )
    return SolveResult(
        result.status, result.stop_reason, groups, result.objective, result.bound, result.solve_s, result.solver
    )
