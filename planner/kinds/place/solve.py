"""Solves a placement problem: groups of devices, and the models that share them, judged by simulation."""

from collections.abc import Iterator, Sequence

from planner.errors import PlannerError
from planner.kinds.place.choose import Choice, best_choice, claimed, devices_of, fewest_choice
from planner.kinds.place.decision import Host, PlaceDecision, PlaceOptions
from planner.kinds.place.envelope import certificate, place_envelope
from planner.kinds.place.floor import broken_nodes
from planner.kinds.place.prices import Degrees
from planner.kinds.place.setting import PlaceSetting, batch_sizes, widest_setting
from planner.plan.blocks import block_on
from planner.plan.schema import (
    Axis,
    Block,
    Certificate,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Objective,
    Parallelism,
    Prediction,
    Role,
)
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.placement.group_search import SOLVER
from planner.solvers.placement.group_streams import Group

FORESIGHT = "the bound lets requests choose their groups with foresight, and groups be parts of some"
POOLED = "the bound counts all GPUs as one machine, whose steps are as full as suits them best"
IN_TURNS = (
    "engines of a group take turns, a step each; a step takes prompts that wait, whole, or decodes all sequences",
    "of two engines of its model, drawn at random, a request goes to the one with fewer requests in flight",
)
ONE_BY_ONE = (
    "a group takes requests one by one, stage after stage, and drops those that would be late",
    "requests go to the group of their model whose last stage is free first",
)


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The groups and hosts with most requests on time, or on the fewest GPUs, as a plan.

    Raises PlannerError for problems that no placement answers, Infeasible where the shares asked for are not reached.
    """
    options = PlaceOptions.model_validate(resolved.problem.options)
    if options.mix is not None:
        from planner.kinds.place.mix.plan import solve as solve_mix

        return solve_mix(resolved, limits)
    if options.layers is not None:
        from planner.kinds.place.layers.plan import solve as solve_layers

        return solve_layers(resolved)
    if options.lora is not None:
        from planner.kinds.place.lora.plan import solve as solve_lora

        return solve_lora(resolved, limits)
    setting = widest_setting(resolved)
    return envelope(fewest_choice(setting) if fewest(setting) else best_choice(setting))


def fewest(setting: PlaceSetting) -> bool:
    """Whether GPUs are to be few; else requests on time are to be many. Raises PlannerError for other objectives."""
    objective = setting.resolved.problem.objective
    if objective.minimize == "gpus":
        return True
    if objective.maximize == "attainment":
        return False
    raise PlannerError(
        "placements of models maximise attainment or minimise gpus",
        where=setting.resolved.where(("objective",)),
        hint="write `maximize: attainment` or `minimize: gpus`",
    )


def envelope(choice: Choice) -> Envelope:
    """The plan of a choice."""
    setting = choice.setting
    return place_envelope(
        setting.resolved,
        _decision(choice),
        _predictions(choice),
        proven(choice),
        solver=SOLVER,
        evidence=Evidence(
            basis={"analytical": 1.0},
            notes=(
                f"shares on time are of {len(claimed(setting))} streams that nothing was chosen on, "
                f"of {setting.options.simulated_requests} requests each",
                "no measurement of engines that share a GPU is behind these prices",
            ),
        ),
        assumptions=IN_TURNS if setting.options.batching else ONE_BY_ONE,
        calibration=setting.calibration,
    )


def proven(choice: Choice) -> Certificate:
    """The objective beside its bound; nothing is claimed of streams other than those of the plan."""
    setting = choice.setting
    few = fewest(setting)
    value = float(devices_of(setting.groups, choice.groups)) if few else choice.reached.share
    what = "on fewer GPUs{bound} have the shares asked for" if few else "have more requests on time{bound}"
    return certificate(
        f"no groups {what}, of the streams of the plan, under the stated prices and whatever their routing",
        Objective(metric="gpus" if few else "attainment", sense="minimize" if few else "maximize", value=value),
        choice.bound,
        POOLED if setting.options.batching else FORESIGHT,
        {
            "groups": [shape.name for shape in setting.groups.shapes],
            "models of a group": ["every set that has room"],
            **({"max_batch": [*batch_sizes(setting.options.max_batch)]} if setting.options.batching else {}),
        },
        len(setting.groups.usable),
    )


def _decision(choice: Choice) -> PlaceDecision:
    setting, groups, share_GM = choice.setting, choice.groups, choice.reached.traffic_GM
    names = [f"group-{index}" for index in range(len(groups))]
    return PlaceDecision(
        roles=tuple(_role(setting, group, name) for group, name in zip(groups, names, strict=True)),
        placement=tuple(_blocks(choice, names)),
        router_policy="power-of-two" if setting.options.batching else None,
        hosts=tuple(
            Host(
                group=name,
                model=setting.workloads[model].model,
                weights_bytes=float(setting.prices.weights_CM[group.shape, model]),
                kv_cache_bytes=float(setting.prices.kv_CM[group.shape, model]),
                share=float(share_GM[index, model]),
                max_batch=setting.sequences_M[model],
            )
            for index, (group, name) in enumerate(zip(groups, names, strict=True))
            for model in group.models
        ),
    )


def _role(setting: PlaceSetting, group: Group, name: str) -> Role:
    spec, prices, models = setting.resolved.problem.engine, setting.prices, list(group.models)
    degrees = prices.degrees[group.shape]
    return Role(
        name=name,
        function="group",
        engine=Engine(name=spec.name, version=spec.version),
        pool=setting.pool.name,
        replicas=1,
        parallelism=Parallelism(tp=degrees.tp, pp=degrees.pp),
        memory=Memory(
            weights_bytes=float(prices.weights_CM[group.shape, models].sum()),
            kv_cache_bytes=float(prices.kv_CM[group.shape, models].sum()),
            activations_bytes=float(prices.activations_CM[group.shape, models].sum()),
            workspace_bytes=prices.workspace_bytes * len(models),
            capacity_bytes=prices.room_bytes,
        ),
    )


def _blocks(choice: Choice, names: Sequence[str]) -> Iterator[Block]:
    """Groups on their devices."""
    setting = choice.setting
    for group, devices, name in zip(choice.groups, choice.places, names, strict=True):
        yield block_on(devices, name, setting.pool.name, _axes(setting.prices.degrees[group.shape]))


def _axes(degrees: Degrees) -> tuple[Axis, ...]:
    sizes = (("pp", degrees.pp, degrees.tp), ("tp", degrees.tp, 1))
    return tuple(Axis(name=name, size=size, stride=stride) for name, size, stride in sizes if size > 1)


def _predictions(choice: Choice) -> Iterator[Prediction]:
    setting = choice.setting
    yield Prediction(metric="attainment", value=choice.reached.share)
    yield Prediction(metric="gpus", value=float(devices_of(setting.groups, choice.groups)))
    if setting.floor is not None:
        yield Prediction(metric="nodes_broken", value=float(broken_nodes(setting.floor, choice.places)))
    for index, workload in enumerate(setting.workloads):
        name = workload.spec.name
        yield Prediction(metric="attainment", of=name, value=float(choice.reached.share_M[index]))
        for time, statistic, _ in workload.spec.slo.limits():
            late_s = choice.reached.quantile_s(index, time, float(statistic[1:]) / 100.0)
            value = late_s + setting.way_s(workload, time)
            yield Prediction(metric=f"{time}_s", of=name, statistic=statistic, value=value)
