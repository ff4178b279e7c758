"""Traces of plans: the passes of every schedule, phases of an iteration, and executed steps beside predicted ones."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.cli.main import main
from planner.documents.trace_events import Span, trace_text
from planner.errors import PlannerError
from planner.execute.judge.verdict import Execution, OperatorRow, StepVerdict
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.timeline import first_passes, passes
from planner.load.problems import load_plan, load_problem
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.timelines.plans import plan_spans
from planner.timelines.shards import execution_spans

EXAMPLES, PLANS = (Path(__file__).parent.parent.parent / "examples", Path(__file__).parent.parent / "plans")


@pytest.fixture(scope="module")
def trained() -> Envelope:
    overrides = ("options.search.tp=[8]", "options.search.pp=[4]", "options.search.schedule=[interleaved]")
    return solve(load_problem(EXAMPLES / "train-gpt3-175b-megascale.yaml", overrides=overrides))


def _apart(spans: list[tuple[float, float]]) -> bool:
    ordered = sorted(spans)
    return all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(ordered))


def test_passes_fill_the_pipeline_as_the_plan_says(trained: Envelope) -> None:
    decision = TrainDecision.model_validate(trained.decision)
    by_rank = defaultdict(list)
    for each in passes(decision):
        by_rank[each.rank].append(each)
    assert len(by_rank) == 4
    for rank, of in by_rank.items():
        stated = decision.pipeline_ranks[rank]
        busy_s = sum(each.duration_s for each in of)
        all_s = stated.forward_s + stated.backward_input_s + stated.backward_weight_s
        assert busy_s == pytest.approx(decision.num_micro_batches * all_s)
        assert _apart([(each.start_s, each.start_s + each.duration_s) for each in of])
    (step,) = (trained.evidence.steps or {}).values()
    pipeline_s = sum(step.seconds[name] for name in ("forward", "backward_input", "backward_weight", "pipeline_wait"))
    end_s = max(each.start_s + each.duration_s for of in by_rank.values() for each in of)
    assert 0.9 * pipeline_s <= end_s <= 1.001 * pipeline_s  # hand-overs are not drawn


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_v", 2), ("dualpipe", 1), ("dualpipev", 2)]
)
def test_a_rank_is_as_busy_as_stated_under_every_schedule(schedule: str, vpp: int, trained: Envelope) -> None:
    decision = TrainDecision.model_validate(trained.decision)
    rank, (role,) = decision.pipeline_ranks[1], decision.roles
    shape = role.parallelism.model_copy(update={"vpp": vpp})
    changed = decision.model_copy(
        update={
            "schedule": schedule,
            "num_micro_batches": 16,
            "pipeline_ranks": (rank,) * 4,
            "roles": (role.model_copy(update={"parallelism": shape}),),
        }
    )
    busy_s = sum(each.duration_s for each in passes(changed) if each.rank == 2)
    stated_s = 16 * (rank.forward_s + rank.backward_input_s + rank.backward_weight_s)
    assert busy_s == pytest.approx(stated_s)
    assert 0 < len(first_passes(changed, 4)) <= len(list(passes(changed)))


def test_a_plan_is_shown_as_a_trace_that_viewers_read(
    trained: Envelope, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "trace.json"
    plan.write_text(plan_json(trained))
    assert main(["show", str(plan), "--perfetto", str(out)]) == 0
    assert "wrote" in capsys.readouterr().err
    events: list[dict[str, Any]] = json.loads(out.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {f"rank {rank} of the pipeline" for rank in range(4)}


def test_phases_of_an_iteration_are_spans_of_their_devices() -> None:
    envelope, decision = load_plan(PLANS / "rl.json")
    spans = list(plan_spans(envelope, decision))
    assert {span.name for span in spans} == {phase.name for phase in decision.phases}
    assert all(span.duration_s == phase.duration_s for span, phase in zip(spans, decision.phases, strict=False))


@pytest.mark.parametrize(("plan", "hint"), [("serve", "planner simulate"), ("experts", "leave it out")])
def test_plans_that_state_nothing_over_time_say_what_does(
    plan: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    assert main(["show", str(PLANS / f"{plan}.json"), "--perfetto", str(out)]) == 2
    assert hint in capsys.readouterr().err
    assert not out.exists()


def test_a_plan_without_a_pipeline_is_refused() -> None:
    decision = load_plan(PLANS / "train.json")[1]
    assert isinstance(decision, TrainDecision)
    with pytest.raises(PlannerError, match="no pipeline"):
        list(passes(decision))


STEP = StepVerdict(
    "decode", "decode", 0, "decode", 8, 8, 512, 0.003, 0.004, 0.0035, 0.003, 0.004,
    {"qkv": OperatorRow(0.001, 0.0012, 4), "ffn": OperatorRow(0.002, 0.0021, 4), "sum": OperatorRow(0.001, None, 4)},
    ("sum",), {}, {"tp": 2}, (0, 1),
)  # fmt: skip


def test_executed_steps_lie_beside_predicted_ones_operator_by_operator() -> None:
    execution = Execution(
        "sha256:0", "roofline", 0.15, {}, (STEP, replace(STEP, step="prefill")), (), {}, {}, "2026-01-01"
    )
    spans = list(execution_spans(execution))
    measured = [span for span in spans if span.lane_name == "measured, by operator"]
    assert [(span.name, span.duration_s) for span in measured] == [("qkv", 0.0012), ("ffn", 0.0021)] * 2
    by_lane = defaultdict(list)
    for span in spans:
        by_lane[span.lane].append((span.start_s, span.start_s + span.duration_s))
    assert all(map(_apart, by_lane.values()))
    assert {span.lane_name for span in spans if span.category == "step"} == {"predicted, whole", "measured, whole"}


def test_a_process_keeps_its_number_and_lanes_their_names() -> None:
    spans = [Span("a", 0, "x", 0.5, 0.25, "first"), Span("b", 0, "y", 0.0, 1.0), Span("a", 1, "z", 0.0, 1.0, "second")]
    events = json.loads(trace_text(spans))["traceEvents"]
    assert [event["pid"] for event in events if event["ph"] == "X"] == [0, 1, 0]
    assert events[0]["args"]["name"] == "a"
    (first,) = (event for event in events if event["name"] == "x")
    assert (first["ts"], first["dur"]) == (500_000.0, 250_000.0)
