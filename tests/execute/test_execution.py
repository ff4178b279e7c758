"""Plans executed on the CPU at hand: what comes out, what is kept of it, and by which exit code."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_environment import HAS_TORCH, PYTHON_PATH

from planner.calibrate.records import read_records
from planner.cli.main import main
from planner.costs.operators.kernels import Experts
from planner.costs.rates.calibration import load_calibration
from planner.errors import PlannerError
from planner.execute import execution
from planner.execute.execution import ExecutionOptions, execute_plan
from planner.execute.judge.verdict import Execution
from planner.execute.ranks.launch import TimeLimits
from planner.execute.shards.cases import Cut
from planner.plan.store import plan_digest, write_checks

LENIENT, STRICT = "99.9%", "0.1%"  # the CPU of these plans is made up: predictions are off, but not thousandfold
SMALL = ExecutionOptions(device="cpu", cut=Cut(layers=1), step_budget_s=0.05)

pytestmark = [
    pytest.mark.usefixtures("forked_ranks"),
    pytest.mark.skipif(not HAS_TORCH, reason="the executor needs torch: the extra `gpu`"),
]
BenchPlan = Callable[..., Path]


def kept(plan: Path) -> dict[str, Any]:
    """What lies beside the plan of level execute."""
    level = json.loads(plan.with_name("plan.checks.json").read_text(encoding="utf-8"))["levels"]["execute"]
    assert isinstance(level, dict)
    return level


def step_of(outcome: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The only step of that kind."""
    (step,) = [step for step in outcome["steps"] if step["step"] == kind]
    assert isinstance(step, dict)
    return step


def named(outcome: Execution, kind: str, rank: int = 0) -> Any:  # noqa: ANN401 - a step with all that it says
    (step,) = [step for step in outcome.steps if (step.step, step.rank) == (kind, rank)]
    return step


