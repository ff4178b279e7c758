"""Serving plans that a stage of a workflow chooses among: one for each pool and limit on the stage's own latency, or
on its first tokens where nobody waits for its end."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import JsonValue

from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.kinds.workflow.graph.draws import lengths_of
from planner.kinds.workflow.graph.setting import GraphSetting, model_of
from planner.kinds.workflow.options import SERVED_ON
from planner.kinds.workflow.stage_options import ServeSpec
from planner.plan.schema import Decision, Envelope
from planner.problem.resolve import Resolved, Workload, lengths_facts
from planner.problem.schema import ClusterSpec, LimitsSpec, ObjectiveSpec, WorkloadSpec
from planner.problem.slo import Limit, SloSpec
from planner.progress import Limits

RUNGS = 5  # serving plans of a pool, at most, where the problem names no limits
SHORTER = 0.75  # of the latency that a plan predicts: the limit of the next


@dataclass(frozen=True, slots=True)
class Served:
    """A serving plan for a stage, on one pool, with the limit that it is for."""

    pool: int
    limit_s: float
    of_first: bool  # the limit, which is on the whole latency otherwise
    envelope: Envelope
    decision: Decision

    @property
    def usd_per_hour(self) -> float:
        value = self.envelope.certificate.objective.value
        assert value is not None
        return value

    @property
    def gpus(self) -> int:
        return sum(role.replicas * role.parallelism.devices for role in self.decision.roles)


def serving_plans(setting: GraphSetting, stage: int) -> list[Served]:
    """Distinct plans of a stage, by pool and falling limit; raises Infeasible where no pool serves it in any time."""
    serve = setting.stages[stage].serve
    assert serve is not None
    name = setting.stages[stage].name
    pools = [
        pool.name
        for pool in setting.resolved.pools
        if (serve.pools is None or pool.name in serve.pools) and setting.options.may(name, f"{SERVED_ON}{pool.name}")
    ]
    if not pools:
        place = setting.resolved.where(("options", "choices", name))
        raise PlannerError(f"stage `{name}` has no pool left to be served on", where=place, hint="name one of its own")
    places = [index for index, pool in enumerate(setting.resolved.pools) if pool.name in pools]
    plans = [served for pool in places for served in _on_pool(setting, stage, serve, pool)]
    if not plans:  # solved once more for what is in conflict
        return [solve_stage(setting, stage, places[0], max(serve.limits_s or (setting.latency_s,)), explain=True)]
    return plans


def _on_pool(setting: GraphSetting, stage: int, serve: ServeSpec, pool: int) -> Iterator[Served]:
    """Plans for the limits that the stage states, or for ever shorter ones."""
    limits = sorted(serve.limits_s or (setting.latency_s,), reverse=True)
    known: set[str] = set()
    tried = 0
    while limits:
        limit_s, tried = limits.pop(0), tried + 1
        try:
            served = solve_stage(setting, stage, pool, limit_s)
        except Infeasible:
            continue
        text = str([role.model_dump() for role in served.decision.roles])
        if text not in known:
            known.add(text)
            yield served
        if serve.limits_s is None and tried < RUNGS:
            limits.append(SHORTER * min(limit_s, _predicted_s(served, setting.percentile(serve))))


def _predicted_s(served: Served, percentile: str) -> float:
    """What is limited, as the plan states it at this percentile, or in the mean."""
    metric = "ttft_s" if served.of_first else "latency_s"
    rows = {row.statistic: row.value for row in served.envelope.predictions if row.metric == metric}
    return rows[percentile] if percentile in rows else rows["mean"]


def solve_stage(setting: GraphSetting, stage: int, pool: int, limit_s: float, *, explain: bool = False) -> Served:
    """The cheapest serving plan of a stage on a pool within a limit; raises Infeasible where there is none."""
    kind, limits = find_kind("serve"), Limits(seed=setting.resolved.problem.seed, explain=explain)
    try:
        envelope = kind.solve(embedded(setting, stage, pool, limit_s), limits)
    except PlannerError as error:
        where = setting.where(stage, "serve")
        raise PlannerError(
            f"stage `{setting.stages[stage].name}`: {error.what}", where=where, hint=error.hint
        ) from None
    return Served(pool, limit_s, setting.of_first(stage), envelope, kind.decision.model_validate(envelope.decision))


def embedded(setting: GraphSetting, stage: int, pool: int, limit_s: float) -> Resolved:
    """The serving problem of a stage: its calls at the rate of the whole, on one pool, within a limit of its own."""
    resolved, spec = setting.resolved, setting.stages[stage]
    assert spec.serve is not None
    key, problem = model_of(setting, spec.serve), resolved.problem
    own = lengths_of(setting, spec.serve)
    one_token: dict[str, JsonValue] = {"modes": ["colocated"]} if own.output_tokens == 1 else {}
    limit = Limit.model_validate({f"{setting.percentile(spec.serve)}_s": limit_s})
    workload = WorkloadSpec(
        name=spec.name,
        model=key,
        input_tokens=own.input_tokens,
        output_tokens=own.output_tokens,
        load=own.load,
        slo=SloSpec(ttft=limit) if setting.of_first(stage) else SloSpec(latency=limit),
    )
    inner = problem.model_copy(
        update={
            "kind": "serve",
            "name": f"{problem.name}-{spec.name}",
            "models": {key: problem.models[key]},
            "cluster": ClusterSpec(pools=(problem.cluster.pools[pool],)),
            "workloads": (workload,),
            "objective": ObjectiveSpec(minimize="cost"),
            "limits": LimitsSpec(),
            "options": {"judged_by": "queueing", **one_token, **spec.serve.options},
        }
    )
    prompts, answers = (
        lengths_facts(length, side, setting.where(stage, "serve", side))
        for side, length in (("input_tokens", own.input_tokens), ("output_tokens", own.output_tokens))
    )
    return replace(
        resolved,
        problem=inner,
        models={key: resolved.models[key]},
        pools=(resolved.pools[pool],),
        workloads=(Workload(workload, key, prompts, answers),),
    )
