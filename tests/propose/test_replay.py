"""Proposed runs replayed on measured deployments: part of `make bench-propose`, with the shipped constants."""

from pathlib import Path

import propose
import pytest

from planner.costs.rates.likeness import TPOT, TTFT

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT.parent / "shared" / "data" / "serving" / "measured.csv"
EVERY = 5  # groups that are replayed


@pytest.fixture(scope="module")
def groups() -> list[propose.Group]:
    if not MEASURED.exists():
        pytest.skip("the table of measured deployments is not here")
    groups: list[propose.Group] = propose.read_groups(MEASURED, None)[::EVERY]
    return groups


def _captured(groups: list[propose.Group], policy: str) -> list[float]:
    """Mean captured after 0, 1, 2 and 3 runs."""
    constants = {group.family: (TPOT, TTFT) for group in groups}
    rows = propose.replay(groups, propose.POLICIES[policy], constants)
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_proposed_runs_capture_more_than_random_ones_and_more_with_each(groups: list[propose.Group]) -> None:
    ours, random = (_captured(groups, policy) for policy in ("gain", "random"))
    assert ours[0] < ours[1] < ours[3]
    assert ours[1] > random[1]
    assert ours[3] > random[3]


def test_three_proposed_runs_capture_more_than_rescaling_the_predictions(groups: list[propose.Group]) -> None:
    assert _captured(groups, "gain")[3] > _captured(groups, "naive")[3]


def test_what_is_best_as_measured_captures_all(groups: list[propose.Group]) -> None:
    group = groups[0]
    for limit_s in group.limits_s():
        kept = [m for m, result in enumerate(group.results) if result.tpot_s <= limit_s]
        assert group.captured(max(kept, key=lambda m: group.outputs[m]), limit_s) == pytest.approx(1.0)
        slowest = max(range(len(group.results)), key=lambda m: group.results[m].tpot_s)
        assert group.captured(slowest, limit_s) == 0.0
