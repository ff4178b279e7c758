"""The products of layers against the matrices that models consist of, element by element."""

import numpy as np
import pytest

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Gemm
from planner.costs.operators.products import gradient_sizes, mixer_products, sparse_products
from planner.costs.operators.work import Shards, Work
from planner.costs.training.config import Shard, TrainingConfig, machine_of
from planner.costs.training.kernels import FORWARD
from planner.costs.training.layers.attention import attention_kernels
from planner.hardware.library import find_node
from planner.models.architecture import Layer, MoeFfn
from planner.models.library import find_model
from planner.models.parameters import layer_tensors

MODELS = (
    "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3.5-122B-A10B", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "google/gemma-3-12b-it", "stepfun-ai/step3",
)  # fmt: skip
LAYERS = [
    pytest.param(name, layer, id=f"{name.split('/')[1]}-{index}")
    for name in MODELS
    for index, (layer, _) in enumerate(find_model(name).layer_groups())
    if layer.mixer is not None
]


@pytest.mark.parametrize(("model", "layer"), LAYERS)
def test_products_of_a_mixer_hold_each_of_its_matrices_once(model: str, layer: Layer) -> None:
    arch = find_model(model)
    tensors = [tensor for tensor in layer_tensors(layer, arch) if tensor.part == "attention"]
    matrices = [tensor.elements for tensor in tensors if tensor.name.endswith("proj")]
    assert layer.mixer is not None
    products = mixer_products(layer.mixer, arch.hidden_size, 1.0)
    assert sum(product.depth * product.columns for product in products) == sum(matrices)


@pytest.mark.parametrize(("model", "layer"), LAYERS)
def test_training_multiplies_tokens_with_what_serving_does(model: str, layer: Layer) -> None:
    arch = find_model(model)
    shard = TrainingConfig(arch, machine_of(find_node("hgx_h100")), 4096, 8, 1).shard
    trained = _trained(layer, shard)
    work = Work.prefill(np.array([4096.0]))
    own = type(arch)(arch.name, arch.hidden_size, 0, (layer,), arch.tied_embeddings, 0, arch.precisions)
    names = {product.name for product in mixer_products(layer.mixer, arch.hidden_size, 1.0)}  # type: ignore[arg-type]  # a mixer
    served = [op for op in forward(own, Shards.of(1), work) if isinstance(op, Gemm) and op.name in names]
    assert sum(float(op.m[0] * op.n[0] * op.k[0]) for op in served) == pytest.approx(trained)


def _trained(layer: Layer, shard: Shard) -> float:
    """Multiply-adds of the forward products of one layer's mixer."""
    assert layer.mixer is not None
    kernels = attention_kernels(machine_of(find_node("hgx_h100")), layer.mixer, shard)
    return sum(kernel.m * kernel.n * kernel.k for kernel in kernels if kernel.part == FORWARD)


def test_heads_split_over_ranks_and_each_rank_has_one() -> None:
    layer = find_model("meta-llama/Meta-Llama-3.1-8B").layers[0]
    assert layer.mixer is not None
    qkv, out = mixer_products(layer.mixer, 4096, np.array([1.0, 8.0, 16.0]))
    assert np.asarray(qkv.columns).tolist() == [(32 + 2 * 8) * 128, (4 + 2) * 128, (2 + 2) * 128]
    assert np.asarray(out.depth).tolist() == [4096, 512, 256]


def test_gradients_of_a_product_are_products_of_as_many_operations() -> None:
    of_input, of_weights = gradient_sizes(5.0, 7.0, 11.0)
    assert of_input == (5.0, 11.0, 7.0)  # [m, n] x [n, k]
    assert of_weights == (11.0, 7.0, 5.0)  # [k, m] x [m, n]


def test_latent_experts_have_products_around_them() -> None:
    ffn = MoeFfn(64, 4, 1024, latent_size=512)
    names = [(product.name, product.depth, product.columns) for product in sparse_products(ffn, 2048)]
    assert names == [("router", 2048, 64), ("latent_down", 2048, 512), ("latent_up", 512, 2048)]
