"""Kernel tables as a source of prices: exact where measured, interpolated between, at the edge's rate beyond."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.arrays import Floats
from planner.costs.operators.kernels import (
    AttentionBackward,
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    MemoryPass,
    Operator,
    PrefillAttention,
)
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.choice import TableChooser
from planner.costs.rates.evidence import Basis
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import price_operators, step_time
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.grid import Grid
from planner.hardware.profiles.store import ProfileStore
from planner.models.library import find_model

Axes = dict[str, tuple[int, ...]]
Key = dict[str, str | int]
StoreOf = Callable[..., ProfileStore]

HEADS: Axes = {"num_heads": (8, 16), "num_key_value_heads": (2, 8)}
ATTENTION: Key = {"head_dim": 64, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}
LATENT: Key = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
EXPERTS: Key = {
    "moe_dtype": "bfloat16",
    "hidden_size": 512,
    "inter_size": 256,
    "topk": 4,
    "num_experts": 32,
    "distribution": "power_law_1.2",
}
TABLES: dict[str, tuple[Axes, Key]] = {
    "gemm": ({"m": (1, 16, 256), "n": (64, 512), "k": (128, 1024)}, {"gemm_dtype": "bfloat16"}),
    "context_attention": ({"batch_size": (1, 4), "isl": (16, 256, 1024), **HEADS}, ATTENTION),
    "generation_attention": ({"batch_size": (1, 16), "step": (1, 128, 4096), **HEADS}, ATTENTION),
    "context_mla": ({"batch_size": (1, 4), "isl": (16, 1024), "num_heads": (16, 128)}, LATENT),
    "generation_mla": ({"batch_size": (1, 4), "step": (1, 1024), "num_heads": (16, 128)}, LATENT),
    "mla_bmm": ({"num_tokens": (1, 64), "num_heads": (16, 128)}, {"bmm_dtype": "bfloat16", "op_name": "mla_gen_pre"}),
    "moe": ({"num_tokens": (1, 64, 1024), "moe_tp_size": (1, 2), "moe_ep_size": (1, 4)}, EXPERTS),
    "custom_allreduce": ({"num_gpus": (2, 8), "message_size": (1024, 65536)}, {"backend": "vllm_graph"}),
    "nccl": ({"num_gpus": (2, 8), "message_size": (1024, 65536)}, {"op_name": "all_gather", "nccl_dtype": "half"}),
}


def _rows(table: str, seed: int = 0, leave_out: int = 0) -> dict[str, list[object]]:
    """Every combination of the table's axes with a random latency in milliseconds, less the last `leave_out`."""
    axes, keys = TABLES[table]
    cells = list(product(*axes.values()))[: -leave_out or None]
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {name: [cell[place] for cell in cells] for place, name in enumerate(axes)}
    columns |= {name: [value] * len(cells) for name, value in keys.items()}
    return columns | {"latency": list(rng.uniform(0.004, 0.5, len(cells))), "kernel_source": ["k"] * len(cells)}


def _operator(table: str, point: dict[str, Floats]) -> Operator:
    """The operator that a row of `table` measured."""
    unit = np.ones(len(next(iter(point.values()))))
    match table:
        case "gemm":
            return Gemm("g", 1.0, point["m"], point["n"], point["k"], "bf16")
        case "context_attention":
            heads, kv_heads = point["num_heads"], point["num_key_value_heads"]
            return PrefillAttention(
                "p", 1.0, point["batch_size"], point["isl"], 0 * unit, heads, kv_heads, 64, 64, 0, "bf16"
            )
        case "generation_attention":
            heads, kv_heads = point["num_heads"], point["num_key_value_heads"]
            return DecodeAttention("d", 1.0, point["batch_size"], point["step"], heads, kv_heads, 64, 64, 0, "bf16")
        case "context_mla":
            batch, isl, heads = point.values()
            return PrefillAttention("p", 1.0, batch, isl, 0 * unit, heads, heads, 192, 128, 0, "bf16", latent=True)
        case "generation_mla":
            batch, step, heads = point.values()
            return DecodeAttention("d", 1.0, batch, step, heads, unit, 576, 512, 0, "bf16", latent=True)
        case "mla_bmm":
            return BatchedGemm(
                "absorbed_query", 1.0, point["num_heads"], point["num_tokens"], unit * 512, unit * 128, "bf16"
            )
        case "moe":
            tokens, moe_tp, ep = point.values()
            return Experts("e", 1.0, tokens, moe_tp, ep, 512, 256, 4, 32, True, "bf16", "bf16")
        case _:
            kind = "all_reduce" if table == "custom_allreduce" else "all_gather"
            return Collective("c", 1.0, kind, 2 * point["message_size"], point["num_gpus"], unit)


