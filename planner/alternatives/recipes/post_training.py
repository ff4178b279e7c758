"""Recipes of RL: runs that NeMo-RL publishes, and examples of verl, slime and AReaL.

Nearest is one of the same model, then of the same GPU (one that states no GPU before one of another), then by the ratio
of GPUs and of samples, where another arrangement counts as much as twice the GPUs.
"""

import math

from planner.alternatives.recipes.tables import Recipe, Row, chip, degrees, origin, sizes, table
from planner.models.architecture import Architecture
from planner.plan.placement import gpus_in_use
from planner.plan.schema import Decision
from planner.problem.schema import Problem

_TRAINING = ("tp", "pp", "cp", "ep")
_AXES = {"arrangement": "arrangement", "rollout_tp": "role.rollout.tp", "tp": "role.actor.tp", "pp": "role.actor.pp"}


def nearest_post_training(problem: Problem, decision: Decision, arch: Architecture) -> Row | None:
    """The row nearest to an RL plan of one policy; None for models without one."""
    kinds = {chip(pool.gpu) for pool in problem.cluster.pools}
    gpus = gpus_in_use(decision.roles, decision.placement)
    data = decision.model_dump(mode="json")
    samples = _count(problem, "prompts") * _count(problem, "samples_per_prompt")

    def distance(row: Row) -> tuple[int, float]:
        alike = 0 if chip(row["gpu"]) in kinds else 2 if row["gpu"] else 1
        ratios: tuple[float, ...] = (
            gpus / float(row["num_gpus"]),
            samples / (float(row["prompts"]) * float(row["samples_per_prompt"])),
        )
        ratios += (1.0 if row["arrangement"] == data["arrangement"] else 2.0,)
        return alike, sum(abs(math.log(ratio)) for ratio in ratios)

    wanted = sizes(arch)
    rows = (row for row in table("post_training") if (row["layers"], row["parameters"]) == wanted)
    return min(rows, key=distance, default=None)


def _count(problem: Problem, name: str) -> int:
    return int(str(problem.options.get(name) or 1))


def post_training_recipe(row: Row) -> Recipe:
    """The row in words and as axes of an RL plan; `ahead` is stated by the synchrony that goes with it."""
    ahead = f", {row['ahead']} ahead" if row["ahead"] not in ("", "0") else ""
    training = {axis: row[axis] for axis in _TRAINING}
    trained = f"training {degrees(training)}" if row["tp"] else "degrees of training left open"
    place = f"on {row['num_gpus']} {row['gpu'] or 'GPUs that it leaves open'}"
    told = [
        f"{row['arrangement']}{ahead}",
        *([f"rollouts tp{row['rollout_tp']}"] if row["rollout_tp"] else []),
        trained,
    ]
    what = f"{row['framework']}, {origin(row['source'])}: {', '.join(told)} {place}"
    what += f", {row['prompts']} prompts of {row['samples_per_prompt']} samples"
    asked = [f"{axis}={row[column]}" for column, axis in _AXES.items() if row[column]]
    synchrony = {"": [], "0": ["synchrony=synchronous"]}.get(row["ahead"], ["synchrony=asynchronous"])
    return Recipe(what, ",".join([*asked, *synchrony]), {"gpus": float(row["num_gpus"])})
