"""Actor and critic trained at the same time (RLHFuse): fused pipeline schedules solved where the search needs them.

The search first takes every pair's bubble at the bound of its schedules: no plan is better than what it finds. Where
training in turn is no worse, that is it. Else the schedule of the best plan's training is solved, its bubble takes the
place of the bound, and the search runs again, until the best plan is one whose schedule is known.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.kinds.rl.decision import FusedTraining
from planner.progress import Limits
from planner.rl.curves import Curves
from planner.rl.paired import Pair, least_bubble, pairs, read_order, solve_pair, written_order
from planner.rl.plan import RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.search import RlSolution
from planner.rl.search.search import solve as search
from planner.rl.search.trainings import training_choices
from planner.solvers.flow_shop import ShopSchedule
from planner.solvers.result import Status
from planner.solvers.schedules.fused_pipelines import lower_bound

TIE = 1e-6  # relative; plans nearer than this are equally good
ROUNDS = 4  # trainings whose schedules are solved at most
SCHEDULE_S = 4.0  # for one of them


@dataclass(frozen=True, slots=True)
class FusedSolution:
    """The problem with the bubbles of the schedules that were solved, its solution, and the schedule of its plan."""

    problem: RlProblem
    solution: RlSolution[RlPlan]
    training: FusedTraining | None


def search_fused(problem: RlProblem, curves: Curves, limits: Limits, seed: int) -> FusedSolution:
    """The best plan with every schedule that it takes; bound over all schedules, as `relaxed` derives it."""
    started = time.perf_counter()
    pair_of = pairs(problem, training_choices(problem), curves.critics)
    bubbles = least_bubbles(pair_of)
    relaxed_solution = solution = search(
        replace(problem, bubbles=bubbles), time_limit_s=limits.time_limit_s, gap=limits.gap
    )
    solved = dict[TrainingChoice, ShopSchedule]()
    in_turn = search(problem, time_limit_s=limits.time_limit_s, gap=limits.gap) if pair_of else solution
    if not pair_of or _as_good(in_turn, solution.bound):
        return FusedSolution(problem, _bounded(in_turn, relaxed_solution, limits.gap), None)
    while solution.plan is not None and (choice := solution.plan.training) in pair_of and choice not in solved:
        assert choice is not None
        if len(solved) == ROUNDS or _left_s(limits, started) <= 0:
            bubbles = {choice: bubbles[choice] for choice in solved}  # the others train in turn
        else:
            share_s = min(SCHEDULE_S, _left_s(limits, started))
            schedule = solve_pair(pair_of[choice], time_limit_s=share_s, seed=seed, threads=limits.threads).solution
            if schedule is None or pair_of[choice].bubble(schedule.makespan) >= choice.option.update_bubble:
                del pair_of[choice], bubbles[choice]
            else:
                solved[choice] = schedule
                bubbles[choice] = pair_of[choice].bubble(schedule.makespan)
        left_s = None if limits.time_limit_s is None else max(1.0, _left_s(limits, started))
        solution = search(replace(problem, bubbles=bubbles), time_limit_s=left_s, gap=limits.gap)
    known = {choice: bubbles[choice] for choice in solved}
    training = None
    if solution.plan is not None and solution.plan.training in solved:
        choice = solution.plan.training
        assert choice is not None
        training = stated(pair_of[choice], solved[choice])
    return FusedSolution(replace(problem, bubbles=known), _bounded(solution, relaxed_solution, limits.gap), training)


def _as_good(solution: RlSolution[RlPlan], bound: float | None) -> bool:
    return solution.objective is not None and bound is not None and solution.objective <= bound * (1 + TIE)


def _left_s(limits: Limits, started: float) -> float:
    return SCHEDULE_S if limits.time_limit_s is None else limits.time_limit_s - (time.perf_counter() - started)


def _bounded(solution: RlSolution[RlPlan], below: RlSolution[RlPlan], gap: float) -> RlSolution[RlPlan]:
    """The solution with the bound of one whose plans are no worse, and with what that came to."""
    if solution.objective is None or below.bound is None:
        return solution
    bound = min(below.bound, solution.objective)
    proven = solution.objective - bound <= max(gap, 1e-6) * abs(solution.objective)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return replace(solution, bound=bound, status=status, seen=below.seen, pruned=below.pruned, groups=below.groups)


def least_bubbles(pair_of: Mapping[TrainingChoice, Pair]) -> dict[TrainingChoice, float]:
    """Bubbles that no schedule undercuts."""
    return {choice: least_bubble(pair) for choice, pair in pair_of.items()}


def relaxed(problem: RlProblem, curves: Curves) -> RlProblem:
    """The problem no plan of which is better with any schedule: what the bound of a plan is derived from."""
    return replace(problem, bubbles=least_bubbles(pairs(problem, training_choices(problem), curves.critics)))


def stated(pair: Pair, schedule: ShopSchedule) -> FusedTraining:
    """The schedule as a plan states it."""
    return FusedTraining(
        actor_micro_batches=pair.actor_jobs,
        critic_micro_batches=pair.critic_jobs,
        order=tuple(written_order(pair, schedule.order)),
        makespan_s=schedule.makespan,
        bound_s=min(lower_bound(pair.pipelines()), schedule.makespan),
        in_turn_s=pair.makespan_s(pair.option.update_bubble),
    )


def replayed(problem: RlProblem, curves: Curves, plan: RlPlan, fused: FusedTraining) -> tuple[RlProblem, FusedTraining]:
    """The problem with the bubble of the plan's own schedule, and what the plan should state of it.

    Raises PlannerError where the order is no schedule of the plan's training, or holds more than there is room for.
    """
    assert plan.training is not None
    pair = pairs(problem, [plan.training], curves.critics)[plan.training]
    schedule = read_order(pair, fused.order)
    return replace(problem, bubbles={plan.training: pair.bubble(schedule.makespan)}), stated(pair, schedule)
