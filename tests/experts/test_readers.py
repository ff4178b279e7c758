"""Recorded loads of every engine read alike, and files that hold none refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.experts.readers import read_loads

COUNTS = np.array([[0, 0, 0], [5, 1, 2], [3, 3, 9]])  # the first layer is dense


def _saved(folder: Path, name: str, content: Any) -> Path:  # noqa: ANN401
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_arrays_keep_the_numbers_of_layers_and_drop_dense_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", load=COUNTS)
    np.savez(tmp_path / "two.npz", morning=COUNTS, evening=COUNTS * 2)
    np.save(tmp_path / "plain.npy", np.array([COUNTS, COUNTS]))
    assert read_loads(tmp_path / "one.npz").layer_ids == (1, 2)
    assert read_loads(tmp_path / "one.npz").total_LE.tolist() == COUNTS[1:].tolist()
    assert read_loads(tmp_path / "two.npz", array="evening").total_LE.tolist() == (2 * COUNTS[1:]).tolist()
    assert read_loads(tmp_path / "plain.npy").load_WLE.shape == (2, 2, 3)
    with pytest.raises(PlannerError, match="`morning`, `evening`"):
        read_loads(tmp_path / "two.npz")


def test_sglang_recordings_are_read_from_json_and_from_tensors(tmp_path: Path) -> None:
    steps = [COUNTS.tolist(), COUNTS.tolist()]
    loads = read_loads(_saved(tmp_path, "recorded.json", {"logical_count": steps}))
    assert loads.load_WLE.shape == (2, 2, 3)
    assert loads.layer_ids == (1, 2)
    torch = pytest.importorskip("torch", reason="torch is an extra")
    torch.save({"logical_count": torch.tensor(steps), "rank": 0}, tmp_path / "recorded.pt")
    assert (read_loads(tmp_path / "recorded.pt").load_WLE == loads.load_WLE).all()


def test_parquet_rows_are_added_up(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"layer": [3, 3, 4, 3], "expert": [0, 1, 1, 0], "load": [2.0, 1.0, 5.0, 4.0]})
    parquet.write_table(table, tmp_path / "loads.parquet")
    loads = read_loads(tmp_path / "loads.parquet")
    assert loads.layer_ids == (3, 4)
    assert loads.total_LE.tolist() == [[6.0, 1.0], [0.0, 5.0]]


def test_vllm_statistics_of_slots_become_loads_of_experts(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"record_type": "eplb_load_meta", "version": 1},
        {"record_type": "eplb_load_stats", "step": 1, "expert_load": [[10, 1, 5, 2]], "p2l_map": [[0, 1, 2, 0]]},
        {"record_type": "eplb_load_stats", "step": 2, "expert_load": [[1, 1, 1, 1]], "p2l_map": [[2, 1, 2, 0]]},
    ]
    loads = read_loads(_saved(tmp_path, "stats.jsonl", "\n".join(map(json.dumps, records)) + "\n"))
    assert loads.load_WLE.tolist() == [[[12, 1, 5]], [[1, 1, 2]]]


def test_megatron_traces_of_all_ranks_are_counted_by_step(tmp_path: Path) -> None:
    for rank in range(2):
        records = [
            {
                "step": step,
                "layer": layer,
                "rank": rank,
                "num_tokens": 2,
                "topk": 2,
                "top_indices": [[0, 1], [1, rank * 2]],
            }
            for step in range(2)
            for layer in (3, 4)
        ]
        _saved(tmp_path, f"router_trace_rank{rank}.jsonl", "\n".join(map(json.dumps, records)))
    loads = read_loads(tmp_path)
    assert loads.layer_ids == (3, 4)
    assert loads.load_WLE.tolist() == [[[3, 4, 1], [3, 4, 1]]] * 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", {}, "no `logical_count`"),
        ("zero.json", {"logical_count": [[0, 0]]}, "every load is 0"),
        ("below.json", {"logical_count": [[1, -1]]}, "is -1.0 at"),
        ("other.jsonl", '{"a": 1}\n', "neither load statistics"),
        ("broken.jsonl", '{"a": 1\n', "is no JSON"),
        ("loads.csv", "1,2", "files of `.csv` are not read"),
        ("ragged.json", {"logical_count": [[1, 2], [3]]}, "cannot be read"),
    ],
)
def test_files_without_loads_are_refused(tmp_path: Path, name: str, content: Any, said: str) -> None:  # noqa: ANN401
    with pytest.raises(PlannerError, match=said):
        read_loads(_saved(tmp_path, name, content))


def test_arrays_of_another_shape_are_named_with_their_shape(tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", load=np.ones(16))
    with pytest.raises(PlannerError, match=r"`load` of shape \(16,\)"):
        read_loads(str(tmp_path / "flat.npz"))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlannerError, match="file not found"):
        read_loads("nowhere.npz")
