"""Step tables: exact on their grid, near between, closed outside, and the same when read back."""

import io
from pathlib import Path

import numpy as np
import pytest

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer, make_pricer
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import joint_step, step_time
from planner.costs.serving.tables import AXES, StepTable, geometric_axis, step_table
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.store import ProfileStore
from planner.models.library import find_model

LLAMA = find_model("meta-llama/Meta-Llama-3.1-8B")
ENGINE = load_calibration().engine("vllm")
AXES_OF_SERVING = (
    geometric_axis(256),
    geometric_axis(32768),
    geometric_axis(8192),
    geometric_axis(16384, per_doubling=1),
)


@pytest.fixture(scope="module")
def table(h100: Roofline) -> StepTable:
    return step_table(LLAMA, h100, Shards.of(1), ENGINE, AXES_OF_SERVING)


def _direct(pricer: Pricer, batch: Floats, context: Floats, tokens: Floats, before: Floats) -> Floats:
    work = Work.of(tokens, (tokens > 0).astype(np.float64), before, batch, context)
    shards = Shards.of(np.ones(len(batch)))
    return step_time(LLAMA, pricer, shards, work, ENGINE).seconds


def _draw(count: int, seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Whole numbers: batches evenly, lengths evenly in the logarithm; half of the steps prefill too."""
    rng = np.random.default_rng(seed)
    batch = rng.integers(1, 257, count).astype(np.float64)
    context = np.floor(2.0 ** rng.uniform(4, 15, count))
    tokens = np.floor(2.0 ** rng.uniform(0, 13, count)) * (rng.random(count) < 0.5)
    before = np.floor(2.0 ** rng.uniform(0, 14, count)) * (rng.random(count) < 0.5)
    return batch, context, tokens, before


def test_between_its_points_a_table_is_near_direct_pricing(table: StepTable, h100: Roofline) -> None:
    points = _draw(2000, seed=1)
    direct = _direct(h100, *points)
    error_s = np.abs(table.lookup(points) - direct)
    error = error_s / direct
    assert np.median(error) < 0.001
    assert np.quantile(error, 0.95) < 0.01
    batched, ends = points[0] + points[2], np.array([1.0, 1.5]) * ENGINE.captured_tokens
    no_graph = (batched >= ends[0]) & (batched <= ends[1] * np.sqrt(2.0))  # and a cell of the axes beyond
    _, least_s = joint_step(LLAMA, h100, Shards.of(1), ENGINE, ends)
    assert error[~no_graph].max() < 0.02
    assert error_s[no_graph].max() < (least_s[1] - least_s[0]) / 8  # of what the launches of a whole step add


def test_between_its_points_a_table_of_measured_kernels_is_near_direct_pricing(measured_store: ProfileStore) -> None:
    pool, calibration = Pool("pool", find_node("h200_sxm"), 1), load_calibration()
    pricer = make_pricer(
        pool,
        LLAMA,
        engine="vllm",
        version=None,
        calibration=calibration,
        store=measured_store,
    )
    assert isinstance(pricer, Profiled)
    points = _draw(2000, seed=2)
    measured = step_table(LLAMA, pricer, Shards.of(1), ENGINE, AXES_OF_SERVING)
    error = np.abs(measured.lookup(points) / _direct(pricer, *points) - 1)
    assert np.median(error) < 0.01
    assert np.quantile(error, 0.95) < 0.05


def test_on_its_points_a_table_is_direct_pricing(table: StepTable, h100: Roofline) -> None:
    rng = np.random.default_rng(3)
    batch, context, tokens, before = (rng.choice(axis, 200) for axis in table.axes)
    points = (batch, context, tokens, before)
    assert table.lookup(points) == pytest.approx(_direct(h100, *points), rel=1e-12, abs=0)


def test_lookup_is_linear_along_each_axis() -> None:
    axes = tuple(np.array([0.0, 2.0, 10.0]) for _ in AXES)
    grids = np.meshgrid(*axes, indexing="ij")
    seconds = 1.0 + grids[0] + 2 * grids[1] + 3 * grids[2] + 4 * grids[3] + 5 * grids[0] * grids[1]
    plane = StepTable((axes[0], axes[1], axes[2], axes[3]), seconds, {})
    seconds_N = plane.lookup((1.0, 3.0, 7.0, [5.0, 10.0]))
    assert seconds_N == pytest.approx([1 + 1 + 6 + 21 + 20 + 15, 1 + 1 + 6 + 21 + 40 + 15])


def test_an_axis_of_one_value_is_constant_along_it(h100: Roofline) -> None:
    decoding = step_table(LLAMA, h100, Shards.of(1), ENGINE, (geometric_axis(64), geometric_axis(4096), 0.0, 0.0))
    assert decoding.seconds.shape[2:] == (1, 1)
    point = np.array([64.0]), np.array([4096.0]), np.zeros(1), np.zeros(1)
    assert decoding.lookup(point) == pytest.approx(_direct(h100, *point), rel=1e-12)


@pytest.mark.parametrize("outside", [(257.0, 1.0, 0.0, 0.0), (1.0, 32769.0, 0.0, 0.0), (1.0, 1.0, -1.0, 0.0)])
def test_nothing_is_extrapolated(table: StepTable, outside: tuple[float, ...]) -> None:
    with pytest.raises(PlannerError, match="must lie in"):
        table.lookup(outside)
    with pytest.raises(PlannerError, match="must lie in"):
        table.lookup((1.0, float("nan"), 0.0, 0.0))


def test_a_table_read_back_is_the_same(table: StepTable, tmp_path: Path) -> None:
    table.save(tmp_path / "table.npz")
    read = StepTable.load(tmp_path / "table.npz")
    assert read.description == table.description
    assert read.description["model"] == LLAMA.name
    assert np.array_equal(read.seconds, table.seconds)
    assert all(np.array_equal(axis, other) for axis, other in zip(read.axes, table.axes, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["table.npz"]


def test_equal_tables_are_equal_files(h100: Roofline, tmp_path: Path) -> None:
    for name in ("one", "two"):
        step_table(LLAMA, h100, Shards.of(1), ENGINE, ([1.0, 2.0], [1.0], [0.0], [0.0])).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def _archive(**arrays: object) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=True, **{name: np.asarray(array) for name, array in arrays.items()})
    return content.getvalue()


def _foreign() -> dict[str, bytes]:
    header = np.frombuffer(b'{"schema": "planner.step_table/1"}', dtype=np.uint8)
    axes = {name: [0.0, 1.0] for name in AXES}
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    return {
        "empty": b"",
        "text": b"not a table",
        "one array": single.getvalue(),
        "no header": _archive(seconds=np.zeros((2, 2, 2, 2)), **axes),
        "other schema": _archive(header=np.frombuffer(b'{"schema": "x"}', dtype=np.uint8), seconds=[0.0], **axes),
        "header of another kind": _archive(header=np.frombuffer(b"[]", dtype=np.uint8), seconds=[0.0], **axes),
        "shape": _archive(header=header, seconds=np.zeros((2, 2, 2, 3)), **axes),
        "falling axis": _archive(header=header, seconds=np.zeros((2,) * 4), **{**axes, "prefill_tokens": [1.0, 0.0]}),
        "objects": _archive(header=header, seconds=np.array([None] * 16).reshape((2,) * 4), **axes),
        "truncated": _archive(header=header, seconds=np.zeros((2,) * 4), **axes)[:-200],
    }


@pytest.mark.parametrize("kind", list(_foreign()))
def test_a_foreign_or_damaged_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    path.write_bytes(_foreign()[kind])
    with pytest.raises(PlannerError, match=r"table\.npz"):
        StepTable.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="cannot be read: No such file"):
        StepTable.load(tmp_path / "nowhere.npz")


def test_a_table_holds_one_shape_and_increasing_axes(h100: Roofline) -> None:
    with pytest.raises(ValueError, match="one instance shape, found 2"):
        step_table(LLAMA, h100, Shards.of([1.0, 2.0]), EngineOverheads(), (1.0, 1.0, 0.0, 0.0))
    with pytest.raises(PlannerError, match="axes"):
        step_table(LLAMA, h100, Shards.of(1), EngineOverheads(), ([2.0, 1.0], 1.0, 0.0, 0.0))


@pytest.mark.parametrize(("largest", "per_doubling"), [(0, 2), (1, 2), (100, 1), (4096, 2), (5000, 4)])
def test_geometric_axes_hold_zero_their_end_and_bounded_steps(largest: float, per_doubling: int) -> None:
    axis = geometric_axis(largest, per_doubling)
    assert axis[0] == 0
    assert axis[-1] == largest
    assert np.array_equal(axis, np.round(axis))
    assert np.all(np.diff(axis) > 0)
    wide = axis[axis >= 16]
    assert np.all(wide[1:] / wide[:-1] <= 2 ** (1 / per_doubling) * 1.05)
