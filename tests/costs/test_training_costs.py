"""Layers, steps and memory of training: formulas of papers where there are some, and what must hold everywhere."""

from dataclasses import replace

import numpy as np
import pytest
from estimate_equals_solve import compared_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from training_replay import replay

from planner.costs.training.activations import layer_activations
from planner.costs.training.config import (
    FRAMEWORKS,
    MEGATRON,
    Machine,
    RecomputeConfig,
    Schedule,
    Shard,
    TrainingConfig,
    even_layout,
    machine_of,
    stage_layers,
)
from planner.costs.training.intervals import distance, run_class, step_interval_s
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from planner.costs.training.layer_costs import layer_cost, together
from planner.costs.training.layers.decoder import layer_kernels
from planner.costs.training.layers.ends import embedding_kernels, loss_kernels, padded_vocabulary
from planner.costs.training.layers.sizes import spread_ranks, sweep, tile_waste
from planner.costs.training.measured_layouts import layout_of
from planner.costs.training.memory import allocated_bytes, in_flight_bytes, memory, work_bytes
from planner.costs.training.optimizers.host import host_update_s
from planner.costs.training.parameters import (
    Parameters,
    layer_parameters,
    rank_parameters,
    state_bytes,
    total_parameters,
)
from planner.costs.training.pipeline import pipeline_time
from planner.costs.training.rates import default_rates
from planner.costs.training.shapes import shape_of
from planner.costs.training.step import message_seconds, step_time
from planner.costs.training.volumes import data_parallel_volume
from planner.hardware.library import find_node
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, Layer, MoeFfn, Precisions
from planner.solvers.schedules.pipeline import stages_of_ranks

HIDDEN, HEADS, LENGTH = 4096, 32, 2048
GPT = Layer(GroupedQueryAttention(HEADS, HEADS, 128, 128), DenseFfn(4 * HIDDEN, gated=False))
LLAMA = Layer(GroupedQueryAttention(HEADS, 8, 128, 128), DenseFfn(14336))
SPARSE = Layer(GroupedQueryAttention(HEADS, 8, 128, 128), MoeFfn(64, 4, 1024))


def machine() -> Machine:
    return machine_of(find_node("hgx_h100"))


def architecture(layer: Layer = GPT, num_layers: int = 16) -> Architecture:
    return Architecture("test", HIDDEN, 51200, (layer,) * num_layers, False, 0, Precisions())


def configuration(layer: Layer = GPT, num_layers: int = 16, **choices: object) -> TrainingConfig:
    base = TrainingConfig(architecture(layer, num_layers), machine(), LENGTH, 256, 1, dp=8)
    return replace(base, **choices)  # type: ignore[arg-type]


def shard(**choices: object) -> Shard:
    return replace(configuration(framework=FRAMEWORKS["megatron_2021"]).shard, **choices)  # type: ignore[arg-type]


def flop(layer: Layer, of: Shard, part: int) -> float:
    """Operations of a pass at the data sheet's rate, without the padding of tiles."""
    kernels = [k for k in layer_kernels(machine(), layer, of) if k.part == part]
    return sum(k.flop_s for k in kernels) * machine().peak_flop_per_s["bf16"]


def test_a_gpt_layer_does_24_b_s_h_squared_and_4_b_s_squared_h_operations() -> None:
    expected = 24.0 * LENGTH * HIDDEN**2 + 4.0 * LENGTH**2 * HIDDEN  # arXiv:2104.04473, appendix
    assert flop(GPT, shard(), FORWARD) == pytest.approx(expected, rel=0.1)  # ragged waves add some
    assert flop(GPT, shard(), FORWARD) >= expected


def test_backward_products_are_twice_the_forward_ones() -> None:
    forward = flop(GPT, shard(), FORWARD)
    backward = flop(GPT, shard(), BACKWARD_INPUT) + flop(GPT, shard(), BACKWARD_WEIGHT)
    assert backward == pytest.approx(2.0 * forward, rel=0.1)


