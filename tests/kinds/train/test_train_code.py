"""Training codes of other eras in problems: priced, optimal among all plans, refused where they cannot be."""

from typing import Any

import pytest
from train_problems import every_plan, job, problem

from planner.api import solve
from planner.costs.training.config import FRAMEWORKS
from planner.costs.training.eras import ERAS
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.plan.schema import Envelope
from planner.progress import Limits

LLAMA = "meta-llama/Llama-3.1-8B"
SEARCH = {"cp": 1, "tp": [1, 2, 8], "pp": [1, 2], "micro_batch": [1, 2], "zero_stage": 1, "vpp": [1, 2]}


def _problem(code: dict[str, Any] | None, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    more = {} if code is None else {"code": code}
    return problem(LLAMA, nodes=1, search=SEARCH, global_batch=32, sequence_tokens=4096, **options, **more)


def _planned(data: dict[str, Any]) -> tuple[Envelope, TrainDecision]:
    plan = solve(data)
    return plan, TrainDecision.model_validate(plan.decision)


@pytest.mark.parametrize("code", [{"era": "megatron_2022"}, {"loaders_per_node": 64, "blocking_hand_overs": True}])
def test_the_plan_of_an_older_code_is_the_best_of_all(code: dict[str, Any]) -> None:
    made = job(_problem(code))
    best = OnePoolSearch(made, Limits()).run().best
    assert best is not None
    assert best.step_s == pytest.approx(min(plan.step_s for plan in every_plan(made)), rel=1e-9)


def test_an_era_is_its_code_with_what_the_problem_changes() -> None:
    made = job(_problem({"era": "megatron_2022", "loaders_per_node": 0})).framework
    assert made.loaders_per_node == 0
    assert made.blocking_hand_overs == ERAS["megatron_2022"].blocking_hand_overs
    assert job(_problem({"era": "megatron_2021"})).framework == FRAMEWORKS["megatron_2021"]


@pytest.mark.parametrize(
    ("data", "told", "hint"),
    [
        (_problem({"era": "megatron_2020"}), "megatron_2020", "megatron_202"),
        (_problem({"attention": "flsh"}), "flsh", "flash"),
        ({**_problem({"fused": False}), "engine": {"name": "megatron-lm"}}, "code of its own", "leave `code` out"),
    ],
)
def test_unknown_eras_and_codes_beside_an_engine_are_refused(data: dict[str, Any], told: str, hint: str) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(data)
    assert "code" in (raised.value.where or "")
    assert hint in (raised.value.hint or "")


def test_windows_are_emitted_and_other_codes_are_not() -> None:
    plan, decision = _planned(_problem(None, window_tokens=1024))
    assert "--window-size '(1023, 0)'" in emit(plan, decision, "megatron-lm")["launch.sh"]
    plan, decision = _planned(_problem({"era": "megascale"}))
    with pytest.raises(PlannerError, match="no launcher here starts") as raised:
        emit(plan, decision, "megatron-lm")
    assert raised.value.where == "inputs.options.code"


def test_a_window_that_changes_nothing_is_refused() -> None:
    with pytest.raises(PlannerError, match="changes nothing") as raised:
        solve(problem("deepseek-ai/DeepSeek-V3", nodes=32, window_tokens=512))
    assert raised.value.where == "problem: options.window_tokens"
