"""Measuring a few small shapes on the processor: what is written, read, resumed and refused."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from planner.costs.operators.kernels import (
    AttentionBackward,
    Collective,
    DecodeAttention,
    Gemm,
    MemoryPass,
    PrefillAttention,
)
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.choice import TableChooser
from planner.costs.rates.evidence import Basis
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiling.collectives import OPERATIONS, collective_families
from planner.hardware.profiling.journal import FILE, ProfileJournal
from planner.hardware.profiling.measure import MeasuredProfile, measure
from planner.hardware.profiling.shapes import Family
from planner.hardware.profiling.writer import CARD, INTERPOLATED

torch = pytest.importorskip("torch", reason="profiling needs PyTorch")

VERSION = "2026.1.1"
PAIR = (("kv_heads", 2), ("head_dim", 16))
FAMILIES = [
    Family("gemm", (("n", 96), ("k", 64), ("precision", "bf16")), (("m", (1, 2, 4, 8, 16, 32)),)),
    Family("gemm", (("n", 64), ("k", 96), ("precision", "fp32")), (("m", (1, 4, 16)),)),
    Family("decode_attention", (("heads", 4), *PAIR), (("batch", (1, 4)), ("context", (16, 64)))),
    Family("prefill_attention", (("heads", 2), *PAIR), (("batch", (1, 2)), ("length", (16, 32)))),
    Family(
        "prefill_attention",
        (("heads", 2), *PAIR, ("backward", 1)),
        (("batch", (1, 2)), ("length", (16, 32))),
    ),
    Family("memory_pass", (("pass_kind", "norm"), ("width", 64)), (("moved_bytes", (4096, 65536)),)),
]  # fmt: skip


def run(
    folder: Path, *, resume: bool = False, budget_s: float = 200.0, families: list[Family] = FAMILIES
) -> MeasuredProfile:
    return measure(
        families, folder, accelerator="h200_sxm", device="cpu", budget_s=budget_s, version=VERSION, resume=resume
    )


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    run(folder)
    return folder


@pytest.fixture(scope="module")
def pricer(profile: Path) -> Profiled:
    node = find_node("h200_sxm")
    roofline = Roofline(node.accelerator, Pool("here", node, 1).topology(), load_calibration().efficiencies)
    return Profiled(roofline, TableChooser(ProfileStore.open([profile]), "h200_sxm", "vllm", None))


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def timings(folder: Path) -> dict[tuple[str, tuple[int, ...]], float]:
    return {key: timing.median_s for key, timing in ProfileJournal.open(folder, resume=True).timings.items()}


def test_collectives_of_two_processes_are_priced_as_measured(tmp_path: Path) -> None:
    families = collective_families(2, (4096, 65536))
    report = run(tmp_path, families=families, budget_s=120.0)
    assert not report.left_out
    assert [dict(family.fixed)["operation"] for family in families] == list(OPERATIONS)
    node = find_node("h200_sxm")
    roofline = Roofline(node.accelerator, Pool("here", node, 1).topology(), load_calibration().efficiencies)
    pricer = Profiled(roofline, TableChooser(ProfileStore.open([tmp_path]), "h200_sxm", "vllm", None))
    known = timings(tmp_path)[families[0].name, (65536,)]
    unit = array(1.0)
    priced = pricer.price(Collective("attention_all_reduce", 1.0, "all_reduce", unit * 65536, unit * 2, unit))
    assert priced.seconds[0] == pytest.approx(known, rel=1e-9)
    assert priced.basis[0] == Basis.MEASURED


def test_a_profile_is_a_store_of_tables_of_our_engine(profile: Path) -> None:
    store = ProfileStore.open([profile])
    tables = {(identity.engine, identity.version, identity.table) for identity in store.identities()}
    expected = ("gemm", "generation_attention", "context_attention", "context_attention_backward", "memory_pass")
    assert tables == {("planner", VERSION, name) for name in expected}


def test_measured_points_are_priced_exactly_and_called_measured(profile: Path, pricer: Profiled) -> None:
    known = {point[0]: seconds for (name, point), seconds in timings(profile).items() if name == FAMILIES[0].name}
    sizes = array(*known)
    priced = pricer.price(Gemm("qkv", 1.0, sizes, array(*[96] * len(known)), array(*[64] * len(known)), "bf16"))
    assert priced.seconds == pytest.approx(list(known.values()), rel=1e-9)
    assert set(priced.basis) == {Basis.MEASURED}


def test_points_between_measured_ones_are_called_measured_and_points_outside_are_not(pricer: Profiled) -> None:
    op = Gemm("qkv", 1.0, array(3.0, 64.0), array(96, 96), array(64, 64), "bf16")
    assert list(pricer.price(op).basis) == [Basis.MEASURED, Basis.HELD]


def test_attention_and_its_gradient_are_priced_from_their_own_tables(profile: Path, pricer: Profiled) -> None:
    known = timings(profile)
    unit = array(1.0)
    forward = PrefillAttention(
        "prefill_attention", 1.0, unit * 2, unit * 32, unit * 0, unit * 2, unit * 2, 16, 16, 0, "bf16"
    )  # fmt: skip
    decode = DecodeAttention("decode_attention", 1.0, unit * 4, unit * 64, unit * 4, unit * 2, 16, 16, 0, "bf16")
    for op, family in (
        (forward, FAMILIES[3]),
        (AttentionBackward("gradient", 1.0, forward), FAMILIES[4]),
        (decode, FAMILIES[2]),
    ):
        priced = pricer.price(op)
        last = tuple(values[-1] for _, values in family.sweep)
        assert priced.seconds[0] == pytest.approx(known[family.name, last], rel=1e-9)
        assert priced.basis[0] == Basis.MEASURED


def test_elementwise_kernels_are_priced_by_the_bytes_they_move(profile: Path, pricer: Profiled) -> None:
    priced = pricer.price(MemoryPass("norm", 1.0, array(65536), 1.0))
    assert priced.seconds[0] == pytest.approx(timings(profile)[FAMILIES[5].name, (65536,)], rel=1e-9)
    unmeasured = pricer.price(MemoryPass("expert_combine", 1.0, array(65536), 2.0))
    assert unmeasured.basis[0] == Basis.ANALYTICAL


def test_the_card_says_what_was_measured_and_how(profile: Path) -> None:
    card = json.loads((profile / CARD).read_text())
    assert card["schema"] == "planner.profile_card/1"
    assert card["device"]["torch"] == torch.__version__
    assert card["points"] == len(timings(profile))
    assert card["cells"]["memory_pass"] == {"measured": 2, "all": 2}
    assert set(card["rates_reached"]["flop_per_s"]) == {"bf16", "fp32"}
    assert card["spread"]["median"] >= 0


def test_cells_between_measured_ones_are_marked_as_interpolated(profile: Path) -> None:
    table = ProfileStore.open([profile]).select(accelerator="h200_sxm", table="gemm", engine="planner", version=None)
    assert table is not None
    grid = table.grid(gemm_dtype="bfloat16")
    assert grid is not None
    measured = {point[0] for name, point in timings(profile) if name == FAMILIES[0].name}
    complete = measured == set(FAMILIES[0].sweep[0][1])
    assert (INTERPOLATED in grid.kernel_sources) == (not complete and len(grid.axes[0]) > len(measured))
    assert "torch linear" in grid.kernel_sources


def test_a_profile_that_is_there_is_not_written_over(profile: Path) -> None:
    with pytest.raises(PlannerError, match="holds a profile already"):
        run(profile)


def test_a_resumed_profile_measures_nothing_twice(profile: Path, tmp_path: Path) -> None:
    copied = tmp_path / "profile"
    copied.mkdir()
    (copied / FILE).write_bytes((profile / FILE).read_bytes())
    resumed = run(copied, resume=True)
    known = timings(profile)
    assert {key: seconds for key, seconds in timings(copied).items() if key in known} == known
    assert resumed.points == len(known) + resumed.new_points


def test_a_profile_killed_while_it_measures_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    script = (
        "import sys; from pathlib import Path; from planner.hardware.profiling.measure import measure;"
        "from planner.hardware.profiling.shapes import Family;"
        "measure([Family('gemm', (('n', n), ('k', 64)), (('m', (1, 2, 4, 8, 16)),)) for n in range(32, 4096, 32)],"
        f"Path({str(folder)!r}), accelerator='h200_sxm', device='cpu', budget_s=60, version={VERSION!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline_s = time.monotonic() + 120
        while not (folder / FILE).is_file() or (folder / FILE).read_bytes().count(b'"what": "point"') < 5:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    with open(folder / FILE, "ab") as file:
        file.write(b'{"what": "point", "family": "gemm n=')  # the line that was being written
    before = timings(folder)
    families = [Family("gemm", (("n", n), ("k", 64)), (("m", (1, 2, 4, 8, 16)),)) for n in (32, 64)]
    resumed = run(folder, resume=True, families=families)
    after = timings(folder)
    assert len(before) >= 5
    assert all(after[key] == seconds for key, seconds in before.items())
    assert resumed.points == len(after)
    assert ProfileStore.open([folder]).identities()


def test_a_profile_of_another_device_is_not_resumed(profile: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes((profile / FILE).read_bytes())
    with pytest.raises(PlannerError, match="begun on h200_sxm"):
        measure(
            FAMILIES, tmp_path, accelerator="h100_sxm", device="cpu", budget_s=5, version=VERSION, resume=True
        )  # fmt: skip


def test_a_damaged_journal_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"what": "setting"}\n')
    with pytest.raises(PlannerError, match=r"journal\.jsonl:1"):
        run(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("device", "budget_s", "said"),
    [("tpu", 5.0, "cuda or cpu"), ("cpu", 0.0, "budget must be positive"), ("cpu", 1e-3, "nothing could be measured")],
)
def test_bad_arguments_are_named(device: str, budget_s: float, said: str, tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match=said):
        measure(FAMILIES, tmp_path, accelerator="h200_sxm", device=device, budget_s=budget_s, version=VERSION)


def test_a_shape_that_the_device_cannot_run_is_left_out_with_its_reason(tmp_path: Path) -> None:
    eight_bits = Family("gemm", (("n", 32), ("k", 32), ("precision", "fp8")), (("m", (1, 2)),))
    report = run(tmp_path, families=[eight_bits, FAMILIES[1]])
    assert report.families == 1
    assert "8-bit" in report.left_out[eight_bits.name]


def test_a_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [replace(FAMILIES[0], fixed=(("n", n), ("k", 64))) for n in range(16, 16000, 16)]
    ticks = count(step=0.01)
    monkeypatch.setattr("planner.hardware.profiling.measure.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    report = run(tmp_path, budget_s=1.0, families=many)
    assert "the time budget was spent" in report.left_out.values()
    assert 0 < report.new_points < 100  # each of which asks for the time
    assert report.families > 0


def test_the_median_is_that_of_most_runs_however_slow_a_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.hardware.profiling import timing
    from planner.hardware.profiling.kernel import PreparedKernel

    now_s, runs = [0.0], count(1)

    def run_once() -> None:
        now_s[0] += 0.5 if next(runs) % 10 == 0 else 0.02

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    measured = timing.time_on_cpu([PreparedKernel(run_once, "injected")])
    assert (measured.p10_s, measured.median_s) == pytest.approx((0.02, 0.02))
    assert measured.p90_s <= 0.5 + 1e-9


def test_families_that_fix_an_axis_which_others_sweep_share_a_grid(tmp_path: Path) -> None:
    sizes = (("heads", 2), *PAIR)
    families = [
        Family("prefill_attention", (*sizes, ("batch", 1)), (("length", (16, 32, 64)),)),
        Family("prefill_attention", sizes, (("batch", (2, 4)), ("length", (16, 24)))),
        Family("gemm", (("n", 96), ("k", 64)), (("m", (1, 16, 64)),)),
        Family("gemm", (("m", 24), ("n", 96)), (("k", (16, 128)),)),
    ]
    run(tmp_path, families=families)
    store = ProfileStore.open([tmp_path])
    cells: dict[str, set[tuple[float, ...]]] = {}
    for table, key in (
        ("context_attention", {"head_dim": 16, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}),
        ("gemm", {"gemm_dtype": "bfloat16"}),
    ):
        measured = store.select(accelerator="h200_sxm", table=table, engine="planner", version=None)
        assert measured is not None
        grid = measured.grid(**key)
        assert grid is not None
        known = ~np.isnan(grid.latency_s)
        cells[table] = {tuple(point) for point in np.stack([axis[known] for axis in grid.points()], axis=1)[:, :3]}
    assert {(1.0, 16.0, 2.0), (1.0, 24.0, 2.0), (1.0, 64.0, 2.0), (4.0, 24.0, 2.0)} <= cells["context_attention"]
    assert (4.0, 64.0, 2.0) not in cells["context_attention"]
    assert {(16.0, 96.0, 64.0), (24.0, 96.0, 64.0), (24.0, 96.0, 128.0)} <= cells["gemm"]
    assert (16.0, 96.0, 128.0) not in cells["gemm"]