def test_adapters_leave_frozen_weights_without_a_gradient() -> None:
    full, adapted = flop(LLAMA, shard(), BACKWARD_WEIGHT), flop(LLAMA, shard(lora_rank=16), BACKWARD_WEIGHT)
    assert 0.0 < adapted < 0.2 * full


def test_activations_of_a_layer_are_34_sbh_and_5_abs_squared() -> None:
    """Korthikanti et al., arXiv:2205.05198, eqs (1) and (2)."""
    sbh, scores = LENGTH * HIDDEN, HEADS * LENGTH**2
    assert layer_activations(GPT, shard()).total_bytes == pytest.approx(34 * sbh + 5 * scores)
    split = layer_activations(GPT, shard(tp=8)).total_bytes
    assert split == pytest.approx(10 * sbh + 24 * sbh / 8 + 5 * scores / 8)


def test_without_dropout_no_masks_are_kept() -> None:
    sbh, scores = LENGTH * HIDDEN, HEADS * LENGTH**2
    assert layer_activations(GPT, shard(hidden_dropout=False)).total_bytes == pytest.approx(32 * sbh + 5 * scores)
    assert layer_activations(GPT, shard(attention_dropout=False)).total_bytes == pytest.approx(34 * sbh + 2 * scores)


def test_sequence_parallelism_divides_all_activations() -> None:
    """arXiv:2205.05198, eq. (4)."""
    whole = layer_activations(GPT, shard()).total_bytes
    divided = layer_activations(GPT, shard(tp=8, sequence_parallel=True)).total_bytes
    assert divided == pytest.approx(whole / 8)


def test_recomputed_scores_leave_34_sbh() -> None:
    """Queries, keys and values stay, for they are what is computed again from (arXiv:2205.05198, section 5)."""
    kept = layer_activations(GPT, shard())
    assert kept.without(("core_attention",)) == pytest.approx(34 * LENGTH * HIDDEN)
    assert kept.input_bytes == 2 * LENGTH * HIDDEN


def test_what_the_attention_puts_out_is_kept_once_but_for_narrow_products_and_all_to_alls() -> None:
    """A sum of 4 bytes a row and head of the fused kernel is all that computing it again saves, else its output too."""
    output, sums = 2 * LENGTH * HIDDEN, 4 * LENGTH * HEADS
    for change, apart in (({}, 0), ({"precision": "fp8"}, output), ({"cp": 2, "context_parallel": "ulysses"}, output)):
        own = shard(attention="cudnn", **change)
        kept = layer_activations(GPT, own)
        saved = kept.total_bytes - kept.without(("core_attention",))
        assert saved == pytest.approx((apart + sums) / own.cp)


def test_parameters_are_those_of_the_model() -> None:
    each = layer_parameters(GPT, HIDDEN, 1, 1, 1).total
    assert each == pytest.approx(12 * HIDDEN**2, rel=1e-3)
    config = configuration(tp=4, pp=4, dp=1)
    elements = sum(rank_parameters(config, rank).dense for rank in range(4)) * 4
    assert elements == pytest.approx(total_parameters(config.arch), rel=0.01)


@given(stage=st.integers(0, 2))
def test_each_zero_stage_keeps_less(stage: int) -> None:
    low, high = (configuration(zero_stage=s) for s in (stage + 1, stage))
    parameters = rank_parameters(low, 0)
    assert state_bytes(low, parameters).total_bytes < state_bytes(high, parameters).total_bytes


def test_unsharded_adam_keeps_18_bytes_a_parameter() -> None:
    config = configuration(zero_stage=0)
    parameters = rank_parameters(config, 0)
    assert state_bytes(config, parameters).total_bytes == pytest.approx(18 * parameters.total)


def test_recomputation_trades_time_for_memory() -> None:
    options = (
        RecomputeConfig(),
        RecomputeConfig("selective", ("mlp",)),
        RecomputeConfig("full", num_layers=8),
        RecomputeConfig("full"),
    )
    configs = [configuration(LLAMA, micro_batch=4, recompute=option) for option in options]
    seconds = [step_time(config).step_s for config in configs]
    kept = [float(memory(config).activations_R[0]) for config in configs]
    assert seconds[0] < seconds[1]
    assert seconds[0] < seconds[2] < seconds[3]
    assert kept[0] > kept[1]
    assert kept[0] > kept[2] > kept[3]


