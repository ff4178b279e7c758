"""Services over a day: copies that start and stop by the clock, request by request."""

from typing import Any

import numpy as np
import pytest

from planner.api import solve
from planner.arrays import Floats
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope
from planner.simulate.plans.day import drawn_day, simulate_day
from planner.simulate.run.result import SimulationResult

SERVE: dict[str, Any] = {
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 1}]},
    "workloads": [{"input_tokens": 512, "output_tokens": 64, "slo": {"ttft": {"p95": "1s"}}}],
    "objective": {"maximize": "goodput_per_gpu"},
    "options": {
        "judged_by": "queueing",
        "modes": ["colocated"],
        "tp": [1],
        "pp": [1],
        "max_batch": [2],
        "chunk_tokens": [2048],
    },
}


@pytest.fixture(scope="module")
def plan() -> tuple[Envelope, Decision]:
    envelope = solve(SERVE)
    return envelope, find_kind("serve").decision.model_validate(envelope.decision)


def rates(*first: float) -> Floats:
    """Of 10 minutes each; nothing comes afterwards."""
    return np.array([*first, *[0.0] * (144 - len(first))])


def day(plan: tuple[Envelope, Decision], copies: list[int], before: int, start_up_s: float = 0.0) -> SimulationResult:
    requests = drawn_day(plan[0], rates(6.0), 1)
    return simulate_day(*plan, requests, copies, before=before, window_s=300.0, start_up_s=start_up_s)


def test_requests_of_a_day_come_at_the_rates_of_their_slots(plan: tuple[Envelope, Decision]) -> None:
    arrival_s = drawn_day(plan[0], rates(10.0, 0.0, 30.0), 1).arrival_s
    counts = np.histogram(arrival_s, bins=3, range=(0.0, 1800.0))[0]
    assert counts.sum() == len(arrival_s)
    assert counts == pytest.approx([6000, 0, 18000], rel=0.05)


def test_copies_that_start_late_leave_requests_waiting(plan: tuple[Envelope, Decision]) -> None:
    at_once, late = (day(plan, [3, 3], before=1, start_up_s=seconds).ttft_s for seconds in (0.0, 290.0))
    steady = day(plan, [3, 3], before=3).ttft_s
    assert np.quantile(at_once, 0.95) == pytest.approx(np.quantile(steady, 0.95), rel=0.5)
    assert np.quantile(late, 0.5) > 3.0 * np.quantile(steady, 0.5)


def test_requests_are_served_to_the_end_by_copies_that_drain(plan: tuple[Envelope, Decision]) -> None:
    result = day(plan, [3, 2], before=3)
    assert result.complete.all()
    with pytest.raises(PlannerError, match="no copy"):
        day(plan, [0, 0], before=0)
