"""What is emitted for a target is the plan again when it is read; `benchmarks/emitted.py` reads many more."""

import random

import pytest
from imported_plans import PAIRS, differences

PLANS = 6


@pytest.mark.parametrize(("target", "engine"), PAIRS, ids=[f"{target}-{engine or 'all'}" for target, engine in PAIRS])
def test_emitted_plans_are_imported_as_they_were(target: str, engine: str) -> None:
    draw = random.Random(f"{target}/{engine}/suite")
    results = [differences(target, engine, draw) for _ in range(PLANS)]
    read = [rows for rows in results if rows is not None]
    assert [str(row) for rows in read for row in rows] == []
    if (target, engine) not in REFUSED:
        assert read


REFUSED = {("disaggregatedset", "trtllm")}
"""Engines that a target has no place for."""
