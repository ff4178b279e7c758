"""Batches that grow: plans valid at every stage, steps and days derived again, and what launchers make of it."""

from collections.abc import Callable
from typing import Any

import pytest
from broken_plans import failing
from train_problems import job, problem

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.plan.schema import Envelope
from planner.progress import Limits

RAMP = [{"global_batch": 16, "tokens": 4e9}, {"global_batch": 32, "tokens": 4e9}, {"global_batch": 48, "tokens": 4e9}]
SEARCH = {"cp": 1, "tp": 2, "pp": 4, "zero_stage": 1}
Plan = dict[str, Any]


def _problem(**options: Any) -> Plan:  # noqa: ANN401
    return problem(**{"global_batch": 64, "batch_ramp": RAMP, "train_tokens": 1e11, "search": SEARCH, **options})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return solve(_problem()).model_dump(mode="json", by_alias=True)


def _decision(plan: Plan) -> TrainDecision:
    return TrainDecision.model_validate(plan["decision"])


def test_one_layout_runs_every_batch(plan: Plan) -> None:
    decision = _decision(plan)
    each = decision.micro_batch * decision.roles[0].parallelism.dp
    assert [stage.num_micro_batches * each for stage in decision.planned_batches] == [16, 32, 48]
    assert all(stage.num_micro_batches % 4 == 0 for stage in decision.planned_batches) or decision.schedule == "1f1b"
    assert not failing(plan)


def test_steps_of_a_stage_are_those_of_a_plan_with_that_batch(plan: Plan) -> None:
    decision = _decision(plan)
    shape = decision.roles[0].parallelism
    recompute = {run.recompute.granularity for run in decision.stage_runs}
    fixed = SEARCH | {
        "dp": shape.dp,
        "micro_batch": decision.micro_batch,
        "vpp": shape.vpp,
        "recompute": list(recompute),
    }
    alone = OnePoolSearch(job(problem(global_batch=32, search=fixed)), Limits()).run().best
    assert alone is not None
    assert decision.planned_batches[1].step_time_s == pytest.approx(alone.step_s, rel=0.02)


def test_days_are_those_of_all_batches(plan: Plan) -> None:
    stated = {prediction["metric"]: prediction["value"] for prediction in plan["predictions"]}
    stages = _decision(plan).planned_batches
    ramp_s = sum(4e9 / (stage.global_batch * 4096) * stage.step_time_s for stage in stages)
    rest_s = (1e11 - 12e9) / (64 * 4096) * stated["step_time_s"]
    assert stated["ramp_days"] == pytest.approx(ramp_s / 86400)
    assert stated["train_days"] == pytest.approx((ramp_s + rest_s) / 86400)
    level = solve(_problem(batch_ramp=[])).model_dump(mode="json")
    days_of_level = next(row["value"] for row in level["predictions"] if row["metric"] == "train_days")
    assert stated["train_days"] > days_of_level


def test_the_schedule_of_a_smaller_batch_is_one_of_the_same_stages() -> None:
    search = {"cp": 1, "tp": 2, "pp": 4, "dp": 2, "vpp": 2, "micro_batch": 1, "schedule": ["zb_v", "dualpipev"]}
    solved = solve(_problem(batch_ramp=[{"global_batch": 8, "tokens": 1e9}], search=search))
    stage = TrainDecision.model_validate(solved.decision).planned_batches[0]
    assert stage.num_micro_batches == 4
    assert stage.schedule == "zb_v"  # `dualpipev` needs 8 micro-batches


def test_batches_that_no_layout_can_run_name_the_nearest_that_one_can() -> None:
    odd = [{"global_batch": 17, "tokens": 1e9}]
    with pytest.raises(Infeasible) as raised:
        solve(_problem(batch_ramp=odd, search=SEARCH | {"dp": 2, "micro_batch": 1}))
    assert {"limit": "batch_ramp = 17", "nearest": "batch_ramp 16"} in raised.value.conflict