CLOSED_BUBBLES: list[tuple[str, int, tuple[float, float, float], float]] = [
    # schedule, chunks, (F, B, W) of a rank, bubble of 4 ranks: B is the gradient of inputs, W that of weights
    ("1f1b", 1, (1.0, 2.0, 3.0), 3 * 6.0),  # (p - 1)(F + B + W), arXiv:2104.04473, section 2.2
    ("interleaved", 2, (1.0, 2.0, 3.0), 3 * 6.0 / 2),  # the same over v, section 2.2.2
    ("interleaved", 4, (1.0, 2.0, 3.0), 3 * 6.0 / 4),
    ("zb_h1", 1, (2.0, 2.0, 1.0), 3 * 3.0),  # (p - 1)(F + B - W), arXiv:2401.10241, table 2
    ("zb_h2", 1, (2.0, 2.0, 1.0), 3 * 2.0),  # (p - 1)(F + B - 2W), the same
    ("zb_v", 2, (1.0, 1.0, 1.0), 0.0),  # none where the three are equal, section 6
    ("dualpipe", 1, (1.0, 1.0, 1.0), 2.0 / 1.0),  # (PP/2 - 1)(F&B + B - 3W), its README: B the whole backward pass
]


@pytest.mark.parametrize(("schedule", "vpp", "times", "bubble"), CLOSED_BUBBLES)
def test_every_schedule_takes_its_micro_batches_and_the_bubble_of_its_paper(
    schedule: str, vpp: int, times: tuple[float, float, float], bubble: float
) -> None:
    p, m = 4, 8
    ranks = stages_of_ranks(schedule, p, vpp)
    pass_S3 = np.tile(np.array(times) / vpp, (p * vpp, 1))
    seconds, busy_R = pipeline_time(schedule, vpp, m, ranks, pass_S3, np.zeros(p * vpp - 1), 0.0)
    assert seconds - busy_R.max() == pytest.approx(bubble)
    assert busy_R == pytest.approx([m * sum(times)] * p)


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb_h2", 1), ("dualpipev", 2)])
def test_more_micro_batches_than_are_simulated_take_as_long_as_if_they_were(
    schedule: str, vpp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    ranks, pass_S3, message_B = stages_of_ranks(schedule, 4, vpp), draw.random((4 * vpp, 3)), draw.random(4 * vpp - 1)
    whole_s, whole_R = pipeline_time(schedule, vpp, 400, ranks, pass_S3, message_B, 0.3)
    monkeypatch.setattr("planner.costs.training.pipeline.MOST_PASSES", 100 * 4 * vpp)
    drawn_s, drawn_R = pipeline_time(schedule, vpp, 400, ranks, pass_S3, message_B, 0.3)
    assert drawn_s == pytest.approx(whole_s, rel=1e-3)
    assert drawn_R == pytest.approx(whole_R)


def test_plans_are_estimated_at_the_price_that_solve_gives_them() -> None:
    plans = list(compared_plans(60, seed=1))
    assert max(plan.error for plan in plans) < 1e-9
    assert max(plan.memory_error for plan in plans) < 1e-9
    assert len({plan.evaluation.choice.schedule for plan in plans}) >= 5
    assert any(plan.row_s is not None for plan in plans)


IN_FLIGHT: list[tuple[Schedule, int, list[float]]] = [
    # schedule, chunks a rank, chunks in flight by rank of 4 with 16 micro-batches
    ("1f1b", 1, [4, 3, 2, 1]),  # p - i, arXiv:2104.04473, section 2.2.1
    ("interleaved", 2, [4 + 8 - 1, 4 + 6 - 1, 4 + 4 - 1, 4 + 2 - 1]),  # p (v - 1) + 2 (p - i) - 1, section 2.2.2
    ("interleaved", 3, [8 + 8 - 1, 8 + 6 - 1, 8 + 4 - 1, 8 + 2 - 1]),
    ("zb_h1", 1, [4, 4, 4, 4]),  # p, arXiv:2401.10241, table 2
    ("zb_h2", 1, [7, 7, 7, 7]),  # 2 p - 1, the same
    ("zb_v", 2, [8, 8, 8, 8]),  # p whole ranks' worth, of two chunks each: arXiv:2405.15362, section 3
    ("dualpipe", 1, [5, 5, 5, 5]),  # PP + 1, its README
    ("dualpipev", 2, [9, 9, 9, 9]),  # 2 PP + 1 of half as many layers, the same
]


@pytest.mark.parametrize(("schedule", "vpp", "chunks_R"), IN_FLIGHT)
def test_micro_batches_in_flight_are_those_of_every_schedule(
    schedule: Schedule, vpp: int, chunks_R: list[float]
) -> None:
    assert in_flight_bytes(schedule, 4, vpp, 16, np.ones(4 * vpp)).tolist() == chunks_R
    assert in_flight_bytes(schedule, 4, vpp, 1600, np.ones(4 * vpp)).tolist() == chunks_R


def test_no_more_is_in_flight_than_the_batch_has() -> None:
    assert in_flight_bytes("1f1b", 4, 1, 2, np.ones(4)).tolist() == [2.0, 2.0, 2.0, 1.0]
    assert in_flight_bytes("1f1b", 4, 1, 1, np.ones(4)).tolist() == [1.0] * 4
    assert in_flight_bytes("1f1b", 1, 1, 64, np.array([3.0])).tolist() == [3.0]


def test_the_loss_and_a_layer_at_work_are_not_on_the_last_rank_at_the_same_time() -> None:
    """Where the vocabulary is small the layer counts there, where it is large the loss; elsewhere always the layer."""
    for vocab, lost in ((64, False), (10**6, True)):
        config = configuration(pp=4, dp=2)
        config = replace(config, arch=replace(config.arch, vocab_size=vocab))
        work, context_bytes = work_bytes(config), default_rates().get("memory.context_bytes")
        assert (work.loss_bytes > work.layer_bytes) == lost
        wanted = [work.layer_bytes] * 3 + [max(work.layer_bytes, work.loss_bytes)]
        assert memory(config).workspace_R == pytest.approx(np.array(wanted) + context_bytes)


def test_what_is_computed_again_or_fetched_is_there_for_one_layer_at_a_time() -> None:
    plain = configuration(LLAMA, micro_batch=2)
    kept, base = layer_activations(LLAMA, plain.shard), work_bytes(plain).layer_bytes
    for recompute, again in (
        (RecomputeConfig("full"), kept.total_bytes - kept.input_bytes),
        (RecomputeConfig("full", num_layers=1), kept.total_bytes - kept.input_bytes),
        (RecomputeConfig("selective", ("mlp", "core_attention")), kept.of_module["mlp"]),
        (RecomputeConfig("selective", ("core_attention",)), 0.0),
    ):
        assert work_bytes(replace(plain, recompute=recompute)).layer_bytes == pytest.approx(base + again)
    moved = replace(plain, offload=frozenset({"activations"}))
    assert work_bytes(moved).layer_bytes == pytest.approx(base + kept.total_bytes)
    assert not memory(moved).activations_R.any()


def test_a_stand_in_of_each_shape_of_a_weight_stays_beside_all_else() -> None:
    """Matrices of queries, keys and values, of the output, and both of the dense part, whatever the number of layers;
    none of frozen weights, and none of codes whose gradients are tensors of their own."""
    plain = configuration(GPT, framework=MEGATRON)
    without = replace(plain, framework=replace(MEGATRON, gradient_placeholders=False))
    for end in ("layer_bytes", "loss_bytes"):
        more = getattr(work_bytes(plain), end) - getattr(work_bytes(without), end)
        assert more == pytest.approx(2 * (3 + 1 + 4 + 4) * HIDDEN**2 / plain.tp)
    frozen = replace(plain, task="lora")
    assert work_bytes(frozen) == work_bytes(replace(without, task="lora"))


@pytest.mark.parametrize(("code", "sent"), [("megatron", 2 * 2), ("torchtitan", 4)])
def test_whole_layers_pass_through_where_weights_and_gradients_are_scattered(code: str, sent: int) -> None:
    """Two layers of weights; gradients of one on their way, and of one in the buffer of Megatron-FSDP."""
    config = replace(configuration(LLAMA, framework=FRAMEWORKS[code]), micro_batch=8)
    elements = layer_parameters(LLAMA, HIDDEN, 1, 1, 1).total
    plain, summed, gathered = (work_bytes(replace(config, zero_stage=stage)) for stage in (1, 2, 3))
    assert summed.layer_bytes - plain.layer_bytes == pytest.approx(elements * sent)
    assert gathered.layer_bytes - summed.layer_bytes == pytest.approx(elements * 2 * 2)
    assert gathered.loss_bytes - summed.loss_bytes == pytest.approx(2 * 51200 * HIDDEN)


def test_gradients_made_one_by_one_take_the_room_of_freed_activations() -> None:
    code = FRAMEWORKS["torchtitan"]
    assert isinstance(LLAMA.ffn, DenseFfn)
    wide = replace(LLAMA, ffn=replace(LLAMA.ffn, intermediate_size=2**17))
    config = replace(configuration(wide, framework=code, tp=1), micro_batch=1, sequence_tokens=64)
    elements = layer_parameters(wide, HIDDEN, 1, 1, 1).total
    assert work_bytes(replace(config, zero_stage=2)).layer_bytes == pytest.approx(elements * (2 + 4))


def test_interleaved_chunks_in_flight_fill_the_first_stages_of_a_rank() -> None:
    """Rounds of p micro-batches go through each stage of the rank in turn: 11 chunks are 4 of the first, then 4, 3."""
    each = np.array([1.0, 1.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0, 100.0, 100.0, 100.0, 100.0])
    assert in_flight_bytes("interleaved", 4, 3, 16, each)[2] == 4.0 + 40.0 + 300.0


@settings(max_examples=20, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), micro_batch=st.sampled_from([1, 2, 4]))
def test_steps_and_memory_are_positive_and_finite(tp: int, pp: int, micro_batch: int) -> None:
    config = configuration(LLAMA, tp=tp, pp=pp, micro_batch=micro_batch)
    time, held = step_time(config), memory(config)
    assert 0.0 < time.pipeline_s < time.step_s < 1e4
    assert held.total_R.max() > allocated_bytes(config) > held.state_R.min() > 0.0
    assert (held.total_R > held.state_R).all()