def test_a_check_within_the_tolerance_exits_0_and_keeps_what_it_prints(
    bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"decode": {}})
    arguments = ["check", str(plan), "--level", "execute", "--device", "cpu", "--cut", "layers=1,batch=2"]
    assert main([*arguments, "--tolerance", LENIENT, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "planner.execution/1"
    assert printed["plan"] == plan_digest(plan.read_text(encoding="utf-8"))
    assert printed["cut"] == {"layers": 1, "batch": 2}
    decode = step_of(printed, "decode")
    assert decode["batch"] == 2
    assert decode["layers"] == [0]
    assert decode["claimed"]
    assert abs(decode["error"]) == pytest.approx(printed["median_error"])
    assert decode["p10_s"] <= decode["measured_s"] <= decode["p90_s"]
    assert kept(plan)["ok"]
    assert kept(plan)["result"] == printed


def test_a_check_outside_the_tolerance_exits_1_and_names_the_step(
    bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"decode": {}})
    checks = plan.with_name("plan.checks.json")
    assert main(["check", str(plan), "--level", "execute", "--cut", "layers=1", "--tolerance", STRICT]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  execute.step  roles.decode.decode: rank 0: predicted" in printed
    assert "median error" in printed
    assert "layers at most 1" in printed
    assert json.loads(checks.read_text(encoding="utf-8"))["levels"]["execute"]["ok"] is False


def test_absent_ranks_leave_their_collectives_out_of_both_sides(bench_plan: BenchPlan) -> None:
    plan = bench_plan("serve", {"decode": {"tp": 2}})
    alone, together = (named(execute_plan(plan, replace(SMALL, num_processes=n)), "decode") for n in (1, 2))
    assert {"attention_all_reduce", "ffn_all_reduce"} <= set(alone.absent)
    assert not set(alone.absent) & set(alone.operators)
    assert alone.executed_share < together.executed_share
    assert together.absent == ()
    assert together.executed_share == pytest.approx(1.0)
    assert {"attention_all_reduce", "ffn_all_reduce"} <= set(together.operators)
    left_out = sum(together.operators[name].predicted_s for name in alone.absent)
    assert alone.predicted_s == pytest.approx(together.predicted_s - left_out)
    assert alone.predicted_step_s == pytest.approx(together.predicted_step_s)


def test_each_distinct_stage_of_a_pipeline_runs_alone_in_turn(bench_plan: BenchPlan) -> None:
    outcome = execute_plan(bench_plan("serve", {"prefill": {"pp": 2}}), replace(SMALL, cut=Cut()))
    first, last = named(outcome, "prefill", 0), named(outcome, "prefill", 1)
    assert (first.layers, last.layers) == ((0, 1), (2, 3))
    assert "embedding" in first.operators
    assert "embedding" not in last.operators
    assert "logits" in last.operators
    assert "logits" not in first.operators


def test_generation_and_training_of_an_rl_plan_are_executed_and_the_rest_is_named(bench_plan: BenchPlan) -> None:
    plan = bench_plan("rl", {"rollout": {}, "actor": {}, "reference": {}})
    outcome = execute_plan(plan, replace(SMALL, cut=Cut(layers=1, batch=2)))
    steps = {role: {step.step for step in outcome.steps if step.role == role} for role in ("rollout", "actor")}
    assert {"prefill", "decode", "mixed"} <= steps["rollout"]
    assert "train" in steps["actor"]
    assert set(outcome.unexecuted) == {"reference"}
    assert "`reference`" in outcome.unexecuted["reference"]
    trained, generated = named(outcome, "train"), named(outcome, "prefill")
    assert trained.tokens > generated.tokens  # answers are trained on as well


LAYOUT = {"expert_of_slot": [0, 1, 2, 3, 4, 5, 6, 7, 0, 0], "quota": [0.5, 1, 1, 1, 1, 1, 1, 1, 0.25, 0.25]}
SKEWED = {"slots_per_rank": [5], "num_experts": 8, "num_layers": 2, "layouts": [{**LAYOUT, "first_layer": 0}]}


def test_the_fullest_rank_of_an_expert_layout_is_executed_alone(bench_plan: BenchPlan) -> None:
    plan = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=SKEWED)
    (step,) = execute_plan(plan, SMALL).steps
    assert step.step == "expert_layer"
    assert step.tokens == 96
    assert step.rank == 0  # it has 4.5 of 8 experts, and rank 1 the rest
    assert set(step.absent) >= {"dispatch", "combine"}
    assert "qkv" not in step.operators
    assert step.predicted_memory_bytes is not None


def test_an_expert_layout_is_executed_whole_where_there_are_ranks_enough(bench_plan: BenchPlan) -> None:
    plan = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=SKEWED)
    outcome = execute_plan(plan, replace(SMALL, num_processes=2))
    assert not outcome.faults
    (step,) = outcome.steps
    assert step.executed_share == pytest.approx(1.0)
    assert {"dispatch", "experts", "combine", "router", "expert_combine"} <= set(step.operators)
    write_checks(plan, outcome.plan, "execute", outcome.findings(), outcome.as_json())
    records = read_records([str(plan.with_name("plan.checks.json"))], load_calibration())
    (again,) = records.steps  # as calibration reads the layer, it is that which was executed
    (experts,) = [op for op in again.operators if isinstance(op, Experts)]
    assert {op.name for op in again.operators} == set(step.operators)
    assert experts.num_experts == 10
    assert float(experts.tokens[0]) == pytest.approx(2 * step.tokens * (4.5 / 8) * 2)


def test_partial_results_are_kept_when_a_rank_dies(
    bench_plan: BenchPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHON_PATH)
    monkeypatch.setattr(execution, "ENTRY", "injected_faults:run_rank_that_dies_in_its_second_step")
    plan = bench_plan("serve", {"decode": {}})
    code = main(["check", str(plan), "--level", "execute", "--cut", "layers=1", "--tolerance", LENIENT])
    assert code == 1
    result = kept(plan)["result"]
    assert step_of(result, "decode")["measured_s"] > 0
    (fault,) = result["faults"]
    assert (fault["kind"], fault["role"], fault["rank"], fault["step"]) == ("killed", "decode", 0, "kv_transfer")
    assert "FAIL  execute.fault  roles.decode.kv_transfer: rank 0 of `decode`" in capsys.readouterr().out


