"""Plans over training time: lengths drift, so the best split drifts, and every change of it takes time.

Source: OrchestrRL (arXiv 2601.01209): T_k + C_sw; StreamRL (arXiv 2504.15930): a unit moves when it saves more than the
move costs. Here the whole horizon is solved exactly: `solvers.horizon`.

Array suffixes: T periods, S states (every plan of the space), A attributes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlannerError
from planner.rl.evaluate import SECONDS_PER_HOUR
from planner.rl.plan import GenerationGroup, RlPlan, TrainingChoice
from planner.rl.pricing import FullPricing
from planner.rl.problem import Batch, Mode, RlProblem, validate
from planner.rl.search import Simulations
from planner.rl.space import build_space
from planner.solvers.horizon import horizon_cost, solve_horizon
from planner.solvers.result import Status

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Period:
    """Iterations of the same lengths, as far as is known."""

    batches: tuple[Batch, ...]
    iterations: int


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """Seconds that a change takes, added up: of the replicas, of the training parallelism or mode, and of how many GPUs
    each role has in which pool (circuits of an optical fabric set anew, a unit that changes hands).
    """

    generation_s: float
    training_s: float
    circuit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HorizonPlan:
    """A plan for every period; totals over the horizon in the unit of the objective.

    `fixed_total` is the best single plan, `greedy_total` takes the best plan of every period whatever the change costs.
    """

    status: Status
    plans: tuple[RlPlan, ...]
    total: float
    bound: float
    changes: int
    fixed_plan: RlPlan | None
    fixed_total: float
    greedy_total: float
    states: int


def plan_horizon(problem: RlProblem, periods: Sequence[Period], change: ChangeCosts) -> HorizonPlan:
    """The plans over `periods` whose iterations and changes take least, `problem` stating all but the lengths.

    Raises PlannerError for bad input, and where some period has no plan.
    """
    tables = [_prices(replace(problem, batches=period.batches)) for period in periods]
    attribute_SA, plans = tables[0].attribute_SA, tables[0]
    price_TS = np.stack([table.price_S for table in tables])
    possible = np.isfinite(price_TS).any(axis=1)
    if not possible.all():
        period = int(np.flatnonzero(~possible)[0])
        what = f"period {period} has no plan"
        raise PlannerError(what, where=f"periods.{period}", hint="shorten its lengths, or raise `max_iteration_s`")
    count_T = np.array([period.iterations for period in periods], float)
    cost_TS = price_TS * count_T[:, None]
    change_A = np.array([change.generation_s, change.training_s, change.circuit_s]) * _worth_of_second(problem)
    result = solve_horizon(cost_TS, attribute_SA, change_A)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    fixed = cost_TS.sum(axis=0)
    greedy = tuple(int(one) for one in cost_TS.argmin(axis=1))
    best_fixed = int(fixed.argmin())
    return HorizonPlan(
        status=result.status,
        plans=tuple(plans.plan(state) for state in result.solution),
        total=result.objective,
        bound=result.bound,
        changes=sum(one != other for one, other in zip(result.solution[:-1], result.solution[1:], strict=True)),
        fixed_plan=plans.plan(best_fixed) if np.isfinite(fixed[best_fixed]) else None,
        fixed_total=float(fixed[best_fixed]),
        greedy_total=horizon_cost(greedy, cost_TS, attribute_SA, change_A),
        states=price_TS.shape[1],
    )


def _worth_of_second(problem: RlProblem) -> float:
    """A second of change in the unit of the objective: all GPUs are held meanwhile."""
    if problem.objective == "iteration_time":
        return 1.0
    return sum(pool.gpus * pool.usd_per_gpu_hour for pool in problem.pools) / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Every plan of one period; states are numbered alike in all periods: (group of replicas, mode, training)."""

    price_S: Floats
    attribute_SA: Ints
    groups: tuple[GenerationGroup, ...]
    modes: tuple[Mode, ...]
    choices: tuple[TrainingChoice, ...]

    def plan(self, state: int) -> RlPlan:
        shape = (len(self.groups), len(self.modes), len(self.choices))
        group, mode, choice = (int(one) for one in np.unravel_index(state, shape))
        return RlPlan(self.modes[mode], (self.groups[group],), self.choices[choice])


def _prices(problem: RlProblem) -> _Prices:
    validate(problem)
    if not problem.training or problem.max_groups > 1:
        what = "horizons are planned for one generation group with training"
        raise PlannerError(what, where="max_groups", hint="set `max_groups` to 1 and give training options")
    space = build_space(problem)
    pricing, simulations = FullPricing(space), Simulations(space)
    shape = (len(space.groups), len(problem.modes), len(space.table.choices))
    price = np.full(shape, np.inf)
    for config, group in enumerate(space.first_C):
        price[group] = pricing.exact_MT(config, simulations.rollout(config))
    group_S, mode_S, choice_S = (axis.reshape(-1) for axis in np.indices(shape))
    gpus_G = np.array([group.gpus for group in space.groups])
    pool_G = np.array([[one.name for one in problem.pools].index(group.option.pool) for group in space.groups])
    sizes = np.column_stack(
        [pool_G[group_S], gpus_G[group_S], space.table.pool_T[choice_S], space.table.gpus_T[choice_S]]
    )
    _, split_S = np.unique(sizes, axis=0, return_inverse=True)
    training_S = mode_S * shape[2] + choice_S
    attribute_SA = np.column_stack([group_S, training_S, split_S.reshape(-1)])
    return _Prices(price.reshape(-1), attribute_SA, space.groups, problem.modes, space.table.choices)
