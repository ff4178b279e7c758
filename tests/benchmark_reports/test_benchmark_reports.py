"""Reports of load generators: two as the generators wrote them against a server of known latencies, one by the book."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.benchmark_reports.records import percentile, statistics_of
from planner.benchmark_reports.registry import read_measured
from planner.errors import PlannerError

HERE = Path(__file__).parent
VLLM = {
    "completed": 98, "num_prompts": 100, "request_throughput": 4.5, "mean_ttft_ms": 120.0, "median_ttft_ms": 110.0,
    "p99_ttft_ms": 400.0, "mean_tpot_ms": 12.5, "median_tpot_ms": 12.0, "p99_tpot_ms": 20.0, "std_tpot_ms": 1.0,
}  # fmt: skip


def written(folder: Path, data: object) -> Path:
    path = folder / "report.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def guidellm() -> dict[str, Any]:
    return dict(json.loads((HERE / "guidellm_report.json").read_text(encoding="utf-8")))


def test_guidellm_gives_time_after_the_first_token_as_tpot() -> None:
    """The server waited 50 ms and then 10 ms a token; guidellm's own time per output token says 18 ms."""
    (run,) = read_measured(HERE / "guidellm_report.json")
    assert run.generator == "guidellm"
    assert run.times_s["ttft_s"]["p50"] == pytest.approx(0.060, abs=0.005)
    assert run.times_s["tpot_s"]["p50"] == pytest.approx(0.011, abs=0.001)
    assert (run.completed, run.failed) == (43, 0)


def test_summaries_of_guidellm_agree_with_its_requests(tmp_path: Path) -> None:
    (whole,) = read_measured(HERE / "guidellm_report.json")
    data = guidellm()
    data["benchmarks"][0]["requests"]["successful"] = data["benchmarks"][0]["requests"]["successful"][:5]
    (summed,) = read_measured(written(tmp_path, data))
    for metric, statistics in whole.times_s.items():
        assert summed.times_s[metric]["mean"] == pytest.approx(statistics["mean"], rel=1e-6)
        assert summed.times_s[metric]["p90"] == pytest.approx(statistics["p90"], rel=0.1)


def test_every_run_of_a_report_is_read(tmp_path: Path) -> None:
    data = guidellm()
    data["benchmarks"] *= 3
    assert len(read_measured(written(tmp_path, data))) == 3


def test_aiperf_times_are_in_seconds() -> None:
    (run,) = read_measured(HERE / "aiperf_report.json")
    assert run.times_s["ttft_s"]["p50"] == pytest.approx(0.0549, abs=1e-3)
    assert run.times_s["latency_s"]["mean"] == pytest.approx(0.1315, abs=1e-3)
    assert (run.completed, run.failed) == (16, 0)
    assert run.requests_per_s == pytest.approx(3.907, abs=1e-3)


def test_errors_counted_by_aiperf_are_failures(tmp_path: Path) -> None:
    data = json.loads((HERE / "aiperf_report.json").read_text(encoding="utf-8"))
    data["error_request_count"] = {"unit": "requests", "avg": 4.0}
    (run,) = read_measured(written(tmp_path, data))
    assert run.failed_share == pytest.approx(4 / 20)


def test_vllm_bench_medians_are_the_50th_percentile(tmp_path: Path) -> None:
    (run,) = read_measured(written(tmp_path, VLLM))
    assert run.times_s["ttft_s"] == pytest.approx({"mean": 0.12, "p50": 0.11, "p99": 0.4})
    assert run.times_s["tpot_s"] == pytest.approx({"mean": 0.0125, "p50": 0.012, "p99": 0.02})
    assert (run.completed, run.failed) == (98, 2)
    assert "latency_s" not in run.times_s


def test_a_foreign_file_is_refused_with_the_known_generators(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="no report of a known load generator") as caught:
        read_measured(written(tmp_path, {"hello": 1}))
    assert "guidellm" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"a"', "\udcff"])
def test_what_is_no_report_is_an_error_and_no_crash(text: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(PlannerError):
        read_measured(path)


def test_a_report_cut_short_names_what_is_missing(tmp_path: Path) -> None:
    data = guidellm()
    del data["benchmarks"][0]["metrics"]["request_totals"]
    with pytest.raises(PlannerError, match="request_totals"):
        read_measured(written(tmp_path, data))


def test_a_report_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="holds no run"):
        read_measured(written(tmp_path, {"benchmarks": []}))


VALUES = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=50)


@given(VALUES)
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = statistics_of(values)
    ordered = [min(values), *(found[name] for name in ("p50", "p90", "p95", "p99")), max(values)]
    assert all(low <= high + 1e-9 for low, high in pairwise(ordered))


@given(VALUES, st.floats(0.0, 1.0))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    import numpy as np

    assert percentile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), abs=1e-9)