def _profiled(ideal: Roofline, store: ProfileStore, version: str | None = None) -> Profiled:
    return Profiled(ideal, TableChooser(store, "test_gpu", "vllm", version))


def _engine(table: str) -> str:
    return "nccl" if table == "nccl" else "vllm"


def _points(table: str, rows: dict[str, list[object]]) -> dict[str, Floats]:
    return {name: np.array(rows[name], dtype=np.float64) for name in TABLES[table][0]}


@pytest.mark.parametrize("table", TABLES)
def test_a_measured_point_costs_what_was_measured(table: str, ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows(table)
    pricer = _profiled(ideal, store_of((table, _engine(table), "1.0", rows)))
    priced = pricer.price(_operator(table, _points(table, rows)))
    assert priced.seconds == pytest.approx(np.array(rows["latency"]) * 1e-3, rel=1e-9)
    assert set(priced.basis.tolist()) == {Basis.IMPORTED}
    assert len(pricer.digests) == 1


@pytest.mark.parametrize("table", TABLES)
def test_beyond_a_table_its_utilisation_stays(table: str, ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows(table)
    pricer = _profiled(ideal, store_of((table, _engine(table), "1.0", rows)))
    last = {name: values[-1:] for name, values in _points(table, rows).items()}
    size = next(name for name in ("isl", "step", "m", "num_tokens", "message_size") if name in last)
    edge, beyond = _operator(table, last), _operator(table, {**last, size: last[size] * 16})
    ratio = float(np.array(rows["latency"], dtype=np.float64)[-1]) * 1e-3 / ideal.price(edge).seconds
    priced = pricer.price(beyond)
    assert priced.seconds == pytest.approx(ideal.price(beyond).seconds * ratio, rel=1e-9)
    assert priced.basis.tolist() == [Basis.HELD]


@pytest.mark.parametrize("table", TABLES)
def test_without_a_table_the_roofline_answers(table: str, ideal: Roofline, store_of: StoreOf) -> None:
    other = "nccl" if table != "nccl" else "gemm"
    pricer = _profiled(ideal, store_of((other, _engine(other), "1.0", _rows(other))))
    operator = _operator(table, _points(table, _rows(table)))
    priced = pricer.price(operator)
    if table == "custom_allreduce":  # NCCL's table holds gathers alone
        assert set(priced.basis.tolist()) == {Basis.ANALYTICAL}
    assert priced.seconds == pytest.approx(ideal.price(operator).seconds, rel=1e-12)


def test_between_points_the_utilisation_is_between(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("gemm")
    pricer = _profiled(ideal, store_of(("gemm", "vllm", "1.0", rows)))

    def ratio(m: float) -> float:
        op = _operator("gemm", {"m": np.array([m]), "n": np.array([512.0]), "k": np.array([128.0])})
        return float(np.log(pricer.price(op).seconds / ideal.price(op).seconds)[0])

    assert ratio(64.0) == pytest.approx((ratio(16.0) + ratio(256.0)) / 2)  # half-way in the logarithm


def test_a_point_that_leans_on_an_unmeasured_cell_says_so(ideal: Roofline, store_of: StoreOf) -> None:
    full, ragged = _rows("gemm"), _rows("gemm", leave_out=1)
    pricer = _profiled(ideal, store_of(("gemm", "vllm", "1.0", ragged)))
    priced = pricer.price(_operator("gemm", _points("gemm", full)))
    assert priced.basis.tolist() == [Basis.IMPORTED] * 11 + [Basis.HELD]


def test_tables_that_the_program_measured_come_first(ideal: Roofline, store_of: StoreOf) -> None:
    own, foreign = _rows("gemm", seed=1), _rows("gemm", seed=2)
    store = store_of(("gemm", "planner", "1.0", own), ("gemm", "vllm", "1.0", foreign))
    priced = _profiled(ideal, store).price(_operator("gemm", _points("gemm", own)))
    assert priced.seconds == pytest.approx(np.array(own["latency"]) * 1e-3, rel=1e-9)
    assert set(priced.basis.tolist()) == {Basis.MEASURED}


def test_another_version_is_used_with_a_note(ideal: Roofline, store_of: StoreOf) -> None:
    near, far = _rows("gemm", seed=1), _rows("gemm", seed=2)
    store = store_of(("gemm", "vllm", "0.24.0", near), ("gemm", "vllm", "0.14.0", far))
    pricer = _profiled(ideal, store, version="0.23.0")
    priced = pricer.price(_operator("gemm", _points("gemm", near)))
    assert priced.seconds == pytest.approx(np.array(near["latency"]) * 1e-3, rel=1e-9)
    assert pricer.notes == {"gemm: vllm 0.23.0 requested, tables of 0.24.0 used"}


def test_another_engine_is_used_with_a_note(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("moe")
    pricer = _profiled(ideal, store_of(("moe", "sglang", "0.5.14", rows)))
    priced = pricer.price(_operator("moe", _points("moe", rows)))
    assert priced.seconds == pytest.approx(np.array(rows["latency"]) * 1e-3, rel=1e-9)
    (note,) = pricer.notes
    assert "sglang 0.5.14" in note


def test_a_format_is_looked_up_in_tables_of_all_engines_before_the_next_one(ideal: Roofline, store_of: StoreOf) -> None:
    other, asked = _rows("moe", seed=1), _rows("moe", seed=2)
    other["moe_dtype"], asked["moe_dtype"] = (["fp8_block"] * len(asked["latency"]), ["fp8"] * len(asked["latency"]))
    store = store_of(("moe", "vllm", "1.0", other), ("moe", "sglang", "1.0", asked))
    tokens, moe_tp, ep = _points("moe", asked).values()
    priced = _profiled(ideal, store).price(Experts("e", 1.0, tokens, moe_tp, ep, 512, 256, 4, 32, True, "fp8", "bf16"))
    assert priced.seconds == pytest.approx(np.array(asked["latency"]) * 1e-3, rel=1e-9)


@pytest.mark.parametrize("table", ["gemm", "moe"])
def test_kernels_of_shared_libraries_cost_what_the_fastest_table_says(
    table: str, ideal: Roofline, store_of: StoreOf
) -> None:
    first, second = _rows(table, seed=1), _rows(table, seed=2, leave_out=1)
    pricer = _profiled(ideal, store_of((table, "vllm", "1.0", first), (table, "trtllm", "2.0", second)))
    priced = pricer.price(_operator(table, _points(table, first)))
    first_ms, second_ms = (np.array(rows["latency"], dtype=np.float64) for rows in (first, second))
    assert priced.seconds == pytest.approx(1e-3 * np.fmin(first_ms, np.append(second_ms, np.inf)), rel=1e-9)
    assert pricer.notes == {f"{table}: the fastest kernels of the tables of vllm 1.0, trtllm 2.0 are used"}
    assert len(pricer.digests) == 2


def test_experts_faster_than_memory_reads_their_weights_are_left_out(ideal: Roofline, store_of: StoreOf) -> None:
    def told(even_ms: float) -> tuple[Floats, set[str]]:
        skewed, even = _rows("moe"), _rows("moe")
        even |= {"distribution": ["balanced"] * len(even["latency"]), "latency": [even_ms] * len(even["latency"])}
        both = {name: skewed[name] + even[name] for name in skewed}
        pricer = _profiled(ideal, store_of(("moe", "vllm", "1.0", both)))
        return pricer.price(_operator("moe", _points("moe", skewed))).seconds, pricer.digests

    read_s = 32 * 3 * 512 * 256 * 2 / ideal.accelerator.memory_bandwidth_bytes_per_s  # all experts, on one rank
    measured_s, digests = told(1.01e3 * read_s)
    assert measured_s == pytest.approx(np.array(_rows("moe")["latency"]) * 1e-3, rel=1e-9)
    assert len(digests) == 1
    roofline_s, digests = told(0.99e3 * read_s)
    assert roofline_s == pytest.approx(ideal.price(_operator("moe", _points("moe", _rows("moe")))).seconds, rel=1e-12)
    assert not digests


def test_tables_say_nothing_of_experts_in_whole_tiles(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("moe")
    rows["moe_dtype"] = ["fp8_block"] * len(rows["latency"])
    tiled = replace(ideal, whole_tiles=1.0)
    tokens, moe_tp, ep = _points("moe", rows).values()
    op = Experts("e", 1.0, tokens, moe_tp, ep, 512, 256, 4, 32, True, "fp8_block", "bf16")
    priced = _profiled(tiled, store_of(("moe", "vllm", "1.0", rows))).price(op)
    measured_s = np.array(rows["latency"], dtype=np.float64) * 1e-3
    assert priced.seconds == pytest.approx(np.where(moe_tp > 1, measured_s, tiled.price(op).seconds), rel=1e-9)


def test_an_unmeasured_expert_shape_takes_the_utilisation_of_the_nearest(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("moe")
    pricer = _profiled(ideal, store_of(("moe", "vllm", "1.0", rows)))
    known = _operator("moe", _points("moe", rows))
    unit = np.ones(1)
    other = Experts("e", 1.0, unit * 64, unit, unit, 640, 256, 4, 32, True, "bf16", "bf16")
    same = Experts("e", 1.0, unit * 64, unit, unit, 512, 256, 4, 32, True, "bf16", "bf16")
    priced = pricer.price(other)
    ratio = pricer.price(same).seconds / ideal.price(same).seconds
    assert priced.seconds == pytest.approx(ratio * ideal.price(other).seconds, rel=1e-9)
    assert priced.basis.tolist() == [Basis.HELD]
    assert set(pricer.price(known).basis.tolist()) == {Basis.IMPORTED}
    assert any("nearest" in note or "measured shape" in note for note in pricer.notes)


def test_a_window_without_a_table_takes_the_utilisation_of_full_attention(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("generation_attention")
    pricer = _profiled(ideal, store_of(("generation_attention", "vllm", "1.0", rows)))
    unit = np.ones(1)

    def attention(window: int) -> DecodeAttention:
        return DecodeAttention("d", 1.0, unit * 16, unit * 4096, unit * 16, unit * 8, 64, 64, window, "bf16")

    full, windowed = attention(0), attention(128)
    ratio = pricer.price(full).seconds / ideal.price(full).seconds
    assert pricer.price(windowed).seconds == pytest.approx(ratio * ideal.price(windowed).seconds, rel=1e-9)


def test_a_chunk_behind_a_context_takes_the_utilisation_of_as_many_pairs(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("context_attention")
    pricer = _profiled(ideal, store_of(("context_attention", "vllm", "1.0", rows)))
    unit = np.ones(1)

    def attention(new: float, context: float) -> PrefillAttention:
        return PrefillAttention("p", 1.0, unit, unit * new, unit * context, unit * 8, unit * 2, 64, 64, 0, "bf16")

    whole, chunk = attention(256.0, 0.0), attention(32.0, 1008.0)  # 32 x (32 + 2 x 1008) = 256^2
    ratio = pricer.price(whole).seconds / ideal.price(whole).seconds
    assert pricer.price(chunk).seconds == pytest.approx(ratio * ideal.price(chunk).seconds, rel=1e-9)


def test_backward_attention_holds_the_utilisation_of_the_forward_kernel(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("context_attention")
    pricer = _profiled(ideal, store_of(("context_attention", "vllm", "1.0", rows)))
    forward = _operator("context_attention", _points("context_attention", rows))
    assert isinstance(forward, PrefillAttention)
    backward = AttentionBackward("b", 1.0, forward)
    ratio = pricer.price(forward).seconds / ideal.price(forward).seconds
    priced = pricer.price(backward)
    assert priced.seconds == pytest.approx(ratio * ideal.price(backward).seconds, rel=1e-9)
    assert set(priced.basis.tolist()) == {Basis.HELD}


def test_groups_beyond_the_innermost_domain_are_analytical(ideal: Roofline, store_of: StoreOf) -> None:
    pricer = _profiled(ideal, store_of(("custom_allreduce", "vllm", "1.0", _rows("custom_allreduce"))))
    group, stride = np.array([8.0, 16.0, 2.0]), np.array([1.0, 1.0, 8.0])
    op = Collective("c", 1.0, "all_reduce", np.full(3, 2048.0), group, stride)
    priced = pricer.price(op)
    assert priced.basis.tolist() == [Basis.IMPORTED, Basis.ANALYTICAL, Basis.ANALYTICAL]
    assert priced.seconds[1:] == pytest.approx(ideal.price(op).seconds[1:])


def test_what_has_nothing_to_do_costs_nothing(ideal: Roofline, store_of: StoreOf) -> None:
    pricer = _profiled(ideal, store_of(*((table, _engine(table), "1.0", _rows(table)) for table in TABLES)))
    for table in TABLES:
        points = {name: values[-1:] for name, values in _points(table, _rows(table)).items()}
        amount = next(name for name in ("m", "batch_size", "num_tokens", "message_size") if name in points)
        assert pricer.price(_operator(table, {**points, amount: np.zeros(1)})).seconds.tolist() == [0.0], table


def test_elementwise_kernels_are_always_analytical(ideal: Roofline, store_of: StoreOf) -> None:
    pricer = _profiled(ideal, store_of(("gemm", "vllm", "1.0", _rows("gemm"))))
    priced = pricer.price(MemoryPass("m", 1.0, np.array([1e6]), 1.0))
    assert (priced.seconds[0], priced.basis[0]) == (pytest.approx(1e-6), Basis.ANALYTICAL)


def _h200(store: ProfileStore, engine: str, skew: str = "power_law_1.2") -> Profiled:
    pool = Pool("pool", find_node("h200_sxm"), 4)
    roofline = Roofline(pool.node.accelerator, pool.topology(), load_calibration().efficiencies)
    return Profiled(roofline, TableChooser(store, "h200_sxm", engine, None), skew=skew)


def _measured_cells(grid: Grid, count: int) -> tuple[dict[str, Floats], Floats]:
    """Random measured cells of a grid: their coordinates and latencies."""
    measured = np.flatnonzero(~np.isnan(grid.latency_s.ravel()))
    chosen = np.random.default_rng(0).choice(measured, count, replace=False)
    points = [axis.ravel()[chosen] for axis in grid.points()]
    return dict(zip(grid.axis_names, points, strict=True)), grid.latency_s.ravel()[chosen]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("table", ["gemm", "context_attention", "generation_attention"])
def test_published_tables_are_met_at_five_random_points(table: str, engine: str, measured_store: ProfileStore) -> None:
    pricer = _h200(measured_store, engine)
    key = {**TABLES[table][1], **({"head_dim": 64} if table != "gemm" else {})}
    choice = pricer.chooser.choose(table, [key])
    assert choice is not None
    point, latency_s = _measured_cells(choice.grid, 5)
    priced = pricer.price(_operator(table, point))
    assert priced.seconds == pytest.approx(latency_s, rel=1e-9)
    assert set(priced.basis.tolist()) == {Basis.IMPORTED}
    assert pricer.digests == {each.identity.digest for each in choice.tables}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_published_tables_carry_most_of_a_decode_step(engine: str, measured_store: ProfileStore) -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-8B")
    pricer = _h200(measured_store, engine)
    work = Work.decode([1.0, 32.0, 256.0], 2000.0)
    engine_overheads = load_calibration("none").engine(engine)
    time = step_time(arch, pricer, Shards.of([1.0, 1.0, 1.0]), work, engine_overheads)
    assert np.all(time.by_basis[Basis.IMPORTED][:2] > 0.6 * time.device_s[:2])  # large batches of long contexts lack
    assert np.all(time.by_basis[Basis.ANALYTICAL] < 0.1 * time.device_s)
    ideal_s = step_time(arch, _ideal_h200(), Shards.of(np.ones(3)), work, engine_overheads).device_s
    assert np.all(time.device_s > ideal_s)
    assert np.all(time.device_s < 3 * ideal_s)


def _ideal_h200() -> Roofline:
    pool = Pool("pool", find_node("h200_sxm"), 4)
    return Roofline(pool.node.accelerator, pool.topology(), load_calibration("none").efficiencies)


def test_many_points_cost_with_tables_what_each_costs_alone(measured_store: ProfileStore) -> None:
    arch = find_model("Qwen/Qwen3-235B-A22B")
    pricer = _h200(measured_store, "vllm")
    overheads = load_calibration().engine("vllm")
    shapes = np.array([(8, 1, 1, 1, 8), (4, 1, 2, 1, 8), (4, 1, 1, 4, 1), (1, 1, 8, 1, 8)], dtype=float)
    loads = np.array([(0, 0, 0, 16, 900), (512, 1, 0, 0, 0), (700, 2, 64, 9, 5000), (0, 0, 0, 0, 0)])
    points = [(shape, load) for shape in shapes for load in loads]
    shards, work = Shards.of(*np.array([p[0] for p in points]).T), Work.of(*np.array([p[1] for p in points]).T)
    together = step_time(arch, pricer, shards, work, overheads)
    for point, (shape, load) in enumerate(points):
        alone = step_time(arch, pricer, Shards.of(*shape), Work.of(*load), overheads)
        assert together.seconds[point] == pytest.approx(alone.seconds[0], rel=1e-12, abs=0)
    sums = [sum(together.shares(point).values()) for point in range(len(points)) if together.seconds[point] > 0]
    assert sums == pytest.approx([1.0] * len(sums), rel=1e-12)


def test_operators_of_a_step_are_summed_with_their_counts(ideal: Roofline, store_of: StoreOf) -> None:
    rows = _rows("gemm")
    pricer = _profiled(ideal, store_of(("gemm", "vllm", "1.0", rows)))
    first = {name: values[:1] for name, values in _points("gemm", rows).items()}
    gemm = Gemm("g", 3.0, first["m"], first["n"], first["k"], "bf16")
    time = price_operators([gemm, MemoryPass("m", 2.0, np.array([1e6]), 1.0)], pricer, 1)
    measured_s = float(np.array(rows["latency"], dtype=np.float64)[0]) * 1e-3
    assert time.device_s == pytest.approx([3 * measured_s + 2e-6])
    assert time.by_basis[Basis.IMPORTED] == pytest.approx([3 * measured_s])
