"""Plans that steady state proposes and simulation verifies keep their limits on requests that no solve has drawn."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve import solve as serve_solve
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.verified import budget, settled
from planner.kinds.serve.verified import confirm as confirming
from planner.kinds.serve.verified.capacity import keeps, load_kept, missed_by
from planner.kinds.serve.verified.confirm import kept_surely
from planner.kinds.serve.verified.plan import Verified
from planner.load.problems import load_problem
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.simulate.judge.intervals import Estimate
from planner.simulate.judge.limits import JudgedLimit, Judgement, Verdict
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan
from planner.simulate.run import engine

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, gpus: 2}]}
workloads:
  - input_tokens: {mean: 800, cv: 1.0}
    output_tokens: {mean: 60, cv: 0.5}
    LOAD
    slo: {ttft: {p99: 300ms}, tpot: {p90: 25ms}, confidence: 50%}
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


def rows_of(plan: Envelope) -> list[dict[str, Any]]:
    """What the certificate says of each limit."""
    proof: dict[str, Any] = plan.model_dump(mode="json")["certificate"]["proof"]
    rows: list[dict[str, Any]] = proof["verified"]["limits"]
    return rows


def judgement(*limits: JudgedLimit) -> Judgement:
    """What stationary streams say of limits."""
    return Judgement((), limits, (0,), 1.0, saturated=False, parts=())


@pytest.mark.parametrize(("share", "kept"), [(1.0, True), (0.2, True), (0.001, False)])
def test_next_to_nothing_that_is_judged_keeps_no_limit(share: float, kept: bool) -> None:
    """Streams no longer than their answers leave a first request or two, which no later one delayed."""
    limit = JudgedLimit(0, "ttft", "p99", 1.0, Estimate(0.5, (0.4, 0.6), 1000))
    judged = Judgement((), (limit,), (0,), share, saturated=False, parts=())
    assert keeps(judged) is kept
    assert (missed_by(judged) < 0.0) is kept


def test_a_goodput_plan_is_held_on_fresh_streams_and_formulas_come_near_it(tmp_path: Path) -> None:
    static, plan = (
        solve(load_problem(problem(tmp_path, level, mode="colocated"), overrides=["options.max_batch=[16, 32]"]))
        for level in ("queueing", "verification")
    )
    assert verdict(static) is not Verdict.BROKEN
    assert verdict(plan) is not Verdict.BROKEN
    assert objective(plan) > 0.8 * objective(static)
    assert plan.certificate.status == "feasible"
    assert plan.certificate.bound is not None
    assert objective(plan) <= plan.certificate.bound < 1.65 * objective(plan)
    assert {(row["time"], row["margin"] >= 0.0) for row in rows_of(plan)} == {("ttft", True), ("tpot", True)}
    assert passed(check_plan(plan, ServeDecision.model_validate(plan.decision), base=tmp_path, proof=True))


def test_the_fewest_gpus_are_those_that_keep_the_limits(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {rate: 14/s, arrival_cv: 2}", "mode": "colocated"}
    static = solve(load_problem(problem(tmp_path, "queueing", **asked)))  # formulas are hopeful about bursts
    assert (objective(static), verdict(static)) == (1, Verdict.BROKEN)
    plan = solve(load_problem(problem(tmp_path, "verification", **asked)))
    assert verdict(plan) is not Verdict.BROKEN
    assert objective(plan) == 2
    decision = ServeDecision.model_validate(plan.decision)
    (role,) = decision.roles
    fewer = decision.model_copy(update={"roles": (role.model_copy(update={"replicas": 1}),)})
    assert judge_plan(plan, fewer, Policies(), seed=77_000).judgement.verdict is Verdict.BROKEN
    assert passed(check_plan(plan, decision, base=tmp_path))


def test_the_default_level_is_verified_and_says_so_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_LEVEL")
    path = problem(tmp_path, "null", mode="colocated")
    path.write_text(path.read_text().replace("[8, 16, 32, 64]", "[8]"))
    assert main(["solve", str(path), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "feasible" in shown.splitlines()[0]
    assert "simulation" in shown
    assert main(["solve", str(path), "--level", "static"]) == 0
    shown = capsys.readouterr().out
    assert "an estimate: limits are judged by formulas" in shown.splitlines()[1]


def test_limits_that_no_plan_keeps_are_named(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {rate: 3/s, arrival_cv: 8}", "mode": "disaggregated"}
    with pytest.raises(Infeasible) as answer:
        solve(load_problem(problem(tmp_path, "verification", **asked)))
    assert any("p99 ttft <= 300 ms" in row["limit"] for row in answer.value.conflict)


def test_what_cannot_be_simulated_is_an_estimate_that_says_why(tmp_path: Path) -> None:
    trade_off = "{pareto: [tokens_per_s_per_gpu, tokens_per_s_per_user]}"
    plan = solve(load_problem(problem(tmp_path, "null", goal=trade_off, mode="colocated")))
    assert plan.certificate.estimate is not None
    assert "trade-off" in plan.certificate.estimate
    assert passed(check_plan(plan, ServeDecision.model_validate(plan.decision), base=tmp_path))
    with pytest.raises(PlannerError, match="trade-off") as error:
        solve(load_problem(problem(tmp_path, "verification", goal=trade_off, mode="colocated")))
    assert "--level static" in error.value.hint
    unlimited = load_problem(problem(tmp_path, "null", mode="colocated"), overrides=["workloads.0.slo={}"])
    assert "no workload states a limit" in str(solve(unlimited).certificate.estimate)


@pytest.mark.parametrize("limit_s", [8.0, 30.0, 100.0])
def test_the_time_limit_ends_simulations_wherever_they_are(
    limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(clock)) - 1e6))
    monkeypatch.setattr(serve_solve, "time", SimpleNamespace(monotonic=lambda: -1e6))
    monkeypatch.setattr(engine, "PIECE_EVENTS", 100)
    resolved = load_problem(problem(tmp_path, "null", mode="colocated"))
    plan = solve(resolved, Limits(time_limit_s=limit_s))
    assert "the time limit" in str(plan.certificate.estimate)
    assert next(clock) <= limit_s + 6  # a clock that ticks each time that it is asked


def test_an_estimate_that_hides_that_it_is_one_is_found_out(tmp_path: Path) -> None:
    plan = solve(load_problem(problem(tmp_path, "null", mode="colocated")), level="static")
    assert "`static` was asked for" in str(plan.certificate.estimate)
    hidden = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"estimate": None})})
    findings = check_plan(hidden, ServeDecision.model_validate(plan.decision), base=tmp_path)
    assert any("estimate" in finding.where for finding in findings if not finding.ok)


def test_clients_that_wait_for_answers_keep_their_limits_in_a_closed_loop(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {concurrency: 24}", "mode": "colocated"}
    plan = solve(load_problem(problem(tmp_path, "null", **asked)))
    assert plan.certificate.estimate is None
    assert verdict(plan) is not Verdict.BROKEN
    assert passed(check_plan(plan, ServeDecision.model_validate(plan.decision), base=tmp_path))


SEVERAL = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}, qwen: {name: Qwen/Qwen3-8B}}
cluster: {pools: [{name: a, gpu: h100, gpus: 1}, {name: b, gpu: a100-80gb, gpus: 1}]}
workloads:
  - {name: chat, model: llama, input_tokens: {mean: 800, cv: 0.5}, output_tokens: {mean: 60, cv: 0.5},
     load: {rate: 5/s}, slo: {ttft: {p95: 1s}, itl: {p99: 80ms}}}
  - {name: code, model: qwen, input_tokens: 1500, output_tokens: 20, load: {rate: 3/s}, slo: {tpot: {p95: 90ms}}}
objective: {minimize: gpus}
options: {modes: [colocated], tp: [1], pp: [1], max_batch: [16], chunk_tokens: [2048]}
"""


