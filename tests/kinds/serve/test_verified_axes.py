"""Plans one step from a plan: what they change, and that their check knows their instance types."""

from dataclasses import replace

import pytest
from serve_problems import small

from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.certificate import objective
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.solve import solve
from planner.kinds.serve.steady.search import Outcome, ServeSetting, prepare, search
from planner.kinds.serve.verified.budget import Budget
from planner.kinds.serve.verified.capacity import LoadKept
from planner.kinds.serve.verified.climb import Climb
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.loop import Search
from planner.kinds.serve.verified.neighbours import Axes
from planner.kinds.serve.verified.orders import orders_of
from planner.kinds.serve.verified.trials import Variants
from planner.plan.findings import FAILED
from planner.plan.restated import unproven
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.progress import Limits
from planner.simulate.judge.limits import Verdict
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan
from planner.simulate.requests.stream import Requests


def solved(*modes: str) -> tuple[ServeSetting, Outcome]:
    setting = prepare(
        small({"options.modes": list(modes), "cluster.pools.0.gpus": 8, "options.chunk_tokens": [2048, 4096]})
    )
    return setting, search(setting, setting.targets, Limits())


def plan_of(setting: ServeSetting, outcome: Outcome) -> Envelope:
    assert outcome.objective is not None
    return envelope(setting, outcome, unproven(objective(outcome, outcome.objective)), (), ())


def decision_of(setting: ServeSetting, outcome: Outcome) -> ServeDecision:
    plan = plan_of(setting, outcome)
    decision = ServeDecision.model_validate(plan.decision)
    load = Requests.open_stream([0.0], [2000], [400])
    assert len(fleet_of_plan(plan, decision, load, Policies()).fleet.instances) >= 1
    return decision


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_every_direction_changes_one_axis_and_makes_a_plan_that_runs(mode: str) -> None:
    setting, outcome = solved(mode)
    own, axes = decision_of(setting, outcome), set()
    for direction in Axes(setting).directions(outcome):
        varied = decision_of(setting, direction[0])
        assert sum(role.replicas * role.parallelism.devices for role in varied.roles) <= 8
        changed = {
            name
            for a, b in zip(own.roles, varied.roles, strict=True)
            for name in ("max_batch", "chunk_tokens", "replicas")
            if (getattr(a, name, None) or a.limits.get(name)) != (getattr(b, name, None) or b.limits.get(name))
        }
        if varied.router_policy != own.router_policy:
            changed.add("router_policy")
        axes |= changed
        assert all(role.parallelism == other.parallelism for role, other in zip(own.roles, varied.roles, strict=True))
        assert changed
    assert {"max_batch", "chunk_tokens"} <= axes
    assert ("replicas" in axes) == (mode == "disaggregated")


def test_an_instance_less_costs_its_gpus_and_keeps_the_load() -> None:
    setting, outcome = solved("colocated")
    fewer = list(Axes(setting).fewer(outcome))
    for each in fewer:
        assert sum(each.solution.counts) < sum(item.count for item in outcome.roles)
        assert each.solution.devices < outcome.solution.devices
        assert each.solution.served_per_s == outcome.solution.served_per_s


def test_a_type_has_the_memory_of_its_batch_and_chunk_or_is_none() -> None:
    setting, outcome = solved("colocated")
    (item,) = outcome.roles
    candidate, axes = item.candidate, Axes(setting)
    assert axes.at(candidate, candidate.max_batch, candidate.chunk_tokens) == candidate
    assert axes.at(candidate, candidate.max_batch, 3) is None
    smaller = axes.at(candidate, 8, candidate.chunk_tokens)
    assert smaller is not None
    (own,), (less,) = candidate.capacities, smaller.capacities
    assert own is not None
    assert less is not None
    assert less.kv_bytes * candidate.max_batch == pytest.approx(8 * own.kv_bytes)
    assert smaller.memory_share < candidate.memory_share
    assert replace(less, kv_bytes=own.kv_bytes) == own


