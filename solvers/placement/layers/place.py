"""Layers over unequal nodes placed: aligned stages, moves away from them, and all spans where these are few."""

import time

from planner.solvers.placement.layers.aligned import best_stages
from planner.solvers.placement.layers.bound import flow_bound
from planner.solvers.placement.layers.flow import max_flow
from planner.solvers.placement.layers.moves import moved
from planner.solvers.placement.layers.problem import PRECISION, Held, LayerPlan, LayerProblem
from planner.solvers.placement.layers.spans import best_spans, few_spans
from planner.solvers.result import SolveResult, Status, relative_gap

EXACT = 1e-6  # of a flow, by which a bound may be above it and be met
SOLVER = "aligned stages, moves, spans by integer programs, patterns of holders"


def place_layers(problem: LayerProblem) -> SolveResult[LayerPlan]:
    """The most tokens a second that is known, and a bound on any.

    OPTIMAL where the bound is within `PRECISION`. INFEASIBLE where it is proven that no request passes through all
    layers, or so few that none counts (`spans.USED`); UNKNOWN where no layers are known that let any through.
    """
    started_s = time.perf_counter()
    plan, bound = best_layers(problem)
    if bound is None:
        bound = flow_bound(problem, 0.0 if plan is None else plan[0])
    solve_s = time.perf_counter() - started_s
    if plan is None:
        status = Status.UNKNOWN if bound > 0.0 else Status.INFEASIBLE
        return SolveResult(status, "finished", None, None, bound if bound > 0.0 else None, solve_s, SOLVER)
    gap = relative_gap(plan[0], bound)
    status = Status.OPTIMAL if gap is not None and gap <= PRECISION else Status.FEASIBLE
    return SolveResult(status, "finished", plan[1], plan[0], bound, solve_s, SOLVER)


def best_layers(problem: LayerProblem, above: float = 0.0) -> tuple[tuple[float, LayerPlan] | None, float | None]:
    """The layers with most tokens a second, None where no request passes through all, and a bound where spans are few.

    Not all is tried where aligned stages let fewer through than `above`, which others do.
    """
    plan = best_stages(problem)
    if plan is not None and not plan[0]:
        plan = None
    known = max(above, 0.0 if plan is None else plan[0])
    bound = flow_bound(problem, known) if few_spans(problem) else None
    if bound is not None and bound <= known * (1.0 + EXACT):
        return plan, bound
    if plan is not None and plan[0] >= above:
        plan = _better(problem, plan, moved(problem, plan[1].held))
    if bound is None:
        return plan, None
    answer = best_spans(problem)
    if answer.held is not None:
        plan = _better(problem, plan, answer.held)
    return plan, max(min(bound, answer.bound), 0.0 if plan is None else plan[0])


def layers_bound(problem: LayerProblem, above: float) -> float:
    """No layers on these nodes let more tokens a second through; `above` is what some do."""
    bound = flow_bound(problem, above)
    if bound <= above * (1.0 + EXACT) or not few_spans(problem):
        return bound
    return max(above, min(bound, best_spans(problem).bound))


def _better(problem: LayerProblem, plan: tuple[float, LayerPlan] | None, held: Held) -> tuple[float, LayerPlan] | None:
    rate, flow = max_flow(problem, held)
    if rate <= (0.0 if plan is None else plan[0]):
        return plan
    return rate, LayerPlan(held, flow)
