"""Decisions under uncertainty: likeness, beliefs from intervals, alternatives of a problem, runs, results."""

import dataclasses
import json
import math
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.check import check_plan
from planner.costs.rates.forms import ALL_FORMS, FUNCTIONS, STAGES, Form
from planner.costs.rates.likeness import TPOT, Likeness
from planner.costs.rates.spread import NORMAL_80
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.estimate.places import layouts, loads
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_problem, resolve_document
from planner.plan.findings import FAILED
from planner.progress import Limits
from planner.propose.alternative import Alternative, Result
from planner.propose.decision import Slo, make_choice, middle_of, standings, with_results
from planner.propose.deployments import Question, question_of, same_deployments
from planner.propose.proposal import document_of, lines_of, propose
from planner.propose.results import read_results
from planner.propose.runs import plan_of
from planner.solvers.stochastic.sequential_choice import chances, expected_rewards

ROOT = Path(__file__).parent.parent.parent
PROBLEM: dict[str, Any] = {
    "kind": "serve",
    "models": {"m": {"name": "meta-llama/Llama-3.1-8B-Instruct"}},
    "cluster": {"pools": [{"gpu": "h200", "gpus": 4}]},
    "workloads": [{"input_tokens": 1000, "output_tokens": 200, "slo": {"ttft": "500ms", "tpot": "15ms"}}],
}


@pytest.fixture(scope="module")
def question() -> Question:
    return question_of(resolve_document(given_document(PROBLEM, "problem"), Path()), Limits())


@pytest.mark.parametrize("limit", [{"latency": {"p95": "30s"}}, {"attainment": "90%"}])
def test_limits_that_beliefs_do_not_judge_are_refused(limit: dict[str, object]) -> None:
    (workload,) = PROBLEM["workloads"]
    asked = PROBLEM | {"workloads": [workload | {"slo": workload["slo"] | limit}]}
    with pytest.raises(PlannerError, match=f"not on `{next(iter(limit))}`"):
        question_of(resolve_document(given_document(asked, "problem"), Path()), Limits())


def test_a_stated_load_is_said_in_copies_of_the_first_alternative() -> None:
    (workload,) = PROBLEM["workloads"]
    slo = {"ttft": {"p95": "500ms"}, "tpot": "15ms"}
    asked = PROBLEM | {"workloads": [workload | {"load": {"rate_per_s": 40.0}, "slo": slo}]}
    proposal = propose(
        question_of(resolve_document(given_document(asked, "problem"), Path()), Limits()), (), 1, ".", seed=0
    )
    first = document_of(proposal)["decision"]
    a_copy = first["output_tokens_per_s_per_gpu"] * first["gpus"] / 200.0
    copies = math.ceil(40.0 / a_copy)
    assert f"40 requests/s take {copies} of the first, {copies * first['gpus']} GPUs" in proposal.notes[0]
    assert "percentiles" in proposal.notes[1]
    assert any(line.endswith(proposal.notes[0]) for line in lines_of(proposal))


@pytest.mark.parametrize(("forms", "told"), [([frozenset({STAGES})], True), (ALL_FORMS, False)])
def test_a_first_alternative_of_a_form_that_no_run_has_is_said_to_be(
    question: Question, forms: Iterable[Form], told: bool
) -> None:
    setting = question.setting
    costs = dataclasses.replace(setting.calibration, forms=dict.fromkeys(FUNCTIONS, frozenset(forms)))
    asked = dataclasses.replace(question, setting=dataclasses.replace(setting, calibration=costs))
    proposal = propose(asked, (), 1, ".", seed=0)
    assert any("no run has that of the first (plain" in note for note in proposal.notes) == told


def test_covariances_add_up_what_alternatives_share() -> None:
    likeness = Likeness(common=0.1, smooth=0.2, single=0.05, load_reach=2.0, layout_reach=4.0)
    load_M, layout_MF = np.array([3.0, 5.0]), np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0]])
    found_MM = likeness.covariance(load_M, layout_MF)
    shared = 0.01 + 0.04 * math.exp(-4.0 / 8.0 - 3.0 / 4.0)
    np.testing.assert_allclose(found_MM, [[0.0525, shared], [shared, 0.0525]])