def test_workloads_models_and_pools_are_verified_together_with_gaps_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(SEVERAL)
    plan = solve(load_problem(str(path)))
    assert plan.certificate.estimate is None
    assert objective(plan) == 2.0
    stated = {(row.of, row.metric, row.statistic): row.value for row in plan.predictions}
    assert stated["chat", "itl_s", "mean"] < stated["chat", "itl_s", "p99"] <= 0.08
    assert stated["chat", "itl_s", "mean"] == pytest.approx(stated["chat", "tpot_s", "mean"], rel=0.05)
    assert not any(metric == "itl_s" for of, metric, _ in stated if of == "code")
    assert verdict(plan) is not Verdict.BROKEN


def test_a_plan_for_failures_is_verified_with_an_instance_down(tmp_path: Path) -> None:
    asked = {"goal": "{minimize: gpus}", "load": "load: {rate: 5/s}", "mode": "colocated"}
    plan = solve(load_problem(problem(tmp_path, "null", **asked), overrides=["availability=n+1"]))
    rows = rows_of(plan)
    assert [row.get("down") for row in rows] == [None, None, {"colocated": 1}, {"colocated": 1}]
    assert {row["verdict"] for row in rows} <= {"kept", "too close to call"}


def test_level_verified_of_solve_is_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = problem(tmp_path, "null", mode="disaggregated")
    assert main(["solve", str(path), "--level", "verified", "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert '"verification"' in next(line for line in shown.splitlines() if "judged_by" in line)
    assert main(["solve", str(path), "--level", "verify"]) == 2


@pytest.mark.parametrize(
    ("limit", "most", "kept"), [(1.0, 9.0, 1.0), (0.42, 9.0, 0.42), (1.2, 9.0, 1.2), (3.0, 1.1, 1.1)]
)
def test_the_largest_load_is_found_within_its_tolerance(limit: float, most: float, kept: float) -> None:
    runs = []

    def judged(scale: float) -> Judgement:
        runs.append(scale)
        return judgement(JudgedLimit(0, "ttft", "mean", 1.0, Estimate(1.0 - (limit - scale), None, 1000)))

    load = load_kept(judged, most)
    assert kept / 1.021 <= load.scale <= kept
    assert len(runs) <= 12
    assert load.binding == (frozenset() if kept == most else {"ttft"})


def test_a_load_that_is_needed_and_not_kept_ends_the_search_for_others() -> None:
    runs = []

    def judged(scale: float) -> Judgement:
        runs.append(scale)
        return judgement(JudgedLimit(0, "tpot", "mean", 1.0, Estimate(0.5 + scale, None, 1000)))

    load = load_kept(judged, needed=0.8)
    assert load.refuted
    assert runs == [0.8]
    assert not load_kept(judged, needed=0.4).refuted


def test_loads_below_a_plans_own_may_be_known_roughly_and_those_above_are_not() -> None:
    for kept, most_runs in ((0.6, 7), (1.2, 12)):
        runs: list[float] = []

        def judged(scale: float, kept: float = kept, runs: list[float] = runs) -> Judgement:
            runs.append(scale)
            return judgement(JudgedLimit(0, "ttft", "mean", 1.0, Estimate(1.0 - (kept - scale), None, 1000)))

        load = load_kept(judged, close_below=1.15)
        assert kept / (1.15 if kept < 1.0 else 1.025) <= load.scale <= kept
        assert len(runs) <= most_runs


def test_further_tries_of_a_load_need_intervals_of_a_stricter_confidence() -> None:
    def judged(high: float) -> Judgement:
        return judgement(JudgedLimit(0, "ttft", "p99", 1.0, Estimate(0.9, (0.9 - (high - 0.9), high), 1000)))

    assert kept_surely(judged(0.99), 0.05)
    assert not kept_surely(judged(0.99), 0.05 / 4)
    assert not kept_surely(judged(1.01), 0.05)


@pytest.mark.parametrize("most", [0.83, 0.9, 0.97, 1.01])
def test_a_load_near_a_sudden_queue_is_claimed_and_not_one_far_below(
    most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[float] = []

    def judged(trials: object, variants: object, decision: object, scale: float, *streams: object) -> Judgement:
        loads.append(scale)
        value = 0.5 if scale <= most else 4.0
        return judgement(JudgedLimit(0, "ttft", "p99", 1.0, Estimate(value, (value - 0.01, value + 0.01), 1000)))

    monkeypatch.setattr(confirming, "_judged", judged)
    variants: Any = SimpleNamespace(worst_first=lambda: iter([None]), lost=({},))
    trials: Any = None
    confirmed = confirming.confirm(trials, variants, 1.0, scalable=True)
    assert isinstance(confirmed, confirming.Confirmed)
    assert 0.95 * most < confirmed.scale <= most
    assert len(loads) <= 7


@pytest.mark.parametrize(
    ("confirmed", "answer", "verifications"),
    [
        ({"most": 60.0, "second": 95.0}, "second", [("most", 97.0 * 0.97), ("second", 0.0)]),
        ({"most": 92.0, "second": 90.0}, "most", [("most", 97.0 * 0.97), ("second", 0.0), ("most", 90.0)]),
        ({"most": 60.0, "second": 0.0}, "most", [("most", 97.0 * 0.97), ("second", 0.0), ("most", 0.0)]),
        ({"most": 99.0, "second": 98.0}, "most", [("most", 97.0 * 0.97)]),
    ],
)
def test_a_plan_is_verified_no_further_than_it_may_be_the_best(
    confirmed: dict[str, float], answer: str, verifications: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def verify(kept: SimpleNamespace, least: float = 0.0, reached: object = None) -> object:
        asked.append((kept.name, least))
        value = confirmed[kept.name]
        if value >= max(least, 1.0):
            return Verified(*[cast(Any, SimpleNamespace(result=SimpleNamespace(objective=value), name=kept.name))] * 2)
        return confirming.Unconfirmed(1, 0.93 if value else 0.0)

    search: Any = SimpleNamespace(verify=verify, safer=lambda kept: ())
    kept: Any = [
        (SimpleNamespace(name=name, value=value, cost=-value, load=SimpleNamespace(scale=1.0)), search)
        for name, value in (("second", 97.0), ("most", 100.0))
    ]
    monkeypatch.setattr(settled, "Climb", lambda *given: SimpleNamespace(best=lambda each: each, not_simulated=None))
    nothing: Any = SimpleNamespace(tell=lambda text: None)
    best = settled.best_confirmed(kept, (), nothing, nothing)
    assert best is not None
    assert cast(Any, best[0].outcome).name == answer
    assert asked == verifications
