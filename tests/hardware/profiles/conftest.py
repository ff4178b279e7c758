"""Small tables in NVIDIA's layout, made by the tests."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Rows = Mapping[str, Sequence[object]]
WriteTable = Callable[..., Path]


@pytest.fixture
def write_table(tmp_path: Path) -> WriteTable:
    """Writes columns as <system>/<family>/<framework>/<version>/<table>_perf.parquet below `tmp_path / "raw"`."""

    def write(
        table: str, rows: Rows, *, system: str = "h200_sxm", engine: str = "vllm", version: str = "0.24.0"
    ) -> Path:
        file = tmp_path / "raw" / system / "family" / engine / version / f"{table}_perf.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({name: list(column) for name, column in rows.items()}), file)
        return tmp_path / "raw"

    return write


@pytest.fixture
def gemm_rows() -> Rows:
    """A full 3 x 2 x 2 GEMM table in bf16: latency in ms is m + n / 10 + k / 100."""
    cells = [(m, n, k) for m in (1, 2, 8) for n in (64, 128) for k in (64, 256)]
    return {
        "framework": ["VLLM"] * len(cells),
        "gemm_dtype": ["bfloat16"] * len(cells),
        "kernel_source": ["cublas"] * len(cells),
        "m": [m for m, _, _ in cells],
        "n": [n for _, n, _ in cells],
        "k": [k for _, _, k in cells],
        "latency": [m + n / 10 + k / 100 for m, n, k in cells],
    }
