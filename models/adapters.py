"""LoRA adapters: the matrices of a model they change, and their tensors.

An adapter of rank r adds to a matrix of n inputs and m outputs the product of two of its own, n x r and r x m (Hu et
al., arXiv:2106.09685, section 4.1). Every expert has a pair of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import PlannerError, did_you_mean
from planner.models.architecture import Architecture, Layer
from planner.models.parameters import Tensor, layer_tensors

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE_FFN = ("gate_proj", "up_proj", "down_proj")
"""The matrices of grouped-query attention and of dense feed-forward layers, for `targets`."""

_MATRIX = "_proj"


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A low-rank change of all matrices called by one of `targets`, such as `q_proj` or `up_proj`, in every layer."""

    name: str
    rank: int
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise PlannerError(
                f"the rank of adapter `{self.name}` must be above zero, found {self.rank}", hint="write for example 16"
            )


def targets_of(arch: Architecture) -> tuple[str, ...]:
    """The names that an adapter of `arch` may target, in the order of its layers."""
    groups = [layer for layer, _ in arch.layer_groups()]
    return tuple(dict.fromkeys(_target(tensor) for _, tensor in _matrices(groups, arch)))


def adapter_tensors(adapter: LoraAdapter, arch: Architecture) -> tuple[Tensor, ...]:
    """Both factors of every changed matrix, named by layer; the wide factor is sharded as the matrix itself is.

    Raises PlannerError for a target that the model does not have.
    """
    known = targets_of(arch)
    for target in adapter.targets:
        if target not in known:
            raise PlannerError(
                f"`{arch.name}` has no matrix `{target}` for adapter `{adapter.name}` to change",
                hint=did_you_mean(target, list(known), otherwise=f"it has {', '.join(known)}"),
            )
    return tuple(
        factor
        for layer, tensor in _matrices(arch.layers, arch)
        if _target(tensor) in adapter.targets
        for factor in _factors(f"layers.{layer}.{tensor.name}", tensor, adapter.rank)
    )


def adapter_parameters(adapter: LoraAdapter, arch: Architecture, divisors: Mapping[str, float] | None = None) -> float:
    """Elements of all factors; with what each split divides a tensor by, those that a rank holds."""
    tensors = adapter_tensors(adapter, arch)
    return sum(tensor.elements / (1 if divisors is None else divisors[tensor.split]) for tensor in tensors)


def _factors(name: str, tensor: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The factor on the inputs is whole on each rank, that on the outputs sharded; row-sharded ones the reverse."""
    rows_sharded = _target(tensor) in ("o_proj", "down_proj", "out_proj")
    whole = "experts" if tensor.split == "experts" else "replicated"
    first = replace(tensor, name=f"{name}.lora_a", cols=rank, split=tensor.split if rows_sharded else whole)
    second = replace(tensor, name=f"{name}.lora_b", rows=rank, split=whole if rows_sharded else tensor.split)
    return first, second


def _matrices(layers: Sequence[Layer], arch: Architecture) -> Iterator[tuple[int, Tensor]]:
    """Every projection with the index of its layer among `layers`."""
    for index, layer in enumerate(layers):
        for tensor in layer_tensors(layer, arch):
            if tensor.name.endswith(_MATRIX):
                yield index, tensor


def _target(tensor: Tensor) -> str:
    """`up_proj` for `mlp.up_proj`; experts and shared experts go by the same names as a dense part."""
    return tensor.name.rpartition(".")[2]
