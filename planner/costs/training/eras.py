"""Training codes by era: those of the calibration, and MegaScale's with what it started from.

Source: Jiang et al., "MegaScale", NSDI 2024, sections 3.1 to 3.4 and table 3. `megatron_2022` is Megatron-LM as
MegaScale found it: the code of 2021 with sequence parallelism, a fused attention kernel of FlashAttention's first
generation, hosts that wait after each hand-over and eight loaders a node that read the same samples. No rate is fitted
to either.
"""

from collections.abc import Collection
from dataclasses import replace

from planner.costs.training.config import FRAMEWORKS, MEGATRON, Framework, GraphScope
from planner.models.architecture import Architecture, GroupedQueryAttention

_2022 = replace(
    FRAMEWORKS["megatron_2021"],
    name="megatron_2022",
    attention="triton",
    sequence_parallel=True,
    fused=False,
    logit_bytes=MEGATRON.logit_bytes,
    loaders_per_node=8,
    blocking_hand_overs=True,
    hidden_dropout=False,
    attention_dropout=False,
)
MEGASCALE = replace(
    _2022,
    name="megascale",
    attention="flash",
    fused=True,
    host="eager",
    parallel_block=True,
    loaders_per_node=0,
    blocking_hand_overs=False,
)
ERAS: dict[str, Framework] = {**FRAMEWORKS, "megatron_2022": _2022, "megascale": MEGASCALE}
"""Training codes by name; see `planner.costs.training.config.FRAMEWORKS` for those that were calibrated."""


def captured(code: Framework, scope: Collection[GraphScope]) -> Framework:
    """The code with these parts of layers, or whole steps, launched as CUDA graphs."""
    if "full_iteration" in scope:
        return replace(code, name=f"{code.name}_graphs", host="graphs", captured=frozenset())
    return replace(code, captured=frozenset(scope))


def windowed(arch: Architecture, window_tokens: int | None) -> Architecture:
    """The model with every softmax attention over the last `window_tokens` tokens only; as it is for None."""
    if window_tokens is None:
        return arch
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, window_tokens=window_tokens))
        if isinstance(layer.mixer, GroupedQueryAttention)
        else layer
        for layer in arch.layers
    )
    return replace(arch, layers=layers)
