"""Networks beside the decoder: their tensors, their layout as data, their weight on a device, what has no cost."""

from dataclasses import replace

import numpy as np
import pytest
from checkpoint_tensors import model_tensors

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Gemm, demand
from planner.costs.operators.work import Shards, Work
from planner.costs.serving.memory import footprint
from planner.errors import PlannerError
from planner.models.architecture import Architecture, Module
from planner.models.layout import architecture_from_data, architecture_to_data
from planner.models.library import find_model
from planner.models.modules import module_parameters
from planner.models.parameters import weight_bytes

HEAD = Module("flow_head", 2, 8, 16, latent_size=4, condition_size=32, steps_per_token=3)


def _head_gemms(arch: Architecture, sequences: int) -> list[Gemm]:
    operators = forward(arch, Shards.of(1), Work.decode(sequences, 1000))
    return [op for op in operators if isinstance(op, Gemm) and op.name.startswith("flow_head")]


def test_a_flow_head_has_the_tensors_of_its_paper() -> None:
    # Matrices with bias: time (256 x 8, 8 x 8), condition, latent in, latent out, final modulation; in each of the two
    # blocks a LayerNorm, both matrices of the MLP and the modulation.
    ends = (256 * 8 + 8) + (8 * 8 + 8) + (32 * 8 + 8) + (4 * 8 + 8) + (8 * 4 + 4) + (8 * 16 + 16)
    block = 2 * 8 + (8 * 16 + 16) + (16 * 8 + 8) + (8 * 24 + 24)
    assert module_parameters(HEAD) == ends + 2 * block


def test_a_published_number_goes_before_a_count_and_other_kinds_have_nothing_else() -> None:
    assert module_parameters(replace(HEAD, parameters=7)) == 7
    assert module_parameters(Module("vocoder")) == 0
    assert module_parameters(Module("vocoder", parameters=9)) == 9


def test_modules_survive_the_way_through_plain_data() -> None:
    for name in ("NextStep-1", "Wan2.1-T2V-1.3B", "Step-Audio"):
        arch = find_model(name)
        for defaults in (False, True):
            data = architecture_to_data(arch, defaults=defaults)
            back = architecture_from_data(arch.name, data, where="test", source=arch.source)
            assert back == arch


def test_every_sampled_token_is_denoised_step_by_step() -> None:
    arch = find_model("NextStep-1")
    (head,) = (module for module in arch.modules if module.kind == "flow_head")
    flop = sum(float(op.count * demand(op).flop[0]) for op in _head_gemms(arch, 5))
    # Two operations for each element of its matrices, a run and a token: biases and norms are no products.
    assert flop == pytest.approx(2 * 5 * head.steps_per_token * module_parameters(head), rel=0.001)
    assert _head_gemms(replace(arch, modules=()), 5) == []


def test_only_networks_that_run_for_every_token_take_memory_of_the_decoder() -> None:
    arch = find_model("Qwen2.5-0.5B")
    inside, apart = replace(arch, modules=(HEAD,)), replace(arch, modules=(replace(HEAD, steps_per_token=0),))
    assert sum(footprint(inside).ends.values()) - sum(footprint(arch).ends.values()) == 2 * module_parameters(HEAD)
    assert footprint(apart) == footprint(arch)
    assert weight_bytes(apart) == weight_bytes(inside) == weight_bytes(arch) + 2 * module_parameters(HEAD)
    assert sum(tensor.elements for tensor in model_tensors(inside)) * 2 == weight_bytes(inside)


def test_a_diffusion_model_says_why_it_has_no_serving_costs() -> None:
    with pytest.raises(PlannerError, match="diffusion transformer denoises whole videos"):
        forward(find_model("Wan2.1-T2V-14B"), Shards.of(1), Work.decode(1, 10))


def test_the_decoder_of_a_speech_model_is_priced() -> None:
    operators = forward(find_model("Step-Audio"), Shards.of(8), Work.decode(np.array([16.0]), 2000))
    assert {"qkv", "decode_attention", "ffn_down"} <= {op.name for op in operators}


def test_an_entry_with_neither_layers_nor_modules_is_refused() -> None:
    with pytest.raises(PlannerError, match="`layers` is missing"):
        architecture_from_data("x", {"blocks": {}}, where="test")
    with pytest.raises(PlannerError, match="must be a list"):
        architecture_from_data("x", {"blocks": {}, "modules": {}}, where="test")