def test_nothing_more_is_started_when_the_time_is_over(bench_plan: BenchPlan) -> None:
    plan = bench_plan("serve", {"prefill": {}, "decode": {}})
    outcome = execute_plan(plan, replace(SMALL, limits=TimeLimits(total_s=0.2)))
    assert [(fault.kind, fault.role) for fault in outcome.faults] == [("time_limit", "prefill")]
    assert outcome.unexecuted == {"decode": "the run had ended before"}
    assert not outcome.ok


def test_a_machine_without_torch_is_told_which_extra_to_install(
    bench_plan: BenchPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert main(["check", str(bench_plan("serve", {"decode": {}})), "--level", "execute"]) == 2
    assert "'.[gpu]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--roles", "decod"), "did you mean `decode`"),
        (("--cut", "layer=2"), "did you mean `layers`"),
        (("--cut", "layers=0"), "`layers` must be a whole number of at least 1"),
        (("--cut", "layers"), "`layers` must be a whole number of at least 1"),
        (("--cut", "layers=2;batch=4"), "found `2;batch=4`"),
        (("--tolerance", "much"), "--tolerance"),
        (("--tolerance", "150%"), "must be at least 0 and below 100%"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--time-limit", "0s"), "--time-limit"),
        (("--device", "tpu"), "unknown device `tpu`"),
        (("--device", "cuda"), "there is no CUDA device"),
        (("--nproc", "0"), "--nproc"),
        (("--profiles", "nowhere"), "nowhere"),
        (("--calibration", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_bad_flags_are_refused_before_anything_runs(
    arguments: tuple[str, ...], words: str, bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = bench_plan("serve", {"decode": {}})
    assert main(["check", str(plan), "--level", "execute", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert "Traceback" not in complaint
    assert not plan.with_name("plan.checks.json").exists()


def bad_plan(bench_plan: BenchPlan, edit: Callable[[dict[str, Any]], None]) -> Path:
    path = bench_plan("serve", {"decode": {}})
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda plan: plan["decision"]["roles"][0].update(function="wizard"), "the function `wizard` cannot be"),
        (lambda plan: plan["decision"]["roles"][0].update(pool="lost"), "no pool `lost`"),
        (lambda plan: plan["decision"]["roles"][0].update(model="lost"), "has no model"),
        (lambda plan: plan["inputs"]["models"]["chat"].update(name="lost/model"), "lost/model"),
        (lambda plan: plan["inputs"]["cluster"]["pools"][0].update(gpu="lost_gpu"), "lost_gpu"),
        (lambda plan: plan["decision"]["roles"][0]["parallelism"].update(tp=3), "the placement has"),
        (lambda plan: plan["decision"]["placement"][0]["axes"][1].update(name="xp"), "unknown axis `xp`"),
        (lambda plan: plan["inputs"]["costs"].update(calibration="file"), "--calibration FILE"),
        (lambda plan: plan["inputs"]["workloads"][0].update(input_tokens={"trace": "x.csv"}), "from a trace"),
        (lambda plan: plan.update(schema="planner.plan/9"), "planner.plan/9"),
    ],
)
def test_plans_that_cannot_be_executed_are_refused_with_the_reason(
    edit: Callable[[dict[str, Any]], None], words: str, bench_plan: BenchPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["check", str(bad_plan(bench_plan, edit)), "--level", "execute"])
    complaint = capsys.readouterr().err
    assert words in complaint
    assert code == 2
    assert "Traceback" not in complaint


def test_a_role_that_was_asked_for_and_cannot_run_is_an_error(bench_plan: BenchPlan) -> None:
    plan = bench_plan("rl", {"rollout": {}, "actor": {}, "reference": {}})
    with pytest.raises(PlannerError, match="`reference` cannot be executed"):
        execute_plan(plan, replace(SMALL, roles=("reference",)))


@pytest.mark.parametrize("plan", ["-", "nowhere.json"])
def test_ranks_need_a_plan_in_a_file(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", plan, "--level", "execute"]) == 2
    assert "Traceback" not in capsys.readouterr().err