def test_arrays_of_runs_price_as_one_run_does() -> None:
    configs = [
        configuration(LLAMA, tp=4, dp=2),
        configuration(SPARSE, ep=8),
        configuration(GPT, pp=4, vpp=2, schedule="interleaved", dp=2, recompute=RecomputeConfig("full")),
        configuration(LLAMA, recompute=RecomputeConfig("selective", ("mlp",)), zero_stage=3),
        configuration(LLAMA, task="lora", precision="fp8", framework=FRAMEWORKS["composer"]),
    ]
    together_s = replay(configs).step_s(default_rates())
    assert together_s == pytest.approx([step_time(config).step_s for config in configs], rel=0.01)


def test_a_product_pays_for_ragged_tiles_and_waves() -> None:
    assert tile_waste(128 * 132, 256, 1, 132) == pytest.approx(1.0)
    assert tile_waste(100, 256, 1, 132) > tile_waste(128, 256, 1, 132)
    assert tile_waste(64, 64, 1, 132) > 4.0


def test_a_sweep_leaves_the_node_only_once_a_node() -> None:
    assert spread_ranks(machine(), 16, 1) == (8.0, 2.0)
    assert spread_ranks(machine(), 16, 8) == (1.0, 16.0)
    kernel = sweep(machine(), "dp", 0, "", 8e9, 16, 1, 1.0)
    assert kernel.inside_s == pytest.approx(7e9 / 450e9)
    assert kernel.outside_s == pytest.approx(0.5 * 8e9 / 8 / 50e9)


