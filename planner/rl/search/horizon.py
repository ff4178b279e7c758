"""Plans over training time: as response lengths grow, when to change the split, at what switching cost.

Source: OrchestrRL (arXiv 2601.01209): T_k + C_sw; StreamRL (arXiv 2504.15930): a unit moves when it saves more than the
move costs. Here the whole horizon is solved exactly: `solvers.horizon`.

Array suffixes: T periods, S states (every plan of the space), A attributes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import Infeasible, PlannerError
from planner.rl.evaluate import SECONDS_PER_HOUR, evaluate
from planner.rl.plan import GenerationGroup, RlEvaluation, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem, validate
from planner.rl.search.best_first import TIE
from planner.rl.search.enumeration import build_space
from planner.rl.search.pricing import FullPricing
from planner.rl.search.search import Simulations
from planner.rl.search.search import solve as search
from planner.rl.trajectories import SampleBatch
from planner.solvers.result import Status
from planner.solvers.schedules.horizon import horizon_cost, solve_horizon

Changed = Literal["generation", "training", "circuit"]


@dataclass(frozen=True, slots=True)
class Period:
    """Iterations of the same lengths, as far as is known."""

    batches: tuple[SampleBatch, ...]
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
class HorizonProblem:
    """`problem` states all but the lengths; `running` is the plan before the first period, where one is known."""

    problem: RlProblem
    periods: tuple[Period, ...]
    change: ChangeCosts
    running: RlPlan | None = None

    def of_period(self, index: int) -> RlProblem:
        """The problem with the lengths of a period."""
        return replace(self.problem, batches=self.periods[index].batches)

    @property
    def worth_of_second(self) -> float:
        """A second of change in the unit of the objective: all GPUs are in use meanwhile."""
        if self.problem.objective == "iteration_time":
            return 1.0
        return sum(pool.gpus * pool.usd_per_gpu_hour for pool in self.problem.pools) / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class HorizonPlan:
    """A plan for every period; totals over the horizon in the unit of the objective.

    `fixed_total` is the best single plan, `greedy_total` takes the best plan of every period whatever the change costs,
    of equally good ones those with the least changes.
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
    open_states: tuple["OpenStates", ...] = ()  # of each period
    change_A: tuple[float, ...] = ()  # in the unit of the objective
    initial_A: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class OpenStates:
    """States of a period that a path as good as the best could take if changes cost nothing: attributes and costs.

    The other `left` cost no less than `least_left`, infinite where they are impossible.
    """

    attribute_KA: Ints
    cost_K: Floats
    left: int
    least_left: float


@dataclass(frozen=True, slots=True)
class HorizonEvaluation:
    """Given plans priced: one evaluation a period, what changes on entering it, and the total of both.

    `broken` lists the rules that a plan breaks, each with its period.
    """

    total: float
    evaluations: tuple[RlEvaluation, ...]
    changed: tuple[tuple[Changed, ...], ...]
    change_total: float
    broken: tuple[str, ...]


def plan_horizon(horizon: HorizonProblem) -> HorizonPlan:
    """The plans over the periods whose iterations and changes take least.

    Raises PlannerError for bad input, and Infeasible where some period has no plan.
    """
    running, change = horizon.running, horizon.change
    tables = [_prices(horizon.of_period(index)) for index in range(len(horizon.periods))]
    attribute_SA, plans = tables[0].attribute_SA, tables[0]
    price_TS = np.stack([table.price_S for table in tables])
    possible = np.isfinite(price_TS).any(axis=1)
    if not possible.all():
        raise _infeasible(horizon, int(np.flatnonzero(~possible)[0]))
    count_T = np.array([period.iterations for period in horizon.periods], float)
    cost_TS = price_TS * count_T[:, None]
    change_A = np.array([change.generation_s, change.training_s, change.circuit_s]) * horizon.worth_of_second
    initial_A = tables[0].attributes_of(running) if running is not None else None
    result = solve_horizon(cost_TS, attribute_SA, change_A, initial_A=initial_A)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    fixed = cost_TS.sum(axis=0)
    if initial_A is not None:
        fixed = fixed + (attribute_SA != initial_A) @ change_A
    best_TS = np.where(cost_TS <= cost_TS.min(axis=1, keepdims=True) * (1 + TIE), cost_TS, np.inf)
    greedy = solve_horizon(best_TS, attribute_SA, change_A, initial_A=initial_A).solution
    assert greedy is not None
    best_fixed = int(fixed.argmin())
    return HorizonPlan(
        status=result.status,
        plans=tuple(plans.plan(state) for state in result.solution),
        total=result.objective,
        bound=result.bound,
        changes=sum(map(bool, changes_on_the_way(running, tuple(map(plans.plan, result.solution))))),
        fixed_plan=plans.plan(best_fixed) if np.isfinite(fixed[best_fixed]) else None,
        fixed_total=float(fixed[best_fixed]),
        greedy_total=horizon_cost(greedy, cost_TS, attribute_SA, change_A, initial_A=initial_A),
        states=price_TS.shape[1],
        open_states=tuple(_open_states(cost_TS, attribute_SA, result.objective)),
        change_A=tuple(change_A.tolist()),
        initial_A=None if initial_A is None else tuple(initial_A.tolist()),
    )


def _open_states(cost_TS: Floats, attribute_SA: Ints, total: float) -> Iterator[OpenStates]:
    least_T = cost_TS.min(axis=1)
    for cost_S, least in zip(cost_TS, least_T, strict=True):
        open_S = cost_S + (least_T.sum() - least) <= total * (1 + TIE)
        left_S = cost_S[~open_S]
        yield OpenStates(attribute_SA[open_S], cost_S[open_S], len(left_S), float(left_S.min(initial=np.inf)))


