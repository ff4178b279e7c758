"""Every kernel that a profile holds, prepared and timed on the processor at very small sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.costs.operators.kernels import Experts as ExpertsOperator
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.choice import TableChooser
from planner.costs.rates.evidence import Basis
from planner.costs.rates.profiled import Profiled
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.table_keys import PASS_OF
from planner.costs.shape_list import shape_list
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.profiles.store import ProfileStore
from planner.hardware.profiling.attention_shapes import (
    DecodeAttentionShape,
    LatentDecodeShape,
    LatentPrefillShape,
    PrefillAttentionShape,
)
from planner.hardware.profiling.device import describe
from planner.hardware.profiling.expert_kernels import experts
from planner.hardware.profiling.journal import ProfileJournal
from planner.hardware.profiling.kernel import UnsupportedShapeError
from planner.hardware.profiling.kernel_shape import KernelShape
from planner.hardware.profiling.kernels import prepare
from planner.hardware.profiling.loads import expert_loads
from planner.hardware.profiling.measure import measure
from planner.hardware.profiling.shapes import (
    GRADIENTS,
    PASS_KINDS,
    BatchedGemmShape,
    CopyShape,
    ExpertsShape,
    Family,
    GemmShape,
    LaunchShape,
    MemoryPassShape,
)
from planner.hardware.profiling.timing import one_thread, time_shape
from planner.models.library import find_model

torch = pytest.importorskip("torch", reason="profiling needs PyTorch")
CPU = torch.device("cpu")
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 16}
MOE: dict[str, Any] = {"moe_tp": 1, "ep": 2, "hidden": 32, "intermediate": 16, "top_k": 2, "num_experts": 8}

SHAPES: dict[str, KernelShape] = {
    "product in bf16": GemmShape(4, 32, 64),
    "product in fp32": GemmShape(4, 32, 64, "fp32"),
    "product with 4-bit weights": GemmShape(4, 32, 64, "int4"),
    "logits": GemmShape(2, 512, 64),
    "gradient of weights": GemmShape(32, 64, 16),
    "causal prefill with grouped heads": PrefillAttentionShape(2, 32, **HEADS),
    "packed sequences of unequal length": PrefillAttentionShape(3, 32, **HEADS, uneven=1),
    "sliding window": PrefillAttentionShape(1, 32, **HEADS, window=8),
    "gradient of attention": PrefillAttentionShape(1, 32, **HEADS, backward=1),
    "decoding": DecodeAttentionShape(2, 48, **HEADS),
    "decoding in a window": DecodeAttentionShape(2, 48, **HEADS, window=16),
    "latent prefill": LatentPrefillShape(1, 32, 2, 24, 16),
    "latent decoding": LatentDecodeShape(2, 48, 4, 24, 16),
    "absorbed projection": BatchedGemmShape(4, 2, 16, 32, "mla_gen_pre"),
    **{f"experts, {load}": ExpertsShape(16, **MOE, distribution=load) for load in ("balanced", "power_law_1.2")},
    **{f"experts, gradient of {side}": ExpertsShape(16, **MOE, gradient=side) for side in GRADIENTS if side},
    **{f"experts without gate, {side}": ExpertsShape(16, **MOE, gated=0, gradient=side) for side in GRADIENTS},
    **{kind: MemoryPassShape(2**14, kind, 64) for kind in PASS_KINDS},
    "copy on the device": CopyShape(4096, "device_to_device"),
    **{f"launches, {mode}": LaunchShape(2, mode) for mode in ("eager", "graph")},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_kernel_is_timed_on_the_processor(name: str) -> None:
    with one_thread(CPU):
        timing = time_shape(SHAPES[name], CPU, describe(CPU))
    assert 0 < timing.p10_s <= timing.median_s <= timing.p90_s < 1
    assert timing.samples >= 9
    assert timing.source.startswith("torch ")


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_kernel_has_a_place_in_a_table(name: str) -> None:
    from planner.hardware.profiles.layout import LAYOUTS

    shape = SHAPES[name]
    layout = LAYOUTS[shape.table]
    assert set(shape.row()) == {*layout.axes, *layout.keys}
    assert shape.flop >= 0
    assert shape.memory_bytes >= shape.size_bytes > 0


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (CopyShape(4096, "host_to_device"), "no copies between host and device"),
        (GemmShape(4, 32, 64, "fp8"), "no 8-bit"),
        (GemmShape(4, 32, 40, "int4"), "k in multiples of 32"),
        (ExpertsShape(16, **MOE, precision="fp8"), "8-bit grouped products"),
    ],
)
def test_kernels_that_a_processor_lacks_are_named(shape: KernelShape, said: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=said):
        prepare(shape, CPU, fp8=False)


def test_an_8_bit_product_casts_its_activations_and_multiplies() -> None:
    kernel = prepare(GemmShape(16, 32, 64, "fp8"), CPU, fp8=True)
    result = kernel.run()
    assert isinstance(result, torch.Tensor)
    assert result.shape == (16, 32)
    assert result.dtype == torch.bfloat16
    assert bool(result.isfinite().all())


def test_packed_sequences_differ_in_length_and_average_the_length() -> None:
    lengths = PrefillAttentionShape(5, 64, **HEADS, uneven=1).lengths
    assert lengths == [32, 48, 64, 80, 96]
    even, uneven = PrefillAttentionShape(5, 64, **HEADS), PrefillAttentionShape(5, 64, **HEADS, uneven=1)
    assert uneven.flop > even.flop  # the longest cost more than the shortest save


def test_a_latent_decoding_step_that_writes_its_scores_needs_memory_for_them() -> None:
    shape = LatentDecodeShape(256, 98304, 128, 576, 512)
    assert shape.size_bytes < 40e9
    assert shape.memory_bytes > 3 * 2 * 256 * 98304 * 128


@pytest.mark.parametrize("side", ["input", "weight"])
@pytest.mark.parametrize("gated", [0, 1])
def test_gradients_of_experts_have_the_sizes_of_what_they_are_gradients_of(side: str, gated: int) -> None:
    shape = ExpertsShape(16, **MOE, gated=gated, gradient=side)
    gradients = experts(shape, CPU, fp8=False).run()
    if side == "input":
        assert isinstance(gradients, torch.Tensor)
        assert gradients.shape == (sum(expert_loads(shape)), shape.hidden)
        return
    assert isinstance(gradients, tuple)
    up, down = gradients
    assert up.shape == (shape.local_experts, shape.hidden, shape.intermediate * (1 + gated))
    assert down.shape == (shape.local_experts, shape.intermediate, shape.hidden)


def test_gradients_of_8_bit_experts_are_refused() -> None:
    with pytest.raises(PlannerError, match="in bf16"):
        ExpertsShape(16, **MOE, precision="fp8", gradient="input")


def test_gradients_of_experts_are_priced_as_measured(tmp_path: Path) -> None:
    fixed = (*((name, MOE[name]) for name in MOE), ("distribution", "power_law_1.2"))
    families = [
        Family("experts", (*fixed, ("gradient", side)), (("tokens", (16, 64)),)) for side in ("", "input", "weight")
    ]
    measure(families, tmp_path, accelerator="h200_sxm", device="cpu", budget_s=20, version="2026.1.1")
    node = find_node("h200_sxm")
    roofline = Roofline(node.accelerator, Pool("here", node, 1).topology(), load_calibration().efficiencies)
    pricer = Profiled(roofline, TableChooser(ProfileStore.open([tmp_path]), "h200_sxm", "vllm", None))
    known = ProfileJournal.open(tmp_path, resume=True).timings
    unit = np.ones(1)
    for family, name in zip(families, ("experts", "experts_input_gradient", "experts_weight_gradient"), strict=True):
        op = ExpertsOperator(name, 1.0, unit * 64, unit, unit * 2, 32, 16, 2, 8, True, "bf16", "bf16")
        priced = pricer.price(op)
        assert priced.seconds[0] == pytest.approx(known[family.name, (64,)].median_s, rel=1e-9)
        assert priced.basis[0] == Basis.MEASURED


def test_every_pass_that_costs_look_up_is_measured_and_has_a_family() -> None:
    families = shape_list([find_model("qwen3-30b-a3b")], tp=(1,)).families
    swept = {dict(family.fixed)["pass_kind"] for family in families if family.kind == "memory_pass"}
    assert set(PASS_OF.values()) <= swept == set(PASS_KINDS)
