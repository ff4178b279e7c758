"""Stated prefix hits: what prefill computes, what it attends to, where hits are planned, simulated and refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.costs.operators.work import Shards, Work
from planner.documents.files import write_text_atomic
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.steps.formulas import Costs, prefill_alone, prefill_mixed
from planner.plan.schema import Envelope
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan
from planner.simulate.requests.stream import Requests, together
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

GRID = StepGrid.affine(0.01, token_s=1e-4, most_sequences=8)


class Recorded:
    """Costs that keep the work they are asked for."""

    arch = SimpleNamespace(layers=())
    work: Work

    def step(self, shards: Shards, work: Work) -> SimpleNamespace:
        self.work = work
        return SimpleNamespace(seconds=0.01 + 1e-5 * work.tokens)


def points(*values: float) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [np.array([value]) for value in values]


def test_prefill_computes_the_rest_of_a_prompt_and_attends_to_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, shards = Recorded(), Shards.of(1)
    alone = prefill_alone(cast(Costs, costs), shards, *points(3000.0, 2048.0), cached=1000.0)
    assert alone.latency_s == pytest.approx(2 * (0.01 + 1e-5 * 1500))
    assert costs.work.prefill_tokens == pytest.approx(1500.0)
    assert costs.work.prefill_context == pytest.approx((1000 + (1000 + 1500)) / 2)  # in front of either chunk
    monkeypatch.setattr("planner.kinds.serve.steady.steps.formulas.ranks_in_step", lambda arch, dp: np.ones(1))
    prefill_mixed(cast(Costs, costs), shards, *points(1000.0, 100.0, 2048.0, 8.0, 500.0, 0.01), cached=3000.0)
    assert costs.work.prefill_tokens == pytest.approx(1000.0)
    assert costs.work.prefill_context == pytest.approx(3000.0)


def test_targets_hold_and_move_whole_prompts() -> None:
    plain, hit = (prepare(small({"workloads.0.prefix_hits": hits})).targets[0] for hits in (0, "75%"))
    assert (plain.prefilled_tokens, hit.prefilled_tokens) == (2000.0, 500.0)
    assert hit.resident_tokens == plain.resident_tokens
    assert hit.transfer_bytes == plain.transfer_bytes
    last = prepare(small({"workloads.0.prefix_hits": 0.9999})).targets[0]
    assert last.prefilled_tokens == 1.0


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_more_hits_never_serve_less_and_plans_with_hits_are_sound(mode: str) -> None:
    plans = [solve(small({"options.modes": [mode], "workloads.0.prefix_hits": hits})) for hits in (0, 0.3, 0.6, 0.9)]
    worth = [objective_of(plan) for plan in plans]
    assert worth == sorted(worth)
    assert worth[-1] > 1.2 * worth[0]
    for plan, caching in ((plans[0], None), (plans[2], "on")):
        roles = ServeDecision.model_validate(plan.decision).roles
        assert {role.limits.get("prefix_caching") for role in roles if role.function != "decode"} == {caching}
        assert all("prefix_caching" not in role.limits for role in roles if role.function == "decode")
    assert not broken_rules(plans[2])
    assert any("60 % of the tokens of each prompt of `chat`" in text for text in plans[2].assumptions)


def test_a_plan_that_hides_its_hits_fails_its_check() -> None:
    plan = solve(small({"workloads.0.prefix_hits": 0.5, "options.modes": ["colocated"]}))
    data = json.loads(plan.model_dump_json(by_alias=True))
    data["decision"]["roles"][0]["limits"].pop("prefix_caching")
    assert {finding.rule for finding in broken_rules(Envelope.model_validate(data))} == {"restated.decision"}


def stream(hits: float, seed: int = 0) -> Requests:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.06, 400))
    return Requests.open_stream(times, rng.integers(1, 800, 400), rng.integers(1, 30, 400)).with_hits(hits)


def run(requests: Requests) -> SimulationResult:
    return simulate(Fleet((Instance(GRID, 40_000, token_budget=512, most_sequences=8),)), requests)


def test_the_simulator_computes_what_is_not_cached_and_holds_all_of_it() -> None:
    plain, hit = run(stream(0.0)), run(stream(0.5))
    lengths = plain.requests.input_tokens
    cached = np.minimum(np.rint(0.5 * lengths), lengths - 1)
    assert hit.cached_tokens.tolist() == cached.tolist()
    assert (hit.hit_tokens.sum(), hit.prefill_tokens.sum()) == (cached.sum(), (lengths - cached).sum())
    alone = Requests.open_stream([0.0], [400], [1])
    first = [float(run(alone.with_hits(hits)).ttft_s[0]) for hits in (0.0, 0.5, 0.999)]
    assert first == pytest.approx([0.01 + 400e-4, 0.01 + 200e-4, 0.01 + 1e-4])
    room = [int(run(alone.with_hits(hits)).peak_blocks[0]) for hits in (0.0, 0.5)]
    assert room == [25, 25]


@pytest.mark.parametrize("seed", range(4))
def test_hits_never_make_the_first_token_later(seed: int) -> None:
    means = [float(run(stream(hits, seed)).ttft_s.mean()) for hits in (0.0, 0.25, 0.5, 0.9)]
    assert means == sorted(means, reverse=True)


def test_workloads_keep_their_own_hits_when_they_are_simulated_together() -> None:
    both = together([stream(0.0), stream(0.5, 1)])
    result = run(both)
    assert both.workload is not None
    lengths = both.input_tokens
    wanted = np.where(both.workload == 1, np.minimum(np.rint(0.5 * lengths), lengths - 1), 0)
    assert result.cached_tokens.tolist() == wanted.tolist()


def test_a_plan_is_simulated_with_its_hits_and_traces_with_blocks_keep_their_own(tmp_path: Path) -> None:
    plan = solve(small({"workloads.0.prefix_hits": 0.5, "options.modes": ["colocated"]}))
    decision = ServeDecision.model_validate(plan.decision)
    own = simulate_plan(plan, decision, Traffic(first=300), Policies())
    assert own.summary["prefix_hit_share"] == pytest.approx(0.5, abs=1e-3)
    bare, named = tmp_path / "bare.csv", tmp_path / "named.jsonl"
    write_text_atomic(bare, "arrival_s,input_tokens,output_tokens\n0.0,1000,5\n9.0,1000,5\n")
    rows = [
        {"timestamp": 1000 * 9 * index, "input_length": 1024, "output_length": 5, "hash_ids": [0, index + 1]}
        for index in range(2)
    ]
    write_text_atomic(named, "".join(f"{json.dumps(row)}\n" for row in rows))
    cached = [
        simulate_plan(plan, decision, Traffic(str(path)), Policies("least-loaded")).result.cached_tokens.tolist()
        for path in (bare, named)
    ]
    assert cached == [[500, 500], [0, 512]]


def test_draws_keep_their_hits_at_any_rate_and_have_no_bound() -> None:
    setting = prepare(small({"workloads.0.prefix_hits": 0.5}))
    (draws,) = drawn(setting, (1.0,), 20, 0, 1).draws
    assert draws.requests(3.0).hit_tokens is not None
    assert draws.requests(3.0).hit_tokens.tolist() == [1000] * 20  # type: ignore[union-attr]  # of the line above
    with pytest.raises(PlannerError, match="prefix caches hold"):
        RateBound(draws, ())


@pytest.mark.parametrize("hits", [1, "100%", -0.1, "120%", "many"])
def test_hits_outside_of_0_to_1_are_refused_with_their_place(hits: object) -> None:
    with pytest.raises(PlannerError) as raised:
        small({"workloads.0.prefix_hits": hits})
    assert "workloads.0.prefix_hits" in str(raised.value)
    assert raised.value.hint


def test_what_does_not_know_hits_refuses_them() -> None:
    with pytest.raises(PlannerError, match="states `prefix_hits`"):
        solve(small({"workloads.0.prefix_hits": 0.5, "options.judged_by": "simulation"}))
