"""Whether attention-FFN disaggregation pays for decoding: the best unit, compared with the best usual instance.

A plan is weighed as a whole by the solver. Here only decoding counts, tokens a second and device while a step takes no
longer than the limit: the best unit of the search against the best decode instance of the search, and against what no
engine of a plan does, both sides on every device with two micro-batches of which one computes while the other
exchanges (two-batch overlap, DeepSeek's profile of decoding).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import exchange_copies, forward
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.overlap import cycle_s
from planner.costs.rates.step import host_s, price_operators
from planner.costs.serving.attention_ffn import EXCHANGE
from planner.costs.serving.memory import kv_cache_bytes, weight_bytes
from planner.kinds.serve.options import AttentionFfn
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.points import DECODE_BATCHES, PoolCosts
from planner.kinds.serve.steady.shapes import InstanceShape, filling_rule, group_devices
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.models.architecture import GroupedQueryAttention, LatentAttention, MoeFfn
from planner.plan.records import BY_NUMBER

MOST_OVERLAPPED_GPUS = 1 << 9


@dataclass(frozen=True, slots=True)
class UnsplitInstance:
    """Both sides on every device: attention data-parallel, experts spread over all."""

    gpus: int
    tp: int
    ep: int
    micro_batches: int  # 2: exchanges hide behind the work of the other one
    sequences: int  # of a rank
    step_s: float
    tokens_per_s_per_gpu: float

    @property
    def name(self) -> str:
        """In words."""
        shape = f"{self.gpus} GPUs, attention tp{self.tp}, experts ep{self.ep}"
        return f"{shape}{', exchanges hidden' if self.micro_batches > 1 else ''}, {self.sequences} sequences a rank"


def advice(
    candidates: Sequence[Candidate],
    target: Target,
    costs_of_pool: Mapping[tuple[str, int], PoolCosts],
    copies: tuple[int, ...],
) -> AttentionFfn | None:
    """What a plan says of it, with the candidates of the search; None where no unit of any pool keeps the limits."""
    decoding = [candidate for candidate in candidates if _rate(candidate, target) > 0.0]
    units = [candidate for candidate in decoding if candidate.ffn is not None]
    if not units:
        return None
    best = max(units, key=lambda candidate: _rate(candidate, target))
    pool_costs = costs_of_pool[best.model, best.pool]
    together = max((_rate(candidate, target) for candidate in decoding if candidate.function == "decode"), default=0.0)
    overlapped = best_unsplit(pool_costs, target.context, target.tpot_limit_s, target.resident_tokens, (2,), copies)
    ffn = best.ffn
    assert ffn is not None
    return AttentionFfn(
        pays=_rate(best, target) > together,
        attention_gpus=best.shape.devices,
        ffn_gpus=ffn.shape.devices,
        attention_tp=best.shape.tp,
        ffn_tp=ffn.shape.tp,
        ep=ffn.shape.ep,
        micro_batches=ffn.micro_batches,
        sequences=best.max_batch,
        tokens_per_s_per_gpu=_rate(best, target),
        limited_by=waits_for(best, target, pool_costs),
        together_tokens_per_s_per_gpu=together,
        overlapped_tokens_per_s_per_gpu=0.0 if overlapped is None else overlapped.tokens_per_s_per_gpu,
    )


def _rate(candidate: Candidate, target: Target) -> float:
    """Output tokens a second and device of decoding at full batches."""
    capacity = candidate.capacities[target.index]
    if capacity is None or not candidate.decodes or not capacity.rate_per_s:
        return 0.0
    return candidate.max_batch * candidate.shape.dp / capacity.tpot_s / candidate.devices


def waits_for(
    candidate: Candidate, target: Target, pool_costs: PoolCosts
) -> Literal["attention", "feed-forward", "network", "host", "latency"]:
    """What a step of a unit at its full batch waits for."""
    ffn = candidate.ffn
    assert ffn is not None
    sides = candidate.sides(pool_costs)
    units = sides.units(candidate.shape, ffn.shape, ffn.micro_batches)
    step = sides.decode_step(units, np.array([float(candidate.max_batch)]), target.context)
    waited_for = step.waits_for(0, ffn.micro_batches)
    return cast(Literal["attention", "feed-forward", "network", "host", "latency"], waited_for)


def best_unsplit(
    pool_costs: PoolCosts,
    context: float,
    tpot_s: float,
    resident_tokens: float,
    micro_batches: tuple[int, ...],
    copies: tuple[int, ...] = (BY_NUMBER,),
) -> UnsplitInstance | None:
    """The best design with both sides on every device; None where none keeps the limit and fits.

    `copies`: redundant experts that are tried, BY_NUMBER for experts that no load places.
    """
    instances = [
        instance
        for shape in _shapes(pool_costs)
        for redundant in copies
        for parts in micro_batches
        for instance in _best_batch(
            pool_costs, replace(shape, redundant=redundant), parts, (context, tpot_s, resident_tokens)
        )
    ]
    return max(instances, key=lambda instance: instance.tokens_per_s_per_gpu, default=None)


def _shapes(pool_costs: PoolCosts) -> Iterator[InstanceShape]:
    arch, pool = pool_costs.costs.arch, pool_costs.pool
    experts = [layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    mixers = (GroupedQueryAttention, LatentAttention)
    heads = {layer.mixer.num_heads for layer in arch.layers if isinstance(layer.mixer, mixers)}
    largest = min(group_devices(pool), pool.node.scale_up_size)
    most = min(pool.num_gpus, MOST_OVERLAPPED_GPUS)
    for gpus in (1 << power for power in range(int(math.log2(most)) + 1)):
        for tp in (1 << power for power in range(largest.bit_length())):
            ep = gpus if experts else 1
            whole = gpus % tp == 0 and all(count % tp == 0 for count in heads)
            if whole and (gpus == tp or experts) and all(count % ep == 0 for count in experts):
                yield InstanceShape(tp, 1, gpus // tp, gpus // ep if ep > 1 else tp, ep)


def _best_batch(
    pool_costs: PoolCosts, shape: InstanceShape, parts: int, asked: tuple[float, float, float]
) -> Iterator[UnsplitInstance]:
    """The largest batch that keeps the limit and fits; none where experts cannot be placed so."""
    context, tpot_s, resident_tokens = asked
    arch, batches = pool_costs.costs.arch, np.array(DECODE_BATCHES, dtype=np.float64)
    if filling_rule(shape, arch) is not None:
        return
    shards = Shards.of(*(np.full(len(batches), degree) for degree in shape.all_degrees))
    step_s = unsplit_step_s(pool_costs.costs.of_role("decode"), shards, batches, context, parts)
    cache = kv_cache_bytes(arch, shards, np.full(len(batches), resident_tokens)) * batches
    room = pool_costs.room_bytes - weight_bytes(arch, shards)
    fits = (step_s <= tpot_s) & (cache <= room)
    if fits.any():
        index = int(np.flatnonzero(fits)[-1])
        sequences, seconds = int(batches[index]), float(step_s[index])
        rate = sequences / shape.tp / seconds
        yield UnsplitInstance(shape.devices, shape.tp, shape.ep, parts, sequences, seconds, rate)


def unsplit_step_s(costs: Costs, shards: Shards, batches: Floats, context: float, micro_batches: int) -> Floats:
    """Step [N] of ranks that hold `batches` sequences each, in micro-batches that hide exchanges of each other.

    What is hidden is the network; writing what leaves and adding up what comes back takes the device (DeepEP's
    low-latency kernels free it between the two).
    """
    work = Work.decode(batches / micro_batches, context)
    operators = forward(costs.arch, shards, work)
    exchanges = [op for op in operators if op.name in EXCHANGE]
    compute = [op for op in operators if op.name not in EXCHANGE]
    if micro_batches > 1:
        compute += exchange_copies(costs.arch, shards, work.tokens)
    work_s, way_s = (price_operators(ops, costs.pricer, len(batches)).device_s for ops in (compute, exchanges))
    return cycle_s((work_s, way_s, host_s(shards, work, costs.engine)), micro_batches)
