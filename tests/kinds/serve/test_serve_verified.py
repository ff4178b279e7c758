"""Plans that steady state proposes and simulation verifies keep their limits on requests that no solve has drawn."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.verified.capacity import load_kept
from planner.load.problems import load_problem
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.simulate.judge.limits import Verdict
from planner.simulate.plans.fleet import Policies
from planner.simulate.plans.simulation import judge_plan

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 2}]}
workloads:
  - input_tokens: {mean: 800, cv: 1.0}
    output_tokens: {mean: 60, cv: 0.5}
    LOAD
    slo: {ttft: {p99: 300ms}, tpot: {p90: 25ms}}
objective: GOAL
options: {modes: [MODE], tp: [1], pp: [1], max_batch: [8, 16, 32, 64], chunk_tokens: [2048], judged_by: LEVEL}
"""


def problem(folder: Path, level: str, *, goal: str = "{maximize: goodput_per_gpu}", load: str = "", mode: str) -> Path:
    path = folder / f"{level}.yaml"
    text = PROBLEM.replace("GOAL", goal).replace("LOAD", load).replace("MODE", mode).replace("LEVEL", level)
    path.write_text(text)
    return path


def verdict(plan: Envelope) -> Verdict:
    decision = ServeDecision.model_validate(plan.decision)
    return judge_plan(plan, decision, Policies(), seed=77_000).judgement.verdict


def objective(plan: Envelope) -> float:
    value = plan.certificate.objective.value
    assert value is not None
    return value


def test_a_goodput_plan_keeps_on_fresh_streams_what_a_static_one_breaks(tmp_path: Path) -> None:
    static = solve(load_problem(problem(tmp_path, "queueing", mode="colocated")))
    plan = solve(load_problem(problem(tmp_path, "verification", mode="colocated")))
    assert verdict(static) is Verdict.BROKEN
    assert verdict(plan) is not Verdict.BROKEN
    assert objective(plan) > 0.5 * objective(static)
    assert plan.certificate.status == "feasible"
    assert plan.certificate.bound is not None
    assert objective(plan) <= plan.certificate.bound < 1.6 * objective(plan)
    rows = plan.certificate.proof["verified"]["limits"]  # type: ignore[call-overload,index]
    assert {(row["time"], row["margin"] >= 0.0) for row in rows} == {("ttft", True), ("tpot", True)}  # type: ignore
    assert passed(check_plan(plan, ServeDecision.model_validate(plan.decision), base=tmp_path, proof=True))


def test_the_fewest_gpus_are_those_that_keep_the_limits(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {rate: 12/s, arrival_cv: 2}", "mode": "colocated"}
    with pytest.raises(Infeasible):  # in theory: its batches are always full
        solve(load_problem(problem(tmp_path, "queueing", **asked)))
    plan = solve(load_problem(problem(tmp_path, "verification", **asked)))
    assert verdict(plan) is not Verdict.BROKEN
    assert objective(plan) == 2
    decision = ServeDecision.model_validate(plan.decision)
    (role,) = decision.roles
    fewer = decision.model_copy(update={"roles": (role.model_copy(update={"replicas": 1}),)})
    assert judge_plan(plan, fewer, Policies(), seed=77_000).judgement.verdict is Verdict.BROKEN
    assert passed(check_plan(plan, decision, base=tmp_path))


def test_limits_that_no_plan_keeps_are_named(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {rate: 3/s, arrival_cv: 8}", "mode": "disaggregated"}
    with pytest.raises(Infeasible) as answer:
        solve(load_problem(problem(tmp_path, "verification", **asked)))
    assert any("p99 ttft <= 300 ms" in row["limit"] for row in answer.value.conflict)


def test_what_is_not_verified_is_refused_with_a_way_on(tmp_path: Path) -> None:
    path = problem(tmp_path, "verification", load="load: {concurrency: 8}", mode="colocated")
    with pytest.raises(PlannerError, match="clients that wait") as error:
        solve(load_problem(path))
    assert "--level static" in error.value.hint
    with pytest.raises(PlannerError, match="availability"):
        solve(load_problem(problem(tmp_path, "verification", mode="colocated"), overrides=["availability=n+1"]))


def test_level_verified_of_solve_is_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = problem(tmp_path, "queueing", mode="disaggregated")
    assert main(["solve", str(path), "--level", "verified", "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert '"verification"' in next(line for line in shown.splitlines() if "judged_by" in line)
    assert main(["solve", str(path), "--level", "verify"]) == 2


@pytest.mark.parametrize(
    ("limit", "most", "kept"), [(1.0, 9.0, 1.0), (0.42, 9.0, 0.42), (1.2, 9.0, 1.2), (3.0, 1.1, 1.1)]
)
def test_the_largest_load_is_found_within_its_tolerance(limit: float, most: float, kept: float) -> None:
    runs = []

    def judged(scale: float) -> SimpleNamespace:
        runs.append(scale)
        bound = SimpleNamespace(margin=limit - scale, time="ttft")
        return SimpleNamespace(saturated=False, settled=True, limits=(bound,))

    load = load_kept(judged, most)  # type: ignore[arg-type]
    assert kept / 1.021 <= load.scale <= kept
    assert len(runs) <= 12
    assert load.binding == (frozenset() if kept == most else {"ttft"})
