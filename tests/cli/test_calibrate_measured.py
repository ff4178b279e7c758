"""`planner calibrate` on benchmark reports and tables: what was taken, by whom, and what one line asks for."""

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.calibrate.refit import refit
from planner.calibrate.serving import read_serving
from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(__file__).parent.parent.parent
REPORTS = ROOT / "tests" / "benchmark_reports"
FACTS = {"system": "h200_sxm", "backend": "vllm", "tp": "4", "model": "Qwen/Qwen3-32B"}
READERS = {
    "vllm_bench.json": "vllm bench serve",
    "aiperf_concurrency.json": "aiperf",
    "genai_perf.json": "genai-perf",
    "inference_perf_stage.json": "inference-perf",
}
WHOLE = {"llm_d_v0_1.yaml", "llm_d_v0_2.json", "llm_d_v0_2_rate.yaml"}


def report(name: str) -> str:
    return str(REPORTS / name)


def facts(**changed: str | None) -> list[str]:
    """Options that tell FACTS, changed or (None) without."""
    told = {name: value for name, value in (FACTS | changed).items() if value is not None}
    return [part for name, value in told.items() for part in ("--fact", f"{name}={value}")]


def written(folder: Path, data: object) -> str:
    path = folder / "result.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def changed(folder: Path, **fields: object) -> str:
    """The result of vllm bench serve with other fields; None takes one away."""
    data: dict[str, Any] = json.loads(Path(report("vllm_bench.json")).read_text(encoding="utf-8")) | fields
    return written(folder, {name: value for name, value in data.items() if value is not None})


@pytest.mark.parametrize("name", READERS)
def test_a_report_and_facts_are_a_row(run: "Run", name: str) -> None:
    done = run("calibrate", report(name), *facts())
    assert done.code == 0, done
    assert f"1 row read as {READERS[name]}" in done.out
    assert "TPOT error by default" in done.out


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_report_of_llm_d_that_tells_the_stack_needs_no_fact(run: "Run", name: str) -> None:
    done = run("calibrate", report(name), "--json")
    assert done.code == 0, done
    document = json.loads(done.out)
    assert document["schema"] == "planner.agreement/1"
    assert document["rows"] == {"llm-d benchmark report": 1}
    assert document["tpot_error"]["median"] == document["tpot_error"]["mean"] > 0


def test_runs_of_a_sweep_are_rows_but_those_without_a_load(run: "Run") -> None:
    done = run("calibrate", report("guidellm_sweep.json"), *facts())
    assert "2 rows read as guidellm" in done.out
    assert "run 3: neither requests at a time nor a second are stated" in done.err


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_that_nobody_tells_is_named_with_its_option(run: "Run", name: str) -> None:
    done = run("calibrate", report("inference_perf_stage.json"), *facts(**{name: None}))
    assert done.code == 2
    assert f"does not tell `{name}`" in done.err
    assert f"--fact {name}=" in done.err
    assert "--plan PLAN" in done.err


@pytest.mark.parametrize(
    ("field", "fact"),
    [("max_concurrency", "concurrency"), ("total_input_tokens", "isl"), ("total_output_tokens", "osl")],
)
def test_load_and_lengths_may_be_facts_too(run: "Run", tmp_path: Path, field: str, fact: str) -> None:
    path = changed(tmp_path, **{field: None})
    done = run("calibrate", path, *facts())
    assert done.code == 2
    assert f"does not tell `{fact}`" in done.err
    assert run("calibrate", path, *facts(), "--fact", f"{fact}=16").code == 0


def test_a_plan_tells_the_deployment(run: "Run", plan: Path) -> None:
    done = run("calibrate", report("vllm_bench.json"), "--plan", str(plan))
    assert done.code == 0, done
    assert "1 row read as vllm bench serve" in done.out


def test_what_a_plan_tells_is_no_fact(run: "Run", plan: Path) -> None:
    done = run("calibrate", report("vllm_bench.json"), "--plan", str(plan), "--fact", "tp=2")
    assert done.code == 2
    assert "`tp` is stated by the plan" in done.err


