"""The public recipe nearest to a training plan, and what it costs."""

from pathlib import Path

import pytest

from planner.alternatives.recipes import nearest, recipe_facts, recipes
from planner.api import solve
from planner.kinds.registry import find_kind
from planner.load.problems import load_plan, load_problem
from planner.plan.schema import Decision, Envelope

EXAMPLES, PLANS = (Path(__file__).parent.parent.parent / "examples", Path(__file__).parent.parent / "plans")


@pytest.fixture(scope="module")
def trained() -> tuple[Envelope, Decision]:
    overrides = ("options.search.tp=[4,8]", "options.search.vpp=[1,2,6]", "options.search.micro_batch=[1]")
    plan = solve(load_problem(EXAMPLES / "train-gpt3-175b-megascale.yaml", overrides=overrides))
    return plan, find_kind("train").decision.model_validate(plan.decision)


def test_the_recipe_of_the_same_model_is_named_with_its_source(trained: tuple[Envelope, Decision]) -> None:
    recipe = nearest(*trained)
    assert recipe is not None
    assert recipe["model"] == "openai/gpt-3-175b"
    (fact,) = recipe_facts(*trained, priced=False)
    assert recipe["release"] in fact.what
    assert "as published" in fact.what


def test_the_recipe_costs_what_its_degrees_lose(trained: tuple[Envelope, Decision]) -> None:
    _, priced = recipe_facts(*trained, priced=True)
    assert "tp=4, pp=8, vpp=6" in priced.what
    assert float(priced.figures["loss"] or 0.0) >= -1e-9


@pytest.mark.parametrize("kind", ["serve", "rl", "experts", "place"])
def test_plans_without_a_recipe_of_their_model_have_none(kind: str) -> None:
    assert list(recipe_facts(*load_plan(PLANS / f"{kind}.json"), priced=False)) == []


def test_every_recipe_has_a_source_and_a_step_that_was_published() -> None:
    assert all(recipe["source"] and float(recipe["step_time_s"]) > 0.0 for recipe in recipes())
