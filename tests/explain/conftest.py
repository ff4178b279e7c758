"""Solved examples whose plans are explained."""

from collections.abc import Callable
from pathlib import Path

import pytest
from static_level import solve

from planner.kinds.registry import find_kind
from planner.load.problems import load_problem
from planner.plan.schema import Decision, Envelope

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
Solved = tuple[Envelope, Decision]


@pytest.fixture(scope="session")
def solved() -> Callable[[str], Solved]:
    """The plan of an example, solved once."""
    plans: dict[str, Solved] = {}

    def plan(name: str) -> Solved:
        if name not in plans:
            envelope = solve(load_problem(EXAMPLES / f"{name}.yaml"))
            plans[name] = envelope, find_kind(envelope.kind).decision.model_validate(envelope.decision)
        return plans[name]

    return plan


@pytest.fixture(autouse=True)
def _quick(each_mix_once: None) -> None:
    """Many tests ask what the same moved mix is worth."""
