"""Hardware, and small kernel tables, for tests of costs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.costs.rates.roofline import Roofline
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.topology import Level, Topology

MEASURED = Path(__file__).resolve().parents[3] / "shared" / "data" / "kernel-profiles"

Rows = Mapping[str, Sequence[object]]
StoreOf = Callable[..., ProfileStore]


@pytest.fixture(scope="session")
def accelerator() -> Accelerator:
    """Round figures: 1 PFLOP/s in bf16, 2 in fp8, 1 TB/s."""
    rates = {"bf16": 1e15, "fp8": 2e15}
    return Accelerator("test_gpu", "Test GPU", "test", 100e9, 1e12, rates, 0.0, 500.0, "9.0")


@pytest.fixture(scope="session")
def topology() -> Topology:
    """Nodes of 8 at 100 GB/s, racks of 4 nodes at 50 GB/s, 4 racks at 10 GB/s, no latency."""
    return Topology((Level("node", 8, 100e9, 0.0), Level("rack", 32, 50e9, 0.0), Level("hall", 128, 10e9, 0.0)))


@pytest.fixture(scope="session")
def ideal(accelerator: Accelerator, topology: Topology) -> Roofline:
    """The data sheet's rates, no floor and no start."""
    return Roofline(accelerator, topology, Efficiencies())


@pytest.fixture(scope="session")
def h100() -> Roofline:
    """Four nodes of H100 under the shipped calibration."""
    pool = Pool("pool", find_node("h100_sxm"), 4)
    return Roofline(pool.node.accelerator, pool.topology(), load_calibration().efficiencies)


@pytest.fixture
def store_of(tmp_path: Path) -> StoreOf:
    """Writes tables given as (table, engine, version, columns) in NVIDIA's layout for `test_gpu` and opens them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(*tables: tuple[str, str, str, Rows]) -> ProfileStore:
        for table, engine, version, columns in tables:
            file = tmp_path / "raw" / "test_gpu" / "family" / engine / version / f"{table}_perf.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), file)
        return ProfileStore.open([tmp_path / "raw"], cache=tmp_path / "cache")

    return write


@pytest.fixture(scope="session")
def measured_store(tmp_path_factory: pytest.TempPathFactory) -> ProfileStore:
    """NVIDIA's tables of the H200, skipped where they are absent."""
    if not (MEASURED / "h200_sxm").is_dir():
        pytest.skip(f"no kernel tables under {MEASURED}")
    return ProfileStore.open([MEASURED / "h200_sxm"], cache=tmp_path_factory.mktemp("profiles"))
