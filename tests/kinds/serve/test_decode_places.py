"""Static plans say where requests wait for a place in decode longer than the limit on first tokens allows."""

from typing import Any

import numpy as np
import pytest

import planner
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.places import Places
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan


def problem(tpot: str, answers: dict[str, float]) -> dict[str, Any]:
    """Qwen3-32B on four H200, which decodes in small batches where tokens must come fast."""
    lengths = {"input_tokens": {"mean": 4000}, "output_tokens": answers}
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-32B"}},
        "cluster": {"pools": [{"gpu": "h200_sxm", "gpus": 4}]},
        "workloads": [{**lengths, "slo": {"ttft": {"p95": "4s"}, "tpot": {"mean": tpot}}}],
        "costs": {"profiles": ["none"]},
        "objective": {"maximize": "goodput_per_gpu"},
        "options": {"modes": ["disaggregated"]},
    }


def told(plan: planner.Plan) -> list[str]:
    return [line for line in plan.envelope.assumptions if "wait for a place" in line]


def test_a_plan_of_few_places_says_that_the_wait_for_one_breaks_its_limit_as_simulated() -> None:
    plan = planner.solve(problem("15ms", {"mean": 800, "cv": 1.0}), level="static")
    (line,) = told(plan)
    decision = ServeDecision.model_validate(plan.envelope.decision)
    (places,) = (role.limits["max_batch"] for role in decision.roles if role.function == "decode")
    assert f"in decode of {places} a rank, 95% taken" in line
    run = simulate_plan(plan.envelope, decision, Traffic(), Policies())
    assert np.quantile(run.result.ttft_s, 0.95) > 4.0


def test_a_plan_of_many_places_says_nothing_of_waiting_for_one() -> None:
    plan = planner.solve(problem("40ms", {"mean": 100}), level="static")
    assert plan.envelope.decision["mode"] == "disaggregated"
    assert not told(plan)


@pytest.mark.parametrize(("number", "ranks"), [(1, 1), (8, 1), (8, 4), (96, 3)])
def test_waits_are_those_of_the_queue_and_fall_with_places_and_ranks(number: int, ranks: int) -> None:
    places = Places(number, ranks, 0.9, 10.0, 1.0 / ranks, 1.0)
    if (number, ranks) == (1, 1):
        assert places.wait_s(None) == pytest.approx(0.9 / 0.1 * 10.0)  # M/M/1
    more = Places(2 * number, ranks, 0.9, 10.0, 1.0 / ranks, 1.0)
    evener = Places(number, 2 * ranks, 0.9, 10.0, 0.5 / ranks, 1.0)
    for quantile in (None, 0.95):
        assert max(more.wait_s(quantile), evener.wait_s(quantile)) <= places.wait_s(quantile)
