import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from planner.errors import PlannerError
from planner.hardware.profiles.convert import UnknownLayoutError, convert
from planner.hardware.profiles.table import KernelTable


def table_of(table: str, **columns: Sequence[object]) -> KernelTable:
    stream = io.BytesIO()
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), stream)
    data = stream.getvalue()
    converted = convert(data, accelerator="h200_sxm", engine="vllm", version="0.24.0", table=table, where="here")
    return KernelTable(converted.header, converted.columns)


def gemm(latency: Sequence[float], **changed: Sequence[object]) -> KernelTable:
    count = len(latency)
    columns: dict[str, Any] = {"gemm_dtype": ["fp8"] * count, "kernel_source": ["a"] * count}
    columns |= {"m": [1] * count, "n": [64] * count, "k": [64] * count, "latency": latency}
    return table_of("gemm", **(columns | changed))


def only_latency_s(table: KernelTable, **key: str | int) -> float:
    """The latency of a grid with one cell."""
    grid = table.grid(**key)
    assert grid is not None
    return float(grid.latency_s.item())


def test_milliseconds_become_seconds() -> None:
    assert only_latency_s(gemm([0.5])) == pytest.approx(0.5e-3)


def test_repetitions_give_the_median_and_kernel_sources_the_minimum() -> None:
    table = gemm([5.0, 1.0, 2.0, 4.0, 3.0], kernel_source=["a", "a", "a", "b", "b"])
    grid = table.grid(gemm_dtype="fp8")
    assert grid is not None
    assert grid.latency_s.item() == pytest.approx(2e-3)
    assert only_latency_s(gemm([5.0, 4.0, 3.0], kernel_source=["a", "b", "b"])) == pytest.approx(3.5e-3)
    assert grid.kernel_sources == ("a", "b")


def test_a_ragged_table_leaves_holes_that_point_at_measured_cells() -> None:
    grid = gemm([1.0, 2.0, 3.0], m=[1, 2, 4], n=[64, 128, 64]).grid(gemm_dtype="fp8")
    assert grid is not None
    assert grid.latency_s.shape == (3, 2, 1)
    holes = np.isnan(grid.latency_s)
    assert int(holes.sum()) == 3
    assert np.isfinite(grid.latency_s.ravel()[grid.nearest]).all()
    assert (grid.nearest.ravel()[~holes.ravel()] == np.flatnonzero(~holes)).all()


def test_latencies_that_cannot_be_are_dropped_and_counted() -> None:
    table = gemm([1.0, 0.0, -1.0, float("nan"), 1e9, 2.0], m=[1, 2, 3, 4, 5, 6])
    grid = table.grid(gemm_dtype="fp8")
    assert grid is not None
    assert grid.axes[0].tolist() == [1, 6]
    assert (table.header.rows_kept, table.header.rows_dropped) == (2, 4)


def test_message_sizes_become_bytes_and_half_is_meant_when_no_dtype_is_named() -> None:
    table = table_of(
        "nccl",
        nccl_dtype=["half", "half", "int8"],
        num_gpus=[2, 2, 2],
        message_size=[256, 512, 256],
        op_name=["all_gather"] * 3,
        latency=[1.0, 2.0, 3.0],
    )
    half, whole = table.grid(op_name="all_gather"), table.grid(op_name="all_gather", dtype="int8")
    assert half is not None
    assert whole is not None
    assert half.axes[1].tolist() == [512, 1024]
    assert whole.axes[1].tolist() == [256]


def test_own_all_reduces_are_told_apart_by_mode_and_replayed_from_a_graph_by_default() -> None:
    columns: dict[str, Any] = {"num_gpus": [2, 2], "message_size": [128, 128], "latency": [1.0, 9.0]}
    columns["allreduce_dtype"] = ["bfloat16"] * 2
    two = table_of("custom_allreduce", backend=["vllm_graph", "vllm_eager"], **columns)
    assert only_latency_s(two) == pytest.approx(1e-3)
    assert only_latency_s(two, mode="eager") == pytest.approx(9e-3)
    table = table_of("custom_allreduce", **columns)
    assert table.keys() == [("graph",)]


