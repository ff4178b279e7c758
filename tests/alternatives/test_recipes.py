"""The public recipe nearest to a plan of training, serving or RL, and what it costs."""

from pathlib import Path

import pytest

from planner.alternatives.axes import read_wishes
from planner.alternatives.recipes.nearest import nearest, recipe_facts
from planner.alternatives.recipes.post_training import post_training_recipe
from planner.alternatives.recipes.serving import nearest_serving, serving_recipe
from planner.alternatives.recipes.tables import sizes, table
from planner.api import solve
from planner.kinds.registry import find_kind
from planner.load.problems import load_plan, load_problem
from planner.models.library import find_model
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_model, recorded_problem
from planner.problem.schema import Problem

EXAMPLES, PLANS = (Path(__file__).parent.parent.parent / "examples", Path(__file__).parent.parent / "plans")
Plan = tuple[Envelope, Decision]


def _solved(example: str, *overrides: str) -> Plan:
    plan = solve(load_problem(EXAMPLES / example, overrides=overrides), level="static")
    return plan, find_kind(plan.kind).decision.model_validate(plan.decision)


@pytest.fixture(scope="module")
def trained() -> Plan:
    overrides = ("options.search.tp=[4,8]", "options.search.vpp=[1,2,6]", "options.search.micro_batch=[1]")
    return _solved("train-gpt3-175b-megascale.yaml", *overrides)


@pytest.fixture(scope="module")
def served() -> Plan:
    return _solved("serve-cost-one-pool.yaml", "options.tp=[1,2]")


def test_the_recipe_of_the_same_model_is_named_with_its_source(trained: Plan) -> None:
    (fact,) = recipe_facts(*trained, priced=False)
    assert "as published" in fact.what
    assert "2048 tokens" in fact.what


def test_the_recipe_costs_what_its_degrees_lose(trained: Plan) -> None:
    _, priced = recipe_facts(*trained, priced=True)
    assert "tp=4, pp=8, vpp=6" in priced.what
    assert float(priced.figures["loss"] or 0.0) >= -1e-9


def test_a_serving_recipe_costs_what_its_roles_lose(served: Plan) -> None:
    named, priced = recipe_facts(*served, priced=True)
    assert "ai-dynamo/dynamo@2ac51dda" in named.what
    assert priced.figures["loss"] > 0.0


def test_a_recipe_on_another_gpu_is_farther_than_one_that_states_none(served: Plan) -> None:
    problem = recorded_problem(served[0].inputs)
    assert problem is not None
    arch = recorded_model(problem, served[1].roles[0].model)
    assert arch is not None
    roles = nearest_serving(problem, served[1], arch)
    assert roles is not None
    assert {role["gpu"] for role in roles} == {""}


def test_an_rl_recipe_of_the_same_model_and_gpu_is_named() -> None:
    plan = _solved("rl-runs/nemo-rl-v0.6-grpo-qwen3-30b3a-32xh100-colocated.yaml")
    recipe = nearest(*plan)
    assert recipe is not None
    assert "grpo-qwen3-30ba3b-4n8g.yaml" in recipe.what
    assert "arrangement=colocated" in recipe.axes


@pytest.mark.parametrize("kind", ["experts", "place"])
def test_plans_of_other_kinds_have_no_recipe(kind: str) -> None:
    assert list(recipe_facts(*load_plan(PLANS / f"{kind}.json"), priced=False)) == []


def test_models_without_a_recipe_have_none() -> None:
    plan = _solved("serve-cost-one-pool.yaml", "models.qwen3.name=Qwen/Qwen3-14B", "options.tp=[1]")
    assert list(recipe_facts(*plan, priced=False)) == []


def test_every_recipe_has_a_source_and_training_a_step_that_was_published() -> None:
    assert all(row["source"] for name in ("training", "serving", "post_training") for row in table(name))
    assert all(float(row["step_time_s"]) > 0.0 for row in table("training"))


@pytest.mark.parametrize("name", ["serving", "post_training"])
def test_rows_state_the_sizes_that_the_catalog_has(name: str) -> None:
    rows = {row["model"]: row for row in table(name)}
    for model, row in rows.items():
        assert (row["layers"], row["parameters"]) == sizes(find_model(model)), model


def test_every_recipe_can_be_asked_for() -> None:
    for row in table("post_training"):
        assert read_wishes([post_training_recipe(row).axes], Problem.model_validate({"kind": "rl"}), "--why-not")
    by_id: dict[str, list[dict[str, str]]] = {}
    for row in table("serving"):
        by_id.setdefault(row["id"], []).append(dict(row))
    for roles in by_id.values():
        assert read_wishes([serving_recipe(roles).axes], Problem.model_validate({"kind": "serve"}), "--why-not")
        assert {role["role"] for role in roles} in ({"colocated"}, {"prefill", "decode"})