def evaluate_horizon(horizon: HorizonProblem, plans: Sequence[RlPlan]) -> HorizonEvaluation:
    """`plans`, one a period, priced without the tables and the search of `plan_horizon`."""
    change, changed = horizon.change, changes_on_the_way(horizon.running, plans)
    evaluations = tuple(evaluate(horizon.of_period(index), plan) for index, plan in enumerate(plans))
    second = {"generation": change.generation_s, "training": change.training_s, "circuit": change.circuit_s}
    change_total = sum(second[part] for parts in changed for part in parts) * horizon.worth_of_second
    counts = [period.iterations for period in horizon.periods]
    iterations = sum(count * priced.objective for count, priced in zip(counts, evaluations, strict=True))
    broken = [f"period {index}: {rule}" for index, priced in enumerate(evaluations) for rule in priced.broken]
    return HorizonEvaluation(iterations + change_total, evaluations, changed, change_total, tuple(broken))


def changes_on_the_way(running: RlPlan | None, plans: Sequence[RlPlan]) -> tuple[tuple[Changed, ...], ...]:
    """What changes on entering each period; nothing on entering the first where it is not known what runs."""
    return tuple(changes_between(before, after) for before, after in pairwise((running or plans[0], *plans)))


def changes_between(before: RlPlan, after: RlPlan) -> tuple[Changed, ...]:
    """What `ChangeCosts` charges for going from one plan to the other."""
    differs: dict[Changed, bool] = {
        "generation": before.groups != after.groups,
        "training": (before.mode, before.training) != (after.mode, after.training),
        "circuit": _gpus_of_roles(before) != _gpus_of_roles(after),
    }
    return tuple(part for part, changed in differs.items() if changed)


def _gpus_of_roles(plan: RlPlan) -> tuple[tuple[str, int], ...]:
    parts = (*plan.groups, *((plan.training,) if plan.training is not None else ()))
    return tuple((part.option.pool, part.gpus) for part in parts)


def _infeasible(horizon: HorizonProblem, index: int) -> Infeasible:
    """Names the period that no plan can do, and the shortest iteration where a cap is what stands against it."""
    cap = horizon.problem.max_iteration_s
    nearest_s = search(horizon.of_period(index)).nearest_iteration_s
    if cap is None or nearest_s is None:
        return Infeasible([{"limit": f"GPUs of the pools in period {index}", "nearest": ""}], proved=True)
    limit = f"max_iteration_s <= {cap:g} in period {index}"
    return Infeasible([{"limit": limit, "nearest": f"max_iteration_s {nearest_s:.6g}"}], proved=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Every plan of one period; states are numbered alike in all periods: (group of replicas, mode, training)."""

    price_S: Floats
    attribute_SA: Ints
    groups: tuple[GenerationGroup, ...]
    modes: tuple[RlMode, ...]
    choices: tuple[TrainingChoice, ...]
    split_KA: Ints  # pool and GPUs of generation, pool and GPUs of training
    pools: tuple[str, ...]

    def attributes_of(self, plan: RlPlan) -> Ints:
        """Attributes of a plan; -1 where no state has its like."""
        assert plan.training is not None
        group = self.groups.index(plan.groups[0]) if plan.groups[0] in self.groups and len(plan.groups) == 1 else -1
        training = -1
        if plan.mode in self.modes and plan.training in self.choices:
            training = self.modes.index(plan.mode) * len(self.choices) + self.choices.index(plan.training)
        roles = _gpus_of_roles(plan)
        row = [size for pool, gpus in (roles[0], roles[-1]) for size in (self.pools.index(pool), gpus)]
        split = np.flatnonzero((self.split_KA == row).all(axis=1))
        return np.array([group, training, int(split[0]) if len(split) and len(plan.groups) == 1 else -1], np.int64)

    def plan(self, state: int) -> RlPlan:
        shape = (len(self.groups), len(self.modes), len(self.choices))
        group, mode, choice = (int(index) for index in np.unravel_index(state, shape))
        return RlPlan(self.modes[mode], (self.groups[group],), self.choices[choice])


def _prices(problem: RlProblem) -> _Prices:
    validate(problem)
    if not problem.training or problem.max_groups > 1 or problem.fusion_thresholds or problem.late_thresholds:
        raise PlannerError(
            "horizons are planned for one generation group with training, nothing fused",
            where="max_groups",
            hint="set `max_groups` to 1 and give training options",
        )
    space = build_space(problem)
    pricing, simulations = FullPricing(space), Simulations(space)
    shape = (len(space.groups), len(problem.modes), len(space.table.choices))
    price = np.full(shape, np.inf)
    for config, group in enumerate(space.first_C):
        price[group] = pricing.exact_MT(config, simulations.rollout(config))
    group_S, mode_S, choice_S = (axis.reshape(-1) for axis in np.indices(shape))
    gpus_G = np.array([group.gpus for group in space.groups])
    pool_G = np.array([[pool.name for pool in problem.pools].index(group.option.pool) for group in space.groups])
    sizes = np.column_stack(
        [pool_G[group_S], gpus_G[group_S], space.table.pool_T[choice_S], space.table.gpus_T[choice_S]]
    )
    split_KA, split_S = np.unique(sizes, axis=0, return_inverse=True)
    training_S = mode_S * shape[2] + choice_S
    attribute_SA = np.column_stack([group_S, training_S, split_S.reshape(-1)])
    pools = tuple(pool.name for pool in problem.pools)
    return _Prices(price.reshape(-1), attribute_SA, space.groups, problem.modes, space.table.choices, split_KA, pools)
