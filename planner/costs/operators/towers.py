"""Operators of a tower (vision or audio encoder) and its projectors, forward: tower x shards x tokens in, kernels out.

A tower is a pre-norm transformer whose tokens attend to all of their own image or chunk. Attention of n tokens to all n
of them takes as many products as causal attention of n tokens behind n / 2 others, which is how its kernels are priced.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.elementwise import ACTIVATION_BYTES
from planner.costs.operators.forward import layer_operators
from planner.costs.operators.kernels import Collective, Gemm, Operator
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture, DenseFfn, Encoder, GroupedQueryAttention, Layer, Precisions


@dataclass(frozen=True, slots=True)
class TowerLoad:
    """What a tower sees of the mean sequence."""

    tokens: float  # its own, before they merge
    attended: float  # tokens that one of them attends to: the sum of squares of its inputs' lengths over their sum


def tower_layer(encoder: Encoder) -> Layer:
    """One block of a tower."""
    heads, width = encoder.num_heads, encoder.hidden_size // encoder.num_heads
    attention = GroupedQueryAttention(heads, heads, width, width, qkv_bias=True, output_bias=True)
    return Layer(attention, DenseFfn(encoder.intermediate_size, gated=False, bias=True), 2)


def tower_operators(arch: Architecture, encoder: Encoder, shards: Shards, load: TowerLoad) -> list[Operator]:
    """Every kernel of one run over `load` on the tensor-parallel ranks of `shards` [N], in the format of `arch`."""
    form, ones = arch.precisions.encoder, np.ones(len(shards))
    stored = replace(Precisions(), attention=form, ffn=form)
    tower = replace(arch, hidden_size=encoder.hidden_size, precisions=stored)
    work = Work.prefill(load.tokens * ones, load.attended / 2.0 * ones, load.tokens / load.attended * ones)
    operators = list(layer_operators(tower, shards, work, tower_layer(encoder), float(encoder.num_layers)))
    for depth in encoder.patch_depths:
        operators.append(Gemm("patch_embedding", 1.0, work.tokens, encoder.hidden_size * ones, depth * ones, form))
    operators += _projectors(encoder, shards, work.tokens / encoder.merge, form)
    return operators


def _projectors(encoder: Encoder, shards: Shards, merged: Floats, form: str) -> list[Operator]:
    """Columns shared out by tensor-parallel ranks, which sum the outputs."""
    ones, count = np.ones(len(shards)), float(encoder.projectors)
    operators: list[Operator] = [
        Gemm("projector", count, merged, columns / shards.tp, depth * ones, form)
        for depth, columns in pairwise(encoder.projector)
    ]
    size = merged * encoder.projector[-1] * ACTIVATION_BYTES
    operators.append(Collective("projector_all_reduce", count, "all_reduce", size, shards.tp, ones))
    return operators
