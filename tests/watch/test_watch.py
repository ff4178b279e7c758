"""`planner watch` against recorded metrics of engines, served as they serve them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from planner.api import solve
from planner.cli.main import main
from planner.errors import PlannerError
from planner.watch.exposition import Histogram, parse_metrics
from planner.watch.fetch import fetch

ENDS = (0.1, 0.5, 1.0, 2.0, 5.0)


def vllm_metrics(requests: int, ttft_s: float, *, waiting: int = 0, cache: float = 0.3) -> str:
    """What vLLM 0.11 serves after so many requests that all took as long to their first token."""
    labels = 'engine="0",model_name="org/m"'
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} 8.0",
        f"vllm:num_requests_waiting{{{labels}}} {waiting}.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} {cache}",
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {requests - 1}.0',
        f'vllm:request_success_total{{{labels},finished_reason="length"}} 1.0',
        f"vllm:generation_tokens_total{{{labels}}} {requests * 100}.0",
        f"vllm:num_preemptions_total{{{labels}}} 0.0",
    ]
    for end in ENDS:
        lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{end}"}} {requests * (ttft_s <= end)}.0')
    lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {requests}.0')
    lines.append(f"vllm:time_to_first_token_seconds_count{{{labels}}} {requests}.0")
    lines.append(f"vllm:time_to_first_token_seconds_sum{{{labels}}} {requests * ttft_s}")
    return "\n".join(lines) + "\n"


@contextmanager
def serving(*answers: str) -> Iterator[str]:
    """The address of a server that gives one answer after the other, the last again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            content = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    problem = {
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-32B"}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
        "workloads": [
            {
                "input_tokens": 500,
                "output_tokens": 100,
                "load": {"rate_per_s": 40.0},
                "slo": {"ttft": {"p95_s": 1.5}},
            }
        ],
        "objective": {"minimize": "gpus"},
    }
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_text(solve(problem, level="static").model_dump_json(by_alias=True, exclude_none=True))
    return str(file)


def watched(
    url: str, plan_file: str, capsys: pytest.CaptureFixture[str], window: str = "500ms"
) -> tuple[int, dict[str, object]]:
    code = main(["watch", url, "--plan", plan_file, "--window", window, "--json"])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, document


def about(document: dict[str, object]) -> list[str]:
    remarks = document["remarks"]
    assert isinstance(remarks, list)
    return [remark["about"] for remark in remarks]


def test_a_limit_that_is_broken_exits_with_1(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm_metrics(1, 3.0), vllm_metrics(120, 3.0)) as url:
        code, document = watched(url, plan_file, capsys)
    assert code == 1
    assert about(document)[0] == "broken"


def test_times_of_the_window_are_told_and_not_those_before_it(
    plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = vllm_metrics(1000, 3.0), vllm_metrics(1000, 3.0)
    fast = fast.replace('le="0.5"} 0.0', 'le="0.5"} 60.0').replace('le="1.0"} 0.0', 'le="1.0"} 60.0')
    fast = fast.replace('le="2.0"} 0.0', 'le="2.0"} 60.0').replace('le="5.0"} 1000.0', 'le="5.0"} 1060.0')
    fast = fast.replace('le="+Inf"} 1000.0', 'le="+Inf"} 1060.0')
    with serving(slow, fast) as url:
        code, document = watched(url, plan_file, capsys)
    times = document["times"]
    assert isinstance(times, dict)
    assert times["ttft_s"]["count"] == 60
    assert times["ttft_s"]["p95"] <= 0.5
    assert code == 0


def test_a_load_far_below_the_plan_needs_fewer_gpus(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm_metrics(100, 0.3), vllm_metrics(101, 0.3)) as url:
        _, document = watched(url, plan_file, capsys)
    assert "over" in about(document)


def test_waits_that_grow_are_told(plan_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm_metrics(100, 0.3, waiting=2), vllm_metrics(120, 0.3, waiting=40, cache=0.99)) as url:
        _, document = watched(url, plan_file, capsys)
    assert about(document).count("near") == 2


def test_metrics_of_sglang_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    text = vllm_metrics(50, 0.3).replace("num_requests_running", "num_running_reqs").replace("vllm:", "sglang:")
    text = text.replace("num_requests_waiting", "num_queue_reqs").replace("kv_cache_usage_perc", "token_usage")
    with serving(text) as url:
        assert main(["watch", url, "--once", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["engine"], document["running"], document["kv_cache_share"]) == ("sglang", 8.0, 0.3)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:9", "cannot be read"),
        ("file:///etc/passwd", "no address of an engine"),
        ("http://user:hunter2@127.0.0.1:9", "127.0.0.1:9"),
    ],
)
def test_an_address_that_does_not_answer_is_one_clear_error(url: str, says: str) -> None:
    with pytest.raises(PlannerError, match=says) as raised:
        fetch(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("text", "says"), [("<html></html>", "no metrics"), ("up 1\n", "neither vLLM nor SGLang")])
def test_a_page_that_is_none_of_an_engine_is_refused(text: str, says: str) -> None:
    with serving(text) as url, pytest.raises(PlannerError, match=says):
        fetch(url)


def test_quantiles_are_linear_inside_a_bucket() -> None:
    times = Histogram((1.0, 3.0, float("inf")), (10.0, 20.0, 20.0), 30.0)
    assert (times.quantile(0.5), times.quantile(0.75), times.mean) == (1.0, 2.0, 1.5)


def test_labels_may_hold_braces_and_quotes() -> None:
    samples = parse_metrics('a{x="}\\"",y="2"} 3\n', "text")
    assert samples["a"][0].labels["y"] == "2"


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(vllm_metrics(100, 0.3)) as url:
        assert main(["watch", url, "--once"]) == 0
    assert list(tmp_path.iterdir()) == []
