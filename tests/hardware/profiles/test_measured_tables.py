"""On the measured tables beside the checkout, where there are any."""

from pathlib import Path

import numpy as np
import pytest

from planner.hardware.profiles.grid import corners
from planner.hardware.profiles.store import KernelTable, ProfileStore

TABLES = Path(__file__).resolve().parents[4] / "shared" / "data" / "kernel-profiles"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason=f"no measured kernel tables at {TABLES}")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ProfileStore:
    return ProfileStore.open([TABLES], tmp_path_factory.mktemp("cache"))


def table_of(store: ProfileStore, table: str, engine: str) -> KernelTable:
    chosen = store.select(accelerator="h200_sxm", table=table, engine=engine, version=None)
    assert chosen is not None
    return chosen


def test_a_gemm_table_holds_exactly_the_measured_rows(store: ProfileStore) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(TABLES / "h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet").to_pylist()
    rows = [row for row in rows if row["gemm_dtype"] == "fp8"]
    grid = table_of(store, "gemm", "vllm").grid(gemm_dtype="fp8")
    assert grid is not None
    assert int(np.isfinite(grid.latency_s).sum()) == len(rows)
    cells = corners(grid, tuple(np.array([row[name] for row in rows]) for name in grid.axis_names))
    assert cells.inside.all()
    exact = cells.index[np.arange(len(rows)), cells.weights.argmax(axis=1)]
    np.testing.assert_allclose(grid.latency_s.ravel()[exact], [row["latency"] / 1e3 for row in rows])


def test_a_left_out_line_of_tokens_is_predicted_better_than_by_the_median_of_the_others(store: ProfileStore) -> None:
    grid = table_of(store, "gemm", "vllm").grid(gemm_dtype="bfloat16")
    assert grid is not None
    value, place = np.log(grid.latency_s), np.log2(grid.axes[0])
    share = ((place[1:-1] - place[:-2]) / (place[2:] - place[:-2]))[:, None, None]
    error = np.abs(np.expm1(value[:-2] * (1 - share) + value[2:] * share - value[1:-1]))
    assert np.nanmedian(error) < 0.05


def test_an_all_reduce_takes_longer_for_more_bytes(store: ProfileStore) -> None:
    for table, engine, key in (("nccl", "nccl", {"op_name": "all_reduce"}), ("custom_allreduce", "vllm", {})):
        grid = table_of(store, table, engine).grid(**key)
        assert grid is not None
        assert grid.axis_names == ("num_gpus", "message_bytes")
        rate = grid.axes[1][-1] / grid.latency_s[:, -1]
        assert ((rate > 50e9) & (rate < 900e9)).all()  # a link of an H200 moves 450 GB/s in each direction


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_every_table_that_serving_needs_has_grids(store: ProfileStore, engine: str) -> None:
    for name in ("gemm", "context_attention", "generation_attention", "moe", "custom_allreduce"):
        table = table_of(store, name, engine)
        for key in table.keys()[:20]:
            grid = table.grid(**dict(zip(table.key_names, key, strict=True)))
            assert grid is not None
            assert np.isfinite(grid.latency_s.ravel()[grid.nearest]).all()
            assert np.nanmin(grid.latency_s) > 1e-6