def test_slow_hosts_bound_small_layers() -> None:
    small = replace(configuration(GPT, framework=FRAMEWORKS["megatron_2021"]), sequence_tokens=64)
    graphs = replace(small, framework=replace(small.framework, host="graphs"))
    slow, fast = (layer_cost(c.machine, GPT, c.shard, default_rates()).total_s for c in (small, graphs))
    assert slow > 2.0 * fast
    assert together(np.array([2.0]), np.array([1.0]), 50.0)[0] == pytest.approx(2.0)


def test_layouts_hold_every_layer() -> None:
    assert even_layout(126, 64, True) == (1, *(2 for _ in range(62)), 1)
    assert sum(even_layout(61, 16, False)) == 61
    assert stage_layers(configuration(layers_of_stage=(5, 5, 6))) == (5, 5, 6)


def test_whole_vocabularies_that_do_not_align_are_slow() -> None:
    assert padded_vocabulary(50257, 1) == (50257.0, "unaligned")
    assert padded_vocabulary(50257, 2) == (25216.0, "gemm")
    assert padded_vocabulary(51200, 1) == (51200.0, "gemm")


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_ends_look_rows_up_and_sum_over_the_split_vocabulary(sequence_parallel: bool) -> None:
    """Bytes by hand: bf16 hidden states of all tokens, logits of 51200 / 4 columns, three floats a token."""
    node, of = machine(), replace(shard(), tp=4, sequence_parallel=sequence_parallel)
    states, logits = LENGTH * HIDDEN * 2.0, LENGTH * 51200 / 4
    own = states / (4 if sequence_parallel else 1)
    wanted = {
        "embedding": [(FORWARD, 2 * states, 1), (BACKWARD_WEIGHT, 3 * states, 1)],
        "loss": [
            (FORWARD, 2 * own, 1), (BACKWARD_INPUT, 3 * own, 1),
            (FORWARD, 18 * logits, 4), (BACKWARD_INPUT, 6 * logits, 1),
        ],
    }  # fmt: skip
    reduced = (FORWARD, 2 * 12 * LENGTH, 2)
    exchanged: dict[str, list[tuple[int, float, float]]] = {  # an all-reduce is a scatter and a gather
        "embedding": [(FORWARD, states, 1), (BACKWARD_WEIGHT, states, 1)],
        "loss": [(FORWARD, states, 1), reduced, (BACKWARD_INPUT, 2 * states, 2)],
    }
    if not sequence_parallel:
        exchanged = {"embedding": [(FORWARD, 2 * states, 2)], "loss": [reduced, (BACKWARD_INPUT, 2 * states, 2)]}
    for module, kernels in (("embedding", [*embedding_kernels(node, of)]), ("loss", [*loss_kernels(node, of, 51200)])):
        passes = [k for k in kernels if k.kind == "elementwise"]
        moved = [(k.part, k.move_s * node.memory_bandwidth_bytes_per_s, k.launches) for k in passes]
        assert np.array(moved) == pytest.approx(np.array(wanted[module]))
        sums = [k for k in kernels if k.kind == "tp"]
        sent = [(k.part, k.inside_s * node.link_bytes_per_s * 4 / 3, k.launches) for k in sums]
        assert np.array(sent) == pytest.approx(np.array(exchanged[module]))
    products = [k for k in loss_kernels(node, of, 51200) if k.kind.startswith("gemm")]
    assert [k.part for k in products] == [FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT]


