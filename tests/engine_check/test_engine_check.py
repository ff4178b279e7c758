"""The engine check against a server of known latencies, driven by real HTTP requests on loopback."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emit_plans import RolePlan
from engine_plans import FAST, plan, processes_that_name, program
from rank_environment import free_port
from stub_server import Behaviour, serve

from planner.cli.main import main
from planner.engine_check import server
from planner.engine_check.check import Settings, Verdict, check_engine
from planner.errors import PlannerError
from planner.plan.store import plan_json

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left-over processes in /proc")

QUICK: dict[str, Any] = {
    "duration_s": 0.5,
    "ready_s": 100.0,
    "generator": "guidellm",
    "tolerance": 9.0,
}  # the machine may be busy
STRICT = {"tolerance": 0.9}


@pytest.fixture(autouse=True)
def fake_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `guidellm` first on the search path that reports real HTTP timing."""
    program(tmp_path / "guidellm", "fake_guidellm.py")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def failures(verdict: Verdict) -> dict[str, str]:
    return {finding.rule: finding.what for finding in verdict.findings if not finding.ok}


def check_url(behaviour: Behaviour, settings: dict[str, Any] | None = None, **fields: Any) -> Verdict:  # noqa: ANN401
    with serve(behaviour) as url:
        return check_engine(*plan(**fields), Settings(url=url, **{**QUICK, **(settings or {})}))


def test_a_server_that_keeps_limits_and_predictions_passes() -> None:
    verdict = check_url(Behaviour(**FAST), slo={"ttft": {"p95_s": 5.0}, "tpot": {"mean_s": 0.5}})
    assert not failures(verdict)
    assert {finding.rule for finding in verdict.findings} == {
        "engine.requests", "engine.slo.ttft", "engine.slo.tpot", "engine.prediction.ttft", "engine.prediction.tpot",
    }  # fmt: skip


def test_measured_times_are_those_of_the_server() -> None:
    verdict = check_url(Behaviour(ttft_s=0.1, tpot_s=0.02), {"duration_s": 1.5})
    measured = verdict.result["workloads"][0]["measured"]
    for metric, least in (("ttft_s", 0.1), ("tpot_s", 0.02), ("latency_s", 0.1 + 7 * 0.02)):
        assert 0.95 * least <= measured[metric]["p50"] <= 10.0 * least, metric  # slower where the machine is busy


def test_an_injected_violation_of_the_ttft_limit_is_found() -> None:
    failed = failures(check_url(Behaviour(ttft_s=0.2), slo={"ttft": {"p95_s": 0.1}}, predicted={"ttft_s": 0.2}))
    assert set(failed) == {"engine.slo.ttft"}
    assert "at most 100 ms" in failed["engine.slo.ttft"]


def test_an_injected_violation_of_the_tpot_limit_is_found() -> None:
    failed = failures(check_url(Behaviour(tpot_s=0.06), slo={"tpot": {"mean_s": 0.03}}, predicted={"tpot_s": 0.06}))
    assert set(failed) == {"engine.slo.tpot"}


def test_a_server_slower_than_predicted_fails_the_prediction() -> None:
    assert "engine.prediction.ttft" in failures(check_url(Behaviour(ttft_s=0.2), STRICT, predicted={"ttft_s": 0.05}))


def test_a_server_faster_than_predicted_fails_the_prediction_too() -> None:
    assert "engine.prediction.tpot" in failures(check_url(Behaviour(**FAST), STRICT, predicted={"tpot_s": 0.4}))


def test_an_open_stream_is_compared_with_its_rate() -> None:
    verdict = check_url(Behaviour(**FAST), {"duration_s": 1.5}, load={"rate_per_s": 20.0})
    loads = [finding for finding in verdict.findings if finding.rule == "engine.load"]
    assert [finding.ok for finding in loads] == [True]
    assert verdict.result["workloads"][0]["requests_per_s"] == pytest.approx(20.0, rel=0.3)


