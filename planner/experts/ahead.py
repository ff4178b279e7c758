"""Expert placements for the next window of load, hedged against how loads drift.

The next window is taken to be the last one, give or take: noise of each expert by itself; experts of one routing group
rising and falling together, since a router that picks groups first moves them together; and the changes seen between
earlier windows, which often go on or come back. Shape suffixes: W window, L layer, E expert, P slot.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.experts.layout import Layout, assemble, copies_moved, require_resident, spread_problems
from planner.experts.ranks import Ranks, require_loads
from planner.solvers.layouts.respread import Uncertainty, hedge, hedged_time, respread
from planner.solvers.layouts.spread import Spread, SpreadProblem, equal_shares

OWN_NOISE, GROUP_NOISE = 0.2, 0.5
"""Standard deviations of the next load of an expert, and of its group's common part, in units of a level halfway
between the expert's own load and the mean load. Assumed, in round figures: loads of production windows differ by
15-40 % from one to the next (SGLang's published DeepSeek counts), those of a group in one direction."""
DEVIATIONS = 1.0
MOST_CHANGES = 4  # earlier windows whose difference from the last one counts
MOVE_SLACK = 0.0
"""Of the hedged time above the best found from nothing, at which the search from the resident layout stops."""


def uncertainty_of(history_WE: Floats, groups: int) -> Uncertainty:
    """How the next window may differ from the last of `history_WE`, in tokens of that last window."""
    total = float(history_WE[-1].sum())
    scaled_WE = history_WE * (total / history_WE.sum(axis=1, keepdims=True))
    last_E = scaled_WE[-1]
    experts = len(last_E)
    level_E = 0.5 * (last_E + total / experts)
    factors = [last_E - before_E for before_E in scaled_WE[:-1][-MOST_CHANGES:]]
    if groups > 1:
        group_E = np.arange(experts) // (experts // groups)
        factors += [np.where(group_E == group, GROUP_NOISE * level_E, 0.0) for group in range(groups)]
    return Uncertainty((OWN_NOISE * level_E) ** 2, np.array(factors).reshape(len(factors), experts), DEVIATIONS)


def plan_ahead(
    history_WLE: npt.ArrayLike,
    ranks: Ranks,
    *,
    groups: int = 1,
    resident_LP: npt.ArrayLike | None = None,
    move_slack: float = MOVE_SLACK,
) -> Layout:
    """The layout for the window after the last of `history_WLE`, equal shares; its figures are for that last window.

    Starts from `resident_LP` where given, and then moves only what brings the hedged time within `move_slack` of the
    best found. `groups` is the number of routing groups of the model (8 for DeepSeek-V3, 1 for none).
    """
    history = np.ascontiguousarray(history_WLE, np.float64)
    require_loads(history, "window,layer,expert")
    if groups < 1 or history.shape[2] % groups:
        raise PlannerError(
            f"{groups} groups do not divide {history.shape[2]} experts",
            where="groups",
            hint="give the routing groups of the model, 1 for none",
        )
    if move_slack < 0:
        raise PlannerError(f"must be at least 0, found {move_slack}", where="move slack")
    problems = spread_problems(history[-1], ranks)
    resident = None if resident_LP is None else require_resident(resident_LP, problems, ranks)
    spreads = []
    for layer, problem in enumerate(problems):
        before_P = None if resident is None else resident[layer]
        item_P = _plan(problem, uncertainty_of(history[:, layer], groups), before_P, move_slack)
        spreads.append(Spread(item_P, equal_shares(item_P, len(problem.weight_E))))
    layout = assemble(problems, ranks, spreads, "equal")
    if resident_LP is None:
        return layout
    return replace(layout, moved_experts=copies_moved(ranks, np.asarray(resident_LP), layout.expert_LP))


def _plan(problem: SpreadProblem, uncertainty: Uncertainty, resident_P: Ints | None, slack: float) -> Ints:
    fresh_P = hedge(problem, uncertainty)
    assert fresh_P is not None
    if resident_P is None:
        return fresh_P
    goal = hedged_time(problem, fresh_P, uncertainty) * (1.0 + slack)
    near = respread(problem, resident_P, goal, uncertainty=uncertainty).solution
    assert near is not None
    reached = hedged_time(problem, near.item_P, uncertainty) <= goal * (1.0 + 1e-9)
    return near.item_P if reached else fresh_P
