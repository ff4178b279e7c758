"""Plans of a day: worth what the best of all splits is, true to their problem, and refused where it cannot be."""

import json
import random
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from fleet_oracle import best_day

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.errors import Infeasible, PlannerError
from planner.kinds.registry import find_kind
from planner.plan.findings import passed
from planner.plan.schema import Envelope

SERVE = {
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "workloads": [{"input_tokens": 512, "output_tokens": 64, "slo": {"ttft": {"p95": "1s"}}}],
    "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [64], "chunk_tokens": [2048]},
}


def curve(*rates: float) -> list[dict[str, float]]:
    return [{"nodes": nodes, "units_per_hour": rate} for nodes, rate in enumerate(rates, 1)]


def problem(*jobs: dict[str, Any], nodes: int = 3, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "schema": "planner.problem/1",
        "kind": "fleet",
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": nodes, "gpus_per_node": 1}]},
        "options": {"window_s": 7200.0, "windows": 3, **options, "jobs": list(jobs)},
    }


CHAT = {
    "name": "chat",
    "curve": curve(100, 180, 250),
    "usd_per_unit": 1.0,
    "usd_per_missing": 2.0,
    "load": {"rates_per_s": [0.01, 0.05, 0.03, 0.06, 0.02, 0.01], "levels": [0.8, 1.2]},
    "start_up_s": 600.0,
}
TRAIN = {
    "name": "pretrain",
    "curve": curve(10, 19),
    "usd_per_unit": 4.0,
    "usd_per_missing": 3.0,
    "target": 50.0,
    "deadline_s": 14400.0,
    "start_up_s": 1200.0,
    "restarts": "job",
}
BATCH = {"name": "batch", "curve": curve(5, 10), "usd_per_unit": 6.0}


def drawn(seed: int) -> dict[str, Any]:
    """Two or three jobs of every form on up to four nodes."""
    draw = random.Random(seed)
    jobs: list[dict[str, Any]] = []
    for name in ("a", "b", "c")[: draw.randint(2, 3)]:
        steps = [draw.randint(1, 60) for _ in range(draw.randint(1, 2))]
        job: dict[str, Any] = {"name": name, "curve": curve(*(sum(steps[: n + 1]) for n in range(len(steps))))}
        job |= {"usd_per_unit": draw.randint(1, 5), "start_up_s": 600.0 * draw.randint(0, 3)}
        job |= {"restarts": draw.choice(["nodes", "job"])} if job["start_up_s"] else {}
        job["nodes_before"] = draw.randint(0, len(steps))
        form = draw.choice(["load", "target", "batch"])
        if form == "load":
            rates = [draw.randint(0, 60) / 3600.0 for _ in range(6)]
            job |= {"load": {"rates_per_s": rates, "levels": [0.7, 1.3]}, "usd_per_missing": draw.randint(0, 3)}
        elif form == "target":
            job |= {"target": draw.randint(1, 2) * float(steps[0]), "usd_per_missing": draw.randint(0, 3)}
            job |= {"deadline_s": 7200.0 * draw.randint(2, 3)}
        jobs.append(job)
    return problem(*jobs, nodes=draw.randint(1, 4), reserve_nodes=0)


@pytest.mark.parametrize("block", range(10))
def test_the_worth_of_a_plan_is_that_of_the_best_split_enumerated_minute_by_minute(block: int) -> None:
    """A hundred instances, ten a block."""
    for seed in range(10 * block, 10 * block + 10):
        data = drawn(seed)
        certificate = solve(data).certificate
        value, bound = certificate.objective.value, certificate.bound
        assert value is not None
        assert bound is not None
        best = best_day(data)
        assert value == pytest.approx(best, rel=1e-6, abs=1e-6), seed
        assert bound >= best - 1e-6 * max(abs(best), 1.0)


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(problem(CHAT, TRAIN, BATCH))


@pytest.fixture(scope="module")
def served() -> Envelope:
    """A plan whose service has a problem of its own."""
    rates = [2.0, 40.0, 30.0]
    chat = {"name": "chat", "problem": SERVE, "usd_per_unit": 0.01, "load": {"rates_per_s": rates}, "start_up_s": 300}
    return solve(problem(chat, {**BATCH, "usd_per_unit": 0.1}))