@pytest.mark.parametrize("kept", [True, False])
def test_a_mix_of_three_types_gives_way_to_one_of_fewer_that_keeps_nearly_as_much(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, outcome = solved("colocated", "disaggregated")
    candidates = outcome.formulated.candidates
    three_rows = [row for row, candidate in enumerate(candidates) if candidate.shape.devices == 1][:3]
    counts = tuple(int(row in three_rows) for row in range(len(candidates)))
    three = replace(outcome, result=replace(outcome.result, solution=replace(outcome.solution, counts=counts)))
    variants = Variants.of(plan_of(setting, outcome), sum(outcome.solution.served_per_s))
    search_of = Search.of(setting, outcome, Budget(Limits(), 0.0), 1.0, None)
    asked: list[tuple[int, float]] = []

    def judged(_: Search, best: Kept, proposed: Outcome, least: float) -> Kept:
        asked.append((len(proposed.roles), least))
        assert proposed.result.objective is not None
        load = LoadKept(least * best.value / proposed.result.objective, frozenset(), refuted=not kept or least > 1.0)
        return Kept(proposed, variants, load)

    monkeypatch.setattr(Search, "tried_beside", judged)
    begun = Kept(three, variants, LoadKept(1.0, frozenset()))
    climbed = Climb(search_of, (outcome,), ProblemBounds(setting)).best(begun)
    assert len(begun.outcome.roles) == 3
    assert asked[0][0] <= 2
    assert asked[0][1] < 1.0 < asked[-1][1]
    assert (climbed is begun) == (not kept)
    if kept:
        assert len(climbed.outcome.roles) <= 2
        assert begun.value * 0.98 <= climbed.value <= begun.value


def test_what_a_plan_says_of_orders_and_caches_is_what_is_simulated() -> None:
    changes = {"options.modes": ["colocated"], "options.tp": [1], "cluster.pools.0.gpus": 2}
    setting = prepare(small({**changes, "options.queueing": ["feedback"], "options.elastic": [False, True]}))
    outcome = search(setting, setting.targets, Limits())
    plan = plan_of(setting, outcome)
    decision = ServeDecision.model_validate(plan.decision)
    load = Requests.open_stream([0.0], [2000], [400])
    fleets = [
        fleet_of_plan(plan, varied, load, policies).fleet
        for varied, policies in (
            (decision, Policies()),
            (decision, Policies(queueing="fcfs")),
            (decision.model_copy(update={"queueing": None, "elastic": True}), Policies()),
        )
    ]
    assert [fleet.queueing for fleet in fleets] == ["feedback", "fcfs", "fcfs"]
    assert [fleet.elastic is not None for fleet in fleets] == [False, False, True]


def test_every_order_that_a_problem_allows_is_searched_as_if_it_were_the_only_one() -> None:
    changes = {"options.modes": ["colocated", "disaggregated"], "options.pp": [1, 2], "options.dp": [1]}
    stock = prepare(small(changes))
    assert list(orders_of(stock)) == [stock]
    fcfs, feedback, elastic = orders_of(
        prepare(small({**changes, "options.queueing": ["fcfs", "feedback"], "options.elastic": [False, True]}))
    )
    assert fcfs.options == stock.options
    assert feedback.options == stock.options.model_copy(update={"queueing": ("feedback",)})
    assert (elastic.options.modes, elastic.options.pp, elastic.options.elastic) == (("colocated",), (1,), (True,))
    outcome = search(elastic, elastic.targets, Limits())
    assert outcome.solution.counts
    assert decision_of(elastic, outcome).elastic
    pipelined = {**changes, "options.pp": [2], "options.elastic": [False, True]}
    assert [own.options.elastic for own in orders_of(prepare(small(pipelined)))] == [(False,)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"options.queueing": ["fcfs", "feedback"], "options.judged_by": "queueing"}, "first come first served"),
        ({"options.elastic": [True], "options.judged_by": "simulation"}, "first come first served"),
        ({"options.elastic": [True]}, "both prefill and decode"),
    ],
)
def test_what_no_formula_prices_is_refused_where_formulas_judge(options: dict[str, object], told: str) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        prepare(small(options))
    assert raised.value.hint


def test_a_problem_that_cannot_be_verified_has_no_plan_with_other_orders() -> None:
    with pytest.raises(PlannerError, match="no plan can be verified"):
        solve(small({"options.queueing": ["fcfs", "feedback"], "workloads.0.slo": {}}), Limits())


def test_simulation_prefers_a_feedback_queue_where_answers_vary_and_few_run() -> None:
    """In order of arrival short answers wait for places that long ones have, at loads well below what an engine serves.

    A feedback queue begins them at once, up to nearly that load; it serves less at most, as it computes preempted
    caches again, so that it loses where the limit lets requests wait for as long as they do near that load.
    """
    problem = small(
        {
            "options": {
                "modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [8], "chunk_tokens": [8192],
                "queueing": ["fcfs", "feedback"],
            },
            "cluster.pools.0.gpus": 1,
            "workloads.0.input_tokens": 400,
            "workloads.0.output_tokens": {"mean": 40, "cv": 2.0},
            "workloads.0.slo": {"ttft": {"p90": "60ms"}},
        }
    )  # fmt: skip
    plan = solve(problem, Limits())
    decision = ServeDecision.model_validate(plan.decision)
    assert decision.queueing == "feedback"
    fcfs, feedback = plan.model_dump(mode="json")["certificate"]["proof"]["orders"]
    assert (fcfs["queueing"], feedback["queueing"]) == ("fcfs", "feedback")
    assert feedback["objective"] == plan.certificate.objective.value
    assert feedback["objective"] > 1.1 * fcfs["objective"]
    judged = {
        queueing: judge_plan(plan, decision, Policies(queueing=queueing), seed=77_000).judgement
        for queueing in ("fcfs", "feedback")
    }
    assert judged["fcfs"].verdict is Verdict.BROKEN
    assert judged["feedback"].verdict is not Verdict.BROKEN
    assert plan.certificate.bound is None
    assert any("feedback queue" in reason for reason in decision.reasons())
    with pytest.raises(PlannerError, match="has no feedback queue"):
        emit(plan, decision, "vllm")
    findings = check_plan(plan, decision.model_copy(update={"elastic": True}), hand=AtHand())
    assert "serve.elastic" in {finding.rule for finding in findings if finding.verdict == FAILED}
