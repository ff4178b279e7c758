"""`planner faults` on a plan written by hand."""

import json
import math
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.plan.store import plan_json

PLAN = str(Path(__file__).parents[1] / "plans" / "train.json")


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["faults", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_every_tier_has_its_interval_and_the_days_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "effective", PLAN, "--remote-write", "500GB/s", "--tokens", "15.6e12")
    assert document["schema"] == "planner.faults_effective/1"
    tiers = document["tiers"]
    assert isinstance(tiers, list)
    assert [tier["tier"] for tier in tiers] == ["synchronous", "asynchronous", "on_failure"]
    assert all(0.9 < tier["effective_share"] < 0.95 and 70 < tier["days"] < 80 for tier in tiers)


def test_slow_nodes_cost_time(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "effective", PLAN, "--slow-nodes", "0.05%", "--slow-speed", "0.9", "--spares", "30")
    tiers = document["tiers"]
    assert isinstance(tiers, list)
    assert tiers[0]["slow_share"] == pytest.approx(0.1 * (1 - math.exp(-0.0005 * 2048)), rel=0.25)
    assert tiers[0]["spares"] == 30


def test_a_trace_drawn_is_one_that_can_be_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = str(tmp_path / "faults.csv")
    assert main(["faults", "trace", PLAN, "--days", "400", "--seed", "3", "-o", trace]) == 0
    capsys.readouterr()
    document = _json(capsys, "simulate", PLAN, "--faults", trace, "--remote-write", "500GB/s")
    tiers = document["tiers"]
    assert isinstance(tiers, list)
    assert len(tiers) == 3
    assert all(tier["formula"] == pytest.approx(tier["effective"], abs=0.01) for tier in tiers)
    assert main(["faults", "simulate", PLAN, "--faults", trace, "--tier", "asynchronous"]) == 0
    assert "points" in capsys.readouterr().out


def test_the_same_seed_draws_the_same_trace(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("5", "5", "6"):
        assert main(["faults", "trace", PLAN, "--seed", seed, "--shape", "0.8"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_lost_nodes_cost_a_replica(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "lose", PLAN, "--nodes", "3,8-9")
    assert (document["lost_gpus"], document["replicas"], document["most_micro_batches"]) == (24, 127, 17)
    assert main(["faults", "lose", PLAN, "--nodes", "3"]) == 0
    assert "cells_that_load" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lose", PLAN, "--nodes", "x"], "nodes are numbers and ranges, found `x`"),
        (["lose", PLAN, "--nodes", "9999"], "node 9999 is none of the plan's"),
        (["effective", PLAN, "--remote-write", "fast"], "must be a bandwidth"),
        (["simulate", PLAN, "--faults", "nowhere.csv"], "cannot be read"),
        (["simulate", PLAN, "--faults", PLAN], "no column `time_s`"),
        (["effective", str(Path(PLAN).with_name("serve.json"))], "a plan of kind `serve`"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["faults", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_trace_with_a_wrong_figure_names_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "faults.csv"
    header = "time_s,name,takes,nodes,copied,detect_s,repair_s"
    trace.write_text(f"{header}\n1,a,node,1,0,600,60\n2,a,node,1,0,-4,60\n")
    assert main(["faults", "simulate", PLAN, "--faults", str(trace)]) == 2
    assert "faults.csv:3: column `detect_s` holds '-4'" in capsys.readouterr().err


def test_a_training_plan_without_spares_comes_with_the_plan_on_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "nodes", PLAN, "--lost", "3,8-9", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    lost = _json(capsys, "lose", PLAN, "--nodes", "3,8-9")
    assert document["stranded"] == [["h100", node] for node in (3, 8, 9)]
    assert document["replanned"] == {name: value for name, value in lost.items() if name != "schema"}


def test_a_serving_plan_is_simulated_without_the_replicas_that_are_hit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    load = {"input_tokens": 512, "output_tokens": 64, "load": {"rate": "110/s"}, "slo": {"ttft": "1s", "tpot": "50ms"}}
    problem = {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 4, "gpus_per_node": 1}]},
        "workloads": [load],
        "objective": {"maximize": "goodput_per_gpu"},
        "options": {"modes": ["colocated"], "tp": [1], "pp": [1]},
    }
    from planner.api import solve

    plan = solve(problem, level="static")
    replicas = sum(role["replicas"] for role in plan.decision["roles"])  # type: ignore[index,misc,union-attr,call-overload]
    assert replicas == 2
    path = tmp_path / "plan.json"
    path.write_text(plan_json(plan))
    simulated = _json(capsys, "nodes", str(path), "--lost", "0", "--simulate")["simulated"]
    assert isinstance(simulated, dict)
    assert simulated["until_then"]["requests_per_s"] < simulated["planned"]["requests_per_s"]
    assert simulated["planned"]["attainment"] > 0.9
    assert main(["faults", "nodes", PLAN, "--lost", "3", "--simulate"]) == 2
    assert "not simulated request by request" in capsys.readouterr().err
