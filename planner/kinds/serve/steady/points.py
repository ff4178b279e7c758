"""Points of the search: shapes x decode batches x chunked-prefill sizes of one role, with their memory.

Arrays are over points [N]; what depends on the workload is a tuple of arrays by target.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.costs.operators.work import Shards
from planner.costs.rates.near_runs import NearRuns
from planner.costs.rates.spread import ErrorSpread
from planner.costs.serving.attention_ffn import Port
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.engines.release import Release
from planner.hardware.cluster import Pool
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.shapes import InstanceShape, drafting_rule
from planner.kinds.serve.steady.steps.formulas import Costs

DECODE_BATCHES = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16),
                  *range(288, 513, 32), *range(576, 1025, 64))  # fmt: skip
CLIENT_BATCHES = (*range(1, 5), *(part << power for power in range(1, 9) for part in (3, 4)))
"""Where clients wait, faster and fuller batches of a shape all compete: 1 to 4, then two to a doubling up to 1024."""
CHUNK_TOKENS = (2048, 4096, 8192, 16384)
PREFILL_CHUNK_TOKENS = (2048, 4096, 8192, 16384, 32768)
CONTEXT_RULE = "one sequence of `engine.max_context_tokens` does not fit in the KV cache"
PREFILL_PROMPTS_RESIDENT = 4.0  # at least, by a prefill rank


@dataclass(frozen=True, slots=True)
class PoolCosts:
    """A pool to plan on, with the costs of one model there."""

    index: int
    pool: Pool
    costs: Costs
    memory_bytes: float  # what an engine may use of one device
    port: Port  # of one device
    reserve: float = 0.0  # share of that memory which plans leave free
    held_tokens: int = 0  # that one sequence must find room for
    near: NearRuns | None = None  # own runs of the model here
    spread: ErrorSpread = field(default_factory=ErrorSpread)  # of TPOT, where there are none

    def margin(self, function: str, shards: Shards, confidence: float) -> Floats:
        """By how much limits on TPOT are divided to be kept by instances [N] with so much confidence."""
        if self.near is not None:
            return self.near.of_role(function).margin(shards, confidence)
        return np.full(len(shards), self.spread.margin(confidence))

    @property
    def room_bytes(self) -> float:
        """Of one device for weights, activations and caches: what plans may use, without the engine's workspace."""
        return self.memory_bytes * (1.0 - self.reserve) - self.costs.engine.workspace_bytes


@dataclass(slots=True)
class Tally:
    """How many pairs of point and workload were looked at, and how many each rule dropped."""

    evaluated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.evaluated += other.evaluated
        self.pruned.update(other.pruned)

    def drop(self, rule: str, count: int) -> None:
        """Count `count` points as dropped by `rule`."""
        if count:
            self.pruned[rule] += int(count)


@dataclass(frozen=True, slots=True)
class Points:
    """Instance types of one role [N] and the memory of one of their devices."""

    shape: Indices
    shards: Shards
    batch: Floats  # sequences that an attention rank holds
    chunk: Floats  # prefill tokens of a step; 0 where none
    drafts: Floats  # of a sequence in a step; of prefill, 1 where prompts go through the drafter
    weight_bytes: Floats
    activation_bytes: Floats
    kv_bytes: tuple[Floats, ...]  # by target
    fits: tuple[Bools, ...]  # by target

    def __len__(self) -> int:
        return len(self.shape)


def axis(wanted: tuple[int, ...] | None, default: tuple[int, ...]) -> Floats:
    """The values of an axis, ascending."""
    return np.array(sorted(set(wanted or default)), dtype=np.float64)


def decode_batches(options: ServeOptions, targets: Sequence[Target]) -> Floats:
    """Sequences of an attention rank: the options', or the usual ones."""
    waiting = any(target.clients is not None for target in targets)
    return axis(options.max_batch, CLIENT_BATCHES if waiting else DECODE_BATCHES)


def prefill_chunks(options: ServeOptions, targets: Sequence[Target]) -> Floats:
    """Prefill tokens of a step: the options', or the usual ones and, for short prompts, one prompt a step."""
    prompts = [target.prefilled_tokens for target in targets]
    whole = tuple(int(np.ceil(tokens)) for tokens in prompts if tokens < min(PREFILL_CHUNK_TOKENS))
    return axis(options.chunk_tokens, (*PREFILL_CHUNK_TOKENS, *whole))


