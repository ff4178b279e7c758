"""Recipes of training: those of Megatron-Bridge, NeMo and torchtitan, each with the step that was published.

Nearest is one of the same model, then of the same GPU, then by the ratio of GPUs and of sequences.
"""

import math

from planner.alternatives.recipes.tables import Recipe, Row, chip, degrees, table
from planner.documents.units import format_si
from planner.plan.schema import Decision
from planner.problem.schema import Problem

_AXES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")


def nearest_training(problem: Problem, decision: Decision) -> Row | None:
    """The row nearest to a training plan; None for models without one."""
    names = {model.name for model in problem.models.values()}
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    batch = float(str(problem.options["global_batch"]))
    kinds = {chip(pool.gpu) for pool in problem.cluster.pools}

    def distance(row: Row) -> tuple[bool, float]:
        ratios = (gpus / float(row["num_gpus"]), batch / float(row["global_batch"]))
        return chip(row["gpu"]) not in kinds, sum(abs(math.log(ratio)) for ratio in ratios)

    return min((row for row in table("training") if row["model"] in names), key=distance, default=None)


def training_recipe(row: Row) -> Recipe:
    """The row in words and as axes of a training plan."""
    axes = {axis: row[axis] for axis in _AXES if row[axis]}
    split = degrees({axis: size for axis, size in axes.items() if axis != "micro_batch"})
    what = f"{row['release']}: {'data-parallel alone' if split == 'tp1' else split}"
    what += f" on {row['num_gpus']} {row['gpu']}, {row['global_batch']} sequences of {row['sequence_tokens']} tokens"
    what += f" in {format_si(float(row['step_time_s']), 's')} as published ({row['source'].partition(':')[0]})"
    asked = ",".join(f"{axis}={size}" for axis, size in axes.items())
    return Recipe(what, asked, {"published_step_s": float(row["step_time_s"])})
