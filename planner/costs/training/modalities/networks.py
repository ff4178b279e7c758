"""Seconds, bytes and FLOPs of the networks beside a language model that it is trained with: towers and generators.

A tower (vision or audio encoder) is a pre-norm transformer whose tokens attend to all of their own image or chunk, with
products that make its tokens in front and projectors behind. Attention of n tokens to all n of them takes as many
products as causal attention of documents of 2 n, which is how its kernels are priced. A generator is priced by its
published operations a pixel. What is frozen has no gradients of its weights; a frozen tower has no backward pass at
all, since nothing in front of it is trained, and a frozen generator passes gradients through.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from planner.costs.operators.elementwise import ACTIVATION_BYTES
from planner.costs.operators.experts import EVEN
from planner.costs.operators.towers import TowerLoad, tower_layer
from planner.costs.training.activations import layer_activations
from planner.costs.training.config import Machine, Shard
from planner.costs.training.flops import PASSES
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel, KernelColumns
from planner.costs.training.layer_costs import cost_of, kernel_seconds
from planner.costs.training.layers.linear import linear_kernels
from planner.costs.training.layers.sizes import collectives
from planner.costs.training.memory import working_bytes
from planner.costs.training.rates import Rates
from planner.models.architecture import Encoder, Layer, Module

WEIGHT_BYTES = 2.0  # of a frozen element
ACTIVATION_BYTES_PER_PIXEL = 32_000.0
"""What a U-Net keeps of an image until its backward pass: 8 GB for 512 x 512 pixels, assumed (docs/multimodal.md)."""
PATCHES, PROJECTOR, GENERATOR = "patch_embedding", "projector", "generator"


@dataclass(frozen=True, slots=True)
class Trained:
    """What of a network learns."""

    network: bool = True
    projector: bool = True


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """One network of one micro-batch on one of its tensor-parallel ranks.

    `seconds_of` splits its passes by operator: (operator, forward, gradients of inputs, gradients of weights).
    """

    seconds_of: tuple[tuple[str, float, float, float], ...]
    in_flight_bytes: float  # kept from the forward to the backward pass
    work_bytes: float  # at work at a time, beside it
    trained_elements: float
    frozen_elements: float

    @property
    def pass_s(self) -> tuple[float, float, float]:
        """Seconds of forward, gradients of inputs and of weights."""
        forward_s, input_s, weight_s = np.array([row[1:] for row in self.seconds_of], float).sum(axis=0).tolist()
        return forward_s, input_s, weight_s

    @property
    def frozen_bytes(self) -> float:
        """Of the weights that do not learn."""
        return WEIGHT_BYTES * self.frozen_elements


def tower_shard(encoder: Encoder, shard: Shard, load: TowerLoad) -> Shard:
    """What one rank sees of a micro-batch in a block: whole images in bf16, however the sequence is cut behind it."""
    return replace(
        shard,
        hidden=encoder.hidden_size,
        sequence_tokens=max(round(load.tokens), 1),
        document_tokens=2.0 * load.attended,
        cp=1,
        context_parallel="ring",
        ep=1,
        etp=1,
        expert_load=EVEN,
        precision="bf16",
        lora_rank=0,
        captured=frozenset(),
    )


@lru_cache(maxsize=4096)
def tower_cost(
    machine: Machine, encoder: Encoder, shard: Shard, load: TowerLoad, rates: Rates, learns: Trained
) -> NetworkCost:
    """A tower with its projector; `shard` is that of the language model's layers."""
    own, layer = tower_shard(encoder, shard, load), tower_layer(encoder)
    merged = own.tokens / encoder.merge
    rows = _block_rows(machine, encoder, own, layer, rates, learns)
    rows.append(_row(PATCHES, machine, own, rates, _patch_kernels(machine, encoder, own), learns.network))
    rows.append(_projector_row(machine, encoder, own, merged, rates, learns))
    kept = encoder.num_layers * layer_activations(layer, own).total_bytes if learns.network else 0.0
    widths = sum(encoder.projector[:-1]) * encoder.projectors if learns.projector else 0
    kept += merged * (widths / own.tp + encoder.projector[-1] / own.spread) * ACTIVATION_BYTES
    projector = encoder.projector_parameters
    body = encoder.parameters - projector
    learnt = body * learns.network + projector * learns.projector
    work = working_bytes(layer, own) if learns.network else 2.0 * own.tokens * own.hidden * ACTIVATION_BYTES
    return NetworkCost(tuple(rows), kept, work, learnt / own.tp, (encoder.parameters - learnt) / own.tp)


