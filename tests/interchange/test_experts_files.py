"""Instances of expert placement through the front door: solved, checked, written back, and refused with a reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.experts.instance import solve_instance
from planner.interchange.experts_instance import experts_problem, read_instance
from planner.interchange.experts_placement import placement_of_plan
from planner.kinds.experts.decision import ExpertsDecision
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand

META: dict[str, Any] = {
    "name": "made-up", "experts": 16, "ranks": 4, "nodes": 2, "node_of_rank": [0, 0, 1, 1], "slots_per_rank": [6] * 4,
    "speed_of_rank": [1.0, 1.0, 1.0, 0.5], "groups": 4, "expert_bytes": 1e6,
}  # fmt: skip
LOADS = np.random.default_rng(0).lognormal(0, 0.8, (3, 2, 16)) * 1000
ARRAYS: dict[str, dict[str, Any]] = {
    "static": {"load": LOADS[0]},
    "drift": {"load": LOADS},
    "realtime": {"src": np.rint(np.repeat(LOADS[:, :, None] / 4, 4, axis=2)).astype(np.uint32)},
    "affinity": {"topk_ids": np.random.default_rng(0).integers(0, 16, (200, 2, 2))},
}


def _write(folder: Path, kind: str, **change: Any) -> Path:  # noqa: ANN401 - of the format
    path = folder / f"{kind}.npz"
    meta = {**META, "kind": kind, "home_slots": 4 if kind == "realtime" else 0, **change}
    np.savez(path, meta=json.dumps(meta), **ARRAYS[kind])
    return path


def _findings(envelope: Envelope, folder: Path) -> list[str]:
    decision = ExpertsDecision.model_validate(envelope.decision)
    findings = check_plan(envelope, decision, hand=AtHand((folder,)), proof=True)
    return [f"{finding.rule}: {finding.what}" for finding in findings if not finding.ok]


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_plan_of_an_instance_is_checked_and_holds_the_placement_of_the_library(kind: str, tmp_path: Path) -> None:
    path = _write(tmp_path, kind)
    envelope = solve(path)
    assert envelope.kind == "experts"
    assert envelope.certificate.bound is not None
    assert not _findings(envelope, tmp_path)
    instance = read_instance(path)
    direct, back = solve_instance(instance), placement_of_plan(envelope, instance)
    assert (back.expert_P == direct.expert_P).all()
    assert back.status == direct.status
    assert back.facts == pytest.approx(direct.facts)
    assert back.imbalance == pytest.approx(direct.imbalance)
    assert back.bound == pytest.approx(direct.bound)
    decision = ExpertsDecision.model_validate(envelope.decision)
    files = emit(envelope, decision, "experts-placement")
    assert json.loads(files["placement.json"])["phy2log"] == direct.expert_P.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"node_of_rank": [0, 1, 0, 1]},
        {"slots_per_rank": [[6] * 4, [5] * 4]},
        {"slots_per_rank": [5, 6, 5, 6], "expert_bytes": 0},
    ],
)
def test_ranks_that_lie_apart_and_layers_that_differ_are_planned_as_stated(
    change: dict[str, Any], tmp_path: Path
) -> None:
    path = _write(tmp_path, "static", **change)
    envelope = solve(path)
    assert not _findings(envelope, tmp_path)
    direct = solve_instance(read_instance(path))
    assert (placement_of_plan(envelope, read_instance(path)).expert_P == direct.expert_P).all()


@pytest.mark.parametrize(
    "wishes",
    [{"shares": "free"}, {"ahead": True}, {"nodes_per_group": 1}, {"policy": "windows", "most_moved_bytes": 1e6}],
)
def test_wishes_of_the_search_leave_plans_that_are_checked(wishes: dict[str, Any], tmp_path: Path) -> None:
    path = _write(tmp_path, "drift" if "policy" in wishes else "static", speed_of_rank=[1.0] * 4)
    envelope = solve(experts_problem(read_instance(path), str(path), **wishes))
    assert not _findings(envelope, tmp_path)


def test_a_bound_of_confined_experts_that_is_stated_too_high_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "static", speed_of_rank=[1.0] * 4)
    envelope = solve(experts_problem(read_instance(path), str(path), nodes_per_group=1))
    records: Any = envelope.certificate.proof["bounds_above_1"]
    assert any(len(record.get("ranks", ())) == 2 for record in records)
    raised: Any = [{**row, "ranks": [[1, 9, 1.0, 1.0]]} if "ranks" in row else row for row in records]
    proof = {**envelope.certificate.proof, "bounds_above_1": raised}
    forged = envelope.model_copy(update={"certificate": envelope.certificate.model_copy(update={"proof": proof})})
    assert any(finding.startswith("certificate.layer") for finding in _findings(forged, tmp_path))


def test_experts_in_slots_that_a_layer_does_not_have_are_refused(tmp_path: Path) -> None:
    envelope = solve(_write(tmp_path, "static", slots_per_rank=[[6] * 4, [5] * 4]))
    decision = json.loads(json.dumps(envelope.decision))
    row = decision["layouts"][1]["expert_of_slot"]
    row[row.index(-1)] = 0
    assert _findings(envelope.model_copy(update={"decision": decision}), tmp_path)


def test_the_command_solves_checks_and_writes_an_instance_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = _write(tmp_path, "drift"), tmp_path / "plan.json"
    assert main(["solve", str(path), "-o", str(plan)]) == 0
    assert main(["check", str(plan), "--level", "proof"]) == 0
    assert main(["explain", str(plan)]) == 0
    assert main(["emit", str(plan), "--target", "experts-placement", "-o", str(tmp_path / "out")]) == 0
    assert main(["experts", "solve", str(path), "-o", str(tmp_path / "old.npz")]) == 0
    capsys.readouterr()
    written = json.loads((tmp_path / "out" / "placement.json").read_text())["phy2log"]
    with np.load(tmp_path / "old.npz") as old:
        assert old["phy2log"].tolist() == written


def test_arrays_without_a_problem_and_pools_without_a_gpu_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "loads.npz", load=LOADS[0])
    with pytest.raises(PlannerError, match=r"holds arrays and no problem.*\n.*options.loads"):
        solve(tmp_path / "loads.npz")
    problem = {
        "kind": "train",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "unspecified", "nodes": 1}]},
    }
    with pytest.raises(PlannerError, match="plans of kind `train` price GPUs"):
        solve(problem)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shares": "free", "policy": "affinity"}, "has no effect with policy `affinity`"),
        ({"policy": "realtime"}, "prices micro-batches of a model"),
        ({"policy": "micro_batches"}, "has the shape"),
        ({"most_moved": "1MB"}, "counted from a resident layout"),
        ({"node_of_rank": [0, 1]}, "2 figures for 4 ranks"),
    ],
)
def test_options_that_the_records_cannot_serve_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = _write(tmp_path, "static")
    problem = experts_problem(read_instance(path), str(path))
    extra = {"array": "load"} if options.get("policy") == "micro_batches" else {}
    problem["options"] |= {**options, **extra}
    with pytest.raises(PlannerError, match=said):
        solve(problem)
