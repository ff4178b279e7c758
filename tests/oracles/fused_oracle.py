"""The least makespan of tiny fused pipelines by trying every order of passes on every machine."""

from itertools import product
from math import inf

from planner.errors import PlannerError
from planner.solvers.schedules.fused_pipelines import FusedProblem, read_off


def least_makespan(problem: FusedProblem) -> float:
    """Infinite where no order keeps the capacities."""
    best = inf
    for order in product(*(_orders(problem, machine) for machine in range(problem.num_machines))):
        try:
            best = min(best, read_off(problem, order).makespan)
        except PlannerError:  # passes that wait for each other, or too much held
            continue
    return best


def _orders(problem: FusedProblem, machine: int) -> list[tuple[int, ...]]:
    """Every order of the tasks of a machine in which no backward pass comes before its forward pass."""
    left = {t: int(problem.count_T[t]) for t in range(len(problem.machine_T)) if problem.machine_T[t] == machine}
    found: list[tuple[int, ...]] = []

    def extend(order: tuple[int, ...]) -> None:
        if not any(left.values()):
            found.append(order)
        for task_type, count in left.items():
            partner = int(problem.partner_T[task_type])
            if count and (problem.forward_T[task_type] or left[partner] < count):
                left[task_type] -= 1
                extend((*order, task_type))
                left[task_type] += 1

    extend(())
    return found