def test_facts_go_before_what_a_report_tells(run: "Run") -> None:
    errors = [
        json.loads(run("calibrate", report("llm_d_v0_2.json"), "--json", *more).out)["tpot_error"]["mean"]
        for more in ([], ["--fact", "system=b200_sxm"])
    ]
    assert errors[0] != errors[1]


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ("tp", "must be NAME=VALUE"),
        ("tp=", "must be NAME=VALUE"),
        ("tpp=8", "unknown fact `tpp`"),
        ("tp=0", "`tp` must be a whole number of at least 1"),
        ("tp=many", "`tp` must be a whole number of at least 1"),
        ("isl=nan", "`isl` must be a positive number"),
        ("mode=both", "`mode` must be agg or disagg"),
        ("gpus=6", "`gpus` is 6, and the degrees of parallelism make 4"),
        ("moe_ep=3", "`moe_ep` is 3, and does not divide 4"),
        ("system=abacus", "unknown hardware `abacus`"),
        ("model=nobodys-model", "unknown model `nobodys-model`"),
    ],
)
def test_a_fact_that_does_not_fit_is_one_error(run: "Run", fact: str, said: str) -> None:
    done = run("calibrate", report("vllm_bench.json"), *facts(), "--fact", fact)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("error: ") == 1
    assert "hint: " in done.err


def test_more_gpus_than_one_replica_are_more_replicas(run: "Run") -> None:
    assert run("calibrate", report("vllm_bench.json"), *facts(), "--fact", "gpus=8").code == 0


@pytest.mark.parametrize("text", ["", "hello", "{}", "[1]", '{"completed": 3', "a: [", "a,b,c\n1,2,3\n", "\x00\x01"])
def test_foreign_files_are_one_error(run: "Run", tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text, encoding="utf-8")
    done = run("calibrate", str(path), *facts())
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("error: ") == 1
    assert "hint: " in done.err


def test_a_run_that_completed_nothing_is_left_out_by_name(run: "Run", tmp_path: Path) -> None:
    path = changed(tmp_path, completed=0, failed=66)
    done = run("calibrate", path, *facts())
    assert done.code == 2
    assert "note: left out" in done.err
    assert "no request completed" in done.err
    assert "no measured deployment is usable" in done.err
    both = run("calibrate", path, report("aiperf_concurrency.json"), *facts())
    assert both.code == 0
    assert "1 row read as aiperf" in both.out


def test_a_run_with_many_failures_is_left_out(run: "Run", tmp_path: Path) -> None:
    done = run("calibrate", changed(tmp_path, failed=36), report("vllm_bench.json"), *facts())
    assert "36 of 100 requests failed" in done.err
    assert "1 row read as vllm bench serve" in done.out


def test_rows_of_a_table_are_those_of_the_same_report(run: "Run", tmp_path: Path) -> None:
    """One deployment in both forms errs by the same."""
    row = {
        "id": "one", "model": FACTS["model"], "system": FACTS["system"], "backend": "vllm", "mode": "agg",
        "isl": "1000", "osl": "200", "concurrency": "16", "gpus": "4",
        "tp": "4", "pp": "1", "dp": "1", "moe_tp": "4", "moe_ep": "1",
        "ttft_ms": "200", "tpot_ms": "20",
    }  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(row))
    writer.writeheader()
    writer.writerow(row)
    path = tmp_path / "measured.csv"
    path.write_text(text.getvalue(), encoding="utf-8")
    table = json.loads(run("calibrate", str(path), "--json").out)
    told = json.loads(run("calibrate", report("vllm_bench.json"), *facts(), "--json").out)
    assert table["rows"] == {"table of measured deployments": 1}
    assert table["tpot_error"]["mean"] == pytest.approx(told["tpot_error"]["mean"])
    assert table["ttft_error"]["mean"] == pytest.approx(told["ttft_error"]["mean"])


