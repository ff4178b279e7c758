"""Muon: momentum of each matrix made orthogonal by Newton-Schulz steps; embeddings and vectors keep Adam.

Sources: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024): five steps, each
X <- a X + (b A + c A A) X with A = X X^T, on matrices of m <= n rows and columns in bf16; Liu et al., "Muon is Scalable
for LLM Training" (arXiv:2502.16982), section 2.3, for one fp32 momentum in place of Adam's two.

Megatron-LM (core 0.16): `muon` keeps all states on every rank, `dist_muon` gives whole layers to data-parallel ranks,
which sum gradients on all of them and gather what each has updated. Tensor-parallel ranks update their own block of a
matrix (`--muon-tp-mode blockwise`). Figures are those of a mean element of the layers, for ranks hold whole ones.
"""

from collections.abc import Iterator
from functools import lru_cache

from planner.models.architecture import Architecture
from planner.models.parameters import Tensor, edge_tensors, layer_tensors

STEPS = 5
MASTER_BYTES = 8.0  # fp32 weight and momentum


@lru_cache(maxsize=256)
def muon_share(arch: Architecture) -> float:
    """Of the elements outside experts, those of matrices in layers."""
    dense = [tensor for tensor in _layers(arch) if tensor[0].part != "experts"]
    orthogonal = sum(times * tensor.elements for tensor, times in dense if min(tensor.rows, tensor.cols) > 1)
    return orthogonal / (sum(times * tensor.elements for tensor, times in dense) + _edges(arch))


@lru_cache(maxsize=1024)
def muon_flop_per_element(arch: Architecture, tp: int, etp: int) -> tuple[float, float]:
    """Operations of an update by element of a rank: outside experts, and in them."""
    dense = sum(times * _flop(tensor, arch.hidden_size, tp) for tensor, times in _layers(arch) if _outside(tensor))
    elements = sum(times * _elements(tensor, tp) for tensor, times in _layers(arch) if _outside(tensor))
    expert = [(tensor, times) for tensor, times in _layers(arch) if not _outside(tensor)]
    of_experts = sum(times * _flop(tensor, arch.hidden_size, etp) for tensor, times in expert)
    held = sum(times * tensor.elements / etp for tensor, times in expert)
    return dense / (elements + _edges(arch) / tp), of_experts / held if held else 0.0


def newton_schulz_flop(rows: float, cols: float) -> float:
    """Of one matrix: A = X X^T, A A and (b A + c A A) X, `STEPS` times, two operations a product of scalars."""
    small, large = min(rows, cols), max(rows, cols)
    return STEPS * (4.0 * small**2 * large + 2.0 * small**3)


def _layers(arch: Architecture) -> Iterator[tuple[Tensor, int]]:
    for layer, times in arch.layer_groups():
        for tensor in layer_tensors(layer, arch):
            yield tensor, times


def _edges(arch: Architecture) -> float:
    return float(sum(tensor.elements for tensor in edge_tensors(arch)))


def _outside(tensor: Tensor) -> bool:
    return tensor.part != "experts"


def _elements(tensor: Tensor, tp: int) -> float:
    return tensor.elements / (1 if tensor.split == "replicated" else tp)


def _flop(tensor: Tensor, hidden: int, tp: int) -> float:
    """Of the blocks of one rank: what is split is the side that is not the model's width."""
    if min(tensor.rows, tensor.cols) == 1:
        return 0.0
    if tensor.split == "replicated":
        return tensor.copies * newton_schulz_flop(tensor.rows, tensor.cols)
    rows, cols = (tensor.rows, tensor.cols / tp) if tensor.rows == hidden else (tensor.rows / tp, tensor.cols)
    return tensor.copies * newton_schulz_flop(rows, cols)
