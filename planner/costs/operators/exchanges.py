"""Exchanges between ranks: which collectives surround a part of a layer, what carries gradients back, and their sizes.

How long one takes is the topology's matter (`planner.costs.rates.collectives`, and for training
`planner.costs.training.layers.sizes`).
"""

from collections.abc import Iterable

SWEEPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""Times that a ring passes its buffer on: an all-reduce is a reduce-scatter and an all-gather."""
MIRRORED = {
    "all_reduce": "all_reduce",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
    "p2p": "p2p",
}
"""The collective that carries gradients back, of the same buffer (Korthikanti et al., arXiv:2205.05198, section 4)."""
LOSS_VALUES = 3.0
"""In fp32 a token, reduced over a split vocabulary: the largest logit, the target's and the sum of exponentials
(vocabulary-parallel cross-entropy of Megatron-LM, arXiv:1909.08053, section 3)."""


def around(sequence_parallel: bool) -> tuple[str, ...]:
    """The collectives of the hidden states of tensor-parallel ranks around attention or feed-forward part.

    Partial sums are reduced behind it; under sequence parallelism its input is gathered, and the sums scattered.
    """
    return ("all_gather", "reduce_scatter") if sequence_parallel else ("all_reduce",)


def mirrored(kinds: Iterable[str]) -> tuple[str, ...]:
    """What carries gradients back."""
    return tuple(MIRRORED[kind] for kind in kinds)


def sweeps(kinds: Iterable[str]) -> float:
    """Times that rings pass a buffer on for all of these."""
    return sum(SWEEPS[kind] for kind in kinds)
