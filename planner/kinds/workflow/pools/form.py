"""What forms of pools have in common: options of stages on pools of the cluster, limits, plans and their measures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from pydantic import JsonValue

from planner.arrays import Floats
from planner.documents.units import format_si
from planner.errors import PlannerError, require_known
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.pool_options import PoolOption
from planner.kinds.workflow.stream import OneStream
from planner.problem.resolve import Resolved
from planner.problem.schema import TraceLengths
from planner.problem.statistics import quantile_of
from planner.simulate.requests.arrivals import arrivals
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.shared_gpus import Part, Price, cost_of


class PoolPlan(Protocol):
    """Option and replicas of each stage; a stage without replicas is left out."""

    @property
    def pools(self) -> tuple[tuple[int, int], ...]: ...


P = TypeVar("P", bound=PoolPlan)


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """What a plan keeps: the figure, at most `bound`, as predictions (`metric`) and findings (`rule`) name it."""

    rule: str
    metric: str
    statistic: str
    label: str
    bound: float
    shown: Callable[[float], str]

    @property
    def quantile(self) -> float:
        """Of a limit on a percentile."""
        quantile = quantile_of(self.statistic)
        assert quantile is not None
        return quantile

    def __str__(self) -> str:
        return f"{self.label} <= {self.shown(self.bound)}"


def percentile_limit(name: str, statistic: str, bound_s: float, of: str) -> PoolLimit:
    """A limit on a percentile of a time of requests, called `name` as in `slo`."""
    return PoolLimit(name, f"{name}_s", statistic, f"{statistic} of {of}", bound_s, partial(format_si, unit="s"))


@dataclass(frozen=True, slots=True)
class PoolsForm(OneStream, ABC, Generic[P]):
    """A problem of one form; streams are drawn from seeds."""

    limits: tuple[PoolLimit, ...]

    key: ClassVar[str]  # of the form in `options`
    stages: ClassVar[tuple[str, ...]]
    idle: ClassVar[frozenset[str]]  # stages that a plan may leave out
    solver: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]]

    @abstractmethod
    def cheapest(self, seed: int, factor: float, time_limit_s: float, cover: Cover) -> SolveResult[P]:
        """The cheapest plan on the stream of a seed, for limits that are so much stricter; `cover` is filled."""

    @abstractmethod
    def measured(self, seed: int, plan: P) -> tuple[float, ...]:
        """Figures of the limits, in their order, on the stream of a seed."""

    @abstractmethod
    def plan_with(self, pools: tuple[tuple[int, int], ...], decision: WorkflowDecision) -> P:
        """The plan that a decision states of these pools; raises PlannerError for what the problem does not have."""

    @abstractmethod
    def details(self, plan: P) -> dict[str, Any]:
        """Fields of the decision beside pools."""

    @property
    def spec(self) -> Any:  # noqa: ANN401  # options of the form
        return getattr(self.options, self.key)

    def rows(self, stage: str) -> tuple[PoolOption, ...]:
        """The options of a stage."""
        options: tuple[PoolOption, ...] = getattr(self.spec, stage)
        return options

    def counts(self, stage: str) -> tuple[int, ...]:
        """Replicas of a stage to choose from."""
        choice = self.options.choices.get(stage)
        most = int(self.spec.most_replicas)
        servers = range(1, most + 1) if choice is None or choice.servers is None else sorted(set(choice.servers))
        return tuple(servers)

    def pool_of(self, option: PoolOption) -> int:
        """The number of the pool that an option stands on."""
        names = [pool.name for pool in self.resolved.pools]
        return names.index(option.pool) if option.pool is not None else 0

    def usd_per_hour(self, option: PoolOption) -> float:
        """Of a replica; of the share of a GPU that it takes."""
        price = self.resolved.pools[self.pool_of(option)].usd_per_gpu_hour
        assert price is not None
        return price * option.gpus * (option.gpu_share or 1.0)

    def part_of(self, option: PoolOption) -> Part | None:
        """The share of a GPU of its pool that a replica takes; None where it has whole ones."""
        return None if option.gpu_share is None else Part(self.pool_of(option), option.gpu_share)

    @property
    @abstractmethod
    def axes(self) -> dict[str, list[JsonValue]]:
        """What is chosen from, each with its values."""

    @property
    def shares(self) -> bool:
        """Whether any option takes a share of a GPU."""
        return any(option.gpu_share is not None for stage in self.stages for option in self.rows(stage))

    def pools_of(self, stage: str) -> list[JsonValue]:
        """Every option of a stage with every number of replicas."""
        return [f"{replicas} x {row.name}" for row in self.rows(stage) for replicas in self.counts(stage)]

    def chosen(self, plan: P) -> Iterator[tuple[str, PoolOption, int]]:
        """Stages with replicas, their options and how many replicas."""
        for stage, (option, replicas) in zip(self.stages, plan.pools, strict=True):
            if replicas:
                yield stage, self.rows(stage)[option], replicas

    def cost(self, plan: P) -> float:
        """USD an hour; GPUs that replicas share are paid for as such."""
        rows = [(Price(self.usd_per_hour(row), self.part_of(row)), k) for _, row, k in self.chosen(plan)]
        return cost_of(rows, whole=True)

    def dearest(self) -> P:
        """The dearest option of every stage with the most replicas."""
        pools = []
        for stage in self.stages:
            prices = [self.usd_per_hour(row) for row in self.rows(stage)]
            pools.append((prices.index(max(prices)), max(self.counts(stage))) if prices else (0, 0))
        return self.any_of(tuple(pools))

    @abstractmethod
    def any_of(self, pools: tuple[tuple[int, int], ...]) -> P:
        """A plan of these pools, with the first of what else there is to choose."""

    def keeps(self, values: tuple[float, ...]) -> bool:
        """Whether every limit holds."""
        return all(value <= limit.bound for value, limit in zip(values, self.limits, strict=True))

    def arrivals_s(self, seed: int) -> Floats:
        """Of the requests of a stream [R]."""
        assert self.workload.load is not None
        cv, count = self.workload.load.arrival_cv, self.options.simulated_requests
        if cv > 0.0:
            return arrivals("gamma", self.rate_per_s, count, cv=cv, seed=seed + 1)
        return np.asarray(np.arange(1, count + 1) / self.rate_per_s)


def narrowed(resolved: Resolved, key: str, stages: tuple[str, ...]) -> WorkflowOptions:
    """The options of a problem with those of each stage that may be chosen; raises PlannerError for a stage without."""
    options = WorkflowOptions.model_validate(resolved.problem.options)
    form, left = getattr(options, key), {}
    for stage in stages:
        left[stage] = tuple(row for row in getattr(form, stage) if options.may(stage, row.name))
        if not left[stage] and getattr(form, stage) and not options.may(stage, "none"):
            place = resolved.where(("options", "choices", stage))
            raise PlannerError(f"no option of `{stage}` is left to choose from", where=place, hint="name others of it")
    return options.model_copy(update={key: form.model_copy(update=left)})


def require_one_stream(resolved: Resolved, key: str) -> None:
    """Raises PlannerError for problems that are not one model's, with a rate, at least cost."""
    where = resolved.where
    if resolved.problem.objective.minimize != "cost":
        raise PlannerError("pools of stages minimise cost", where=where(("objective",)), hint="write `minimize: cost`")
    if len(resolved.workloads) != 1 or len(resolved.models) != 1:
        what = f"{len(resolved.workloads)} workloads and {len(resolved.models)} models, where pools serve one of each"
        raise PlannerError(what, where=where(("workloads",)), hint="give one of each")
    spec = resolved.workloads[0].spec
    if spec.load is None or spec.load.rate_per_s is None:
        raise PlannerError(f"{key} has no rate", where=where(("workloads", 0)), hint="write `load: {rate: 2/s}`")
    for side in ("input_tokens", "output_tokens"):
        if isinstance(getattr(spec, side), TraceLengths):
            hint = "write its `mean` and `cv`"
            raise PlannerError("streams are drawn, and a trace is one", where=where(("workloads", 0, side)), hint=hint)


def require_pools(form: PoolsForm[P]) -> PoolsForm[P]:
    """Refuses pools without a price, and options that name none where there are several."""
    resolved, names = form.resolved, [pool.name for pool in form.resolved.pools]
    for stage in form.stages:
        for index, option in enumerate(form.rows(stage)):
            where = resolved.where(("options", form.key, stage, index))
            if option.pool is None and len(names) > 1:
                raise PlannerError(
                    f"option `{option.name}` names no pool", where=where, hint=f"one of {', '.join(names)}"
                )
            if option.pool is not None:
                require_known("pool", option.pool, names, listing="pools are", where=where)
            pool = resolved.pools[form.pool_of(option)]
            if pool.usd_per_gpu_hour is None:
                place = resolved.where(("cluster", "pools", form.pool_of(option)))
                raise PlannerError(f"pool `{pool.name}` has no price", where=place, hint="write `price: 2.50USD/h`")
            if option.gpus > pool.node.num_gpus:
                what = f"a replica of {option.gpus} GPUs, and nodes of `{pool.name}` have {pool.node.num_gpus}"
                raise PlannerError(what, where=where, hint="keep a replica inside a node")
    return form
