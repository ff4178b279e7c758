"""The public recipe nearest to a plan of training, serving or RL, and what the plan's problem would take with it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.alternatives.recipes.post_training import nearest_post_training, post_training_recipe
from planner.alternatives.recipes.serving import nearest_serving, serving_recipe
from planner.alternatives.recipes.tables import Recipe
from planner.alternatives.recipes.training import nearest_training, training_recipe
from planner.alternatives.why_not import why_not
from planner.errors import PlannerError
from planner.explain.facts import Fact
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import recorded_model, recorded_problem


def nearest(envelope: Envelope, decision: Decision) -> Recipe | None:
    """The recipe; None where the tables have none of the plan's model, and for plans of several models."""
    problem = recorded_problem(envelope.inputs)
    if problem is None or not decision.roles:
        return None
    if envelope.kind == "train":
        row = nearest_training(problem, decision)
        return None if row is None else training_recipe(row)
    models = {role.model for role in decision.roles if _decides(envelope.kind, role)}
    arch = recorded_model(problem, models.pop()) if len(models) == 1 else None
    if arch is None:
        return None
    if envelope.kind == "serve":
        roles = nearest_serving(problem, decision, arch)
        return None if roles is None else serving_recipe(roles)
    if envelope.kind == "rl":
        run = nearest_post_training(problem, decision, arch)
        return None if run is None else post_training_recipe(run)
    return None


def _decides(kind: str, role: Role) -> bool:
    """Whether the model of a role is one that recipes are told apart by: critics and rewards follow the policy's."""
    return kind == "serve" or role.function in ("rollout", "actor")


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
    yield Fact("alternative", f"nearest public recipe, {recipe.what}", ("objective",), figures=recipe.figures)
    if not priced:
        return
    try:
        (fact,) = why_not(envelope, decision, recipe.axes, profiles=profiles, base=base, tell=tell)
    except PlannerError as error:
        yield Fact("note", f"the recipe is not priced: {error.what}")
        return
    figures: dict[str, Any] = dict(fact.figures)
    yield Fact("alternative", f"the recipe's degrees here: {fact.what}", ("objective",), fact.rule, figures)
