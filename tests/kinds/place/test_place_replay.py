"""Arrivals replayed from a trace: its gaps at the rate asked for, another place of it for each seed, and bad input."""

from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.kinds.place.replay import gaps_of, replayed


def trace(folder: Path, times: list[float]) -> str:
    path = folder / "trace.csv"
    rows = "".join(f"{time},1,1\n" for time in times)
    path.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    return str(path)


def test_gaps_of_a_trace_come_at_the_rate_asked_for_from_another_place_for_each_seed(tmp_path: Path) -> None:
    gaps = gaps_of(trace(tmp_path, [0.0, 1.0, 3.0, 7.0, 8.0, 20.0]), "here")
    assert gaps.mean() == pytest.approx(1.0)
    streams = [replayed(gaps, 50.0, 100.0, seed) for seed in range(4)]
    for times in streams:
        assert (np.diff(times) >= 0.0).all()
        assert times[-1] < 100.0
        assert len(times) == pytest.approx(5000, rel=0.01)
        own = np.sort(np.unique(np.round(np.diff(times) * 50.0, 9)))
        assert set(own) <= set(np.round(gaps, 9))
    assert len({float(times[0]) for times in streams}) > 1


@pytest.mark.parametrize("times", [[1.0], [1.0, 1.0]])
def test_a_trace_without_two_times_is_refused(tmp_path: Path, times: list[float]) -> None:
    with pytest.raises(PlannerError, match="no two times of arrival"):
        gaps_of(trace(tmp_path, times), "here")
