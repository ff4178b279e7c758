"""What hosts dispatch in a layer beside the kernels that carry its work, where they wait for counts, and what CUDA
graphs take from them.

Counted in Megatron-LM, release core_v0.13.1 (`megatron/core/transformer/moe`): `router.py` casts, masks and scatters
scores and computes a loss of balance from them; `token_dispatcher.py` sums the tokens of each expert, gathers the sums
of all ranks, copies five of them to the host and waits for them before the exchange; `moe_utils.py` permutes.
Products of experts are launched one by one from a loop of Transformer Engine's (`GroupedLinear`). All of it takes time
of the host alone, at `host_launch_s` an operation; the device is kept waiting where that is the longer of both.

Graphs of parts of layers (`cuda_graph_modules`, `transformer_config.py` of core_v0.19.0) end where tokens leave for
their experts, whose rows differ from step to step; graphs of whole steps have room for the most rows instead.
"""

from collections.abc import Iterable, Iterator

from planner.costs.training.config import GraphScope, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel

LOOP_SHARE = 0.25
"""Of an operation of the framework: a launch, or a view, from a loop in compiled code. 4 to 10 us over 14 to 50 us
(`planner/costs/training/physics/bounds.csv`)."""
_ROUTER = (20.0, 15.0)  # forward and backward, beyond the kernels of the router's selection
_FORWARDED = (10.0, 8.0)  # beyond permutation and exchange: layout, counts, handles, indices to a map
_PLAIN = (28.0, 20.0)  # sums, their gather and copies, masks and selections of an unfused permutation, probabilities
_FUSED = (22.0, 16.0)  # the same without masks and selections: permutation and sorts are one kernel each
_CHUNK_SORTS = 3.0  # of tokens, of their probabilities, and back: a view for each chunk, then joined
_REPLAYED = 4.0  # arguments copied, an autograd function called, the graph launched, an event recorded
_PREPROCESSED = 0.5  # of the operations around an exchange: what comes before it (`MoELayer.preprocess`)
_NODES = 4.0  # of a layer whose exchange runs beside computing: before dispatch, dispatch, experts, combination
_NODE_CALLS = 8.0  # streams changed twice, events waited for and recorded, inputs detached, outputs kept, storage freed


def captured(shard: Shard, scope: GraphScope, kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """These kernels, replayed with a graph where the code captures this part of a layer."""
    if scope not in shard.captured:
        return iter(kernels)
    return (kernel._replace(captured=True) for kernel in kernels)


def replay_calls(shard: Shard, module: str, scopes: Iterable[GraphScope]) -> Iterator[Kernel]:
    """Of the one graph that holds those of these neighbouring parts of a layer that are captured."""
    if not shard.captured.isdisjoint(scopes):
        yield from _calls(module, _REPLAYED, _REPLAYED)


def overlap_calls(shard: Shard, module: str) -> Iterator[Kernel]:
    """Of a schedule that runs the exchange of one micro-batch beside the products of another, layer by layer.

    `ScheduleNode` of `megatron/core/pipeline_parallel/utils.py` (core_v0.19.0), four of them a layer
    (`model_chunk_schedule_plan.py`).
    """
    if shard.ep_overlap and shard.ep > 1:
        yield from _calls(module, _NODES * _NODE_CALLS, _NODES * _NODE_CALLS)


def router_calls(module: str) -> Iterator[Kernel]:
    """Casts, masks, counts and the loss of balance."""
    yield from _calls(module, *_ROUTER)


def dispatch_calls(shard: Shard, module: str, num_experts: int) -> Iterator[Kernel]:
    """Counts and permutations around the exchange of tokens, and the wait for the rows of each expert.

    Plain dispatch that is not fused sorts chunks, one for each expert and rank that sends, by views that its backward
    pass undoes one by one (`sort_chunks_by_idxs`). Graphs of whole steps and experts padded to their capacity have
    fixed rows, sort by one view and wait for none (`drop_and_pad`).
    """
    padded = shard.expert_load.padded
    calls = _FORWARDED if shard.forwarded else _FUSED if shard.fused_dispatch else _PLAIN
    views = _CHUNK_SORTS * num_experts * LOOP_SHARE if calls is _PLAIN and shard.ep > 1 and not padded else 0.0
    before, after = ([share * count for count in calls] for share in (_PREPROCESSED, 1.0 - _PREPROCESSED))
    yield from captured(shard, "moe_preprocess", _calls(module, *before))
    yield from _calls(module, *(count + views for count in after))
    if shard.host != "graphs" and not padded:
        yield Kernel("counts", FORWARD, module)


def grouped_calls(shard: Shard, module: str, groups: float) -> Iterator[Kernel]:
    """Launches of one product of every expert and of its gradients, quantisation included, beyond the first."""
    more = (groups - 1.0) * LOOP_SHARE
    quantised = 2.0 if shard.precision != "bf16" else 1.0
    yield from _calls(module, more * quantised, more * quantised)
    if not shard.lora_rank:
        yield Kernel("host", BACKWARD_WEIGHT, module, launches=more)


def bias_calls(module: str, groups: float) -> Iterator[Kernel]:
    """Biases added expert by expert: a product and a sum each, and six operations of autograd for their gradients."""
    yield from _calls(module, 2.0 * groups, 6.0 * groups * LOOP_SHARE)


def _calls(module: str, forward: float, backward: float) -> Iterator[Kernel]:
    yield Kernel("host", FORWARD, module, launches=forward)
    yield Kernel("host", BACKWARD_INPUT, module, launches=backward)
