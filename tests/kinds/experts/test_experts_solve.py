"""Problems of expert layout solved, checked and emitted."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from planner.api import solve
from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.experts.decision import ExpertsDecision
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.problem.recorded import AtHand

EXAMPLE = Path(__file__).parent.parent.parent.parent / "examples" / "experts-deepseek-v3-ep32.yaml"


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two windows of Qwen3-30B-A3B: 48 layers of 128 experts."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("loads") / "loads.npz"
    np.savez(path, load=rng.lognormal(0, 0.8, (1, 48, 128)) * rng.lognormal(0, 0.1, (2, 48, 128)) * 1000)
    return path


def _problem(path: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "schema": "planner.problem/1",
        "kind": "experts",
        "models": {"moe": {"name": "Qwen/Qwen3-30B-A3B"}},
        "cluster": {"pools": [{"gpu": "h200", "nodes": 2}]},
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 16, "slots_per_rank": 9, "loads": str(path), **options},
    }


def _checked(envelope: Envelope, *folders: Path) -> ExpertsDecision:
    decision = ExpertsDecision.model_validate(envelope.decision)
    findings = check_plan(envelope, decision, hand=AtHand(folders), proof=True)
    wrong = [finding for finding in findings if not finding.ok]
    assert not wrong
    return decision


def test_the_example_is_solved_within_a_thousandth_of_its_bound_and_passes_its_check() -> None:
    envelope = solve(EXAMPLE)
    decision = _checked(envelope, EXAMPLE.parent)
    assert decision.num_layers == 58
    certificate = envelope.certificate
    assert certificate.gap is not None
    assert certificate.gap <= 1e-3
    assert envelope.inputs["options"]["loads"] == "experts-deepseek-v3-loads.npz"  # type: ignore[index,call-overload]  # JSON


@pytest.mark.parametrize("extra", [{}, {"policy": "periodic", "interval": "600s", "groups": 4}, {"policy": "realtime"}])
def test_every_policy_gives_a_plan_that_passes_its_check(loads: Path, extra: dict[str, Any]) -> None:
    envelope = solve(_problem(loads, **extra))
    decision = _checked(envelope, loads.parent)
    assert decision.policy == extra.get("policy", "static")
    assert (decision.layouts[0].quota is not None) == (decision.policy == "realtime")
    assert decision.home_slots_per_rank == (8 if decision.policy == "realtime" else 0)


def test_the_same_problem_gives_the_same_bytes(loads: Path) -> None:
    first, second = (plan_json(solve(_problem(loads))) for _ in range(2))
    assert first == second


def test_a_resident_layout_that_is_good_enough_is_kept(loads: Path, tmp_path: Path) -> None:
    first = _checked(solve(_problem(loads)), loads.parent)
    resident = tmp_path / "resident.npz"
    np.savez(resident, phy2log=np.array([layout.expert_of_slot for layout in first.layouts]))
    second = _checked(solve(_problem(loads, resident=str(resident))), loads.parent, tmp_path)
    assert second.moved_bytes < 0.02 * 48 * 144 * 3 * 2048 * 768 * 2


def test_too_few_slots_are_infeasible_and_say_what_would_do(loads: Path) -> None:
    with pytest.raises(Infeasible) as raised:
        solve(_problem(loads, slots_per_rank=7))
    assert [conflict["nearest"] for conflict in raised.value.conflict] == [
        "8 slots with 16 ranks",
        "19 ranks with 7 slots",
    ]


def test_ranks_may_differ_in_slots_and_speed(loads: Path) -> None:
    slots, speeds = [9, 10] * 8, [1.0, 1.25] * 8
    decision = _checked(solve(_problem(loads, slots_per_rank=slots, rank_speeds=speeds)), loads.parent)
    assert decision.slots_per_rank == tuple(slots)
    total = np.load(loads)["load"].sum(axis=0)[0]
    row = np.array(decision.layouts[0].expert_of_slot)
    each = (total / np.bincount(row, minlength=128))[row]
    rank_loads = np.bincount(np.repeat(np.arange(16), slots), weights=each)
    assert (rank_loads / speeds).max() / (total.sum() / sum(speeds)) < 1.002
    with pytest.raises(PlannerError, match="3 figures for 16 ranks"):
        solve(_problem(loads, slots_per_rank=[9, 9, 9]))


def test_more_tokens_than_a_rank_has_memory_for_are_infeasible(loads: Path) -> None:
    busiest = float(np.load(loads)["load"].sum(axis=(0, 2)).max()) / 16
    roomy = solve(_problem(loads, peak_tokens=int(busiest * 1.01)))
    assert _checked(roomy, loads.parent).num_layers == 48
    with pytest.raises(Infeasible) as raised:
        solve(_problem(loads, peak_tokens=int(busiest * 0.99)))
    assert raised.value.proved


def test_plans_of_a_model_outside_the_catalog_leave_for_launchers(loads: Path) -> None:
    envelope = solve(_problem(loads))
    unknown = envelope.model_copy(update={"inputs": {**envelope.inputs, "models": {"moe": {"config": "somewhere"}}}})
    files = emit(unknown, ExpertsDecision.model_validate(envelope.decision), "tensorrt-llm-experts")
    balancer = yaml.safe_load(files["load-balancer.yaml"])
    assert sorted(balancer["initial_global_assignments"]) == list(range(48))


def test_slots_beyond_the_memory_are_infeasible(loads: Path) -> None:
    with pytest.raises(Infeasible) as raised:
        solve(
            _problem(loads, ep=8, slots_per_rank=400)
            | {"cluster": {"pools": [{"gpu": "l4", "nodes": 1, "gpus_per_node": 8}]}}
        )
    assert "memory of l4" in raised.value.conflict[1]["limit"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loads": None}, "needs `loads`"),
        ({"loads": "nowhere.npz"}, "file not found"),
        ({"policy": "periodic"}, "policy `periodic`"),
        ({"ep": 64}, "need as many GPUs; pool"),
    ],
)
def test_problems_that_cannot_be_laid_out_are_refused(loads: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        solve(_problem(loads, **options))


def test_loads_of_another_model_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", load=np.ones((2, 64)))
    with pytest.raises(PlannerError, match="holds 2 layers of 64 experts, `Qwen/Qwen3-30B-A3B` has 48 of 128"):
        solve(_problem(tmp_path / "other.npz"))


def test_plans_leave_for_every_launcher() -> None:
    envelope = solve(EXAMPLE)
    decision = ExpertsDecision.model_validate(envelope.decision)
    sglang = emit(envelope, decision, "sglang-experts")
    rows = json.loads(sglang["expert-location.json"])
    assert list(rows) == ["physical_to_logical_map"]
    assert len(rows["physical_to_logical_map"]) == 61
    assert rows["physical_to_logical_map"][3] == list(decision.layouts[0].expert_of_slot)
    assert "--ep-num-redundant-experts 32" in sglang["flags.txt"]
    vllm = emit(envelope, decision, "vllm-experts")
    assert len(json.loads(vllm["expert-mapping.jsonl"])["initial_global_assignments"]) == 58
    started = {name: re.search(r"cat (\S+)\)", text)[1] for name, text in vllm.items() if name.startswith("flags")}  # type: ignore[index]
    assert json.loads(vllm[started["flags.txt"]])["initial_mapping_path"] == "expert-mapping.jsonl"
    assert "initial_mapping_path" not in vllm[started["flags-online.txt"]]
    ascend = json.loads(emit(envelope, decision, "vllm-ascend-experts")["expert-map.json"])
    assert ascend["layer_list"][57]["device_count"] == 32
    balancer = yaml.safe_load(emit(envelope, decision, "tensorrt-llm-experts")["load-balancer.yaml"])
    assert sorted(balancer["initial_global_assignments"]) == list(range(3, 62))
    assert balancer["num_slots"] % 32 == 0


def test_layouts_made_step_by_step_do_not_leave_as_files(loads: Path) -> None:
    envelope = solve(_problem(loads, policy="realtime"))
    decision = ExpertsDecision.model_validate(envelope.decision)
    for policy in ("realtime", "windows", "micro_batches"):
        with pytest.raises(PlannerError, match="step by step"):
            emit(envelope, decision.model_copy(update={"policy": policy}), "sglang-experts")
