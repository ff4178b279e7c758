"""A workflow problem that can be answered: one stream of requests, stages in order, a limit on the whole, prices."""

from dataclasses import dataclass

from planner.errors import PlannerError, require_known
from planner.kinds.registry import find_kind
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.stage_options import ServeSpec, StageSpec
from planner.kinds.workflow.stream import OneStream
from planner.problem.resolve import Resolved
from planner.problem.schema import Lengths, TraceLengths
from planner.problem.statistics import quantile_of
from planner.schema.keys import validated
from planner.solvers.workflow.simulated_graph import TimeLimit

SERVED_SHARE = 0.95  # of the calls of a stage, at most, that its serving plans are to end in time


@dataclass(frozen=True, slots=True)
class GraphSetting(OneStream):
    """Stages in topological order, by number the stages each waits for, and the limits on the whole."""

    stages: tuple[StageSpec, ...]
    places: tuple[int, ...]  # in the problem
    parents: tuple[tuple[int, ...], ...]
    limits: tuple[TimeLimit, ...]

    @property
    def latency_s(self) -> float:
        """The loosest time that a request may take in all: what one stage alone could take of it."""
        return self._loosest.bound_s

    def percentile(self, serve: ServeSpec) -> str:
        """Of a stage's own latency, what its serving plans are limited on: its p95, or a lower one where the whole has
        that and the stage states no limits. Where the whole keeps a percentile, every stage on its way does."""
        share = SERVED_SHARE if serve.limits_s is not None else min(self._loosest.share, SERVED_SHARE)
        return f"p{100.0 * share:.6g}"

    def of_first(self, stage: int) -> bool:
        """Whether the serving plans of a stage are limited on its first tokens: nobody waits for its end, neither a
        stage nor a limit on the whole, and the stage states no limits of its own."""
        serve = self.stages[stage].serve
        awaited = any(stage in parents for parents in self.parents)
        own = serve is not None and serve.limits_s is not None
        return all(limit.of_first for limit in self.limits) and not awaited and not own

    @property
    def _loosest(self) -> TimeLimit:
        return max(self.limits, key=lambda limit: limit.bound_s)

    @property
    def serves(self) -> bool:
        """Whether any stage serves a model."""
        return any(stage.serve is not None for stage in self.stages)

    @property
    def every_scenario(self) -> bool:
        """Whether requests are scenarios: calls that never wait, with times by scenario, the same in all stages."""
        return self.options.every_scenario

    def where(self, stage: int, *below: str | int) -> str:
        """The place of a stage in the problem."""
        return self.resolved.where(("options", "stages", self.places[stage], *below))


def read_setting(resolved: Resolved) -> GraphSetting:
    """Raises PlannerError for problems that no workflow answers."""
    options = WorkflowOptions.model_validate(resolved.problem.options)
    order = options.order()
    stages = tuple(options.stages[index] for index in order)
    number = {stage.name: index for index, stage in enumerate(stages)}
    parents = tuple(tuple(number[name] for name in stage.after) for stage in stages)
    _require_objective(resolved)
    limits = tuple(_limits(resolved))
    setting = GraphSetting(resolved, options, stages, tuple(order), parents, limits)
    for index, stage in enumerate(stages):
        if stage.serve is not None:
            _require_served(setting, index, stage.serve)
    _require_models_used(setting)
    return setting


def _require_objective(resolved: Resolved) -> None:
    if resolved.problem.objective.minimize != "cost":
        place = resolved.where(("objective",))
        raise PlannerError("workflows minimise cost", where=place, hint="write `objective: {minimize: cost}`")
    if len(resolved.workloads) != 1:
        what = f"{len(resolved.workloads)} workloads, and a workflow answers one stream of requests"
        hint = "give one: `workloads: [{load: {rate: 2/s}, slo: {latency: {p95: 4s}}}]`"
        raise PlannerError(what, where=resolved.where(("workloads",)), hint=hint)
    spec = resolved.workloads[0].spec
    if spec.load is None or spec.load.rate_per_s is None:
        what = f"workload `{spec.name}` has no rate"
        raise PlannerError(what, where=resolved.where(("workloads", 0)), hint="write `load: {rate: 2/s}`")
    if spec.load.arrival_cv != 1.0 and WorkflowOptions.model_validate(resolved.problem.options).every_scenario:
        place = resolved.where(("workloads", 0, "load", "arrival_cv"))
        raise PlannerError("`arrival_cv` has no effect where no call waits for another", where=place, hint="remove it")
    for side, length in (("input_tokens", spec.input_tokens), ("output_tokens", spec.output_tokens)):
        _require_drawn(length, resolved.where(("workloads", 0, side)))


def _require_drawn(length: Lengths | None, where: str) -> None:
    """Refuses lengths of a trace: requests of streams are drawn."""
    if isinstance(length, TraceLengths):
        what = "streams of a workflow are drawn, and a trace is one stream"
        raise PlannerError(what, where=where, hint="write its `mean` and `cv`, or the `shape` of a service")


def _limits(resolved: Resolved) -> list[TimeLimit]:
    spec, limits = resolved.workloads[0].spec, []
    for name, statistic, bound_s in spec.slo.limits():
        share, place = quantile_of(statistic), resolved.where(("workloads", 0, "slo", name))
        if share is None:
            what = "a workflow is judged by the share of requests that are in time, and a mean is of none"
            raise PlannerError(what, where=place, hint=f"write a percentile: `{name}: {{p95: 4s}}`")
        limits.append(TimeLimit(bound_s, share, of_first=name == "ttft"))
    if not limits:
        place = resolved.where(("workloads", 0))
        what = f"workload `{spec.name}` has no limit, so that the cheapest stages would do however late"
        raise PlannerError(what, where=place, hint="write `slo: {latency: {p95: 4s}}`")
    return limits


def _require_served(setting: GraphSetting, index: int, serve: ServeSpec) -> None:
    resolved = setting.resolved
    model = model_of(setting, serve)
    require_known("model", model, resolved.models, listing="models are", where=setting.where(index, "serve", "model"))
    resolved.require_priceable(model)
    validated(find_kind("serve").options, serve.options, lambda path: setting.where(index, "serve", "options", *path))
    for side in ("input_tokens", "output_tokens"):
        _require_drawn(getattr(serve, side), setting.where(index, "serve", side))
    names = [pool.name for pool in resolved.pools]
    for pool in serve.pools or names:
        require_known("pool", pool, names, listing="pools are", where=setting.where(index, "serve", "pools"))
        priced = resolved.pools[names.index(pool)].usd_per_gpu_hour
        if priced is None:
            place = resolved.where(("cluster", "pools", names.index(pool)))
            raise PlannerError(f"pool `{pool}` has no price", where=place, hint="write `price: 2.50USD/h`")


def _require_models_used(setting: GraphSetting) -> None:
    """Refuses models that no stage serves."""
    used = {model_of(setting, stage.serve) for stage in setting.stages if stage.serve is not None}
    idle = sorted(set(setting.resolved.models) - used)
    if idle:
        hint = "name it in `serve.model` of a stage, or remove it"
        place = setting.resolved.where(("models", idle[0]))
        raise PlannerError(f"no stage serves model `{idle[0]}`", where=place, hint=hint)


def model_of(setting: GraphSetting, serve: ServeSpec) -> str:
    """The key of the model that a stage serves."""
    return serve.model or setting.resolved.workloads[0].model
