"""Orders of requests searched one after the other: the time of each, and what a plan says of those cut short."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from serve_problems import small

from planner.check import check_plan
from planner.errors import Infeasible
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.solve import solve
from planner.kinds.serve.steady.search import Outcome, ServeSetting, prepare, search
from planner.kinds.serve.verified import budget as budgets
from planner.kinds.serve.verified import orders
from planner.kinds.serve.verified.budget import Budget, OutOfTime
from planner.kinds.serve.verified.loop import Brief, best_verified
from planner.kinds.serve.verified.plan import Evidence, Verified
from planner.kinds.serve.verified.verifiable import Unverified
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.verify import REFUSED, judge

BOTH = ["fcfs", "feedback"]


def reordered(**options: object) -> Resolved:
    own = {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [8], "chunk_tokens": [8192], "queueing": BOTH}
    return small(
        {
            "options": {**own, **options},
            "cluster.pools.0.gpus": 1,
            "workloads.0.input_tokens": 400,
            "workloads.0.output_tokens": {"mean": 40, "cv": 2.0},
            "workloads.0.slo": {"ttft": {"p90": "60ms"}},
        }
    )


def test_each_order_has_an_equal_part_of_the_time_that_those_before_it_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, limits = [5.0], Limits(time_limit_s=90.0)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    setting, taken_s, left_s = prepare(reordered(elastic=[False, True])), iter((10.0, 70.0, 1.0)), list[float | None]()

    def searched(_: ServeSetting, __: Outcome, own: Budget, *___: object) -> tuple[Verified, Evidence]:
        own.allow(1.0)
        left_s.append(own.left.time_limit_s)
        now_s[0] += next(taken_s)
        raise Unverified("too much work") if len(left_s) < 3 else Infeasible((), proved=True)

    monkeypatch.setattr(orders, "best_verified", searched)
    outcome = search(setting, setting.targets, Limits())
    with pytest.raises(Unverified, match="too much work"):
        orders.solve_verified(setting, outcome, limits, now_s[0], ProblemBounds(setting))
    assert left_s == [90.0 / 3, (90.0 - 10.0) / 2, 90.0 - 10.0 - 70.0]


def test_a_budget_knows_that_what_is_over_was_cut_and_names_the_limit_of_the_whole_solve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    own = Budget(Limits(time_limit_s=40.0), 0.0, parts=2)
    now_s[0] = 9.0
    own.allow(budgets.OF_TIME_LIMIT)
    assert not own.cut
    now_s[0] = 11.0
    own.allow(1.0)
    assert own.cut
    own.require_time()
    now_s[0] = 21.0
    with pytest.raises(Unverified, match="limit of 40 s"):
        own.require_time()
    assert Budget(Limits(time_limit_s=20.0), 0.0).spent


def test_a_plan_beside_an_order_cut_short_claims_no_finished_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def fcfs_is_cut(
        own: ServeSetting, outcome: Outcome, of: Budget, bounds: ProblemBounds, brief: Brief | None
    ) -> tuple[Verified, Evidence]:
        if own.options.queueing == ("fcfs",):
            of.cut = True
            raise OutOfTime("the time limit came first")
        return best_verified(own, outcome, of, bounds, brief)

    monkeypatch.setattr(orders, "best_verified", fcfs_is_cut)
    plan = solve(reordered(), Limits())
    certificate = plan.certificate
    assert (certificate.status, certificate.stop_reason) == ("feasible", "time_limit")
    assert (certificate.bound, certificate.gap) == (None, None)
    fcfs, feedback = json.loads(plan.model_dump_json(by_alias=True))["certificate"]["proof"]["orders"]
    assert (fcfs["objective"], fcfs["stop_reason"], "time limit" in fcfs["why"]) == (None, "time_limit", True)
    assert (feedback["objective"], feedback["stop_reason"]) == (certificate.objective.value, "finished")
    assert [
        each for each in check_plan(plan, ServeDecision.model_validate(plan.decision), hand=AtHand()) if not each.ok
    ] == []
    assert REFUSED not in {line.verdict for line in judge(json.loads(plan.model_dump_json(by_alias=True)))}


@pytest.mark.parametrize(
    ("maximising", "first", "second", "second_is_taken"),
    [(True, 10.0, 10.05, False), (True, 10.0, 10.2, True), (False, 3.0, 2.0, True), (False, 2.0, 2.0, False)],
)
def test_another_order_is_taken_where_it_is_worthwhile(
    maximising: bool, first: float, second: float, second_is_taken: bool
) -> None:
    formulated = SimpleNamespace(problem=SimpleNamespace(maximising=maximising))
    answers: list[Any] = [
        (SimpleNamespace(outcome=SimpleNamespace(formulated=formulated, objective=value)), {})
        for value in (first, second)
    ]
    assert (orders.better_of(*answers) is answers[1]) == second_is_taken


def test_limits_that_no_order_keeps_are_not_proven_to_be_kept_by_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_by_none(*_: object) -> tuple[Verified, Evidence]:
        raise Infeasible(({"limit": "p90 ttft <= 60 ms", "nearest": ""},), proved=True)

    monkeypatch.setattr(orders, "best_verified", kept_by_none)
    with pytest.raises(Infeasible) as told:
        solve(reordered(), Limits())
    assert told.value.conflict
    assert not told.value.proved


def test_no_order_is_searched_once_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = prepare(reordered())
    outcome = search(setting, setting.targets, Limits())
    monkeypatch.setattr(orders, "search", None)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: 12.0))
    with pytest.raises(Unverified, match="the time limit of 10 s"):
        orders.solve_verified(setting, outcome, Limits(time_limit_s=10.0), 1.0, ProblemBounds(setting))
