"""Seconds of each layer, embedding and loss on one rank, forward and backward; cached by what they depend on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.recompute import shares_again
from planner.costs.rates.evidence import Basis
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import FORWARD, PASSES, KernelColumns, sums
from planner.costs.training.layers.decoder import layer_kernels
from planner.costs.training.layers.ends import embedding_kernels, loss_kernels, mtp_kernels
from planner.costs.training.rates import Rates
from planner.costs.training.shapes import shape_of
from planner.costs.training.stages import Part
from planner.models.architecture import Layer

EXCHANGES = {
    **dict.fromkeys(("tp", "tp.beside"), "tp"),
    **dict.fromkeys(("cp", "cp.gather", "cp.heads"), "cp"),
    **dict.fromkeys(("ep", "ep.overlapped"), "ep"),
}


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds of one micro-batch in one layer, or in an end of the model; exchanges are what shows of them.

    `forward_of_module` splits `forward_s` by what recomputation can name: core_attention, attention, mlp, moe, ...
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    exchange_s: Mapping[str, float]  # of "tp", "cp" and "ep", contained in the three above
    forward_of_module: Mapping[str, float]
    measured_s: float = 0.0  # of the device's time, by tables that we measured
    imported_s: float = 0.0  # and with the help of those of others

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_input_s + self.backward_weight_s

    def again_s(self, modules: Collection[str]) -> float:
        """Of the forward pass of these modules, all that they hold included, or of the policy by operator."""
        return sum(share * self.forward_of_module.get(name, 0.0) for name, share in shares_again(modules).items())

    def times(self, factor: float) -> "LayerCost":
        """Every second of it, `factor` times as long."""
        if factor == 1.0:
            return self
        return LayerCost(
            factor * self.forward_s,
            factor * self.backward_input_s,
            factor * self.backward_weight_s,
            {name: factor * value for name, value in self.exchange_s.items()},
            {name: factor * value for name, value in self.forward_of_module.items()},
        )


@lru_cache(maxsize=65536)
def layer_cost(machine: Machine, layer: Layer, shard: Shard, rates: Rates) -> LayerCost:
    """One decoder layer."""
    cost = cost_of(kernel_columns("layer", machine, shard, layer=layer), rates, machine.rated, shard)
    if cost.measured_s:  # the factors of measured shapes correct the rates that our tables replace
        return cost
    return cost.times(rates.shapes.factor(shape_of(machine, layer, shard)))


@lru_cache(maxsize=65536)
def end_cost(
    end: Part, machine: Machine, shard: Shard, vocab: int, rates: Rates, layer: Layer | None = None
) -> LayerCost:
    """The embedding in front of the first layer; final norm, logits and loss behind the last; or one head of
    multi-token prediction with this layer, its loss included."""
    return cost_of(kernel_columns(end, machine, shard, vocab, layer), rates, machine.rated, shard)


@lru_cache(maxsize=65536)
def kernel_columns(
    part: Part, machine: Machine, shard: Shard, vocab: int = 0, layer: Layer | None = None
) -> KernelColumns:
    """The kernels of a decoder layer, or of an end of the model; those without a launch are left out."""
    match part, layer:
        case "layer", Layer():
            kernels = layer_kernels(machine, layer, shard)
        case "mtp", Layer():
            kernels = mtp_kernels(machine, shard, layer, vocab)
        case "embedding", _:
            kernels = embedding_kernels(machine, shard)
        case _:
            kernels = loss_kernels(machine, shard, vocab)
    return KernelColumns.of(kernel for kernel in kernels if kernel.launches > 0)


def cost_of(table: KernelColumns, rates: Rates, generation: str, shard: Shard) -> LayerCost:
    """Seconds of the passes: those of the device, or of the host where it cannot launch kernels as fast."""
    second_K, basis_K = table.measured(rates, generation)
    device, passes = _passes(table, second_K, rates, shard)
    exchange: dict[str, float] = {}
    module: dict[str, float] = {}
    stretch = float(passes[FORWARD] / device[FORWARD]) if device[FORWARD] > 0 else 1.0
    for index, kind in enumerate(table.kinds):
        if kind in EXCHANGES:
            exchange[EXCHANGES[kind]] = exchange.get(EXCHANGES[kind], 0.0) + float(second_K[index])
        if table.part_K[index] == FORWARD:
            name = table.modules[index]
            module[name] = module.get(name, 0.0) + float(second_K[index]) * stretch
    from_tables = (float(second_K[basis_K == basis].sum()) for basis in (Basis.MEASURED, Basis.IMPORTED))
    return LayerCost(float(passes[0]), float(passes[1]), float(passes[2]), exchange, module, *from_tables)


def _passes(table: KernelColumns, second_K: Floats, rates: Rates, shard: Shard) -> tuple[Floats, Floats]:
    """Seconds of the three passes on the device, and with the host that launches them."""
    device = sums(table.part_K, second_K, PASSES)
    launch_K = np.where(table.captured_K, rates.get("host_launch_s.graphs"), host_launch_s(rates, shard))
    host = sums(table.part_K, table.launches_K * launch_K, PASSES)
    return device, together(device, host, rates.get("host_overlap"))


def kernel_seconds(
    part: Part, machine: Machine, shard: Shard, vocab: int, rates: Rates, layer: Layer | None
) -> tuple[KernelColumns, Floats]:
    """The kernels of a decoder layer or an end of the model, and what each takes of its `LayerCost` [K]."""
    table = kernel_columns(part, machine, shard, 0 if part in ("layer", "embedding") else vocab, layer)
    second_K, basis_K = table.measured(rates, machine.rated)
    device, passes = _passes(table, second_K, rates, shard)
    stretch = np.divide(passes, device, out=np.ones(PASSES), where=device > 0)
    factor = 1.0
    if part == "layer" and layer is not None and not (basis_K == Basis.MEASURED).any():
        factor = rates.shapes.factor(shape_of(machine, layer, shard))
    return table, factor * stretch[table.part_K] * second_K


def host_launch_s(rates: Rates, shard: Shard) -> float:
    """Seconds of the host for one kernel; hosts that launch a group's exchanges wait for the latest of them."""
    return rates.get(f"host_launch_s.{shard.host}") * (1.0 + rates.get("host_jitter") * jitter(shard.tp))


def jitter(tp: int) -> float:
    """How much of the spread between hosts a tensor-parallel group sees, 1 for a group of eight."""
    return ((tp - 1.0) / 7.0) ** 2


def together(device_s: Floats, host_s: Floats, sharpness: float) -> Floats:
    """Seconds of a pass whose kernels the host launches meanwhile: the larger of both, more where they are close.

    The p-norm of the two: kernels of one pass differ, so that some wait for the host while it is ahead elsewhere.
    """
    larger = np.maximum(np.maximum(device_s, host_s), 1e-30)
    return np.asarray(larger * ((device_s / larger) ** sharpness + (host_s / larger) ** sharpness) ** (1.0 / sharpness))