def test_frozen_output_matrices_need_no_states_of_other_ranks_again() -> None:
    full, adapted = (replace(shard(), tp=4, sequence_parallel=True, lora_rank=rank) for rank in (0, 16))
    runs = [
        sum(k.launches for k in loss_kernels(machine(), of, 51200) if k.kind == "tp" and k.part == BACKWARD_INPUT)
        for of in (full, adapted)
    ]
    assert runs == [2.0, 1.0]


def test_adapters_alone_make_a_shape_one_of_fine_tuning() -> None:
    assert [shape_of(machine(), GPT, shard(lora_rank=rank)).kind[-1] for rank in (0, 16)] == [False, True]


def test_a_step_lies_in_the_interval_of_its_class_or_of_all_runs() -> None:
    rates, config = default_rates(), configuration(SPARSE)
    assert run_class(config, rates).startswith("moe")
    assert run_class(replace(config, arch=architecture(), task="lora"), rates).startswith("lora")
    spread = {run_class(config, rates): (-0.5, 0.25), "all": (0.1, -0.1)}
    known = replace(rates, spread=spread, spread_by_distance=0.0)
    assert step_interval_s(config, 2.0, known) == pytest.approx((2 * np.exp(-0.5), 2 * np.exp(0.25)))
    wider = 1.0 + 0.3 * distance(layout_of(config))
    apart = step_interval_s(config, 2.0, replace(known, spread_by_distance=0.3))
    assert wider > 1.0
    assert apart == pytest.approx((2 * np.exp(-0.5 * wider), 2 * np.exp(0.25 * wider)))
    assert step_interval_s(replace(config, arch=architecture()), 2.0, known) == (2.0, 2.0)
    assert step_interval_s(config, 2.0, replace(rates, spread={})) == (2.0, 2.0)


