"""Instances read, solved and written: the format, every kind, and files that are no instances."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expert_loads import imbalance, zipf_loads

from planner.errors import PlannerError
from planner.experts.instance import SolveOptions, solve_instance
from planner.experts.layout import new_copies
from planner.experts.ranks import make_ranks
from planner.interchange.experts_instance import read_instance
from planner.interchange.experts_placement import write_placement

META: dict[str, Any] = {
    "name": "made-up", "experts": 64, "ranks": 8, "nodes": 2, "node_of_rank": [0] * 4 + [1] * 4,
    "slots_per_rank": [9] * 8, "speed_of_rank": [1.0] * 8, "groups": 4, "expert_bytes": 1e6,
}  # fmt: skip


def _write(folder: Path, kind: str, **arrays: np.ndarray) -> Path:
    path = folder / f"{kind}.npz"
    np.savez(path, meta=json.dumps(META | {"kind": kind, "home_slots": 8}), **arrays)  # type: ignore[arg-type]
    return path


def test_static_instances_give_a_layout_a_layer(tmp_path: Path) -> None:
    loads = zipf_loads(3, 64)
    instance = read_instance(_write(tmp_path, "static", load=loads))
    placement = solve_instance(instance)
    assert placement.expert_P.shape == (3, 72)
    assert placement.quota_P is None
    assert imbalance(instance.ranks, placement.expert_P[1], loads[1]) == pytest.approx(placement.imbalance[1])
    assert (placement.imbalance <= placement.bound * 1.002).all()


def test_layers_of_an_instance_may_differ_in_slots(tmp_path: Path) -> None:
    path = tmp_path / "uneven.npz"
    slots = [[9] * 8, [8] * 8]
    np.savez(path, meta=json.dumps(META | {"kind": "static", "slots_per_rank": slots}), load=zipf_loads(2, 64))
    placement = solve_instance(read_instance(path))
    assert placement.expert_P.shape == (2, 72)
    assert (placement.expert_P < 0).sum(axis=1).tolist() == [0, 8]


def test_traffic_between_nodes_is_stated_and_uses_the_sources_of_micro_batches(tmp_path: Path) -> None:
    home = np.zeros((1, 1, 8, 64))
    home[0, 0, np.arange(64) // 8, np.arange(64)] = 10.0
    kept = solve_instance(read_instance(_write(tmp_path, "realtime", src=home)))
    assert kept.facts["leaving_share"] == pytest.approx(0.0)
    static = solve_instance(read_instance(_write(tmp_path, "static", load=zipf_loads(1, 64))))
    assert 0.3 < static.facts["leaving_share"] < 0.5


def test_drifting_instances_count_the_bytes_moved_and_keep_a_budget(tmp_path: Path) -> None:
    loads = np.array([zipf_loads(2, 64) * np.random.default_rng(w).lognormal(0, 0.3, (2, 64)) for w in range(3)])
    instance = read_instance(_write(tmp_path, "drift", load=loads))
    placement = solve_instance(instance)
    assert placement.expert_P.shape == (3, 2, 72)
    moved = new_copies(instance.ranks, placement.expert_P)
    assert placement.facts["moved_bytes_after_first"] == float(moved.sum()) * 1e6
    small = solve_instance(instance, SolveOptions(most_moved_bytes=5e6))
    assert new_copies(instance.ranks, small.expert_P).sum(axis=1).max() <= 5
    ahead = solve_instance(instance, SolveOptions(ahead=True))
    assert ahead.expert_P.shape == (3, 2, 72)


def test_layouts_made_ahead_never_see_the_window_they_serve(tmp_path: Path) -> None:
    loads = np.array([zipf_loads(2, 64, seed=w) for w in range(3)])
    changed = loads.copy()
    changed[2] = zipf_loads(2, 64, seed=99)
    plans = []
    for array in (loads, changed):
        plans.append(
            solve_instance(read_instance(_write(tmp_path, "drift", load=array)), SolveOptions(ahead=True)).expert_P
        )
    assert (plans[0][:2] == plans[1][:2]).all()


def test_realtime_instances_keep_homes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    src = rng.poisson(np.tile(zipf_loads(2, 64)[None, :, None] / 8, (3, 1, 8, 1))).astype(np.uint32)
    instance = read_instance(_write(tmp_path, "realtime", src=src))
    placement = solve_instance(instance)
    assert placement.quota_P is not None
    assert placement.expert_P.shape == (3, 2, 72)
    home = np.arange(64).reshape(8, 8)
    assert (placement.expert_P.reshape(3, 2, 8, 9)[..., :8] == home).all()
    load = src[1, 1].sum(axis=0).astype(float)
    ratio = imbalance(instance.ranks, placement.expert_P[1, 1], load, placement.quota_P[1, 1])
    assert ratio == pytest.approx(placement.imbalance[1, 1])


def test_affinity_brings_experts_chosen_together_to_one_node(tmp_path: Path) -> None:
    """Tokens choose 4 experts of the even or of the odd ones: homes in order would touch both nodes nearly always."""
    rng = np.random.default_rng(0)
    ids = np.array([[rng.choice(np.arange(parity, 64, 2), 4, replace=False)] for parity in rng.integers(0, 2, 4000)])
    placement = solve_instance(read_instance(_write(tmp_path, "affinity", topk_ids=ids.astype(np.int16))))
    assert placement.facts["nodes_per_token"] < 1.1
    assert placement.imbalance.max() < 1.1


def test_placements_are_written_whole_and_read_back(tmp_path: Path) -> None:
    placement = solve_instance(
        read_instance(_write(tmp_path, "static", load=zipf_loads(2, 64))), SolveOptions(shares="free")
    )
    write_placement(placement, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as written:
        assert (written["phy2log"] == placement.expert_P).all()
        assert written["quota"].shape == placement.expert_P.shape


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "other"}, "is of kind `other`"),
        ({"experts": 63}, "has 64 experts, `meta` says 63"),
        ({"slots_per_rank": [9] * 7}, "7 slot counts"),
        ({"slots_per_rank": [7] * 8}, "56 slots cannot hold 64"),
    ],
)
def test_instances_that_contradict_themselves_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, meta=json.dumps(META | {"kind": "static"} | change), load=zipf_loads(2, 64))
    with pytest.raises(PlannerError, match=said):
        solve_instance(read_instance(path))


def test_files_that_are_no_instances_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(PlannerError, match="is no instance"):
        read_instance(tmp_path / "text.npz")
    with pytest.raises(PlannerError, match="file not found"):
        read_instance(tmp_path / "absent.npz")
    np.savez(tmp_path / "bare.npz", load=np.ones((2, 2)))
    with pytest.raises(PlannerError, match="is no instance"):
        read_instance(tmp_path / "bare.npz")


def test_ranks_of_an_instance_may_be_uneven() -> None:
    ranks = make_ranks(3, [5, 4, 3], speeds=[1.0, 1.0, 0.5], node_of_rank=[0, 0, 1])
    assert ranks.num_slots == 12
    assert ranks.num_nodes == 2
    assert ranks.rank_P.tolist() == [0] * 5 + [1] * 4 + [2] * 3
