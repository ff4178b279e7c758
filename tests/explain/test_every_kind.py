"""Every field of every kind of plan has an explanation, and every kind says what binds it and where its time goes."""

import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from planner.explain import explain_plan, field_names
from planner.explain.limits import stated_limits
from planner.explain.meanings import meaning
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import load_plan
from planner.plan.schema import Envelope

PLANS = Path(__file__).parent.parent / "plans"


def _field_paths(annotation: object) -> Iterator[str]:
    """Every field below a model, or below those that a type is made of, by its dotted path."""
    for part in typing.get_args(annotation):
        yield from _field_paths(part)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name
            yield from (f"{name}.{path}" for path in _field_paths(field.annotation))


@pytest.mark.parametrize("kind", kind_names())
def test_every_field_of_a_decision_says_what_it_is(kind: str) -> None:
    decision = find_kind(kind).decision
    missing = [path for path in _field_paths(decision) if not meaning(decision, path)]
    assert missing == []


@pytest.mark.parametrize("kind", kind_names())
def test_every_field_of_a_plan_that_can_be_asked_for_is_explained_by_more_than_a_note(kind: str) -> None:
    envelope, decision = load_plan(PLANS / f"{kind}.json")
    names = field_names(envelope, decision)
    top = set(decision.model_dump(mode="json", exclude={"roles"}))
    assert top <= set(names)
    for name in names:
        told = [fact for fact in explain_plan(envelope, decision, name).facts if fact.topic != "note"]
        in_decision = name.partition(".")[0] in top | {role.name for role in decision.roles}
        assert told or not in_decision, name


@pytest.mark.parametrize(
    ("kind", "changes", "topic", "text"),
    [
        (
            "train",
            {"decision.groups": [{"name": "tp", "size": 8, "stride": 1, "level": "nvlink"}]},
            "limit",
            "`nvlink`",
        ),
        (
            "train",
            {"evidence.steps": {"job": {"seconds": {"forward": 0.9, "pipeline_wait": 0.1}}}},
            "time",
            "10.0 % of a step waits in the pipeline",
        ),
        (
            "train",
            {"certificate.proof": {"groups": [{"tp": 1, "least": 6.5}]}},
            "alternative",
            "no plan with tp 1 is below",
        ),
        ("train", {"decision.precision": "fp8"}, "note", "accuracy is not judged"),
        (
            "rl",
            {
                "predictions": [
                    {"metric": "iteration_time_s", "value": 90.0},
                    {"metric": "generation_s", "value": 90.0},
                    {"metric": "training_s", "value": 60.0},
                ],
                "decision.arrangement": "disaggregated",
            },
            "binding",
            "the iteration waits for it",
        ),
        (
            "experts",
            {"certificate.next_best": [{"plan": "experts in order, as engines start", "objective": 1.5, "loss": 0.5}]},
            "worth",
            "imbalance 1.5000 with experts in order",
        ),
        ("place", {"predictions": [{"metric": "attainment", "of": "chat", "value": 0.95}]}, "binding", "95.0 % of the"),
    ],
)
def test_each_kind_says_what_binds_it_and_where_its_time_goes(
    kind: str, changes: dict[str, Any], topic: str, text: str, edited_plan: Callable[..., dict[str, Any]]
) -> None:
    envelope = Envelope.model_validate(edited_plan(kind, changes))
    decision = find_kind(kind).decision.model_validate(envelope.decision)
    assert any(fact.topic == topic and text in fact.what for fact in explain_plan(envelope, decision).facts)


def test_a_next_best_plan_that_stands_alone_is_told_like_one_of_several(
    edited_plan: Callable[..., dict[str, Any]],
) -> None:
    other = {"plan": "tp 4", "objective": 6.4, "loss": 0.035}
    envelope = Envelope.model_validate(edited_plan("train", {"certificate.next_best": other}))
    decision = find_kind("train").decision.model_validate(envelope.decision)
    assert any("next best evaluated, tp 4" in fact.what for fact in explain_plan(envelope, decision).facts)


def test_formats_that_a_problem_states_are_not_judged_and_others_are_not_spoken_of(
    edited_plan: Callable[..., dict[str, Any]],
) -> None:
    def told(changes: dict[str, Any]) -> list[str]:
        envelope = Envelope.model_validate(edited_plan("serve", changes))
        decision = find_kind("serve").decision.model_validate(envelope.decision)
        facts = explain_plan(envelope, decision).facts
        return [fact.what for fact in facts if fact.what.startswith("accuracy")]

    key = next(iter(load_plan(PLANS / "serve.json")[0].inputs["models"]))  # type: ignore[arg-type]  # a mapping
    assert told({f"inputs.models.{key}.weights": None, f"inputs.models.{key}.kv_cache": None}) == []
    (what,) = told({f"inputs.models.{key}.weights": "fp8", f"inputs.models.{key}.kv_cache": None})
    assert "fp8 weights, as the problem states" in what


def test_limits_of_a_plan_are_all_those_of_its_problem() -> None:
    envelope, _ = load_plan(PLANS / "place.json")
    workloads: Any = envelope.inputs["workloads"]
    stated = sum(
        len(limits) for row in workloads for limits in (row.get("slo") or {}).values() if isinstance(limits, dict)
    )
    assert len([limit for limit in stated_limits(envelope) if limit.metric != "attainment"]) >= stated
