"""Recipes of serving: launch artifacts that projects publish, and deployments of published throughput tables.

Rows of one `id` are the roles of one recipe. Nearest is one of the same model, then of the same GPU (one that states no
GPU before one of another), then of the same mode, then of the same engine, then by the ratio of GPUs of an instance.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from planner.alternatives.recipes.tables import Recipe, Row, chip, degrees, origin, sizes, table
from planner.engines.serving.registry import SERVING_ENGINES
from planner.models.architecture import Architecture
from planner.plan.schema import Decision
from planner.problem.schema import Problem

_AXES = ("tp", "pp", "dp", "ep")


def nearest_serving(problem: Problem, decision: Decision, arch: Architecture) -> Sequence[Row] | None:
    """The roles of the recipe nearest to a serving plan of one model; None for models without one."""
    kinds = {chip(pool.gpu) for pool in problem.cluster.pools}
    functions = {role.function for role in decision.roles}
    engines = {role.engine.name for role in decision.roles if role.engine}
    largest = max(role.parallelism.devices for role in decision.roles)

    def distance(roles: Sequence[Row]) -> tuple[int, bool, bool, float]:
        gpu, mode = roles[0]["gpu"], {role["role"] for role in roles}
        own = max(_size(role) for role in roles)
        alike = 0 if chip(gpu) in kinds else 2 if gpu else 1
        return alike, not mode <= functions, roles[0]["engine"] not in engines, abs(math.log(own / largest))

    return min(_of_model(arch), key=distance, default=None)


def _of_model(arch: Architecture) -> Iterator[Sequence[Row]]:
    wanted = sizes(arch)
    for _, rows in groupby(table("serving"), key=lambda row: row["id"]):
        roles = tuple(rows)
        if (roles[0]["layers"], roles[0]["parameters"]) == wanted:
            yield roles


def serving_recipe(roles: Sequence[Row]) -> Recipe:
    """Its roles in words, and its mode and degrees as axes of a serving plan; settings of its engine are said alone."""
    first = roles[0]
    told = " and ".join(_role(role) for role in roles)
    place = f"on {first['gpu']}" if first["gpu"] else "on a GPU that it leaves open"
    known = SERVING_ENGINES.get(first["engine"])
    engine = known.title if known is not None else first["engine"]
    what = f"{origin(first['source'])}: {told} of {first['model']} by {engine} {place}"
    gpus = sum(int(role["replicas"]) * _size(role) for role in roles)
    return Recipe(what, ",".join(_asked(roles)), {"gpus": float(gpus)})


def _asked(roles: Sequence[Row]) -> Iterator[str]:
    alone = len(roles) == 1
    yield f"mode={'colocated' if alone else 'disaggregated'}"
    for role in roles:
        place = "" if alone else f"role.{role['role']}."
        yield from (f"{place}{axis}={role[axis]}" for axis in _AXES)


def _size(role: Row) -> int:
    return math.prod(int(role[axis]) for axis in ("tp", "pp", "dp"))


def _role(role: Row) -> str:
    settings = (("max_batch", "batch"), ("chunk_tokens", "chunk"))
    told = "".join(f", {name} {role[column]}" for column, name in settings if role[column])
    return f"{role['replicas']} x {role['role']} {degrees({axis: role[axis] for axis in _AXES})}{told}"
