"""Of plans that predictions do not tell apart, the one whose like was measured."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from train_problems import every_plan, job, jobs, problem

from planner.alternatives.why_not import why_not
from planner.api import solve
from planner.check import check_plan
from planner.diff import diff_plans
from planner.documents.read import given_document
from planner.explain.stated import next_best_facts
from planner.kinds.train.choice import allowed_value, far_of, measured_jobs, preferred, share_filled
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.figures import ROOM_COSTS, ROOMY_SHARE
from planner.kinds.train.search.search import Inside
from planner.kinds.train.solve import best_plan
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.progress import Limits
from planner.sweep.point import SolveTask, solve_task
from planner.verify import REFUSED, STATED, VERIFIED, judge

INSIDE = {  # of mixtures of experts on Hopper, as `measured_layouts.csv` has it, and a doubling beyond
    "tp": [1, 2, 4],
    "cp": [1],
    "ep": [4, 8, 16, 32, 64, 128],
    "micro_batch": [1, 2, 4, 8],
    "zero_stage": [1],
}


@cache
def solved(text: str) -> Envelope:
    return solve(resolve_document(given_document(json.loads(text), "problem"), Path()))


def planned(data: dict[str, Any]) -> Envelope:
    return solved(json.dumps(data))


def objective(plan: Envelope) -> float:
    value = plan.certificate.objective.value
    assert value is not None
    return value


def experts(gpus: int = 16, global_batch: int = 64, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    cluster = {"pools": [{"gpu": "h100", "gpus": gpus}]}
    data = problem("Qwen/Qwen3-30B-A3B", sequence_tokens=4096, global_batch=global_batch, **options)
    return {**data, "cluster": cluster}


def test_a_large_mixture_of_experts_is_planned_as_people_run_it_by_the_costs_alone() -> None:
    """ZeRO-3 over whole experts, one micro-batch of everything computed again, loses by gradients of whole layers."""
    data = experts(256, 2048, choice="fastest")
    data["models"] = {"m": {"name": "Qwen/Qwen3-235B-A22B"}}
    plan = planned(data)
    decision = TrainDecision.model_validate(plan.decision)
    assert decision.degrees.pp >= 4
    assert decision.degrees.ep >= 4
    assert (decision.zero_stage, decision.micro_batch <= 2) == (1, True)
    assert plan.certificate.status == "optimal"
    assert not any("no measurement near" in note for note in plan.evidence.notes)


def test_the_choice_is_the_best_of_the_region_and_the_bound_that_of_all() -> None:
    chosen, inside = planned(experts()), planned(experts(search=INSIDE, choice="fastest"))
    fastest = planned(experts(choice="fastest"))
    assert chosen.certificate.objective == inside.certificate.objective
    assert chosen.decision == inside.decision
    assert fastest.certificate.status == "optimal"
    assert chosen.certificate.bound == fastest.certificate.bound == objective(fastest)
    (faster,) = chosen.model_dump()["certificate"]["next_best"]
    assert faster["objective"] == pytest.approx(chosen.certificate.bound)
    assert faster["loss"] == pytest.approx(-(chosen.certificate.gap or 0.0))
    assert any("no measurement near" in note for note in fastest.evidence.notes)
    assert fastest.certificate.within is None


def test_what_was_preferred_is_proven_among_all_plans_and_among_those_where_runs_were_measured() -> None:
    plan, inside = planned(experts()), planned(experts(search=INSIDE, choice="fastest"))
    whole, within = plan.certificate, plan.certificate.within
    assert within is not None
    assert (whole.status, within.status, within.gap) == ("feasible", "optimal", 0.0)
    assert whole.claim.endswith("and of plans where runs were measured none is faster under the costs")
    assert (within.objective, within.bound) == (whole.objective, inside.certificate.bound)
    assert within.candidates == inside.certificate.candidates < whole.candidates
    assert {name: within.axes[name] for name in ("ep", "zero_stage")} == {
        name: INSIDE[name] for name in ("ep", "zero_stage")
    }
    stated = json.loads(plan_json(plan))
    assert {line.verdict for line in judge(stated)} == {VERIFIED, STATED}
    (faster,) = stated["certificate"]["next_best"]
    faster["loss"] = -faster["loss"]
    assert any(line.rule == "certificate.next_best" and line.verdict == REFUSED for line in judge(stated))


def test_a_faster_plan_beyond_measurements_is_said_to_be_one() -> None:
    search = {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "micro_batch": 4, "zero_stage": [1, 2]}
    plan = planned(experts(search=search))
    (said,) = next_best_facts(plan)
    assert said.what.endswith("`options.choice: fastest` takes it")
    (fact,) = why_not(plan, TrainDecision.model_validate(plan.decision), "zero_stage=2")
    assert fact.figures["loss"] < 0.0
    assert "of the best among plans where runs were measured" in fact.what
    assert fact.what.partition(";")[0].endswith("% better by the costs alone")


def test_two_plans_differ_in_bounds_of_both_levels_and_not_in_what_is_proven() -> None:
    plan = planned(experts())
    assert plan.certificate.within is not None
    within = plan.certificate.within.model_copy(update={"bound": 1.0, "gap": 0.5, "status": "feasible"})
    other = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"within": within})})
    decision = TrainDecision.model_validate(plan.decision)
    difference = diff_plans((plan, decision), (other, decision))
    assert [(row.statistic, row.after) for row in difference.figures] == [("bound within", 1.0)]
    assert [change.path for change in difference.provenance] == ["certificate.within.status"]


def test_no_more_is_given_up_than_the_interval_of_the_fastest() -> None:
    fastest = best_plan(jobs(experts()), Limits())
    assert fastest.best is not None
    assert fastest.value is not None
    assert far_of(fastest.best)
    most = allowed_value(fastest.best, fastest.value)
    plan = planned(experts())
    high_s = next(each.interval for each in planned(experts(choice="fastest")).predictions)
    assert high_s is not None
    assert most == pytest.approx(high_s[1])
    assert fastest.value < objective(plan) <= most


def test_what_is_asked_for_is_planned_and_said_to_be_unmeasured() -> None:
    plan = planned(experts(search={"ep": [1]}))
    assert plan.certificate.status == "optimal"
    assert TrainDecision.model_validate(plan.decision).degrees.ep == 1
    assert any("no measurement near" in note and "ep 1" in note for note in plan.evidence.notes)


def test_a_plan_inside_the_region_is_the_fastest() -> None:
    usual = problem(sequence_tokens=4096, global_batch=128)
    options = ({**usual["options"], "choice": each} for each in ("measured", "fastest"))
    plan, fastest = (planned({**usual, "options": each}) for each in options)
    assert plan.decision == fastest.decision
    assert plan.certificate.status == "optimal"


def test_the_next_best_plan_is_another_than_the_plan_itself() -> None:
    """On one data-parallel rank ZeRO 1, which adapters were measured with, takes as long as ZeRO 0."""
    data = problem("meta-llama/Llama-3.1-8B", sequence_tokens=2048, global_batch=8, task="lora")
    alone = {"dp": [1], "pp": [2], "micro_batch": [1]}
    for search, second in ((alone, None), (alone | {"micro_batch": [1, 2]}, "micro-batch 2")):
        data["options"]["search"] = search
        plan = planned({**data, "cluster": {"pools": [{"gpu": "l40s", "gpus": 2}]}})
        assert TrainDecision.model_validate(plan.decision).zero_stage == 1
        told = plan.certificate.next_best
        assert told is None if second is None else second in str(told)


def test_what_the_engine_does_not_launch_is_no_way_out() -> None:
    """Degrees all of whose values were measured stay as free, or as fixed, as they are."""
    (job,) = jobs(experts())
    fastest = best_plan((job,), Limits())
    ((restricted,),) = measured_jobs((job,), fastest)
    search = restricted.options.search
    assert (search.zero_stage, search.ep) == ((1,), (4, 8, 16, 32, 64, 128))
    assert search.cp is None or max(search.cp) == 1
    assert search.dp is None


def sharded(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    """A dense model under torchtitan, whose pipelines were measured with ZeRO 3 alone."""
    data = problem("meta-llama/Llama-3.1-8B", sequence_tokens=8192, global_batch=64, **options)
    return {**data, "engine": {"name": "torchtitan"}, "cluster": {"pools": [{"gpu": "h100", "gpus": 32}]}}


def test_pipelines_are_chosen_with_the_zero_stages_that_were_measured_in_pipelines() -> None:
    (job,) = jobs(sharded())
    (plain,), (piped,) = measured_jobs((job,), best_plan((job,), Limits()))
    assert (plain.options.search.pp, plain.options.search.zero_stage) == ((1,), (2, 3))
    assert piped.options.search.zero_stage == (3,)
    assert min(piped.options.search.pp or ()) == 2
    assert set(piped.options.search.schedule or ()) <= {"1f1b", "interleaved"}


def test_a_stage_that_was_measured_without_a_pipeline_is_not_preferred_with_one() -> None:
    unlike = sharded(search={"pp": [2, 4], "zero_stage": [2]})
    plan = planned(unlike)
    assert any("ZeRO stage 2 with a pipeline (3)" in note for note in plan.evidence.notes)
    either = planned(sharded(search={"pp": [2, 4], "zero_stage": [2, 3]}))
    assert TrainDecision.model_validate(either.decision).zero_stage == 3
    assert not any("no measurement near" in note for note in either.evidence.notes)


def plain(model: str, global_batch: int, sequence_tokens: int, *zero_stages: int, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    search = {"cp": 1, "pp": 1, "tp": [1, 2], "zero_shards": "all", "zero_stage": list(zero_stages)}
    given = {"global_batch": global_batch, "sequence_tokens": sequence_tokens, "search": search, **options}
    return problem(model, nodes=1, **given)


FASTEST: dict[str, Any] = {"choice": "fastest"}
CROWDED = "Qwen/Qwen3-8B", 16, 7168, 1
"""Room costs 0.6 %: norms are computed again."""


@pytest.mark.parametrize("sizes", [
    CROWDED,
    ("meta-llama/Llama-3.1-8B", 32, 4096, 1, 3),  # with ZeRO 1 room takes more than 1 %; ZeRO 3 would have it for 0.4 %
    ("Qwen/Qwen3-8B", 16, 6144, 1),  # the fastest has room
])  # fmt: skip
def test_the_best_plan_with_room_is_chosen_where_it_costs_little(sizes: tuple[Any, ...]) -> None:
    """Among all plans of a small problem by hand."""
    data = plain(*sizes)
    plans = sorted(every_plan(job(data)), key=lambda plan: plan.step_s)
    fastest = plans[0]
    most = (fastest.step_s * (1.0 + ROOM_COSTS), fastest.choice.zero_stage)
    roomy = (each for each in plans if share_filled(each) <= ROOMY_SHARE and each.choice.zero_stage <= most[1])
    wanted = next((each for each in roomy if each.step_s <= most[0]), fastest)
    plan = planned(data)
    assert objective(plan) == pytest.approx(wanted.step_s, rel=1e-9)
    assert plan.certificate.bound == pytest.approx(fastest.step_s, rel=1e-9)
    assert (plan.certificate.within is not None) is (wanted is not fastest)


def test_what_room_costs_is_said_and_proven_on_both_levels() -> None:
    plan, full = planned(plain(*CROWDED)), planned(plain(*CROWDED, memory_utilisation=0.95))
    decision, whole = TrainDecision.model_validate(plan.decision), plan.certificate
    assert (decision.memory_utilisation, whole.bound) == (ROOMY_SHARE, objective(full))
    assert (full.decision.get("memory_utilisation"), full.certificate.within) == (None, None)
    room = "plans where runs were measured, with 15 % of memory free and no feature added"
    assert (whole.status, whole.within_text) == ("feasible", f"optimal among {room}")
    assert whole.claim.endswith(f"and of {room} none is faster under the costs")
    (said,) = next_best_facts(plan)
    assert said.what.endswith("0.6 % better; 87 % of memory full; `options.memory_utilisation: 0.95` takes it")
    assert any(text.startswith("at least 15% of each GPU's memory") for text in plan.assumptions)
    assert {line.verdict for line in judge(json.loads(plan_json(plan)))} == {VERIFIED, STATED}
    assert all(finding.ok for finding in check_plan(plan, decision, proof=True))
    emptier = decision.model_copy(update={"memory_utilisation": 0.5})
    assert "train.room" in {finding.rule for finding in check_plan(plan, emptier) if not finding.ok}


def test_rows_of_a_sweep_say_among_which_plans_theirs_is_the_best() -> None:
    resolved = [resolve_document(given_document(plain(*CROWDED, **each), "problem"), Path()) for each in ({}, FASTEST)]
    rows = [solve_task(SolveTask("", problem, Limits())) for problem in resolved]
    assert str(rows[0]["within"]).startswith("optimal among plans where runs were measured, with 15 %")
    assert (rows[1]["within"], rows[1]["gap"]) == (None, 0.0)


def test_a_share_of_memory_that_is_stated_is_filled() -> None:
    for options in ({"memory_utilisation": 0.95}, FASTEST):
        plan = planned(plain(*CROWDED, **options))
        assert plan.certificate.status == "optimal"
        assert plan.roles[0].memory is not None
        assert plan.roles[0].memory.used_bytes > ROOMY_SHARE * plan.roles[0].memory.capacity_bytes


@pytest.mark.parametrize(("value", "bound"), [(1.01, 1.0), (0.99, 0.98)])
def test_a_part_of_the_space_with_a_plan_below_the_bound_of_all_lowers_it(value: float, bound: float) -> None:
    """As the least memory may do: its layouts are as fast by the slowest rank, and others in the pipeline."""
    (job,) = jobs(plain(*CROWDED))
    fastest = best_plan((job,), Limits())
    assert fastest.value == fastest.bound
    part = replace(fastest, value=value * fastest.value, bound=0.98 * fastest.bound)
    chosen = preferred(fastest, [Inside((job,), part)], 2.0 * fastest.value)
    assert chosen.value == part.value
    assert chosen.bound == pytest.approx(bound * fastest.bound)
    assert chosen.passed == (fastest.best,)


def test_layouts_that_ties_tell_apart_are_told_apart_by_price() -> None:
    """Six ranks of three stages, of which two have a layer more: where memory leaves no choice among them, and where it
    does, the plan is the same. The first of these layouts is 2 % slower."""
    search = {"tp": 1, "pp": 6, "vpp": 3, "dp": 16, "ep": 8, "cp": 1, "micro_batch": 1, "recompute": "none"}
    data = problem(
        "mistralai/Mixtral-8x7B-v0.1",
        nodes=16,
        global_batch=96,
        sequence_tokens=8192,
        precision="fp8",
        optimizer="muon",
        overlap=["p2p", "ep_comm"],
        search=search,
    )
    data["engine"] = {"name": "megatron-lm"}
    roomy, fastest = solve(data), solve({**data, "options": {**data["options"], "choice": "fastest"}})
    values = [plan.certificate.objective.value for plan in (roomy, fastest)]
    assert values[0] is not None
    assert values[1] is not None
    assert values[0] == pytest.approx(values[1])
    assert roomy.certificate.bound == pytest.approx(values[0])
    findings = check_plan(roomy, TrainDecision.model_validate(roomy.decision), proof=True)
    assert [finding.what for finding in findings if not finding.ok] == []