def make_points(
    function: str,
    pool_costs: PoolCosts,
    shapes: Sequence[InstanceShape],
    options: ServeOptions,
    targets: Sequence[Target],
    tally: Tally,
    *,
    copies: int,
    release: Release,
    drafts: Sequence[int] = (0,),
) -> Points:
    """The product of the axes of a role, without what fits in memory for none of the targets.

    Each point is tallied for every target and `copies` times, once a channel.
    """
    chunks = axis(options.chunk_tokens, CHUNK_TOKENS) if function == "colocated" else np.zeros(1)
    batches = decode_batches(options, targets)
    if function == "prefill":
        chunk = prefill_chunks(options, targets)
        tokens = [target.isl for target in targets]
    else:
        chunk = np.tile(chunks, len(batches))
        tokens = [target.resident_tokens for target in targets]
    each = len(chunk) * len(drafts)
    shape = np.repeat(np.arange(len(shapes), dtype=np.intp), each)
    degrees = np.array([s.all_degrees for s in shapes], dtype=np.float64)
    shards, chunk_N = Shards.of(*degrees[shape].T), np.tile(np.repeat(chunk, len(drafts)), len(shapes))
    if function == "prefill":
        resident_N = [_prompts_resident(chunk_N, shards.pp, target.prefilled_tokens) for target in targets]
    else:
        resident_N = [np.tile(np.repeat(batches, len(chunks) * len(drafts)), len(shapes))] * len(targets)
    drafts_N = np.resize(np.array(drafts, dtype=np.float64), len(shape))
    most = np.maximum.reduce(resident_N)
    verified_N = drafts_N * (function != "prefill")
    needs = Needs(chunk_N, most, drafts_N, verified_N)
    barred = np.array(
        [drafting_rule(each_shape, pool_costs.costs.drafter, release) is not None for each_shape in shapes]
    )[shape] & (drafts_N > 0)
    tally.drop("drafts need ranks of one stage that divide the drafter", int(np.sum(barred)) * len(targets) * copies)
    return _within_memory(pool_costs, shape, shards, resident_N, needs, ~barred, tokens, tally, copies)


def _prompts_resident(chunk: Floats, pp: Floats, isl: float) -> Floats:
    """Prompts of a prefill rank [N]: those of a step in each of its stages, and those of one step that are leaving."""
    return np.maximum(PREFILL_PROMPTS_RESIDENT, (pp + 1.0) * np.maximum(np.floor(chunk / isl), 1.0))


@dataclass(frozen=True, slots=True)
class Needs:
    """What the steps of points hold beside caches [N]."""

    chunk: Floats
    batch: Floats
    drafts: Floats
    verified: Floats  # drafts of a sequence whose tokens and logits the step computes

    def memory(self, costs: Costs, shards: Shards) -> tuple[Floats, Floats]:
        """Weights and activations on one device [N], those of a drafter among the former."""
        weights, computed = weight_bytes(costs.arch, shards), self.batch * (self.verified + 1.0)
        if costs.drafter is not None:
            weights = weights + costs.drafter.weight_bytes(shards, self.drafts)
        return weights, activation_bytes(costs.arch, shards, np.maximum(self.chunk, computed), computed)

    def kv_bytes(self, costs: Costs, shards: Shards, tokens: float) -> Floats:
        """Cache on one device [N] of a sequence of so many tokens and its drafts, and the drafter's for it."""
        length = tokens + self.verified
        own = kv_cache_bytes(costs.arch, shards, length)
        return own if costs.drafter is None else own + costs.drafter.kv_bytes(shards, length, self.drafts)


def _within_memory(
    pool_costs: PoolCosts,
    shape: Indices,
    shards: Shards,
    resident: Sequence[Floats],
    needs: Needs,
    can_run: Bools,
    tokens: Sequence[float],
    tally: Tally,
    copies: int,
) -> Points:
    room = pool_costs.room_bytes
    weights, activations = needs.memory(pool_costs.costs, shards)
    kv = tuple(
        needs.kv_bytes(pool_costs.costs, shards, length) * each for each, length in zip(resident, tokens, strict=True)
    )
    heavy = can_run & (weights > room)
    free = room - weights - activations
    held = needs.kv_bytes(pool_costs.costs, shards, pool_costs.held_tokens)
    short = can_run & ~heavy & (pool_costs.held_tokens > 0) & (held > free)
    fits = tuple(can_run & ~heavy & ~short & (cache <= free) for cache in kv)
    full = sum(int(np.sum(can_run & ~heavy & ~short & ~fit)) for fit in fits)
    tally.evaluated += len(shape) * len(fits) * copies
    tally.drop("weights do not fit in memory", int(np.sum(heavy)) * len(fits) * copies)
    tally.drop(CONTEXT_RULE, int(np.sum(short)) * len(fits) * copies)
    tally.drop("KV cache does not fit in memory", full * copies)
    kept = np.logical_or.reduce(fits)
    return Points(
        shape[kept],
        shards.take(kept),
        needs.batch[kept],
        needs.chunk[kept],
        needs.drafts[kept],
        weights[kept],
        activations[kept],
        tuple(cache[kept] for cache in kv),
        tuple(fit[kept] for fit in fits),
    )
