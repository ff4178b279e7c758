"""Files and options that make no sense: one clear error each, never a traceback and never a silent guess."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.experts.ahead import plan_ahead
from planner.experts.instance import SolveOptions, solve_instance
from planner.experts.ranks import make_ranks
from planner.experts.readers import read_loads, read_resident
from planner.interchange.experts_instance import read_instance

LOADS = np.random.default_rng(0).lognormal(0, 1, (2, 32)) * 1000
META: dict[str, Any] = {"kind": "static", "experts": 32, "ranks": 8, "slots_per_rank": [5] * 8, "expert_bytes": 1e6}


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        (np.where(LOADS > 3000, np.nan, LOADS), "is nan at"),
        (-LOADS, "is -"),
        (np.full_like(LOADS, np.inf), "is inf at"),
        (np.zeros_like(LOADS), "every load is 0"),
        (LOADS * 1e304, "more than 1e"),
        (LOADS * 1j, "holds no counts but `complex128`"),
        (LOADS > 500, "holds no counts but `bool`"),
        (LOADS.astype(str), "holds no counts but"),
        (LOADS[:0], r"has the shape \(0, 32\)"),
    ],
)
def test_arrays_that_are_no_loads_are_refused(tmp_path: Path, loads: Any, said: str) -> None:  # noqa: ANN401
    np.savez(tmp_path / "loads.npz", load=loads)
    with pytest.raises(PlannerError, match=said):
        read_loads(tmp_path / "loads.npz")


def _vllm(**change: Any) -> str:  # noqa: ANN401
    record = {"record_type": "eplb_load_stats", "step": 1, "expert_load": [[1, 2]], "p2l_map": [[0, 1]], **change}
    return json.dumps({name: value for name, value in record.items() if value is not None})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", "", "is empty"),
        ("deep.json", '{"logical_count":' + "[" * 100_000, "cannot be read"),
        ("text.json", '{"logical_count": "abc"}', "holds no counts|cannot be read"),
        ("null.json", '{"logical_count": [[null, 1]]}', "is nan"),
        ("below.jsonl", _vllm(p2l_map=[[0, -5]]), "out of range at step 1"),
        ("far.jsonl", _vllm(p2l_map=[[0, 10**12]]), "out of range at step 1"),
        ("half.jsonl", _vllm(p2l_map=[[0, 0.5]]), "no whole numbers"),
        ("bare.jsonl", _vllm(p2l_map=None), "a record without `p2l_map`"),
        ("mixed.jsonl", _vllm() + "\n" + _vllm(expert_load=[[1, 2]] * 2, p2l_map=[[0, 1]] * 2), "numbers of layers"),
        ("half-choice.jsonl", '{"step": 0, "layer": 1, "top_indices": [[0.5]]}', "no whole numbers"),
        ("no-choice.jsonl", '{"step": 0, "layer": 1, "top_indices": null}', "no whole numbers"),
    ],
)
def test_records_that_make_no_sense_are_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PlannerError, match=said):
        read_loads(tmp_path / name)


def test_empty_slots_of_vllm_carry_nothing(tmp_path: Path) -> None:
    (tmp_path / "stats.jsonl").write_text(_vllm(expert_load=[[5, 0, 7]], p2l_map=[[1, -1, 0]]))
    assert read_loads(tmp_path / "stats.jsonl").total_LE.tolist() == [[7.0, 5.0]]


@pytest.mark.parametrize(
    ("values", "said"), [([0.5, 1.0], "layer: holds values"), ([None, 1.0], "layer: holds values")]
)
def test_parquet_columns_hold_whole_numbers(tmp_path: Path, values: list[float | None], said: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"layer": values, "expert": [0, 1], "load": [1.0, 1.0]})
    parquet.write_table(table, tmp_path / "loads.parquet")
    with pytest.raises(PlannerError, match=said):
        read_loads(tmp_path / "loads.parquet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": "x"}, "meta.ranks: must be a whole number of at least 1, found 'x'"),
        ({"ranks": -3}, "meta.ranks: must be a whole number"),
        ({"experts": None}, "meta.experts: must be a whole number"),
        ({"expert_bytes": "big"}, "meta.expert_bytes: must be a number of bytes"),
        ({"slots_per_rank": [4.5] * 8}, "meta.slots_per_rank: must be whole numbers"),
        ({"speed_of_rank": ["fast"] * 8}, "does not describe ranks"),
        ({"speed_of_rank": [0.0] * 8}, "slots and speeds must be positive"),
        ({"node_of_rank": [0] * 4 + [9] * 4}, "node 1 has no rank"),
        ({"kind": "realtime"}, r"has no `src`"),
        ({"kind": ["static"]}, "is of kind"),
    ],
)
def test_instances_whose_meta_makes_no_sense_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "wrong.npz", meta=json.dumps(META | change), load=LOADS)
    with pytest.raises(PlannerError, match=said):
        read_instance(tmp_path / "wrong.npz")


def test_a_meta_that_is_no_mapping_and_other_source_ranks_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "list.npz", meta="[1]", load=LOADS)
    with pytest.raises(PlannerError, match="meta: is no mapping"):
        read_instance(tmp_path / "list.npz")
    np.savez(tmp_path / "few.npz", meta=json.dumps(META | {"kind": "realtime"}), src=np.ones((1, 2, 4, 32)))
    with pytest.raises(PlannerError, match="src: has 4 source ranks, `meta` says 8"):
        read_instance(tmp_path / "few.npz")


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (np.full((2, 40), 0.5), "type float64"),
        (np.full((2, 40), -7), "names expert -7"),
        (np.array([["a"]]), "type <U1"),
        (np.zeros(40, int), r"shape \(40,\)"),
    ],
)
def test_placements_that_are_none_are_refused(tmp_path: Path, layout: Any, said: str) -> None:  # noqa: ANN401
    np.savez(tmp_path / "placement.npz", phy2log=layout)
    with pytest.raises(PlannerError, match=said):
        read_resident(tmp_path / "placement.npz")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (SolveOptions(imbalance_price=3.0), "imbalance price: has no effect on instances of kind `static`"),
        (SolveOptions(most_moved_bytes=1e9), "counted from a resident layout"),
        (SolveOptions(ahead=True, nodes_per_group=1), "nodes per group: groups are confined"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(tmp_path: Path, options: SolveOptions, said: str) -> None:
    np.savez(tmp_path / "one.npz", meta=json.dumps(META), load=LOADS)
    with pytest.raises(PlannerError, match=said):
        solve_instance(read_instance(tmp_path / "one.npz"), options)


def test_groups_that_do_not_divide_the_experts_are_refused() -> None:
    with pytest.raises(PlannerError, match="5 groups do not divide 32 experts"):
        plan_ahead(LOADS[None], make_ranks(8, 5), groups=5)
    with pytest.raises(PlannerError, match="0 ranks"):
        make_ranks(0, 5)
