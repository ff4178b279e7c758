"""Memory for prefixes beside GPUs: bought where it saves, against all units; refused, checked again, simulated."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ahead_simulator import AheadSimulator
from small_fleets import draw

from planner.api import solve
from planner.check import check_plan
from planner.cli.render.plan import render_plan
from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.cached import solve as cached_solve
from planner.kinds.serve.cached.choices import prefix_choices_of
from planner.kinds.serve.cached.solve import MemorySearch, VerifiedMemory, with_memory
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.restate import prove
from planner.kinds.serve.steady.search import prepare, search
from planner.kinds.serve.verified.budget import OutOfTime
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, recorded_problem
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan
from planner.simulate.plans.trace_streams import rows_of_plan
from planner.simulate.plans.workload import own_requests
from planner.simulate.run.engine import simulate
from planner.solvers.caches.stack_distances import NEVER
from planner.verify import REFUSED, judge

HOST = {"name": "host", "unit": "1GB", "max_units": 4, "usd_per_gb_hour": 0.01, "bandwidth": "100GB/s"}
POOL = {"name": "pool", "unit": "2GB", "max_units": 2, "usd_per_gb_hour": 0.004, "bandwidth": "10GB/s"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces")
    rows = [f"{second},c{second % 4},{600 * (1 + second // 4)},50" for second in range(40)]
    (path / "talks.csv").write_text("arrival_s,conversation_id,input_tokens,output_tokens\n" + "\n".join(rows))
    (path / "plain.csv").write_text("arrival_s,input_tokens,output_tokens\n0,600,50\n1,900,50\n")
    (path / "back.csv").write_text("arrival_s,conversation_id,input_tokens,output_tokens\n5,a,600,50\n1,a,1200,50\n")
    return path


def problem(trace: str = "talks.csv", **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of a problem
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 8, "price": "3USD/h"}]},
        "workloads": [
            {
                "input_tokens": {"trace": trace},
                "output_tokens": {"trace": trace},
                "load": {"rate": "9/s"},
                "slo": {"ttft": "2s", "tpot": {"mean": "150ms"}},
            }
        ],
        "objective": {"minimize": "cost"},
        "cache": {"tiers": [HOST, POOL]},
        "options": {
            "modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [4, 16], "chunk_tokens": [8192],
            "judged_by": "queueing",
        },
        **changes,
    }  # fmt: skip


def resolved(folder: Path, **changes: Any) -> Resolved:  # noqa: ANN401 - any field of a problem
    return resolve_document(given_document(problem(**changes), "problem"), folder)


@pytest.fixture(scope="module")
def plan(folder: Path) -> Envelope:
    return solve(resolved(folder, options={**problem()["options"], "judged_by": None}), Limits())


def test_the_least_cost_is_that_of_all_units_of_memory(folder: Path, plan: Envelope) -> None:
    known = resolved(folder)
    setting, choices = prepare(known), prefix_choices_of(known)
    costs: dict[tuple[int, ...], float] = {}
    for units in itertools.product(range(5), range(3)):
        cached = choices.of(units)
        assert cached is not None
        beside = with_memory(setting, cached)
        value = search(beside, beside.targets, Limits(), tie_break=False).objective
        costs[units] = math.inf if value is None else value
    answer = MemorySearch(setting, choices, Limits()).cheapest()
    assert answer.objective == pytest.approx(min(costs.values()))
    assert answer.bound == pytest.approx(answer.objective)
    assert costs[(0, 0)] > min(costs.values())
    assert plan.certificate.objective.value == pytest.approx(min(costs.values()))


def test_a_plan_with_memory_costs_less_than_the_best_without_and_says_until_which_price(plan: Envelope) -> None:
    decision = ServeDecision.model_validate(plan.decision)
    assert decision.cache is not None
    assert decision.cache.size_bytes > 0
    assert isinstance(plan.certificate.next_best, list)
    (without, *_) = plan.certificate.next_best
    value = plan.certificate.objective.value
    assert isinstance(without, dict)
    assert value is not None
    assert float(str(without["objective"])) > value
    assert decision.cache.none_above is not None
    saved = float(str(without["objective"])) - value + decision.cache.usd_per_hour
    assert decision.cache.none_above == pytest.approx(saved / decision.cache.usd_per_hour)
    assert "from" in decision.reasons()[0]


def test_a_search_of_memory_that_the_time_limit_ends_is_not_called_finished(
    folder: Path, plan: Envelope, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, told = resolved(folder), iter([plan])

    def verified(_: object, limits: Limits, *__: object) -> Envelope:
        for known_plan in told:
            return known_plan
        raise OutOfTime(f"the time limit of {limits.time_limit_s} s came first")

    monkeypatch.setattr(cached_solve, "solve_preferred", verified)
    search_of = MemorySearch(prepare(known), prefix_choices_of(known), Limits(time_limit_s=60.0))
    memory = VerifiedMemory(search_of, ProblemBounds(search_of.free))
    cut, _ = memory.plan(search_of.cheapest())
    assert cut is not None
    assert plan.certificate.stop_reason == "finished"
    assert (cut.certificate.status, cut.certificate.stop_reason) == ("feasible", "time_limit")
    assert (cut.certificate.bound, cut.certificate.gap) == (plan.certificate.bound, plan.certificate.gap)
    assert list(memory.costs.values())[1:] == [None] * (len(memory.costs) - 1)
    nothing, why = memory.plan(search_of.cheapest())
    assert (nothing, why) == (None, "the time limit of 60.0 s came first")


def test_such_a_plan_is_confirmed_and_checks_and_keeps_its_limits_in_simulation(folder: Path, plan: Envelope) -> None:
    decision, hand = ServeDecision.model_validate(plan.decision), AtHand((folder,))
    assert plan.certificate.estimate is None
    assert "verified" in plan.certificate.proof
    assert [finding for finding in check_plan(plan, decision, hand=hand) if not finding.ok] == []
    assert REFUSED not in {line.verdict for line in judge(json.loads(plan.model_dump_json(by_alias=True)))}
    rows = rows_of_plan(recorded_problem(plan.inputs), decision, hand)
    told = judge_plan(plan, decision, Policies(), rows=rows, most_requests=20_000)
    assert all(limit.margin > 0.0 for limit in told.judgement.limits)
    assert told.summary["prefix_hit_share"] > 0.5  # type: ignore[operator]


def test_another_memory_than_the_plan_was_priced_with_fails_its_check(folder: Path, plan: Envelope) -> None:
    decision = ServeDecision.model_validate(plan.decision)
    assert decision.cache is not None
    tiers = (decision.cache.tiers[0].model_copy(update={"units": 2}), *decision.cache.tiers[1:])
    other = decision.model_copy(update={"cache": decision.cache.model_copy(update={"tiers": tiers})})
    altered = plan.model_copy(update={"decision": other.model_dump(mode="json", exclude_none=True)})
    assert any(not finding.ok for finding in check_plan(altered, other, hand=AtHand((folder,))))


def test_memory_dearer_than_what_it_saves_is_not_bought(folder: Path) -> None:
    dear = {**HOST, "usd_per_gb_hour": 10.0}
    plan = solve(resolved(folder, cache={"tiers": [dear]}), Limits())
    decision = ServeDecision.model_validate(plan.decision)
    assert decision.cache is not None
    assert decision.cache.size_bytes == 0.0
    assert decision.reasons()[0].startswith("buys no memory")
    assert "prefix_caching" not in decision.roles[0].limits


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"trace": "plain.csv"}, "neither `hash_ids` nor `conversation_id`"),
        ({"trace": "back.csv"}, "comes at 1 s, after one at 5 s"),
        ({"cache": {"tiers": [{**HOST, "bandwidth": None}]}}, "bandwidth"),
        ({"cache": {"tiers": [{key: value for key, value in HOST.items() if key != "bandwidth"}]}}, "bandwidth"),
        ({"cache": {"tiers": [{**HOST, "unit": "1MB"}]}}, "a block of 512 tokens"),
        ({"cache": {"tiers": [HOST, HOST]}}, "two tiers are called `host`"),
        ({"cache": {"tiers": []}}, "tiers"),
        ({"objective": {"minimize": "gpus"}}, "follows from cost alone"),
        ({"engine": {"host_cache": "8GB"}}, "host memory is given and decided|keep no prefixes"),
        ({"limits": {"price": "9USD/h"}}, "a cap on the price"),
    ],
)
def test_what_cannot_be_decided_is_refused_with_what_to_do(folder: Path, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what) as refused:
        solve(resolved(folder, **changes), Limits())
    assert refused.value.hint


def test_no_line_is_drawn_through_choices_of_memory(folder: Path) -> None:
    with pytest.raises(PlannerError, match="chosen anew for every number"):
        find_kind("serve").along(resolved(folder), "rate", Limits())


def test_the_bound_holds_for_plans_beside_any_memory_that_simulation_keeps(folder: Path, plan: Envelope) -> None:
    memory: Any = plan.certificate.proof["memory"]
    bound = plan.certificate.bound
    costs = {tuple(row["units"]): row["usd_per_hour"] for row in memory["simulated"]}
    assert (0, 0) in costs
    assert bound is not None
    assert all(cost is None or cost >= bound for cost in costs.values())
    known = resolved(folder)
    setting, choices = prepare(known), prefix_choices_of(known)
    whole = ProblemBounds(setting).whole.value
    assert whole is not None
    assert bound <= whole  # of machines that compute whole prompts
    spared = choices.input_R - choices.at_best((4, 2)).least_computed_R
    assert spared.sum() == choices.tokens_A[choices.distance_A != NEVER].sum()


def test_the_search_for_memory_is_made_again_and_an_altered_one_fails(folder: Path, plan: Envelope) -> None:
    decision, hand = ServeDecision.model_validate(plan.decision), AtHand((folder,))
    assert all(finding.ok for finding in prove(plan, decision, hand))
    memory = plan.certificate.proof["memory"]
    assert isinstance(memory, dict)
    for name, other in (("bound", 1.0), ("units", [0, 0]), ("choices", 1)):
        proof = {**plan.certificate.proof, "memory": {**memory, name: other}}
        altered = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"proof": proof})})
        (wrong,) = [finding for finding in prove(altered, decision, hand) if not finding.ok]
        assert wrong.where == f"certificate.proof.memory.{name}"


def test_the_screen_says_which_cost_is_that_of_memory(plan: Envelope) -> None:
    assert "USD/h (of it memory for prefixes)" in render_plan(plan, ServeDecision.model_validate(plan.decision))


def test_the_slow_simulator_finds_that_the_plan_keeps_its_limits_with_its_memory(folder: Path, plan: Envelope) -> None:
    decision, hand = ServeDecision.model_validate(plan.decision), AtHand((folder,))
    known = recorded_problem(plan.inputs)
    assert known is not None
    requests = own_requests(plan, known, 150, 11, rows_of_plan(known, decision, hand))
    planned = fleet_of_plan(plan, decision, requests, Policies(prefix_caching=True))
    reference = AheadSimulator(planned.fleet, requests, draw)
    reference.run()
    result = simulate(planned.fleet, requests, seed=7)
    assert [request.cached for request in reference.requests] == result.cached_tokens.tolist()
    assert [request.finished_s for request in reference.requests] == pytest.approx(result.finished_s.tolist())
    ttft_s = np.array([request.first_s - request.arrival_s for request in reference.requests])
    tpot_s = [(r.finished_s - r.first_s) / (r.output - 1) for r in reference.requests]
    assert np.quantile(ttft_s, 0.99) <= 2.0
    assert np.mean(tpot_s) <= 0.15
    assert result.cached_tokens.sum() > 0.5 * requests.input_tokens.sum()