def findings(envelope: Envelope, *, proof: bool = False) -> list[Any]:
    decision = find_kind("fleet").decision.model_validate(envelope.decision)
    return check_plan(envelope, decision, proof=proof)


def edited(envelope: Envelope, edit: Callable[[dict[str, Any]], None]) -> set[str]:
    """Rules that fail of the plan with its decision changed."""
    data = envelope.model_dump(mode="json", by_alias=True)
    edit(data["decision"])
    return {each.rule for each in findings(Envelope.model_validate(data)) if each.verdict == "failed"}


def test_a_plan_passes_its_check_and_its_bound_is_derived_again(plan: Envelope, served: Envelope) -> None:
    assert plan.certificate.status == served.certificate.status == "optimal"
    assert passed(findings(plan, proof=True))
    assert passed(findings(served, proof=True))


def test_a_split_that_is_not_the_best_is_refused_as_optimal(plan: Envelope) -> None:
    data = plan.model_dump(mode="json", by_alias=True)
    value = data["certificate"]["objective"]["value"]
    worse = solve(problem(CHAT, TRAIN, BATCH, without=["batch/2"])).model_dump(mode="json", by_alias=True)
    worth = worse["certificate"]["objective"]["value"]
    assert worth < value
    kept = {key: data[key] for key in ("inputs", "digests")}
    lying = Envelope.model_validate({**worse, **kept})
    failed = {each.rule for each in findings(lying, proof=True) if each.verdict == "failed"}
    assert "certificate.bound_again" in failed


def test_a_check_judges_the_plans_of_the_jobs_too(served: Envelope) -> None:
    inside = [each for each in findings(served) if each.where.startswith("decision.plans.chat-1.")]
    assert {"memory.capacity", "slo.ttft"} <= {each.rule for each in inside}

    def slower(decision: dict[str, Any]) -> None:
        decision["plans"][0]["plan"]["predictions"][0]["value"] *= 2.0

    assert "restated.predictions" in edited(served, slower)


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda decision: decision["windows"][0]["nodes"].update(chat=3, batch=2), "fleet.nodes"),
        (lambda decision: decision["windows"][0]["nodes"].update(chat=9), "fleet.plans"),
        (lambda decision: decision["curves"][0].update(units_per_hour=500.0), "fleet.rising"),
        (lambda decision: decision["days"][0].update(usd=9e9), "restated.decision"),
        (lambda decision: decision["phases"][0].update(duration_s=1.0), "restated.plan"),
    ],
)
def test_a_plan_that_is_not_true_fails(plan: Envelope, edit: Callable[[dict[str, Any]], None], rule: str) -> None:
    assert rule in edited(plan, edit)


def test_a_number_of_nodes_is_kept_for_as_many_windows_as_are_asked_for() -> None:
    chat = {**CHAT, "least_windows": 2, "nodes_before": 1}
    decision: Any = solve(problem(chat, BATCH, windows=6, window_s=3600.0)).decision
    nodes = [1, 1]
    for phase, window in zip(decision["phases"], decision["windows"], strict=True):
        nodes += [window["nodes"]["chat"]] * round(phase["duration_s"] / 3600.0)
    lengths = [len(list(group)) for _, group in groupby(nodes)]
    assert len(lengths) > 1
    assert all(length >= 2 for length in lengths[:-1])


