"""Plans for inputs of several lengths: what is recomputed at each is part of the plan, and derived again."""

from collections.abc import Callable
from typing import Any

import pytest
from broken_plans import failing
from train_problems import every_plan, job, problem

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.whole_run.recompute_table import by_length
from planner.plan.schema import Envelope

LENGTHS = [{"tokens": 32768, "share": 1}, {"tokens": 4096, "share": 8}, {"tokens": 16384, "share": 2}]
SEARCH = {"cp": 1, "tp": 8, "pp": 2, "vpp": 1, "micro_batch": 1, "schedule": "1f1b"}


def _problem(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    given = {"lengths": LENGTHS, "search": SEARCH, "train_tokens": 1e12, "sequence_tokens": 32768, **options}
    return problem("meta-llama/Llama-3.1-70B", nodes=8, global_batch=64, **given)


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return solve(_problem()).model_dump(mode="json", by_alias=True)


def test_the_plan_says_what_each_rank_recomputes_at_each_length(plan: dict[str, Any]) -> None:
    rows = TrainDecision.model_validate(plan["decision"]).recompute_rows
    assert [(row.rank, row.tokens) for row in rows] == [(r, n) for r in (0, 1) for n in (4096, 16384, 32768)]
    capacity = plan["decision"]["roles"][0]["memory"]["capacity_bytes"]
    assert all(row.memory_bytes <= capacity for row in rows)
    assert sum(chosen.layers for row in rows for chosen in row.sets) == 3 * 80
    assert rows[0].recompute_s < rows[2].recompute_s
    assert not failing(plan)


def test_days_are_those_of_all_lengths_and_the_gain_over_one_set_is_stated(plan: dict[str, Any]) -> None:
    stated = {prediction["metric"]: prediction["value"] for prediction in plan["predictions"]}
    tokens = 64 * (32768 + 8 * 4096 + 2 * 16384) / 11
    assert stated["mean_tokens_per_s"] == pytest.approx(tokens / stated["mean_step_time_s"])
    assert stated["train_days"] == pytest.approx(1e12 / stated["mean_tokens_per_s"] / 86400)
    assert stated["mean_step_time_s"] < stated["step_time_s"]
    assert stated["recompute_rows_gain"] > 0.03


def test_the_mean_step_is_the_least_of_all_plans() -> None:
    """Every plan of a small problem by hand: without a pipeline all ways to recompute at the longest are laid out
    alike, and what each length recomputes hangs on what the plan holds alone."""
    lengths = [{"tokens": 16384, "share": 1}, {"tokens": 2048, "share": 6}]
    search = {
        "cp": 1,
        "tp": [1, 2],
        "pp": 1,
        "dp": [4, 8],
        "micro_batch": [1, 2],
        "zero_shards": "all",
        "zero_stage": [1, 3],
    }
    data = problem("Qwen/Qwen3-8B", nodes=1, global_batch=16, sequence_tokens=16384, lengths=lengths, search=search)
    plans = {(p.choice.table.shape, p.choice.dp, p.choice.zero_stage): p for p in every_plan(job(data))}
    means = [by_length(plan).objective for plan in plans.values()]
    solved = solve(data)
    assert solved.certificate.objective.metric == "mean_step_time_s"
    assert solved.certificate.objective.value == pytest.approx(min(means), rel=1e-9)
    assert solved.certificate.gap == pytest.approx(0.0, abs=1e-9)
    longest = solve({**data, "options": {**data["options"], "lengths": []}}).decision
    again = solve({**data, "options": {**data["options"], "search": _fixed(longest)}}).certificate.objective.value
    assert again is not None
    assert again > 1.01 * min(means)


def _fixed(decision: dict[str, Any]) -> dict[str, Any]:
    """A search that leaves this decision alone."""
    made = TrainDecision.model_validate(decision)
    shape = made.roles[0].parallelism
    degrees = {"tp": shape.tp, "pp": shape.pp, "dp": shape.dp, "cp": shape.cp}
    return {**degrees, "micro_batch": made.micro_batch, "zero_stage": made.zero_stage}


def _row(data: dict[str, Any], **fields: Any) -> None:  # noqa: ANN401
    data["decision"]["recompute_rows"][-1].update(fields)


def _predicted(data: dict[str, Any], metric: str, value: float) -> None:
    next(prediction for prediction in data["predictions"] if prediction["metric"] == metric)["value"] = value


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a set that does not fit": (lambda d: _row(d, sets=[{"layers": 39}]), "restated.decision"),
    "less memory than its sets take": (lambda d: _row(d, memory_bytes=1.0), "restated.decision"),
    "a row too few": (lambda d: d["decision"]["recompute_rows"].pop(), "restated.decision"),
    "another mean step": (lambda d: _predicted(d, "mean_step_time_s", 1.0), "restated.predictions"),
    "another gain": (lambda d: _predicted(d, "recompute_rows_gain", 0.5), "restated.predictions"),
}


@pytest.mark.parametrize("name", EDITS)
def test_rows_that_do_not_follow_from_the_decision_fail_by_name(plan: dict[str, Any], name: str) -> None:
    edit, rule = EDITS[name]
    copy = Envelope.model_validate(plan).model_dump(mode="json", by_alias=True)
    edit(copy)
    assert rule in failing(copy)


def test_launchers_recompute_what_the_longest_needs_and_say_so(plan: dict[str, Any]) -> None:
    envelope = Envelope.model_validate(plan)
    script = emit(envelope, TrainDecision.model_validate(envelope.decision), "megatron-lm")["launch.sh"]
    assert "All inputs recompute what the longest do" in script
    assert "--recompute-granularity" in script


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another longest": ({"sequence_tokens": 8192}, "the longest input has 32768 tokens, `sequence_tokens` is 8192"),
    "twice the same": ({"lengths": [*LENGTHS, LENGTHS[0]]}, "two lengths are the same"),
    "layerwise as well": ({"search": {"layerwise": True}}, "strategies by layer have no table by length"),
}


@pytest.mark.parametrize("name", BAD)
def test_lengths_that_cannot_be_are_refused(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(PlannerError, match=message):
        solve(_problem(**options))


def test_every_length_is_cut_by_context_parallelism() -> None:
    lengths = [{"tokens": 32768, "share": 1}, {"tokens": 1004, "share": 1}]
    solved = solve(_problem(lengths=lengths, search=SEARCH | {"tp": 4, "cp": None, "pp": None}))
    assert (
        TrainDecision.model_validate(solved.decision).roles[0].parallelism.cp == 1
    )  # 1004 tokens are no multiple of 4 x 2
