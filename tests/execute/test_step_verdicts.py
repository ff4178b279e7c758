"""Errors, claims and findings of executed steps, from numbers alone."""

from dataclasses import replace
from typing import Any

import pytest

from planner.execute.judge.predict import OperatorTime
from planner.execute.judge.verdict import LEAST_SHARE, Execution, StepVerdict, operator_rows
from planner.execute.shards.faults import FaultKind, RankFault

PREDICTED = {"qkv": OperatorTime(6.0, 2.0), "ffn_up": OperatorTime(2.0, 2.0), "ffn_all_reduce": OperatorTime(2.0, 2.0)}


def verdict(measured_s: float, executed: tuple[str, ...], **more: Any) -> StepVerdict:  # noqa: ANN401 - other fields
    """A step whose operators take 6, 2 and 2 predicted seconds."""
    rows, absent = operator_rows(PREDICTED, {"qkv": (5.0, 2)}, executed)
    known: dict[str, Any] = {"work": {}, "shape": {}, "layers": (0,), "role": "decode", "rank": 0}
    known |= {"function": "decode", "step": "decode", "batch": 4, "tokens": 4, "context": 100}
    known |= {"predicted_s": sum(row.predicted_s for row in rows.values()), "predicted_step_s": 10.0}
    known |= {"measured_s": measured_s, "p10_s": measured_s, "p90_s": measured_s, "operators": rows, "absent": absent}
    return StepVerdict(**known, **more)


def execution(*steps: StepVerdict, **more: Any) -> Execution:  # noqa: ANN401 - other fields
    return Execution("sha256:0", "roofline", 0.15, {"name": "a device"}, steps, **more)


def test_operators_that_did_not_run_are_on_neither_side() -> None:
    step = verdict(8.0, ("qkv", "ffn_up"))
    assert step.absent == ("ffn_all_reduce",)
    assert (step.predicted_s, step.executed_share, step.error) == (8.0, 0.8, 0.0)
    assert {name: row.measured_s for name, row in step.operators.items()} == {"qkv": 5.0, "ffn_up": None}


@pytest.mark.parametrize(("measured_s", "ok"), [(10.0, True), (8.8, True), (8.6, False), (11.7, True), (11.8, False)])
def test_predictions_may_be_off_by_the_tolerance_to_either_side(measured_s: float, ok: bool) -> None:
    outcome = execution(verdict(measured_s, tuple(PREDICTED)))
    assert outcome.ok is ok
    assert [finding.ok for finding in outcome.findings()] == [ok]


def test_a_step_too_little_of_which_was_executed_makes_no_claim() -> None:
    enough, little = verdict(1.0, ("qkv",)), verdict(1.0, ("ffn_up", "ffn_all_reduce"))
    assert enough.executed_share == pytest.approx(LEAST_SHARE)
    assert enough.claimed
    assert enough.error is not None
    assert not little.claimed
    assert little.error is None
    outcome = execution(little)
    assert outcome.ok
    assert [finding.skipped for finding in outcome.findings()] == [True]
    assert "40% of the predicted time was executed: no claim" in outcome.findings()[0].what
    assert outcome.median_error is None


def test_the_median_is_taken_of_claims_alone() -> None:
    steps = [verdict(measured, tuple(PREDICTED)) for measured in (8.0, 10.0, 12.5)] + [verdict(0.1, ("ffn_up",))]
    assert execution(*steps).median_error == pytest.approx(0.2)


def test_a_fault_is_a_failed_finding_that_names_rank_step_and_operator() -> None:
    fault = RankFault(FaultKind.HANG, 3, "decode", "ffn_all_reduce", "made no progress for 20 s", role="decode")
    outcome = execution(verdict(10.0, tuple(PREDICTED)), faults=(fault,))
    assert not outcome.ok
    (failed,) = [finding for finding in outcome.findings() if not finding.ok]
    assert failed.rule == "execute.fault"
    for word in ("rank 3", "decode", "`ffn_all_reduce`", "no progress"):
        assert word in failed.what
    assert failed.hint
    assert outcome.as_json()["faults"][0]["kind"] == "hang"


def test_roles_that_did_not_run_fail_nothing_and_are_named() -> None:
    outcome = execution(unexecuted={"reference": "a role of that function cannot be executed"})
    assert outcome.ok
    assert outcome.findings()[0].skipped
    assert "roles.reference" in outcome.findings()[0].where


def test_memory_is_compared_where_the_device_tells_it() -> None:
    step = verdict(10.0, tuple(PREDICTED), memory_bytes=100.0, predicted_memory_bytes=97.0)
    assert step.memory_error == pytest.approx(-0.03)
    assert replace(step, memory_bytes=None).memory_error is None
