"""Adaptive gating and chunked attention: what a mean number of experts and a place in a chunk do to the costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.operators.attention_core import attended, causal_pairs, chunk_pairs
from planner.costs.operators.experts import distinct_places
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    DecodeAttention,
    Experts,
    PrefillAttention,
    demand,
)
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture, MoeFfn
from planner.models.layout import architecture_from_data, architecture_to_data
from planner.models.library import find_model
from planner.models.parameters import parameter_counts


def _gated(mean_top_k: float) -> Architecture:
    arch = find_model("Qwen3-30B-A3B")
    layers = tuple(
        replace(layer, ffn=replace(layer.ffn, mean_top_k=mean_top_k)) if isinstance(layer.ffn, MoeFfn) else layer
        for layer in arch.layers
    )
    return replace(arch, layers=layers)


def _experts(arch: Architecture, shards: Shards, tokens: float) -> Experts:
    (op,) = (op for op in forward(arch, shards, Work.decode(tokens, 1000)) if isinstance(op, Experts))
    return op


def test_the_experts_of_a_token_on_average_set_the_work_and_the_active_parameters() -> None:
    whole, half = find_model("Qwen3-30B-A3B"), _gated(4.0)
    shards = Shards.of(1)
    flop = [float(demand(_experts(arch, shards, 64.0)).flop[0]) for arch in (whole, half)]
    assert flop[1] == flop[0] / 2
    active = [parameter_counts(arch).active for arch in (whole, half)]
    assert active[0] - active[1] == parameter_counts(whole).experts * 4 // 128
    assert parameter_counts(half).total == parameter_counts(whole).total


def test_a_mean_of_top_k_changes_nothing_and_a_smaller_one_never_costs_more() -> None:
    shards = Shards.of([1, 2], dp=[8, 4], ep=[8, 8])
    for tokens in (1.0, 32.0, 4096.0):
        whole, same, less = (
            demand(_experts(arch, shards, tokens)) for arch in (find_model("Qwen3-30B-A3B"), _gated(8.0), _gated(2.6))
        )
        np.testing.assert_array_equal(whole.size_bytes, same.size_bytes)
        assert np.all(less.size_bytes < whole.size_bytes)


def test_a_mean_number_of_experts_survives_the_way_through_plain_data() -> None:
    arch = _gated(2.5)
    data = architecture_to_data(arch, defaults=True)
    assert architecture_from_data(arch.name, data, where="test", source=arch.source) == arch


@given(places=st.sampled_from([2.0, 4.0, 8.0, 16.0]), low=st.integers(1, 7), share=st.floats(0.0, 1.0))
def test_a_mean_between_two_numbers_reaches_places_between_theirs(places: float, low: int, share: float) -> None:
    ranks = np.array([places])
    below, above = distinct_places(ranks, low, 64)[0], distinct_places(ranks, low + 1, 64)[0]
    assert distinct_places(ranks, low + share, 64)[0] == pytest.approx(below + share * (above - below), rel=1e-12)


@given(new=st.integers(1, 300), context=st.integers(0, 300), chunk=st.integers(1, 64))
def test_pairs_inside_chunks_are_counted_exactly(new: int, context: int, chunk: int) -> None:
    counted = sum(position % chunk + 1 for position in range(context, context + new))
    pairs = chunk_pairs(np.array([float(new)]), np.array([float(context)]), float(chunk))
    assert pairs[0] == counted
    assert pairs[0] <= causal_pairs(np.array([float(new)]), np.array([float(context)]), float(chunk))[0]


def test_a_decoding_token_sees_its_chunk_and_half_of_it_on_average() -> None:
    context = np.array([0.0, 100.0, 8191.0, 8192.0, 100_000.0])
    np.testing.assert_array_equal(attended(context, 8192, chunked=True), [0, 100, 8191, 4096, 4096])
    np.testing.assert_array_equal(attended(context, 8192, chunked=False), [0, 100, 8191, 8192, 8192])
    np.testing.assert_array_equal(attended(context, 0, chunked=False), context)


def test_llama_4_pays_for_chunks_in_three_of_four_layers() -> None:
    arch = find_model("Llama-4-Maverick")
    decode = [op for op in forward(arch, Shards.of(1), Work.decode(4, 65536)) if isinstance(op, DecodeAttention)]
    chunked = [op for op in decode if op.chunked]
    # Groups of equal layers: dense and MoE ones apart.
    assert sum(op.count for op in chunked) == 36
    assert sum(op.count for op in decode) == 48
    full = next(op for op in decode if not op.chunked)
    assert demand(chunked[0]).flop[0] * 16 == demand(full).flop[0]
    prefill = [op for op in forward(arch, Shards.of(1), Work.prefill(65536)) if isinstance(op, PrefillAttention)]
    long, short = (next(op for op in prefill if op.chunked is flag) for flag in (False, True))
    assert demand(short).flop[0] == pytest.approx(demand(long).flop[0] / 8, rel=0.001)
