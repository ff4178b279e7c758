"""What cases are estimated to do hangs on no other case beside them, and on releases only where tables are."""

import math

import pytest

from planner.costs.rates.calibration import load_calibration
from planner.estimate.batches import groups_of
from planner.estimate.case import Case, Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import case_of_row

ROW = {
    "id": "r", "model": "Qwen/Qwen3-30B-A3B", "system": "h100_sxm", "backend": "vllm", "mode": "agg", "isl": "1000",
    "osl": "100", "concurrency": "8", "gpus": "4", "tp": "4", "pp": "1", "dp": "1", "moe_tp": "1", "moe_ep": "4",
}  # fmt: skip
DENSE = {"model": "Qwen/Qwen3-8B", "gpus": "1", "tp": "1", "moe_ep": "1"}
APART = {
    "mode": "disagg", "gpus": "8", "prefill_workers": "1", "decode_workers": "1",
    **{f"prefill_{name}": ROW[name] for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")},
    **{f"decode_{name}": ROW[name] for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")},
}  # fmt: skip


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Of two models, engines, modes, three systems and four releases, in no order."""
    changes: list[dict[str, str]] = [
        {},
        {"system": "h200_sxm", "concurrency": "64"},
        DENSE,
        {"backend": "sglang", "backend_version": "0.5.5"},
        {**APART, "concurrency": "32"},
        {"backend_version": "0.12.0"},
        {"backend_version": "0.17.0", "osl": "300"},
        {"backend_version": "0.18.0", "isl": "5000"},
        {**DENSE, "system": "b200_sxm", "backend_version": "0.18.0"},
        {"tp": "1", "dp": "4", "concurrency": "100"},
    ]
    return [case_of_row({**ROW, **change, "id": str(index)}) for index, change in enumerate(changes)]


def test_a_case_is_estimated_the_same_alone_and_among_others(cases: list[Case]) -> None:
    together = evaluate(cases, None)
    assert all(isinstance(answer, Estimate) for answer in together)
    for case, answer in zip(cases, together, strict=True):
        assert evaluate([case], None) == [answer]
    assert evaluate(cases[::-1], None) == together[::-1]


def test_releases_of_like_overheads_go_together_where_no_tables_tell_them_apart(cases: list[Case]) -> None:
    new = [cases[index] for index in (0, 6, 7)]  # vLLM's newest, 0.17 and 0.18
    assert groups_of(new, tables=False) == [[0, 1, 2]]
    assert groups_of(new) == [[0], [1], [2]]
    older = [cases[0], cases[5]]  # 0.12 schedules between steps
    assert groups_of(older, tables=False) == [[0], [1]]


def test_intervals_are_wider_for_groups_that_the_costs_were_not_fitted_to() -> None:
    row = {**ROW, "model": "Qwen/Qwen3-32B", "moe_ep": "1", "moe_tp": "4"}
    fitted, other_gpu, other_format = (
        case_of_row({**row, **change}) for change in ({}, {"system": "b300_sxm"}, {"weights": "mxfp4"})
    )
    groups = load_calibration().groups
    assert [case.group in groups for case in (fitted, other_gpu, other_format)] == [True, False, False]
    near, *far = evaluate([fitted, other_gpu, other_format], None)

    def above(answer: Estimate | Refused) -> float:
        assert isinstance(answer, Estimate)
        assert answer.tpot_s_interval is not None
        return answer.tpot_s_interval[1] / answer.tpot_s

    between = load_calibration().spreads["tpot"].between[1]
    assert between > 0.1
    assert all(math.log(above(answer)) > max(between, math.log(above(near))) for answer in far)