def test_a_table_that_lacks_a_column_names_it(run: "Run", tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("id,ttft_ms,tpot_ms,isl\na,1,1,1\n", encoding="utf-8")
    done = run("calibrate", str(path))
    assert done.code == 2
    assert "has no column `system`" in done.err


def test_a_bad_row_of_a_table_is_left_out_by_name(run: "Run", tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    header = "id,model,system,backend,mode,isl,osl,concurrency,gpus,tp,pp,dp,moe_tp,moe_ep,ttft_ms,tpot_ms"
    good = "good,Qwen/Qwen3-32B,h200_sxm,vllm,agg,1000,200,16,4,4,1,1,4,1,200,20"
    bad = [
        "worded,Qwen/Qwen3-32B,h200_sxm,vllm,agg,many,200,16,4,4,1,1,4,1,200,20",
        "endless,Qwen/Qwen3-32B,h200_sxm,vllm,agg,inf,200,16,4,4,1,1,4,1,200,20",
        "unsplit,Qwen/Qwen3-32B,h200_sxm,vllm,agg,1000,200,16,4,0,1,1,4,1,200,20",
        "idle,Qwen/Qwen3-32B,h200_sxm,vllm,agg,1000,200,0,4,4,1,1,4,1,200,20",
        "past,Qwen/Qwen3-32B,h200_sxm,vllm,agg,1000,200,16,4,4,1,1,4,1,-5,20",
        "instant,Qwen/Qwen3-32B,h200_sxm,vllm,agg,1000,200,16,4,4,1,1,4,1,200,0.0001",
        "short,Qwen/Qwen3-32B",
    ]
    path.write_text("\n".join([header, good, *bad]), encoding="utf-8")
    done = run("calibrate", str(path))
    assert done.code == 0, done
    assert "1 row read as table" in done.out
    for row in bad:
        assert f"{path}: {row.split(',')[0]}: " in done.err
    assert "`ttft_ms` is -5, which no run takes" in done.err
    assert "`tpot_ms` is 0.0001, which no run takes" in done.err


def test_fewer_rows_than_a_dozen_say_where_their_group_lies_and_move_no_parameter(run: "Run", tmp_path: Path) -> None:
    done = run("calibrate", report("vllm_bench.json"), *facts(), "-o", "calibration.yaml")
    assert done.code == 0
    assert "after 1 run its steps are" in done.err
    known, shipped = load_calibration(str(tmp_path / "calibration.yaml")), load_calibration()
    assert [bias.runs for group, bias in known.runs.items() if group not in shipped.runs] == [1]
    assert shipped.runs.items() < known.runs.items()
    assert (known.efficiencies, known.engines, known.tables) == (shipped.efficiencies, shipped.engines, shipped.tables)
    rows = read_serving([report("vllm_bench.json")], FACTS).rows
    with pytest.raises(PlannerError, match="1 measured deployments to fit, at least 12 are needed"):
        refit(rows, shipped)


def test_a_table_alone_refits_the_calibration(run: "Run", tmp_path: Path) -> None:
    """Deployments twice as slow as predicted: the file that is written predicts them better."""
    names = ["id", "aic_model", "weights", "system", "backend", "mode", "isl", "osl", "concurrency", "gpus"]
    names += ["tp", "pp", "dp", "moe_tp", "moe_ep"]
    loads = [(tp, clients) for tp in (1, 2, 4, 8) for clients in (4, 16, 64)]
    rows = [
        [
            "",
            "meta-llama/Llama-3.1-8B-Instruct",
            "fp8",
            "h100_sxm",
            "vllm",
            "agg",
            1000,
            200,
            clients,
            tp,
            tp,
            1,
            1,
            1,
            1,
        ]
        for tp, clients in loads
    ]
    table = tmp_path / "table.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *([f"row {i}", *row[1:]] for i, row in enumerate(rows))])
    estimated = run("estimate", "--measured", str(table))
    predictions = [json.loads(line)["prediction"] for line in estimated.out.splitlines() if line.startswith("{")]
    assert len(predictions) == len(rows)
    with table.open("w", newline="", encoding="utf-8") as file:
        told = [
            [f"row {i}", *row[1:], 2e3 * prediction["ttft_s"], 2e3 * prediction["tpot_s"]]
            for i, (row, prediction) in enumerate(zip(rows, predictions, strict=True))
        ]
        csv.writer(file).writerows([[*names, "ttft_ms", "tpot_ms"], *told])
    done = run("calibrate", str(table), "-o", "calibration.yaml", "--date", "2026-05-06")
    assert done.code == 0, done
    better = run("calibrate", str(table), "--base", "calibration.yaml", "--json")
    document = json.loads(better.out)
    assert document["tpot_error"]["median"] < 0.25
    assert document["ttft_error"]["median"] < 0.5


@pytest.mark.parametrize("option", [("--fact", "tp=8"), ("--plan", "plan.json")])
def test_completing_no_report_is_refused(run: "Run", tmp_path: Path, option: tuple[str, str]) -> None:
    checks = tmp_path / "plan.checks.json"
    checks.write_text('{"schema": "planner.checks/1", "levels": {}}', encoding="utf-8")
    done = run("calibrate", str(checks), *option)
    assert done.code == 2
    assert f"{option[0]}: completes benchmark reports, and none is given" in done.err


def test_a_report_comes_through_standard_input(run: "Run", monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(report("vllm_bench.json")).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert run("calibrate", "-", *facts()).code == 0
