"""The examples of RL: certified, free of faults, drawn, and what their pages say of them."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope
from planner.rl.timeline import as_svg, as_text, rows

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module", params=["rl-grpo-7b", "rl-agentic-235b"])
def example(request: pytest.FixtureRequest) -> tuple[Envelope, RlDecision]:
    envelope = solve(EXAMPLES / f"{request.param}.yaml")
    return envelope, RlDecision.model_validate(envelope.decision)


def iteration_s(envelope: Envelope) -> float:
    return next(prediction.value for prediction in envelope.predictions if prediction.metric == "iteration_time_s")


def test_an_example_is_certified_and_passes_its_check(example: tuple[Envelope, RlDecision]) -> None:
    envelope, decision = example
    assert envelope.certificate.status == "optimal"
    assert not [finding for finding in check_plan(envelope, decision) if not finding.ok]


def test_running_ahead_beats_every_other_mode_of_the_example(example: tuple[Envelope, RlDecision]) -> None:
    envelope, decision = example
    assert decision.synchrony == "asynchronous"
    others: Any = envelope.certificate.next_best
    assert {row["plan"] for row in others} >= {"colocated, synchronous", "disaggregated, stream"}
    assert all(row["loss"] > 0 for row in others)


def test_no_device_is_busier_than_the_iteration_is_long(example: tuple[Envelope, RlDecision]) -> None:
    envelope, decision = example
    for row in rows(decision):
        working = sum(phase.duration_s or 0.0 for phase in row.phases if phase.roles)
        assert working <= iteration_s(envelope) * (1 + 1e-9)
    generating = next(row for row in rows(decision) if any("rollout" in phase.roles for phase in row.phases))
    assert generating.gpus == sum(
        role.replicas * role.parallelism.devices for role in decision.roles if role.function == "rollout"
    )


def test_the_timeline_is_drawn_with_a_bar_for_each_phase(example: tuple[Envelope, RlDecision]) -> None:
    envelope, decision = example
    drawing = ElementTree.fromstring(as_svg(decision, iteration_s(envelope), title="a < b"))
    bars = drawing.findall(".//{http://www.w3.org/2000/svg}title")
    assert len(bars) == 2 * sum(len(row.phases) for row in rows(decision))
    text = as_text(decision, iteration_s(envelope))
    assert all(phase.name in text for phase in decision.phases)


def test_the_price_of_a_gpu_hour_is_needed_where_cost_is_the_goal(tmp_path: Path) -> None:
    text = (EXAMPLES / "rl-grpo-7b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "problem.yaml"
    path.write_text(text.replace("price: 2.85 USD/h", "").replace("iteration_time", "cost"), encoding="utf-8")
    with pytest.raises(PlannerError, match="no price"):
        solve(path)
