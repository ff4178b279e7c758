"""Reports of load generators: two as the generators wrote them, and one run in the words of every format."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.benchmark_reports.records import MeasuredRun, OfferedLoad, percentile, statistics_of
from planner.benchmark_reports.registry import read_measured, runs_of
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
    statistics = statistics_of(values)
    ordered = [min(values), *(statistics[name] for name in ("p50", "p90", "p95", "p99")), max(values)]
    assert all(low <= high + 1e-9 for low, high in pairwise(ordered))


@given(VALUES, st.floats(0.0, 1.0))
def test_percentiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert percentile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), abs=1e-9)


FORMATS = {
    "vllm_bench.json": "vllm bench serve",
    "aiperf_concurrency.json": "aiperf",
    "genai_perf.json": "genai-perf",
    "guidellm_sweep.json": "guidellm",
    "inference_perf_stage.json": "inference-perf",
    "llm_d_v0_1.yaml": "llm-d benchmark report",
    "llm_d_v0_2.json": "llm-d benchmark report",
}
TTFT_S = {"mean": 0.25, "p50": 0.2, "p90": 0.4, "p95": 0.5, "p99": 0.6}
TPOT_S = {"mean": 0.022, "p50": 0.02, "p90": 0.025, "p95": 0.0275, "p99": 0.03}
every_format = pytest.mark.parametrize("name", FORMATS)


def sample(name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / name).read_text(encoding="utf-8")))


@every_format
def test_the_same_run_reads_the_same_in_every_format(name: str) -> None:
    """The files state one run of 16 clients in the units and words of each format."""
    run = read_measured(HERE / name)[0]
    assert run.generator == FORMATS[name]
    assert run.times_s["ttft_s"] == pytest.approx(TTFT_S)
    assert run.times_s["tpot_s"] == pytest.approx(TPOT_S)
    assert run.times_s["latency_s"]["mean"] == pytest.approx(4.628)
    assert run.completed == 64
    assert run.failed == (0 if name == "genai_perf.json" else 2)
    assert run.load == OfferedLoad(concurrency=16)
    assert run.input_tokens["mean"] == 1000.0
    assert run.output_tokens["mean"] == 200.0
    assert run.requests_per_s == pytest.approx(3.2)
    assert run.output_tokens_per_s == pytest.approx(640.0)


@every_format
def test_model_and_day_are_those_that_the_format_holds(name: str) -> None:
    run = read_measured(HERE / name)[0]
    assert run.model == (None if name.startswith("inference_perf") else "Qwen/Qwen3-32B")
    assert run.date == (None if name.startswith(("inference_perf", "genai_perf")) else "2026-01-31")


def test_the_file_name_says_nothing_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "guidellm.txt"
    path.write_text((HERE / "vllm_bench.json").read_text(encoding="utf-8"), encoding="utf-8")
    assert read_measured(path)[0].generator == "vllm bench serve"


def test_gaps_between_tokens_are_kept_apart_from_the_time_per_token() -> None:
    for name in ("vllm_bench.json", "inference_perf_stage.json", "llm_d_v0_1.yaml", "llm_d_v0_2.json"):
        assert read_measured(HERE / name)[0].times_s["itl_s"]["p99"] == pytest.approx(0.08), name


def test_the_time_per_token_of_guidellm_inside_an_llm_d_report_is_its_inter_token_latency() -> None:
    """What guidellm calls time per output token holds a share of the first one."""
    (run,) = read_measured(HERE / "llm_d_v0_2_rate.yaml")
    assert run.times_s["tpot_s"]["p50"] == pytest.approx(0.019)
    assert run.load == OfferedLoad(rate_per_s=2.5)


def test_strategies_of_guidellm_are_loads() -> None:
    closed, opened, burst = read_measured(HERE / "guidellm_sweep.json")
    assert (closed.load, opened.load, burst.load) == (
        OfferedLoad(concurrency=16),
        OfferedLoad(rate_per_s=2.5),
        OfferedLoad(),
    )
    data = sample("guidellm_sweep.json")
    data["benchmarks"][0]["config"]["strategy"] = {"type_": "synchronous"}
    assert runs_of(json.dumps(data), "report")[0].load == OfferedLoad(concurrency=1)


def test_a_load_that_is_no_one_number_is_not_told(tmp_path: Path) -> None:
    """genai-perf writes an empty text for what was not asked; sweeps and ramps are lists and mappings."""
    for asked in ("", [1, 2], {"start": 1, "stop": 9}, 0):
        data = sample("genai_perf.json")
        data["input_config"]["perf_analyzer"]["stimulus"] = {"concurrency": asked}
        assert read_measured(written(tmp_path, data))[0].load == OfferedLoad(), asked
    data["input_config"] |= {"perf_analyzer": "", "endpoint": ""}
    assert read_measured(written(tmp_path, data))[0].load == OfferedLoad()


def test_older_exports_of_aiperf_tell_load_and_model(tmp_path: Path) -> None:
    data = sample("aiperf_concurrency.json")
    data["input_config"] = {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 4, "request_rate": None}}
    (run,) = read_measured(written(tmp_path, data))
    assert (run.load, run.model) == (OfferedLoad(concurrency=4), "m")


def test_a_rate_of_concurrent_streams_is_no_rate(tmp_path: Path) -> None:
    text = (HERE / "llm_d_v0_1.yaml").read_text(encoding="utf-8")
    asked = text.replace("max_concurrency: 16", "{profile: concurrent, rate: [24]}")
    assert runs_of(asked, "report")[0].load == OfferedLoad(concurrency=24)
    asked = text.replace("max_concurrency: 16", "{profile: poisson, rate: [1.5]}")
    assert runs_of(asked, "report")[0].load == OfferedLoad(rate_per_s=1.5)


def test_units_are_read_from_the_report(tmp_path: Path) -> None:
    data = sample("aiperf_concurrency.json")
    for statistic, value in data["time_to_first_token"].items():
        data["time_to_first_token"][statistic] = "s" if statistic == "unit" else value / 1e3
    (run,) = read_measured(written(tmp_path, data))
    assert run.times_s["ttft_s"] == pytest.approx(TTFT_S)
    assert run.times_s["tpot_s"] == pytest.approx(TPOT_S)


@pytest.mark.parametrize("unit", ["fortnights", None, 5])
def test_an_unknown_unit_is_named(unit: object, tmp_path: Path) -> None:
    data = sample("llm_d_v0_2.json")
    latency = data["results"]["request_performance"]["aggregate"]["latency"]
    latency["time_to_first_token"]["units"] = unit
    with pytest.raises(PlannerError, match=r"time_to_first_token\.units` .*must be one of s, ms"):
        read_measured(written(tmp_path, data))


def test_stacks_of_llm_d_tell_the_deployment() -> None:
    (apart,) = read_measured(HERE / "llm_d_v0_1.yaml")
    assert (apart.engine, apart.engine_version) == ("vllm", "0.11.0")
    assert apart.deployment["system"] == "H200"
    assert apart.deployment["mode"] == "disagg"
    assert (apart.deployment["prefill_tp"], apart.deployment["prefill_workers"]) == ("2", "1")
    assert (apart.deployment["decode_tp"], apart.deployment["decode_workers"]) == ("4", "2")
    (together,) = read_measured(HERE / "llm_d_v0_2.json")
    assert (together.deployment["tp"], together.deployment["workers"]) == ("4", "2")


def test_defaults_in_place_of_what_ran_are_no_facts(tmp_path: Path) -> None:
    data = sample("llm_d_v0_2.json")
    data["scenario"]["stack"][0]["standardized"]["accelerator"]["count"] = 0
    (run,) = read_measured(written(tmp_path, data))
    assert run.deployment == {"system": "NVIDIA-H200"}


def test_a_protocol_is_no_engine(tmp_path: Path) -> None:
    assert read_measured(HERE / "vllm_bench.json")[0].engine is None
    data = sample("vllm_bench.json") | {"backend": "sglang", "tp": "8", "system": "h200_sxm"}
    (run,) = read_measured(written(tmp_path, data))
    assert run.engine == "sglang"
    assert run.deployment == {"tp": "8", "system": "h200_sxm"}


def test_results_appended_to_one_file_are_runs(tmp_path: Path) -> None:
    line = json.dumps(sample("vllm_bench.json"))
    path = tmp_path / "results.json"
    path.write_text("\n".join([line] * 3), encoding="utf-8")
    assert len(read_measured(path)) == 3
    path.write_text("\n".join([line, line[:200]]), encoding="utf-8")
    with pytest.raises(PlannerError, match=r"results\.json:2: is no JSON"):
        read_measured(path)


def test_lengths_one_by_one_have_a_spread(tmp_path: Path) -> None:
    data = sample("vllm_bench.json") | {"input_lens": [900, 1100] * 32}
    (run,) = read_measured(written(tmp_path, data))
    assert run.input_tokens["mean"] == 1000.0
    assert run.input_tokens["std"] == pytest.approx(100.0)


def nothing_completed(name: str) -> dict[str, Any]:
    """The report of a run all of whose requests failed."""
    data = sample(name)
    if name == "vllm_bench.json":
        return data | {"completed": 0, "failed": 66, "mean_ttft_ms": 0.0, "mean_tpot_ms": float("nan")}
    if name == "aiperf_concurrency.json":
        kept = ("aiperf_version", "input_config", "error_request_count")
        return {key: value for key, value in data.items() if key in kept}
    if name == "guidellm_sweep.json":
        run = data["benchmarks"][0]
        for metric in run["metrics"].values():
            metric["successful"] = None
        run["metrics"]["request_totals"] = {"successful": 0, "errored": 66, "incomplete": 0, "total": 66}
        return data | {"benchmarks": [run]}
    if name == "inference_perf_stage.json":
        data["successes"] = {"count": 0, "latency": {}, "throughput": {}, "prompt_tokens": {"total": 0.0}}
        data["successes"]["latency"]["time_to_first_token"] = None
        return data
    aggregate = data["results"]["request_performance"]["aggregate"]
    aggregate["requests"] |= {"total": 66, "failures": 66}
    return data


@pytest.mark.parametrize("name", [name for name in FORMATS if name.endswith(".json") and not name.startswith("genai")])
def test_a_run_that_completed_nothing_has_no_times(name: str, tmp_path: Path) -> None:
    (run,) = read_measured(written(tmp_path, nothing_completed(name)))
    assert run.completed == 0
    assert run.failed > 0
    assert run.times_s == {}
    assert run.failed_share == 1.0


@every_format
def test_a_report_cut_anywhere_is_one_error_or_no_report(name: str, tmp_path: Path) -> None:
    text = (HERE / name).read_text(encoding="utf-8")
    path = tmp_path / name
    for share in range(1, 20):
        path.write_text(text[: len(text.rstrip()) * share // 20], encoding="utf-8")
        if name.endswith(".json"):
            with pytest.raises(PlannerError):
                read_measured(path)
        else:
            with suppress(PlannerError):
                read_measured(path)


STRANGE = st.sampled_from([None, True, -1, 10**400, float("inf"), float("nan"), "", "x", [], [1], {}, {"mean": "x"}])


def places(data: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value below `data`."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in below:
        yield (*path, key)
        yield from places(value, (*path, key))


def replaced(data: Any, path: tuple[str | int, ...], value: object) -> Any:  # noqa: ANN401 - any JSON
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def read_or_refused(text: str) -> list[MeasuredRun] | PlannerError:
    try:
        return runs_of(text, "report.json")
    except PlannerError as error:
        return error


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_strange_values_anywhere_are_read_or_refused_but_never_crash(draws: st.DataObject) -> None:
    name = draws.draw(st.sampled_from([name for name in FORMATS if name.endswith(".json")]))
    data = sample(name)
    for _ in range(draws.draw(st.integers(1, 3))):
        data = replaced(data, draws.draw(st.sampled_from(list(places(data)))), draws.draw(STRANGE))
    outcome = read_or_refused(json.dumps(data))
    if isinstance(outcome, PlannerError):
        assert outcome.hint
        assert "report.json" in outcome.where
        return
    for run in outcome:
        assert run.completed >= 0
        assert run.failed >= 0
        assert all(0 <= value < 1e15 for statistics in run.times_s.values() for value in statistics.values())


@pytest.mark.parametrize(
    "text", ["a: [", "!!python/object:os.system {}", "- 1\n- 2", "a: 2026-99-99", "[" * 100_000, "{" * 100_000, "\x00"]
)
def test_foreign_text_is_one_error(text: str) -> None:
    with pytest.raises(PlannerError) as caught:
        runs_of(text, "foreign")
    assert caught.value.where.startswith("foreign")


def test_a_negative_time_names_its_field(tmp_path: Path) -> None:
    data = sample("vllm_bench.json") | {"median_ttft_ms": -5.0}
    with pytest.raises(PlannerError, match=r"`median_ttft_ms` must be at least 0, found -5\.0"):
        read_measured(written(tmp_path, data))
