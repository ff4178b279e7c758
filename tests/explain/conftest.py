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
def solved() -> Callable[..., Solved]:
    """The plan of an example, perhaps with overrides, solved once."""
    plans: dict[tuple[str, ...], Solved] = {}

    def plan(name: str, *overrides: str) -> Solved:
        key = (name, *overrides)
        if key not in plans:
            envelope = solve(load_problem(EXAMPLES / f"{name}.yaml", overrides=overrides))
            plans[key] = envelope, find_kind(envelope.kind).decision.model_validate(envelope.decision)
        return plans[key]

    return plan


@pytest.fixture(autouse=True)
def _quick(each_mix_once: None) -> None:
    """Many tests ask what the same moved mix is worth."""