def test_constants_true_in_errors_are_recovered() -> None:
    fitting = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "likeness_fit.py"))
    true = Likeness(common=0.3, smooth=0.15, single=0.08, load_reach=2.0, layout_reach=6.0)
    rng = np.random.default_rng(0)
    decisions = []
    for _ in range(40):
        load_M, layout_MF = rng.uniform(2, 9, 12), rng.integers(0, 3, (12, 4)).astype(float)
        error_M = rng.multivariate_normal(np.zeros(12), true.covariance(load_M, layout_MF))
        decisions.append(fitting["Errors"](error_M, load_M, layout_MF))
    fitted = fitting["fit"](decisions, TPOT)
    assert fitted.common == pytest.approx(true.common, rel=0.35)
    assert fitted.single == pytest.approx(true.single, rel=0.35)
    assert sum(errors.misfit(fitted) for errors in decisions) < sum(errors.misfit(TPOT) for errors in decisions)


def test_a_run_as_predicted_narrows_what_is_believed_of_the_others_and_a_wild_one_widens_it(question: Question) -> None:
    choice, first = make_choice(question.alternatives, question.slo), question.alternatives[0]

    def width(tpot_s: float | None) -> float:
        results = [] if tpot_s is None else [Result(first.name, first.ttft_s, tpot_s)]
        low_M, high_M = middle_of(with_results(choice, question.alternatives, results).x)
        return float(np.log(high_M / low_M)[1:].mean())

    assert width(first.tpot_s) < 0.8 * width(None) < width(None) < width(4.0 * first.tpot_s)


def test_a_limit_at_an_end_of_the_interval_is_kept_with_the_chance_that_the_interval_says(question: Question) -> None:
    """80 % lie within, as many below as above, before runs and after."""
    first = question.alternatives[0]
    for results in ([], [Result(first.name, first.ttft_s, 1.1 * first.tpot_s)]):
        choice = with_results(make_choice(question.alternatives, Slo(None)), question.alternatives, results)
        low, high = (end[3] for end in middle_of(choice.x))
        limits = {math.log(low): 0.1, float(choice.x.mean_M[3]): 0.5, math.log(high): 0.9}
        kept = [chances(dataclasses.replace(choice, limit_x=limit))[3] for limit in limits]
        assert kept == pytest.approx(list(limits.values()), abs=1e-6)


def test_intervals_of_the_middle_are_those_of_a_normal_where_the_scale_is_known() -> None:
    known = Likeness(common=0.1, smooth=0.2, single=0.05, load_reach=2.0, layout_reach=4.0)
    halves = [float(known.belief(np.zeros(1), np.ones(1), freedom).half[0]) for freedom in (math.inf, 1e6, 3.0)]
    assert halves[0] == pytest.approx(NORMAL_80, rel=1e-12)
    assert halves[1] == pytest.approx(NORMAL_80, rel=1e-5)
    assert halves[2] > 1.2 * NORMAL_80


def test_alternatives_have_names_of_their_own_and_both_modes_are_among_them(question: Question) -> None:
    names = [alternative.name for alternative in question.alternatives]
    assert len(set(names)) == len(names) > 10
    assert {alternative.case.prefill is None for alternative in question.alternatives} == {True, False}
    assert question.slo == Slo(tpot_s=0.015, ttft_s=0.5)
    assert len({float(load) for load in loads([alternative.case for alternative in question.alternatives])}) > 3
    assert np.ptp(layouts([alternative.case for alternative in question.alternatives]), axis=0)[:2].min() > 0


