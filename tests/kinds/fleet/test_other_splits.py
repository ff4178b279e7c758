"""Other splits of a day than the best: held by hand, without numbers of nodes, asked about, and simulated."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from fleet_oracle import worth

from planner.alternatives.ranking import alternatives
from planner.alternatives.why_not import why_not
from planner.api import solve
from planner.cli.render.simulation import render_stretches
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.fleet import fresh_streams, jobs, solved
from planner.kinds.registry import find_kind
from planner.load.problems import resolve_document
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.progress import Limits

HOUR = 3600.0


def curve(*rates: float) -> list[dict[str, float]]:
    return [{"nodes": nodes, "units_per_hour": rate} for nodes, rate in enumerate(rates, 1)]


CHAT = {
    "name": "chat",
    "curve": curve(100, 190, 270),
    "usd_per_unit": 1.0,
    "usd_per_missing": 1.0,
    "start_up_s": 600.0,
    "load": {"rates_per_s": [0.02, 0.06, 0.03], "levels": [1.0]},
}
BATCH = {"name": "batch", "curve": curve(60, 110), "usd_per_unit": 1.0}


def day(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    pools = [{"gpu": "h100_sxm", "nodes": 4, "gpus_per_node": 1}]
    return {
        "kind": "fleet",
        "cluster": {"pools": pools},
        "options": {"window_s": HOUR, "windows": 3, "jobs": [CHAT, BATCH], **options},
    }


def every_split() -> dict[tuple[tuple[int, int], ...], float]:
    """The worth of every split, minute by minute."""
    rows = [row for row in itertools.product(range(4), range(3)) if sum(row) <= 4]
    return {
        split: worth(CHAT, [chat for chat, _ in split], HOUR) + worth(BATCH, [batch for _, batch in split], HOUR)
        for split in itertools.product(rows, repeat=3)
    }


@pytest.fixture(scope="module")
def splits() -> dict[tuple[tuple[int, int], ...], float]:
    return every_split()


@pytest.fixture(scope="module")
def best() -> Envelope:
    return solve(day())


def value(envelope: Envelope) -> float:
    assert envelope.certificate.objective.value is not None
    return envelope.certificate.objective.value


def test_what_is_held_by_hand_is_kept_and_the_rest_is_as_good_as_can_be(splits: dict[Any, float]) -> None:
    held = solve(day(fixed={"chat@01:00-03:00": 1, "batch": 1, "batch@00:00": 2}))
    wanted = max(usd for split, usd in splits.items() if split[0][1] == 2 and split[1] == (1, 1) == split[2])
    assert value(held) == pytest.approx(wanted)


def test_numbers_of_nodes_that_are_left_out_are_in_no_window(splits: dict[Any, float]) -> None:
    left = solve(day(without=["chat/2", "batch/2"]))
    wanted = max(usd for split, usd in splits.items() if all(chat != 2 and batch != 2 for chat, batch in split))
    assert value(left) == pytest.approx(wanted)


def test_why_not_another_split_says_what_it_loses_and_where(best: Envelope, splits: dict[Any, float]) -> None:
    decision = find_kind("fleet").decision.model_validate(best.decision)
    (fact,) = why_not(best, decision, "chat=1")
    other = max(usd for split, usd in splits.items() if all(chat == 1 for chat, _ in split))
    assert fact.figures["loss"] == pytest.approx((value(best) - other) / value(best))
    assert "`chat` -" in fact.what
    (fact,) = why_not(best, decision, "chat=3,batch=2")
    assert "no plan with chat=3, batch=2" in fact.what
    assert "4 nodes are there" in fact.what
    (fact,) = why_not(best, decision, "chat=9")
    assert "cannot have 9 nodes" in fact.what


def test_alternatives_come_in_their_order_and_each_does_without_what_all_better_ones_use(
    splits: dict[Any, float],
) -> None:
    resolved = resolve_document(given_document(day(), "day"), Path())
    ranked = alternatives(resolved, 3, Limits())
    values = [value(plan) for plan in ranked.plans]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(max(splits.values()))
    parts = [
        (frozenset(part for part in own if not part.endswith("/0")), usd)
        for own, usd in (
            (frozenset(name for c, b in split for name in (f"chat/{c}", f"batch/{b}")), usd)
            for split, usd in splits.items()
        )
    ]
    listed = [ranked.parts[0]]
    for number in (1, 2):
        others = [usd for own, usd in parts if not any(better <= own for better in listed)]
        assert values[number] == pytest.approx(max(others))
        listed.append(ranked.parts[number])


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fixed": {"talk": 1}}, "is no job in hours"),
        ({"fixed": {"chat@00:30": 1}}, "is no job in hours"),
        ({"fixed": {"chat@09:00": 1}}, "is no job in hours"),
        ({"fixed": {"chat": 7}}, "cannot have 7 nodes"),
        ({"without": ["chat"]}, "is no job with nodes"),
        ({"without": ["batch/0", "batch/1", "batch/2"]}, "without all nodes that it can have"),
        ({"without": ["chat/9"]}, "without 9 nodes, which it cannot have"),
    ],
)
def test_what_cannot_be_held_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what) as raised:
        solve(day(**options))
    assert raised.value.hint


def test_the_hint_on_hours_names_some_that_the_day_has() -> None:
    with pytest.raises(PlannerError) as raised:
        solve(day(fixed={"chat@09:00": 1}))
    hours = raised.value.hint.rpartition("@")[2].strip("`")
    decision: Any = solve(day(fixed={f"chat@{hours}": 1})).decision
    assert decision["windows"][0]["nodes"]["chat"] == 1


def test_a_job_whose_problem_is_no_file_is_named(tmp_path: Path) -> None:
    job = {"name": "chat", "problem": "gone.yaml", "usd_per_unit": 1.0}
    with pytest.raises(PlannerError, match="which job `chat` names") as raised:
        resolve_document(given_document(day(jobs=[job]), "day"), tmp_path)
    assert raised.value.where == str(tmp_path / "gone.yaml")


def test_more_nodes_held_than_there_are_is_no_plan() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(day(fixed={"chat@01:00": 3, "batch@01:00": 2}))
    assert "4 nodes are there" in raised.value.conflict[0]["nearest"]


SERVE = {
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "workloads": [{"input_tokens": 512, "output_tokens": 16, "slo": {"ttft": {"p95": "1s"}}}],
    "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [64], "chunk_tokens": [2048]},
}


def test_services_are_simulated_through_their_switches_and_plans_are_kept_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solved, "default_cache_dir", lambda: tmp_path)
    monkeypatch.setattr(jobs, "SOLVED", {})
    chat = {"name": "chat", "problem": SERVE, "usd_per_unit": 0.01, "safety": "20%", "start_up_s": 60}
    made = solve(day(jobs=[{**chat, "load": {"rates_per_s": [0.4, 0.9, 0.5]}}, BATCH]))
    decision = find_kind("fleet").decision.model_validate(made.decision)
    findings, document = find_kind("fleet").simulated(made, decision, AtHand()) or ([], {})
    assert passed(findings)
    assert document["stretches"][0]["stretch"] == "the day"
    assert document["requests"] > 4000
    shown = render_stretches(document)
    assert f"{document['stretches'][0]['on_time']:.2%}" in shown
    assert "00:00-" in shown
    assert shown.endswith("all of the day")

    monkeypatch.setattr(fresh_streams, "MOST_REQUESTS", 1500)
    _, document = find_kind("fleet").simulated(made, decision, AtHand()) or ([], {})
    assert document["stretches"][-1]["stretch"].startswith(("the fullest window", "the switch at"))

    def refuse(*_: object) -> None:
        raise AssertionError("a problem is solved again")

    monkeypatch.setattr(jobs, "SOLVED", {})
    monkeypatch.setattr(type(find_kind("serve")), "solve", refuse)
    again = jobs.read_jobs(*_read(made), Limits())
    assert again[0].plans


def _read(made: Envelope) -> tuple[Any, Any]:
    from planner.kinds.fleet.options import FleetOptions
    from planner.problem.recorded import resolved_again

    resolved = resolved_again(made.inputs, FleetOptions, AtHand())
    return resolved, FleetOptions.model_validate(resolved.problem.options)
