"""Proposed runs replayed on measured deployments: part of `make bench-propose`, with the shipped constants."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.costs.rates.likeness import TPOT, TTFT

ROOT = Path(__file__).parent.parent.parent
MEASURED = ROOT.parent / "shared" / "data" / "serving" / "measured.csv"
EVERY = 5  # groups that are replayed


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("bench_propose", ROOT / "benchmarks" / "propose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_propose"] = module  # its data classes look themselves up
    sys.path.insert(0, str(ROOT / "benchmarks"))  # where its own modules stand
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "benchmarks"))
    del sys.modules["bench_propose"]


@pytest.fixture(scope="module")
def groups(bench: ModuleType) -> list[Any]:
    if not MEASURED.exists():
        pytest.skip("the table of measured deployments is not here")
    groups: list[Any] = bench.read_groups(MEASURED, None)[::EVERY]
    return groups


def _captured(bench: ModuleType, groups: list[Any], policy: str) -> list[float]:
    """Mean captured after 0, 1, 2 and 3 runs."""
    constants = {group.family: (TPOT, TTFT) for group in groups}
    rows = bench.replay(groups, bench.POLICIES[policy], constants)
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def test_proposed_runs_capture_more_than_random_ones_and_more_with_each(bench: ModuleType, groups: list[Any]) -> None:
    ours, random = (_captured(bench, groups, policy) for policy in ("gain", "random"))
    assert ours[0] < ours[1] < ours[3]
    assert ours[1] > random[1]
    assert ours[3] > random[3]


def test_three_proposed_runs_capture_more_than_rescaling_the_predictions(bench: ModuleType, groups: list[Any]) -> None:
    assert _captured(bench, groups, "gain")[3] > _captured(bench, groups, "naive")[3]


def test_what_is_best_as_measured_captures_all(bench: ModuleType, groups: list[Any]) -> None:
    group = groups[0]
    for limit_s in group.limits_s():
        kept = [m for m, result in enumerate(group.results) if result.tpot_s <= limit_s]
        assert group.captured(max(kept, key=lambda m: group.outputs[m]), limit_s) == pytest.approx(1.0)
        slowest = max(range(len(group.results)), key=lambda m: group.results[m].tpot_s)
        assert group.captured(slowest, limit_s) == 0.0