def test_a_result_within_the_limits_is_believed_and_one_beyond_is_not_chosen(question: Question) -> None:
    choice = make_choice(question.alternatives, question.slo)
    name = question.alternatives[0].name
    good = with_results(choice, question.alternatives, [Result(name, 0.3, 0.012)])
    bad = with_results(choice, question.alternatives, [Result(name, 0.3, 0.020)])
    assert chances(good)[0] > 0.99
    assert chances(bad)[0] < 0.01
    assert standings(bad, question.alternatives)[0].alternative.name != name
    output = question.alternatives[0].output_tokens_per_s_per_gpu(0.3, 0.012)
    assert expected_rewards(good)[0] == pytest.approx(output, rel=0.02)


def test_a_higher_price_lowers_the_reward_and_nothing_else(question: Question) -> None:
    dear = [dataclasses.replace(alternative, price=2.0) for alternative in question.alternatives]
    cheap_M, dear_M = (
        expected_rewards(make_choice(choices, question.slo)) for choices in (question.alternatives, dear)
    )
    np.testing.assert_allclose(dear_M, cheap_M / 2.0)


def test_proposed_runs_are_distinct_whole_plans_with_commands(question: Question) -> None:
    proposal = propose(question, [], 3, "here", seed=0)
    assert len({run.plan for run in proposal.runs}) == 3
    for run in proposal.runs:
        decision = ServeDecision.model_validate(run.envelope.decision)
        broken = [
            finding
            for finding in check_plan(run.envelope, decision)
            if finding.verdict == FAILED and not finding.rule.startswith("slo.")
        ]
        assert not broken
        assert run.commands[0].startswith(f"planner emit {run.plan} --target vllm")
        clients = run.standing.alternative.case.clients
        assert f"streams={clients}," in run.commands[-1]
        assert run.report in run.commands[-1]
    assert [line for line in lines_of(proposal) if line.startswith("guidellm")] == [
        r.commands[-1] for r in proposal.runs
    ]
    assert json.loads(json.dumps(document_of(proposal)))["schema"] == "planner.proposal/1"


def test_after_results_no_run_is_proposed_again_and_less_is_left_to_lose(question: Question) -> None:
    first = propose(question, [], 3, "here", seed=0)
    results = [
        Result(run.standing.alternative.name, run.standing.alternative.ttft_s, run.standing.alternative.tpot_s)
        for run in first.runs
    ]
    then = propose(question, results, 3, "here", seed=0)
    assert not {run.plan for run in first.runs} & {run.plan for run in then.runs}
    assert then.loss_left < first.loss_left
    assert sum(standing.measured for standing in then.standings) == 3
    stated = document_of(then)["alternatives"]
    assert all(row["tpot_s_interval"][0] < row["tpot_s"] < row["tpot_s_interval"][1] for row in stated)
    assert [line for line in lines_of(first) if line.startswith("# run 1 of") and " (80 %: " in line]


def test_a_plan_of_a_run_says_that_nothing_is_claimed_and_carries_its_load(question: Question) -> None:
    alternative = question.alternatives[0]
    envelope = plan_of(question, alternative)
    assert envelope.certificate.status == "stated"
    assert envelope.inputs["workloads"][0]["load"]["concurrency"] == alternative.case.clients  # type: ignore[index,call-overload]


def _report(folder: Path, alternative: Alternative, **changed: object) -> Path:
    data = json.loads((ROOT / "tests" / "benchmark_reports" / "vllm_bench.json").read_text(encoding="utf-8"))
    told = {"max_concurrency": alternative.case.clients, "median_ttft_ms": 210.0, "median_tpot_ms": 11.0}
    path = folder / alternative.name / "report.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data | told | changed), encoding="utf-8")
    return path


