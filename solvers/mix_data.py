"""JSON form of an instance-mix problem and its solution: what a certificate stores to be rebuilt from."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import PlannerError
from planner.solvers.backends.model import JsonValue, LinearModel
from planner.solvers.backends.solve import vertex
from planner.solvers.mix import (
    MixDemand,
    MixLimits,
    MixObjective,
    MixPool,
    MixProblem,
    MixRole,
    MixShape,
    MixSolution,
    Slots,
    part_of_planned,
)
from planner.solvers.mix_model import Vars


def problem_to_dict(problem: MixProblem) -> dict[str, JsonValue]:
    """The problem as plain data, fields at their defaults left out."""
    return {
        "objective": problem.objective.value,
        "shapes": [_stated(shape) for shape in problem.shapes],
        "pools": [{"name": pool.name, "nodes": [list(pair) for pair in pool.nodes]} for pool in problem.pools],
        "demands": [_stated(demand) for demand in problem.demands],
        "links": None if problem.links is None else [list(row) for row in problem.links],
        "limits": _stated(problem.limits),
    }


def problem_from_dict(data: Mapping[str, JsonValue]) -> MixProblem:
    """The problem that `problem_to_dict` wrote; raises PlannerError when the data are malformed."""
    try:
        problem = MixProblem(
            shapes=tuple(
                MixShape(
                    **{
                        **shape,
                        "role": MixRole(shape["role"]),
                        **_tuples(shape, "rate_per_s", "held_s"),
                        **_aside(shape),
                    }
                )
                for shape in data["shapes"]
            ),
            pools=tuple(
                MixPool(pool["name"], tuple((int(a), int(b)) for a, b in pool["nodes"])) for pool in data["pools"]
            ),
            demands=tuple(MixDemand(**demand) for demand in data["demands"]),
            objective=MixObjective(data["objective"]),
            links=None if data["links"] is None else tuple(tuple(row) for row in data["links"]),
            limits=MixLimits(**data["limits"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlannerError(f"malformed mix: {error}", where="certificate.proof.mix") from None
    names = [part.name for parts in (problem.shapes, problem.pools, problem.demands) for part in parts]
    for name in names:
        if not isinstance(name, str):
            raise PlannerError(f"malformed mix: `{name}` is no name", where="certificate.proof.mix")
    return problem


def point_of(
    problem: MixProblem, kept: Sequence[int], model: LinearModel, variables: Vars, solution: MixSolution
) -> tuple[float, ...]:
    """The values of the model's columns at `solution`; shape i of `problem` is shape `kept[i]` of the solution's.

    Loads after a failure are no part of a solution: any that keep the rows are taken.
    """
    unit = variables.rate_unit_per_s
    part = [part_of_planned(problem, w) for w in range(len(problem.demands))]
    values: dict[int, float] = {}
    for i, c in enumerate(kept):
        values[variables.n[i].column] = float(solution.counts[c])
    for (i, w), busy in variables.u.items():
        values[busy.column] = solution.load_per_s[kept[i]][w] / part[w] / problem.shapes[i].rate_per_s[w]
    for key, column in variables.f.items():
        values[column.column] = 0.0
        for flow in solution.flows:
            if (flow.source, flow.target, flow.demand, flow.channel) == key:
                values[column.column] = flow.rate_per_s / part[flow.demand] / unit
    for w, served in enumerate(variables.d):
        values[served.column] = solution.served_per_s[w] / part[w] / unit
    if problem.objective is MixObjective.SCALE:
        shares = [(w, demand.share) for w, demand in enumerate(problem.demands) if demand.share > 0.0]
        values[variables.objective.column] = math.fsum(solution.served_per_s[w] for w, _ in shares) / (
            unit * math.fsum(share for _, share in shares)
        )
    for i, used in variables.y.items():
        values[used.column] = float(solution.counts[kept[i]] > 0)
    for c, losses in variables.m.items():
        values[losses.column] = float(problem.shapes[c].losses(solution.counts[kept[c]]))
    if len(values) < len(model.names):
        completed = vertex(model, values)
        return completed or tuple(values.get(column, 0.0) for column in range(len(model.names)))
    return tuple(values[column] for column in range(len(values)))


def _stated(item: Any) -> dict[str, JsonValue]:  # noqa: ANN401  # any of the mix dataclasses
    """Fields that are not at their default, tuples as lists, enumerations by value."""
    return {
        field.name: _plain(value)
        for field in dataclasses.fields(item)
        if (value := getattr(item, field.name)) != field.default
    }


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.value if isinstance(value, (MixRole, MixObjective)) else value


def _aside(data: Mapping[str, JsonValue]) -> dict[str, tuple[Slots, ...]]:
    return {"aside": tuple(Slots(*map(int, part)) for part in data["aside"])} if "aside" in data else {}


def _tuples(data: Mapping[str, JsonValue], *names: str) -> dict[str, tuple[float, ...]]:
    return {name: tuple(float(value) for value in data[name]) for name in names if name in data}