def _block_rows(
    machine: Machine, encoder: Encoder, shard: Shard, layer: Layer, rates: Rates, learns: Trained
) -> list[tuple[str, float, float, float]]:
    """The blocks by what their kernels belong to."""
    table, second_K = kernel_seconds("layer", machine, shard, 0, rates, layer)
    seconds: dict[str, list[float]] = {}
    for name, part, second_s in zip(table.modules, table.part_K.tolist(), second_K.tolist(), strict=True):
        if part == FORWARD or learns.network:
            seconds.setdefault(name, [0.0, 0.0, 0.0])[part] += encoder.num_layers * second_s
    return [(name, forward, inputs, weights) for name, (forward, inputs, weights) in seconds.items()]


def _row(
    name: str, machine: Machine, shard: Shard, rates: Rates, kernels: Iterator[Kernel], learns: bool
) -> tuple[str, float, float, float]:
    """These kernels as a row; the forward pass alone where nothing learns."""
    kept = [kernel for kernel in kernels if kernel.part == FORWARD or learns]
    if not kept:
        return name, 0.0, 0.0, 0.0
    cost = cost_of(KernelColumns.of(kept), rates, machine.rated, shard)
    return name, cost.forward_s, cost.backward_input_s, cost.backward_weight_s


def _patch_kernels(machine: Machine, encoder: Encoder, shard: Shard) -> Iterator[Kernel]:
    """Products that make tokens of pixels or sound, whole on every rank; no gradient reaches the data."""
    for depth in encoder.patch_depths:
        kernels = linear_kernels(machine, PATCHES, shard, float(depth), float(encoder.hidden_size))
        yield from (kernel for kernel in kernels if kernel.part != BACKWARD_INPUT)


def _projector_row(
    machine: Machine, encoder: Encoder, shard: Shard, merged: float, rates: Rates, learns: Trained
) -> tuple[str, float, float, float]:
    """All projectors, columns shared out by tensor-parallel ranks, which sum the outputs."""
    kernels: list[Kernel] = []
    for place, (depth, columns) in enumerate(pairwise(encoder.projector)):
        for kernel in linear_kernels(machine, PROJECTOR, shard, float(depth), columns / shard.tp, rows=merged):
            passes_on = kernel.part == BACKWARD_INPUT and (learns.network or (learns.projector and place > 0))
            if kernel.part == FORWARD or passes_on or (kernel.part == BACKWARD_WEIGHT and learns.projector):
                kernels.append(kernel)
    if shard.tp > 1:
        size = merged * encoder.projector[-1] * ACTIVATION_BYTES
        kernels.append(collectives(machine, "tp", FORWARD, PROJECTOR, size, shard.tp, 1, ("all_reduce",)))
    name, *seconds = _row(PROJECTOR, machine, shard, rates, iter(kernels), True)
    forward_s, input_s, weight_s = (encoder.projectors * second_s for second_s in seconds)
    return name, forward_s, input_s, weight_s


@lru_cache(maxsize=4096)
def generator_cost(
    machine: Machine, generator: Module, shard: Shard, pixels: float, largest: int, rates: Rates, *, learns: bool
) -> NetworkCost:
    """A generator of images: its operations at the rate of products, split evenly by tensor-parallel ranks.

    pixels: of the mean sequence; largest: of the one image whose activations are held at a time, since each one's loss
    follows it at once.
    """
    once_s = pixels * shard.sequences * generator.flop_per_pixel / shard.tp / machine.peak_flop_per_s["bf16"]
    parts = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT) if learns else (FORWARD, BACKWARD_INPUT)
    kernels = iter([Kernel("gemm.bf16", part, GENERATOR, once_s) for part in parts])
    row = _row(GENERATOR, machine, replace(shard, lora_rank=0), rates, kernels, True)
    elements = generator.parameters / shard.tp
    work = largest * ACTIVATION_BYTES_PER_PIXEL / shard.tp
    return NetworkCost((row,), 0.0, work, elements * learns, elements * (not learns))


def tower_flop(encoder: Encoder, load: TowerLoad, learns: Trained) -> float:
    """Operations of a sequence in a tower and its projector, forward and, where they learn, backward."""
    hidden, wide = encoder.hidden_size, encoder.intermediate_size
    block = 2.0 * (4.0 * hidden**2 + 2.0 * hidden * wide) + 4.0 * hidden * load.attended
    body = load.tokens * (encoder.num_layers * block + 2.0 * hidden * sum(encoder.patch_depths))
    matrices = encoder.projectors * sum(depth * columns for depth, columns in pairwise(encoder.projector))
    projected = 2.0 * load.tokens / encoder.merge * matrices
    return body * _passes(learns.network) + projected * _passes(learns.projector or learns.network)


def generator_flop(generator: Module, pixels: float, *, learns: bool) -> float:
    """Operations of a sequence in a generator, gradients of its inputs included."""
    return pixels * generator.flop_per_pixel * (PASSES if learns else PASSES - 1.0)


def _passes(learns: bool) -> float:
    return PASSES if learns else 1.0