def test_a_report_in_the_folder_of_its_run_needs_no_name(question: Question, tmp_path: Path) -> None:
    alternative = question.alternatives[3]
    path = _report(tmp_path, alternative)
    assert read_results([str(path)], question) == ([Result(alternative.name, 0.21, 0.011)], [])
    other = tmp_path / "elsewhere.json"
    other.write_bytes(path.read_bytes())
    assert read_results([f"{alternative.name}={other}"], question)[0] == [Result(alternative.name, 0.21, 0.011)]
    with pytest.raises(PlannerError, match="does not tell which run"):
        read_results([str(other)], question)
    with pytest.raises(PlannerError, match="no alternative is called `nobody`"):
        read_results([f"nobody={other}"], question)


@pytest.mark.parametrize("changed", [{"max_concurrency": 3}, {"total_input_tokens": 640_000}])
def test_a_report_of_another_load_is_refused(question: Question, tmp_path: Path, changed: dict[str, object]) -> None:
    path = _report(tmp_path, question.alternatives[3], **changed)
    with pytest.raises(PlannerError, match="the report is of"):
        read_results([str(path)], question)


def test_rows_of_a_table_go_to_the_alternatives_that_they_equal(question: Question, tmp_path: Path) -> None:
    alternative = next(alternative for alternative in question.alternatives if alternative.case.prefill is None)
    part, case = alternative.case.decode, alternative.case
    row = {
        "id": "a", "model": "meta-llama/Llama-3.1-8B-Instruct", "system": "h200_sxm", "backend": "vllm", "mode": "agg",
        "isl": 1000, "osl": 200, "concurrency": case.clients, "gpus": case.gpus, "tp": part.tp, "pp": part.pp,
        "dp": part.dp, "moe_tp": part.moe_tp, "moe_ep": part.ep, "ttft_ms": 200, "tpot_ms": 12,
    }  # fmt: skip
    path = tmp_path / "rows.csv"
    lines = [",".join(row), ",".join(map(str, row.values()))]
    path.write_text("\n".join([*lines, lines[1].replace("a,", "b,", 1).replace(f",{case.clients},", ",1,")]) + "\n")
    results, left_out = read_results([str(path)], question)
    assert results == [Result(alternative.name, 0.2, 0.012)]
    assert len(left_out) == 1
    assert "is a run of no alternative" in left_out[0]
    assert same_deployments(question, dataclasses.replace(case, isl=2000.0)) == []


def test_a_problem_of_several_workloads_is_refused() -> None:
    workload = PROBLEM["workloads"][0]
    data = {**PROBLEM, "workloads": [{**workload, "name": "a"}, {**workload, "name": "b"}]}
    with pytest.raises(PlannerError, match="one workload, found 2"):
        question_of(resolve_document(given_document(data, "problem"), Path()), Limits())


def test_a_problem_of_another_kind_is_refused_at_its_kind() -> None:
    jobs = [{"name": "batch", "curve": [{"nodes": 1, "units_per_hour": 5}], "usd_per_unit": 1}]
    data = {"kind": "fleet", "cluster": {"pools": [{"gpu": "h200", "nodes": 1}]}, "options": {"jobs": jobs}}
    with pytest.raises(PlannerError, match="of kind `serve`, found `fleet`") as refused:
        question_of(resolve_document(given_document(data, "problem"), Path()), Limits())
    assert refused.value.where.endswith("kind")


def test_where_nothing_comes_near_the_limits_they_are_named() -> None:
    data = {**PROBLEM, "workloads": [{"input_tokens": 1000, "output_tokens": 200, "slo": {"tpot": "1us"}}]}
    with pytest.raises(Infeasible) as caught:
        question_of(resolve_document(given_document(data, "problem"), Path()), Limits())
    assert "tpot" in caught.value.conflict[0]["limit"]


def test_pools_with_prices_are_told_apart_by_name() -> None:
    resolved = load_problem(ROOT / "examples" / "serve-cost-two-pools.yaml")
    two_pools = question_of(resolved, Limits())
    pools = {alternative.case.pool.name for alternative in two_pools.alternatives}
    assert all(alternative.name.startswith(f"{alternative.case.pool.name}-") for alternative in two_pools.alternatives)
    assert pools <= {pool.name for pool in resolved.pools}
