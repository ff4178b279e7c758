"""What a host dispatches in a layer of experts beside the kernels that carry its work, and where it waits for counts.

Counted in Megatron-LM, release core_v0.13.1 (`megatron/core/transformer/moe`): `router.py` casts, masks and scatters
scores and computes a loss of balance from them; `token_dispatcher.py` sums the tokens of each expert, gathers the sums
of all ranks, copies five of them to the host and waits for them before the exchange; `moe_utils.py` permutes.
Products of experts are launched one by one from a loop of Transformer Engine's (`GroupedLinear`). All of it takes time
of the host alone, at `host_launch_s` an operation; the device is kept waiting where that is the longer of both.
"""

from collections.abc import Iterator

from planner.costs.training.config import Shard
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel

LOOP_SHARE = 0.25
"""Of an operation of the framework: a launch, or a view, from a loop in compiled code. 4 to 10 us over 14 to 50 us
(`planner/costs/training/physics/bounds.csv`)."""
_ROUTER = (20.0, 15.0)  # forward and backward, beyond the kernels of the router's selection
_FORWARDED = (10.0, 8.0)  # beyond permutation and exchange: layout, counts, handles, indices to a map
_PLAIN = (28.0, 20.0)  # sums, their gather and copies, masks and selections of an unfused permutation, probabilities
_CHUNK_SORTS = 3.0  # of tokens, of their probabilities, and back: a view for each chunk, then joined


def router_calls(module: str) -> Iterator[Kernel]:
    """Casts, masks, counts and the loss of balance."""
    yield from _calls(module, *_ROUTER)


def dispatch_calls(shard: Shard, module: str, num_experts: int) -> Iterator[Kernel]:
    """Counts and permutations around the exchange of tokens, and the wait for the rows of each expert.

    Plain dispatch that is not fused sorts chunks, one for each expert and rank that sends, by views that its backward
    pass undoes one by one (`sort_chunks_by_idxs`). Graphs have fixed rows and wait for none.
    """
    if shard.forwarded or shard.fused_dispatch:
        yield from _calls(module, *_FORWARDED)
    else:
        views = _CHUNK_SORTS * num_experts * LOOP_SHARE if shard.ep > 1 else 0.0
        yield from _calls(module, *(calls + views for calls in _PLAIN))
    if shard.host != "graphs":
        yield Kernel("counts", FORWARD, module)


def grouped_calls(shard: Shard, module: str, groups: float) -> Iterator[Kernel]:
    """Launches of one product of every expert and of its gradients, quantisation included, beyond the first."""
    more = (groups - 1.0) * LOOP_SHARE
    quantised = 2.0 if shard.precision != "bf16" else 1.0
    yield from _calls(module, more * quantised, more * quantised)
    if not shard.lora_rank:
        yield Kernel("host", BACKWARD_WEIGHT, module, launches=more)


def _calls(module: str, forward: float, backward: float) -> Iterator[Kernel]:
    yield Kernel("host", FORWARD, module, launches=forward)
    yield Kernel("host", BACKWARD_INPUT, module, launches=backward)