def test_a_workload_without_load_is_driven_at_the_rate_that_the_plan_promises() -> None:
    verdict = check_url(Behaviour(**FAST), load=None, predicted={**FAST, "requests_per_s": 30.0})
    assert verdict.result["workloads"][0]["rate_per_s"] == 30.0


def test_a_server_that_answers_errors_is_a_verdict_on_its_requests() -> None:
    failed = failures(check_url(Behaviour(status=500)))
    assert set(failed) == {"engine.requests"}
    assert "failed" in failed["engine.requests"]


def test_a_server_without_a_health_page_is_ready_when_it_lists_its_models() -> None:
    assert not failures(check_url(Behaviour(**FAST, health_page=False)))


def test_a_server_that_never_gets_ready_is_a_verdict() -> None:
    failed = failures(check_url(Behaviour(ready=False), {"ready_s": 0.5}))
    assert set(failed) == {"engine.ready"}
    assert "was not ready after" in failed["engine.ready"]


def test_nobody_at_the_address_is_a_verdict() -> None:
    envelope, decision = plan()
    verdict = check_engine(
        envelope, decision, Settings(url=f"http://127.0.0.1:{free_port()}", **{**QUICK, "ready_s": 0.3})
    )
    assert set(failures(verdict)) == {"engine.ready"}


