"""The verified plan of the space in which a mix was chosen by formulas, with the bound of the whole space."""

from dataclasses import replace

from planner.errors import Infeasible
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.choice import Chosen, records_of, with_records
from planner.kinds.serve.verified.loop import Brief
from planner.kinds.serve.verified.orders import solve_verified
from planner.plan.schema import Envelope
from planner.progress import Limits


def solve_preferred(
    picked: Chosen, limits: Limits, started_s: float, bounds: ProblemBounds | None = None, brief: Brief | None = None
) -> Envelope:
    """The best plan that keeps its limits in simulation, of the forms that the mix was chosen of (`choice`).

    Of all forms where simulation finds none of those that does. `bounds` are those of the problem, where they are
    known; `brief` of a search beside others. Raises as `solve_verified` does.
    """
    bounds, held = bounds or ProblemBounds.within(picked.whole, limits, started_s), picked.held()
    if held.setting.forms is not None:
        own_limits = replace(limits, explain=False)
        try:
            plan = solve_verified(held.setting, held.outcome, own_limits, started_s, bounds, brief)
        except Infeasible:
            limits.tell("searching all forms")
            return solve_verified(picked.whole, picked.best, limits, started_s, bounds, brief)
    else:
        plan = solve_verified(picked.setting, picked.outcome, limits, started_s, bounds, brief)
    return with_records(plan, list(records_of(picked, simulated=True)))