@pytest.mark.parametrize(("stage", "own", "gradients"), [(0, 1e9, 1e9), (1, 1e9 / 8, 1e9), (2, 1e9 / 8, 1e9 / 8)])
def test_an_update_reads_and_writes_the_states_of_a_rank_and_its_gradients(
    stage: int, own: float, gradients: float
) -> None:
    """Twelve bytes of fp32 states in and out, the gradient in, the bf16 weight out; gradients cleared, and normed.

    Where the host updates, the device clears and norms its gradients alone.
    """
    config = configuration(zero_stage=stage)
    width, node = config.framework.gradient_bytes, config.machine
    volume = data_parallel_volume(config, Parameters(1e9, 0.0))
    moved = own * (2 * 12 + 2 + width) + gradients * 2 * width
    assert volume.update_s * node.memory_bandwidth_bytes_per_s == pytest.approx(moved)
    assert volume.offload_s == 0.0
    hosted = data_parallel_volume(replace(config, offload=frozenset({"optimizer"})), Parameters(1e9, 0.0))
    assert hosted.update_s * node.memory_bandwidth_bytes_per_s == pytest.approx(gradients * 2 * width)
    assert hosted.offload_s == pytest.approx(host_update_s(node.node, node.generation, own, node.host_bytes_per_s))
    assert hosted.offload_s * node.host_bytes_per_s > 6 * own  # an fp32 gradient there, a bf16 weight back
    swept = 7 / 8 * 1e9 / node.link_bytes_per_s
    assert volume.reduce_inside_s == pytest.approx((2 if stage == 0 else 1) * swept * config.framework.reduce_bytes)
    assert volume.gather_inside_s == pytest.approx(0.0 if stage == 0 else 2 * swept)


def test_a_hand_over_goes_to_the_rank_one_stage_on() -> None:
    rates, inside = default_rates(), configuration(tp=2, dp=1, pp=4)
    sent, generation = LENGTH * HIDDEN * 2 / 2, inside.machine.generation
    near_s = sent / inside.machine.link_bytes_per_s / rates.get("link.p2p", generation)
    assert message_seconds(inside, rates) == pytest.approx(near_s + rates.get("start.p2p"))
    far_s = sent / inside.machine.fabric_bytes_per_s / rates.get("fabric.p2p", generation)
    assert message_seconds(replace(inside, dp=4), rates) == pytest.approx(far_s + rates.get("start.p2p"))
    assert message_seconds(replace(inside, pp=1), rates) == 0.0