def test_jobs_of_a_file_and_in_place_have_one_plan(tmp_path: Path, served: Envelope) -> None:
    import yaml

    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(SERVE))
    options: Any = served.inputs["options"]
    data = problem(*options["jobs"])
    data["options"]["jobs"][0] = {**data["options"]["jobs"][0], "problem": "chat.yaml"}
    (tmp_path / "day.yaml").write_text(yaml.safe_dump(data))
    assert solve(tmp_path / "day.yaml").decision == served.decision


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (problem({**BATCH, "usd_per_unit": None}), "has no value"),
        (problem({**BATCH, "curve": curve(5, 4)}), "never falls with more nodes"),
        (problem({**CHAT, "start_up_s": 7200.0}), "windows are 7200 s"),
        (problem({"name": "x", "problem": {**SERVE, "kind": "experts"}, "usd_per_unit": 1}), "no curve over nodes"),
        (problem({"name": "x", "problem": {**SERVE, "models": {}}, "usd_per_unit": 1}), "has no `models`"),
        (problem({"name": "x", "problem": {**SERVE, "engine": {"nam": 1}}, "usd_per_unit": 1}), "unknown key"),
        (problem({**TRAIN, "deadline_s": 5000.0}), "no end of a window"),
        (problem({**CHAT, "load": {"rates_per_s": [1.0, 2.0]}}), "2 rates for 3 windows"),
        (problem(BATCH, BATCH), "two jobs are called"),
        (
            problem({**BATCH, "name": "My Job"}),
            "must be lower-case letters, digits and `-`.*write for example `my-job`",
        ),
        (problem({"name": "x", "problem": SERVE, "usd_per_unit": 1, "nodes": [1, 40]}), "no pool of it has over 3"),
        (problem(BATCH, without=["batch/0", "batch/1", "batch/2"]), "without all nodes that it can have, 0, 1, 2"),
        (problem(BATCH, reserve_nodes=3), "3 nodes in reserve of 3"),
        (problem({**BATCH, "least_nodes": 4}), "always has 4 nodes"),
        (
            problem({**BATCH, "curve": [{"nodes": 9, "units_per_hour": 5}]}),
            "needs 9 nodes, and a pool of it has at most 3",
        ),
        (problem({"name": "x", "curve": curve(1), "problem": SERVE, "usd_per_unit": 1}), "`problem` or a `curve`"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_place_and_a_fix(data: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=f"(?s){what}") as raised:
        solve(data)
    assert "options" in raised.value.where
    assert raised.value.hint


def test_a_deadline_out_of_reach_says_what_it_would_take_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = problem({**TRAIN, "target": 100.0})
    with pytest.raises(Infeasible) as raised:
        solve(data)
    assert "5.596 h for the target" in raised.value.conflict[0]["nearest"]
    (tmp_path / "day.json").write_text(json.dumps(data))
    assert main(["solve", str(tmp_path / "day.json"), "-o", str(tmp_path / "plan.json")]) == 1
    assert "pretrain: 100 units within 4 h" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["day.json"]


def test_a_target_that_nodes_at_work_reach_while_others_start_up_is_in_reach() -> None:
    """A node that keeps at work for both windows makes 20; two make 38 an hour, but nothing while they start up."""
    slow = {**TRAIN, "start_up_s": 7000.0, "nodes_before": 1, "target": 39.5}
    certificate = solve(problem(slow)).certificate
    assert certificate.objective.value == pytest.approx(best_day(problem(slow)))
    with pytest.raises(Infeasible):
        solve(problem({**slow, "target": 42.0}))


def test_a_job_that_makes_nothing_is_out_of_reach_and_a_day_that_is_worth_nothing_has_no_plan() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(problem({**TRAIN, "curve": curve(0)}))
    assert raised.value.conflict[0]["nearest"] == "0 units"
    with pytest.raises(Infeasible) as raised:
        solve(problem({**CHAT, "load": {"rates_per_s": [0.0] * 3}}))
    assert raised.value.proved
    assert "without any nodes" in raised.value.conflict[0]["limit"]


def test_the_bound_of_a_day_that_costs_more_than_it_earns_is_derived_again() -> None:
    costly = solve(problem({**CHAT, "curve": curve(30), "usd_per_missing": 9.0}))
    assert costly.certificate.objective.value is not None
    assert costly.certificate.objective.value < 0.0
    assert passed(findings(costly, proof=True))
    low = costly.certificate.model_copy(update={"bound": 2.0 * costly.certificate.objective.value})
    wrong = findings(costly.model_copy(update={"certificate": low}), proof=True)
    assert "certificate.bound_again" in {each.rule for each in wrong if each.verdict == "failed"}


def test_an_explanation_says_what_an_hour_of_a_node_is_worth_and_to_whom(plan: Envelope) -> None:
    from planner.explain.explanation import explain_plan

    decision = find_kind("fleet").decision.model_validate(plan.decision)
    told = [fact.what for fact in explain_plan(plan, decision).facts]
    more = next(what for what in told if what.startswith("one node more all day"))
    again = solve(problem(CHAT, TRAIN, BATCH, nodes=4)).certificate.objective.value
    assert again is not None
    assert f"{again:.3g} USD" in more
    assert any(what.startswith("without `batch` the nodes are worth") for what in told)
    assert any(what.startswith("an hour of a node is worth") for what in told)


def _most_usd(curves: list[list[int]], nodes: int) -> int:
    """Of an hour: every job has none of the nodes, or as many as a point of its curve."""
    best = [0] * (nodes + 1)
    for rates in curves:
        best = [
            max([best[n], *(best[n - k] + rate for k, rate in enumerate(rates, 1) if k <= n)]) for n in range(nodes + 1)
        ]
    return best[nodes]


def test_what_is_told_of_days_of_many_jobs_holds_the_best_other_days() -> None:
    from planner.explain.explanation import explain_plan

    draw = random.Random(3)
    curves = [[first, first + draw.randint(1, 40)] for first in (draw.randint(1, 40) for _ in range(14))]
    jobs = [{"name": f"j{k}", "curve": curve(*rates), "usd_per_unit": 1.0} for k, rates in enumerate(curves)]
    plan = solve(problem(*jobs, nodes=9))
    worth = plan.certificate.objective.value
    assert worth is not None
    told = explain_plan(plan, find_kind("fleet").decision.model_validate(plan.decision)).facts
    more, fewer = (next(fact for fact in told if f"one node {word}" in fact.what) for word in ("more", "fewer"))
    assert worth + more.figures["usd"] >= 6 * _most_usd(curves, 10) - 1e-6
    assert worth + fewer.figures["usd"] >= 6 * _most_usd(curves, 8) - 1e-6
    adding = [fact for fact in told if fact.what.startswith("without")]
    assert len(adding) == 5
    for fact in adding:
        k = int(fact.what.split("`")[1][1:])
        adds = worth - 6 * _most_usd(curves[:k] + curves[k + 1 :], 9)
        assert fact.figures["usd_least"] - 1e-6 <= adds <= fact.figures["usd"] + 1e-6
        assert fact.figures["usd"] <= 6 * max(curves[k])


def test_a_page_draws_the_nodes_of_every_job_by_the_hour(plan: Envelope) -> None:
    from planner.report.page import html
    from planner.report.plans import plan_page

    page = html(plan_page(plan, find_kind("fleet").decision.model_validate(plan.decision), Path("plan.json")))
    windows: Any = plan.decision["windows"]
    for window in windows:
        assert all(f"{window['hours']}: {nodes} nodes to {job}" in page for job, nodes in window["nodes"].items())


@pytest.mark.parametrize(
    ("verb", "options", "what"),
    [
        ("simulate", [], "serves no requests"),
        ("solve", ["--fix", "windows=2"], "is no job in hours of the day"),
        ("solve", ["--fix", "chat@01:00=2"], "is no job in hours of the day"),
        ("solve", ["--fix", "chat"], "gives no job a number of nodes"),
        ("explain", ["--why-not", "chat=two"], "gives no job a number of nodes"),
    ],
)
def test_what_days_have_no_answer_for_is_refused(
    plan: Envelope, verb: str, options: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from planner.plan.store import plan_json

    path = tmp_path / "day.json"
    path.write_text(json.dumps(plan.inputs) if verb == "solve" else plan_json(plan))
    assert main([verb, str(path), *options]) == 2
    assert what in capsys.readouterr().err


def test_numbers_of_nodes_beyond_those_there_are_said_not_to_be_considered() -> None:
    plan = solve(problem({**BATCH, "curve": curve(5, 10, 12, 20)}))
    assert "`batch` on 4 nodes is not considered: jobs have 3 of a pool at most" in plan.evidence.notes