def test_phases_of_one_row_become_grids_of_their_own_in_seconds() -> None:
    table = table_of(
        "wideep_deepep_normal",
        node_num=[1],
        hidden_size=[7168],
        num_token=[16],
        num_topk=[8],
        num_experts=[256],
        dispatch_sms=[24],
        combine_sms=[12],
        dispatch_transmit_us=[30.0],
        dispatch_notify_us=[5.0],
        combine_transmit_us=[50.0],
        combine_notify_us=[0.0],
    )
    assert table.key_names == ("phase", "hidden_size", "topk", "num_experts", "sms")
    assert table.keys() == [("combine", 7168, 8, 256, 12), ("dispatch", 7168, 8, 256, 24)]
    dispatch = table.grid(phase="dispatch")
    assert dispatch is not None
    assert dispatch.latency_s.item() == pytest.approx(35e-6)


def test_attention_without_a_window_column_has_full_windows_and_heads_can_be_fixed() -> None:
    table = table_of(
        "generation_attention",
        head_dim=[128] * 3,
        attn_dtype=["bfloat16"] * 3,
        kv_cache_dtype=["fp8"] * 3,
        batch_size=[1, 2, 1],
        step=[7, 7, 7],
        num_heads=[8, 8, 16],
        num_key_value_heads=[1, 1, 4],
        latency=[1.0, 2.0, 3.0],
    )
    whole = table.grid(head_dim=128, attn_dtype="bfloat16", kv_cache_dtype="fp8", window_size=0)
    pair = table.grid(kv_cache_dtype="fp8", num_heads=8, num_key_value_heads=1)
    assert whole is not None
    assert pair is not None
    assert whole.latency_s.shape == (2, 1, 2, 2)
    assert pair.axis_names == ("batch_size", "step")
    np.testing.assert_allclose(pair.latency_s, [[1e-3], [2e-3]])
    assert table.grid(num_heads=8, num_key_value_heads=4) is None


def test_keys_that_were_not_measured_give_none_and_ambiguous_ones_are_refused() -> None:
    table = gemm([1.0, 2.0], gemm_dtype=["fp8", "bfloat16"])
    assert table.grid(gemm_dtype="nvfp4") is None
    with pytest.raises(ValueError, match="gemm_dtype, one of"):
        table.grid()
    with pytest.raises(ValueError, match="colour"):
        table.grid(colour="red")


def test_a_table_of_an_unknown_name_is_read_by_its_columns() -> None:
    columns: dict[str, Any] = {"op_name": ["x", "x"], "batch_size": [1, 2], "step": [5, 5], "compress_ratio": [4, 4]}
    table = table_of("new_module", **columns, latency=[1.0, 2.0])
    assert (table.axis_names, table.key_names) == (("batch_size",), ("op_name", "compress_ratio"))


@pytest.mark.parametrize("missing", ["m", "latency"])
def test_a_known_table_without_its_columns_is_an_unknown_layout(missing: str) -> None:
    columns: dict[str, Any] = {"gemm_dtype": ["fp8"], "m": [1], "n": [1], "k": [1], "latency": [1.0]}
    del columns[missing]
    with pytest.raises(UnknownLayoutError, match=f"here: column {missing} is missing"):
        table_of("gemm", **columns)


def test_an_axis_of_words_and_a_table_without_latencies_are_unknown_layouts() -> None:
    with pytest.raises(UnknownLayoutError, match="holds no numbers"):
        gemm([1.0], m=["one"])
    with pytest.raises(UnknownLayoutError, match="no usable latency"):
        gemm([0.0])
    with pytest.raises(UnknownLayoutError, match="element type"):
        table_of("nccl", nccl_dtype=["odd"], num_gpus=[2], message_size=[1], op_name=["x"], latency=[1.0])


def test_a_truncated_file_is_one_error_naming_the_place() -> None:
    with pytest.raises(PlannerError, match="here: not a readable parquet file") as caught:
        convert(b"PAR1 and then nothing", accelerator="a", engine="e", version="1", table="gemm", where="here")
    assert "\n" not in caught.value.what