BAD: dict[str, tuple[Plan, str]] = {
    "falling": ({"batch_ramp": [RAMP[1], RAMP[0]]}, "batches 32, 16 do not rise to 64"),
    "past the last": ({"batch_ramp": [{"global_batch": 128, "tokens": 1e9}]}, "batches 128 do not rise to 64"),
    "longer than the run": ({"train_tokens": 1e10}, "the batch grows over 1.2e\\+10 tokens, the run has 1e\\+10"),
    "with lengths": ({"lengths": [{"tokens": 4096, "share": 1}]}, "a growing batch with several lengths"),
}


@pytest.mark.parametrize("name", BAD)
def test_ramps_that_cannot_be_are_refused(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(PlannerError, match=message):
        solve(_problem(**options))


def _stage(plan: Plan, **fields: Any) -> None:  # noqa: ANN401
    plan["decision"]["planned_batches"][0].update(fields)


def _days(plan: Plan) -> None:
    next(prediction for prediction in plan["predictions"] if prediction["metric"] == "train_days")["value"] = 1.0


EDITS: dict[str, tuple[Callable[[Plan], None], str]] = {
    "a faster step": (lambda p: _stage(p, step_time_s=0.01), "restated.decision"),
    "another number of micro-batches": (lambda p: _stage(p, num_micro_batches=7), "restated.decision"),
    "a stage too few": (lambda p: p["decision"]["planned_batches"].pop(), "restated.decision"),
    "days of the last batch alone": (_days, "restated.predictions"),
}


@pytest.mark.parametrize("name", EDITS)
def test_stages_that_do_not_follow_from_the_decision_fail_by_name(plan: Plan, name: str) -> None:
    edit, rule = EDITS[name]
    copy = Envelope.model_validate(plan).model_dump(mode="json", by_alias=True)
    edit(copy)
    assert rule in failing(copy)


def test_mixes_of_strategies_run_every_batch() -> None:
    tight = {"global_batch": 64, "memory_utilisation": 0.2, "search": {"cp": 1, "layerwise": True}}
    mixed = solve(problem("Qwen/Qwen2.5-7B", nodes=4, batch_ramp=RAMP[1:2], **tight)).model_dump(
        mode="json", by_alias=True
    )
    assert mixed["decision"]["layer_runs"]
    assert mixed["decision"]["planned_batches"][0]["global_batch"] == 32
    assert not failing(mixed)


def _emitted(plan: Plan, target: str) -> dict[str, str]:
    envelope = Envelope.model_validate(plan)
    return emit(envelope, TrainDecision.model_validate(envelope.decision), target)


def test_megatron_takes_equal_increments_with_a_run_counted_in_samples(plan: Plan) -> None:
    script = " ".join(_emitted(plan, "megatron-lm")["launch.sh"].split())
    samples = round(12e9 / 4096)
    assert f"--rampup-batch-size 16 16 {samples}" in script.replace(" \\", "")
    assert f"--train-samples {-(-int(1e11) // 4096)}" in script
    assert "--train-iters" not in script
    overrides = _emitted(plan, "megatron-bridge")["overrides.yaml"]
    assert f"rampup_batch_size:\n  - 16\n  - 16\n  - {samples}\n" in overrides
    assert "train_iters: 447" in overrides  # three stages of 61,036 steps and less, then the rest


def test_unequal_growth_has_no_setting() -> None:
    uneven = solve(_problem(batch_ramp=[RAMP[0], RAMP[2]])).model_dump(mode="json", by_alias=True)
    with pytest.raises(PlannerError, match="the batch grows by 16 and 32"):
        _emitted(uneven, "megatron-lm")
    longer = solve(_problem(batch_ramp=[RAMP[0], RAMP[1] | {"tokens": 8e9}, RAMP[2]]))
    with pytest.raises(PlannerError, match="batches last for 976562 and for 1953125 samples"):
        _emitted(longer.model_dump(mode="json", by_alias=True), "megatron-lm")


def test_launchers_with_one_batch_say_so() -> None:
    plain = SEARCH | {"tp": 1, "pp": 1, "dp": 16, "zero_stage": 3}
    solved = solve(_problem(search=plain)).model_dump(mode="json", by_alias=True)
    for target in ("deepspeed", "torchtitan"):
        with pytest.raises(PlannerError, match="has one batch for the whole run"):
            _emitted(solved, target)
    assert '"planned_batches"' in _emitted(solved, "torchrun")["mesh.json"]
