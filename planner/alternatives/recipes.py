"""The public recipe of training nearest to a plan, and what the plan's problem would take with it.

Recipes are those of Megatron-Bridge, NeMo and torchtitan in `recipes.csv`, each with its source and the step that was
published. Nearest is one of the same model, then of the same GPU, then by the ratio of GPUs and of sequences.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from planner.alternatives.why_not import why_not
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.explain.facts import Fact
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem

_AXES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
Recipe = Mapping[str, str]


def recipes() -> list[Recipe]:
    """All recipes, by the columns of the file."""
    text = resources.files("planner.alternatives").joinpath("recipes.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def nearest(envelope: Envelope, decision: Decision) -> Recipe | None:
    """The recipe nearest to a training plan; None for other kinds and for models without one."""
    problem = recorded_problem(envelope.inputs)
    if problem is None or envelope.kind != "train":
        return None
    names = {model.name for model in problem.models.values()}
    gpus = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    batch = float(str(envelope.inputs["options"]["global_batch"]))  # type: ignore[index,call-overload]  # parsed JSON
    kinds = {pool.gpu for pool in problem.cluster.pools}

    def distance(recipe: Recipe) -> tuple[bool, float]:
        ratios = (gpus / float(recipe["num_gpus"]), batch / float(recipe["global_batch"]))
        alike = any(_chip(recipe["gpu"]) == _chip(kind) for kind in kinds)
        return not alike, sum(abs(math.log(ratio)) for ratio in ratios)

    return min((recipe for recipe in recipes() if recipe["model"] in names), key=distance, default=None)


def _chip(gpu: str) -> str:
    """`h100` of `hgx_h100`, `h100_sxm` and `grand_teton_h100`."""
    known = ("gb200", "gb300", "b200", "b300", "h100", "h200", "h800", "a100")
    return next((chip for chip in known if chip in gpu.split("_")), gpu)


def recipe_facts(
    envelope: Envelope,
    decision: Decision,
    *,
    priced: bool,
    profiles: Sequence[str] = (),
    base: Path = Path(),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Fact]:
    """What the nearest recipe is; `priced` also solves the problem with its degrees, and says what that loses."""
    recipe = nearest(envelope, decision)
    if recipe is None:
        return
    axes = {axis: recipe[axis] for axis in _AXES if recipe[axis]}
    degrees = " ".join(f"{axis}{size}" for axis, size in axes.items() if axis != "micro_batch" and size != "1")
    step = format_si(float(recipe["step_time_s"]), "s")
    what = f"nearest public recipe, {recipe['release']}: {degrees or 'data-parallel alone'}"
    what += (
        f" on {recipe['num_gpus']} {recipe['gpu']}, {recipe['global_batch']} sequences of {recipe['sequence_tokens']}"
    )
    what += f" tokens in {step} as published ({recipe['source'].partition(':')[0]})"
    yield Fact("alternative", what, ("objective",), figures={"published_step_s": float(recipe["step_time_s"])})
    if not priced:
        return
    asked = ",".join(f"{axis}={size}" for axis, size in axes.items())
    try:
        (fact,) = why_not(envelope, decision, asked, profiles=profiles, base=base, tell=tell)
    except PlannerError as error:
        yield Fact("note", f"the recipe is not priced: {error.what}")
        return
    figures: dict[str, Any] = dict(fact.figures)
    yield Fact("alternative", f"the recipe's degrees here: {fact.what}", ("objective",), fact.rule, figures)
