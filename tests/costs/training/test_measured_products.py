"""Kernel tables in training plans: what they hold takes its measured time, the rest the calibrated rate."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from train_problems import job, problem

from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.evidence import Basis
from planner.costs.training.config import FRAMEWORKS, TrainingConfig, machine_of
from planner.costs.training.products import measured_products
from planner.costs.training.rates import Rates, default_rates, rates_on
from planner.costs.training.step import step_time
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.train.plan.decode import decode
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.models.library import find_model
from planner.progress import Limits

POOL, ARCH = Pool("pool", find_node("h100_sxm"), 2), find_model("meta-llama/Llama-3.1-8B")
M, N, K = (1024, 8192, 131072), (512, 16384, 131072), (1024, 16384, 131072)
Write = Callable[[str, float], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes bf16 products of an engine that take `factor` times the data sheet's time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def folder(engine: str, factor: float) -> Path:
        root = tmp_path / f"{engine}-{factor}" / "h100_sxm"
        file = root / "gemm" / engine / "1.0" / "gemm_perf.parquet"
        file.parent.mkdir(parents=True)
        cells = list(product(M, N, K))
        columns = {name: [cell[place] for cell in cells] for place, name in enumerate("mnk")}
        latency = [1e3 * factor * 2.0 * m * n * k / 989e12 for m, n, k in cells]
        rows = {
            "gemm_dtype": ["bfloat16"] * len(cells),
            **columns,
            "latency": latency,
            "kernel_source": ["k"] * len(cells),
        }
        pq.write_table(pa.table(rows), file)
        return root

    return folder


def _rates(folder: Path) -> Rates:
    return rates_on(POOL, ARCH, "default", ProfileStore.open([folder], cache=folder.parent / "cache"))


def _config(**changes: object) -> TrainingConfig:
    base = TrainingConfig(ARCH, machine_of(POOL.node), 8192, 64, 1, tp=2, dp=8, framework=FRAMEWORKS["megatron_graphs"])
    return replace(base, **changes)  # type: ignore[arg-type]


def test_own_tables_replace_the_rate_of_the_products_that_they_hold(write: Write) -> None:
    slow, fast = (step_time(_config(), _rates(write("planner", factor))).step_s for factor in (2.0, 1.0))
    flop = 6.0 * 64 * 8192 * 8e9 / 16 / 989e12  # of all products at the data sheet's rate
    assert slow - fast == pytest.approx(flop, rel=0.15)
    fp8 = _config(precision="fp8")  # that the tables do not hold
    assert step_time(fp8, _rates(write("planner", 4.0))).step_s < 1.1 * step_time(fp8).step_s


def test_tables_of_others_count_by_the_weight_of_the_calibration(write: Write) -> None:
    known = default_rates()
    store = ProfileStore.open([write("vllm", 4.0)])
    products = measured_products(POOL, ARCH, load_calibration(), store)
    assert products is not None
    assert products.imported_weight == load_calibration().tables.gemm
    whole = replace(products, imported_weight=1.0)
    sizes, rated = np.array([[8192.0, 16384.0, 16384.0], [64.0, 64.0, 64.0], [0.0, 0.0, 0.0]]), np.ones(3)
    seconds, basis = whole.seconds(("gemm.bf16", "gemm.bf16", "elementwise"), sizes, rated)
    assert seconds == pytest.approx([4.0 * 2.0 * np.prod(sizes[0]) / 989e12, 1.0, 1.0])
    assert basis.tolist() == [Basis.IMPORTED, Basis.ANALYTICAL, Basis.ANALYTICAL]
    weighed = replace(products, imported_weight=0.5).seconds(("gemm.bf16",), sizes[:1], rated[:1])[0]
    assert weighed == pytest.approx(np.sqrt(seconds[:1]))
    assert rates_on(POOL, ARCH, "default", None) is known


def test_a_plan_says_what_of_its_time_was_measured(write: Write) -> None:
    data = problem(search={"tp": [2], "pp": [1], "cp": [1]})
    data["costs"] = {"profiles": [str(write("planner", 3.0))]}
    own = job(data)
    plan, plain = (decode(each, OnePoolSearch(each, Limits()).run()) for each in (own, job(problem(**data["options"]))))
    assert 0.5 < plan.evidence.basis["measured"] < 1.0
    assert sum(plan.evidence.basis.values()) == pytest.approx(1.0)
    assert plan.digests.profiles
    assert plain.evidence.basis == {"analytical": 1.0}
    slow_s, fast_s = (each.predictions[0].value for each in (plan, plain))
    assert slow_s > 1.5 * fast_s
