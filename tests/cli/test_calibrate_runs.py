"""`planner calibrate --propose`: runs named, results taken, errors in one line."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(__file__).parent.parent.parent
PROBLEM = """kind: serve
models: {m: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h200, gpus: 2}]}
workloads:
  - {input_tokens: 1000, output_tokens: 200, slo: {ttft: 500ms, tpot: 15ms}}
options: {modes: [colocated]}
"""


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.yaml"
    path.write_text(PROBLEM, encoding="utf-8")
    return str(path)


def _document(run: "Run", *arguments: str) -> dict[str, Any]:
    done = run("calibrate", "--propose", *arguments, "--json")
    assert done.code == 0, done
    document: dict[str, Any] = json.loads(done.out)
    return document


def _report(tmp_path: Path, proposed: dict[str, Any], tpot_ms: float) -> str:
    data = json.loads((ROOT / "tests" / "benchmark_reports" / "vllm_bench.json").read_text(encoding="utf-8"))
    told = {"max_concurrency": proposed["concurrency"], "median_ttft_ms": 210.0, "median_tpot_ms": tpot_ms}
    path = tmp_path / proposed["report"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data | told), encoding="utf-8")
    return str(path)


def test_runs_are_named_as_commands_and_their_plans_are_written(run: "Run", problem: str, tmp_path: Path) -> None:
    done = run("calibrate", "--propose", "2", problem, "-o", "runs")
    assert done.code == 0, done
    commands = [line for line in done.out.splitlines() if line and not line.startswith("#")]
    plans = [line.split()[2] for line in commands if line.startswith("planner emit")]
    assert len(plans) == 2
    assert all((tmp_path / plan).exists() for plan in plans)
    assert run("emit", plans[0], "--target", "vllm").code == 0
    assert json.loads((tmp_path / "runs" / "proposal.json").read_text())["schema"] == "planner.proposal/1"


def test_a_result_that_breaks_the_limit_moves_the_decision(run: "Run", problem: str, tmp_path: Path) -> None:
    before = _document(run, "1", problem)
    after = _document(run, "1", problem, "--results", _report(tmp_path, before["runs"][0], 22.0))
    assert after["results"] == [{"alternative": before["runs"][0]["alternative"], "ttft_s": 0.21, "tpot_s": 0.022}]
    assert after["decision"]["alternative"] != before["runs"][0]["alternative"]
    assert after["runs"][0]["alternative"] != before["runs"][0]["alternative"]
    kept = next(row for row in after["alternatives"] if row["measured"])
    assert kept["chance_to_keep_slo"] < 0.01


def test_a_plan_is_as_good_as_its_problem(run: "Run", problem: str) -> None:
    assert run("solve", problem, "-o", "plan.json").code == 0
    assert _document(run, "2", "plan.json") == _document(run, "2", problem)


def test_the_same_question_has_the_same_answer(run: "Run", problem: str) -> None:
    assert _document(run, "3", problem) == _document(run, "3", problem)


def test_limits_that_nothing_comes_near_are_named_with_exit_code_1(run: "Run", problem: str) -> None:
    Path(problem).write_text(PROBLEM.replace("15ms", "1us"), encoding="utf-8")
    done = run("calibrate", "--propose", "1", problem)
    assert done.code == 1
    assert "tpot" in done.out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--propose", "0", "problem.yaml"), "invalid value for `--propose`"),
        (("--propose", "1", "problem.yaml", "other.yaml"), "takes one problem or one plan, found 2 files"),
        (("--propose", "1", "absent.yaml"), "absent.yaml"),
        (("--propose", "1", "problem.yaml", "--results", "absent.json"), "absent.json: cannot be read"),
        (("--propose", "1", "problem.yaml", "--results", "tp9=absent.json"), "no alternative is called `tp9`"),
        (("problem.yaml", "--results", "absent.json"), "completes `--propose`"),
        (("--propose", "1", "problem.yaml", "--fact", "tp=2"), "--fact: is of no use with `--propose`"),
        (("--propose", "1", "problem.yaml", "--base", "none"), "--base: is of no use with `--propose`"),
    ],
)
def test_what_cannot_be_done_is_one_error(run: "Run", problem: str, arguments: tuple[str, ...], what: str) -> None:
    done = run("calibrate", *arguments)
    assert done.code == 2, done
    assert what in done.err
    assert "Traceback" not in done.err