Start = Callable[..., tuple[Verdict, str]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Checks a plan whose `vllm` is the stub server with the given flags; the verdict, and what names its processes."""
    port = free_port()
    monkeypatch.setattr("planner.emit.serving.vllm.API_PORT", port)
    monkeypatch.setattr(server, "API_PORT", port)
    monkeypatch.setattr(server, "PROBE_S", 0.1)

    def check(*flags: str, **settings: Any) -> tuple[Verdict, str]:  # noqa: ANN401
        mark = f"stub_server.py --stub-of {tmp_path.name}".split()[-1]
        program(tmp_path / "vllm", "stub_server.py", "--stub-of", mark, *flags)
        return check_engine(*plan(), Settings(**{**QUICK, **settings})), mark

    return check


def test_the_emitted_engine_is_started_driven_and_gone_afterwards(start: Start) -> None:
    verdict, mark = start()
    assert not failures(verdict)
    assert verdict.result["launched"]
    assert verdict.result["workloads"][0]["completed"] >= 10
    assert not processes_that_name(mark)


def test_an_engine_of_another_target_is_started_by_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, mark = free_port(), f"{tmp_path.name}-sglang"
    monkeypatch.setattr("planner.emit.serving.sglang.API_PORT", port)
    monkeypatch.setattr(server, "API_PORT", port)
    monkeypatch.setattr(server, "PROBE_S", 0.1)
    program(tmp_path / "python3", "stub_server.py", "--stub-of", mark)  # the command is `python3 -m sglang...`
    verdict = check_engine(*plan(), Settings(**{**QUICK, "target": "sglang"}))
    assert not failures(verdict)
    assert verdict.result["launched"]
    assert not processes_that_name(mark)


def test_an_engine_that_refuses_to_start_is_quoted(start: Start) -> None:
    verdict, mark = start("--refuse-to-start")
    assert "exited with 3" in failures(verdict)["engine.ready"]
    assert "free memory on device" in failures(verdict)["engine.ready"]
    assert not processes_that_name(mark)


def test_an_engine_that_loads_forever_is_stopped_at_the_limit(start: Start) -> None:
    verdict, mark = start("--never-ready", ready_s=1.5)
    assert "loading weights" in failures(verdict)["engine.ready"]
    assert not processes_that_name(mark)


def test_an_engine_that_dies_under_load_is_named_with_its_last_words(start: Start) -> None:
    verdict, mark = start("--die-after", "5")
    assert set(failures(verdict)) == {"engine.alive"}
    assert "exited with 7" in failures(verdict)["engine.alive"]
    assert "CUDA error" in failures(verdict)["engine.alive"]
    assert not processes_that_name(mark)


def test_a_generator_that_fails_is_named_and_the_engine_gone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "guidellm").write_text("#!/usr/bin/env bash\necho no tokenizer; exit 4\n", encoding="utf-8")
    verdict, mark = start()
    assert "exited with 4: no tokenizer" in failures(verdict)["engine.generator"]
    assert not processes_that_name(mark)


def test_a_generator_that_hangs_is_stopped(start: Start, tmp_path: Path) -> None:
    (tmp_path / "guidellm").write_text("#!/usr/bin/env bash\nsleep 100 & sleep 100\n", encoding="utf-8")
    verdict, mark = start(grace_s=0.5)
    assert "did not end within" in failures(verdict)["engine.generator"]
    assert not processes_that_name(mark)


def test_a_port_that_is_taken_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(Behaviour()) as url:
        monkeypatch.setattr(server, "API_PORT", int(url.rsplit(":", 1)[1]))
        with pytest.raises(PlannerError, match="another server answers"):
            check_engine(*plan(), Settings(**QUICK))


def test_a_plan_over_two_nodes_is_referred_to_its_url() -> None:
    roles = (RolePlan(replicas=2, degrees={"tp": 8}),)
    from emit_plans import QWEN, Case

    envelope, decision = Case(roles, {"default": {"name": QWEN}}, 2).build()
    given, _ = plan()
    envelope = envelope.model_copy(
        update={"inputs": {**envelope.inputs, "workloads": given.inputs["workloads"]}, "predictions": given.predictions}
    )
    with pytest.raises(PlannerError, match="takes 2 nodes") as caught:
        check_engine(envelope, decision, Settings(**QUICK))
    assert "--url" in caught.value.hint


def test_without_a_load_generator_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing" / "python"))
    with pytest.raises(PlannerError, match="neither `guidellm` nor `aiperf`") as caught:
        check_engine(*plan(), Settings(url="http://127.0.0.1:1"))
    assert "extra `engine`" in caught.value.hint


def test_lengths_of_a_trace_are_referred_to_a_report() -> None:
    with pytest.raises(PlannerError, match="does not carry"):
        check_engine(*plan(input_tokens={"trace": "requests.csv"}), Settings(url="http://127.0.0.1:1", **QUICK))


def test_the_command_exits_one_on_a_violation_and_keeps_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_json(plan(slo={"ttft": {"p95_s": 0.05}}, predicted={"ttft_s": 0.2})[0]), encoding="utf-8")
    with serve(Behaviour(ttft_s=0.2)) as url:
        code = main(["check", str(path), "--level", "engine", "--url", url, "--duration", "1s", "--tolerance", "50%"])
    assert code == 1
    assert "engine.slo.ttft" in capsys.readouterr().out
    kept = json.loads((tmp_path / "plan.checks.json").read_text(encoding="utf-8"))["levels"]["engine"]
    assert not kept["ok"]
    assert kept["result"]["schema"] == "planner.engine_check/1"
    assert kept["result"]["workloads"][0]["measured"]["ttft_s"]["p95"] > 0.05


def test_a_report_is_judged_without_any_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, report = tmp_path / "plan.json", tmp_path / "bench.json"
    path.write_text(plan_json(plan(slo={"tpot": {"p99_s": 0.01}}, predicted={})[0]), encoding="utf-8")
    measured = {"completed": 50, "request_throughput": 4.0, "mean_ttft_ms": 20, "p99_tpot_ms": 30.0}
    report.write_text(json.dumps(measured), encoding="utf-8")
    assert main(["check", str(path), "--level", "engine", "--report", str(report), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in document["findings"] if not finding["ok"]] == ["engine.slo.tpot"]
    assert document["result"]["report"] == "bench.json"


def test_an_unknown_level_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "plan.json", "--level", "engin"]) == 2
    assert "did you mean `engine`" in capsys.readouterr().err
