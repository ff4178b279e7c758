"""Every instance that could serve: shapes x batch limits x chunk sizes x roles, priced as arrays and pruned by rule.

Arrays are over points [N], the product of shapes, decode batches and chunk sizes that fits in memory. For each shape
and target the point of highest rate survives, since what it beats uses the same devices for less; all survivors of a
model are then evaluated for every target of that model, so that one instance may serve several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.shapes import FloatArray, Shards
from planner.costs.step import StepTime
from planner.hardware.cluster import Pool
from planner.kinds.serve.demand import Target
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.shapes import Shape, ShapeSpace
from planner.kinds.serve.steady import (
    Costs,
    colocated_tpot_s,
    decode_step,
    pad_graph_batch,
    prefill_alone,
    prefill_mixed,
)

DECODE_BATCHES = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16),
                  *range(288, 513, 32), *range(576, 1025, 64))  # fmt: skip
CHUNK_TOKENS = (2048, 4096, 8192, 16384)
PREFILL_CHUNK_TOKENS = (2048, 4096, 8192, 16384, 32768)
PREFILL_STEPS_HELD = 2.0  # prompts of how many steps a prefill rank holds: those running, and those leaving
PREFILL_PROMPTS_HELD = 4.0  # at least

Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Place:
    """A pool to plan on, with the costs of one model there."""

    index: int
    pool: Pool
    costs: Costs
    memory_bytes: float  # what an engine may use of one device


@dataclass(frozen=True, slots=True)
class Served:
    """What one instance does for one target when used up to its limits."""

    rate_per_s: float  # requests per second of the whole instance; 0 where it cannot keep the limits
    ttft_s: float  # at that rate, at the strictest statistic; prefill and transfer included, 0 for decode
    tpot_s: float  # at that rate; 0 for prefill
    utilisation: float  # of its prefill time
    service_s: float  # time to first token without waiting
    busy_s: float  # prefill time that one request uses of an attention rank
    decode_s: float  # the decode step without any prefill


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance type: a role, a shape, its limits, and what it serves of each target [targets of the model]."""

    function: str  # colocated, prefill, decode
    model: str
    pool: int
    shape: Shape
    max_batch: int  # sequences that an attention rank holds
    chunk_tokens: int  # prefill tokens per step; 0 for decode
    served: tuple[Served | None, ...]  # by target of the problem; None for targets of other models
    memory: tuple[float, float, float, float]  # weights, KV cache, activations, workspace: bytes per device
    basis: dict[str, float]  # share of step time by evidence
    breakdown: dict[str, float]  # seconds by operator of the step that dominates
    host_s: float


@dataclass(slots=True)
class Tally:
    """How many points were looked at, and how many each rule dropped."""

    evaluated: int = 0
    pruned: dict[str, int] = field(default_factory=dict)

    def drop(self, rule: str, count: int) -> None:
        """Count `count` points as dropped by `rule`."""
        if count:
            self.pruned[rule] = self.pruned.get(rule, 0) + int(count)


@dataclass(frozen=True, slots=True)
class _Points:
    """Points [N]: shape index, decode batch, chunk, and the memory they use."""

    shape: Indices
    batch: FloatArray
    chunk: FloatArray
    kv_bytes: FloatArray
    activation_bytes: FloatArray

    def take(self, chosen: Indices | Mask) -> "_Points":
        return _Points(*(getattr(self, f.name)[chosen] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """What points [N] do for one target; `good` keeps all limits."""

    rate: FloatArray
    ttft: FloatArray
    tpot: FloatArray
    busy: FloatArray
    service: FloatArray
    busy_s: FloatArray
    decode_s: FloatArray
    good: Mask
    step: StepTime

    def served(self, i: int) -> Served:
        values = (self.rate, self.ttft, self.tpot, self.busy, self.service, self.busy_s, self.decode_s)
        found = Served(*(float(value[i]) for value in values))
        return found if self.good[i] else replace(found, rate_per_s=0.0)


@dataclass(frozen=True, slots=True)
class Search:
    """The candidates of one model on one pool."""

    model: str
    place: Place
    options: ServeOptions
    space: ShapeSpace
    tally: Tally

    def candidates(self, targets: Sequence[Target], num_targets: int) -> list[Candidate]:
        """All candidates that keep the limits of at least one of `targets` (those of this model)."""
        for rule, count in self.space.pruned.items():
            self.tally.drop(rule, count)
        if not self.space.shapes or not targets:
            return []
        functions = [*(["colocated"] if "colocated" in self.options.modes else [])]
        functions += ["prefill", "decode"] if "disaggregated" in self.options.modes else []
        return [found for function in functions for found in self._of(function, targets, num_targets)]

    def _of(self, function: str, targets: Sequence[Target], num_targets: int) -> list[Candidate]:
        chosen: list[_Points] = []
        evaluated: list[_Evaluated] = []
        for target in targets:
            points = self._points(function, target)
            if len(points):
                result = self._evaluate(function, target, points, self.tally)
                best = _best_rows(points, result)
                chosen.append(points.take(best))
                evaluated.append(_take(result, best))
        if len(targets) > 1 and chosen:
            union = _Points(*(np.concatenate([getattr(p, f.name) for p in chosen]) for f in fields(_Points)))
            evaluated = [self._evaluate(function, target, union, Tally()) for target in targets]
            chosen = [union]
        return self._rows(function, chosen[0], evaluated, targets, num_targets) if chosen else []

    def _points(self, function: str, target: Target) -> _Points:
        """The product of the axes of a role, without what does not fit in memory."""
        options = self.options
        batches = _axis(options.max_batch, DECODE_BATCHES)
        chunks = _axis(options.chunk_tokens, CHUNK_TOKENS)
        if function == "prefill":
            chunks = _axis(options.chunk_tokens, PREFILL_CHUNK_TOKENS)
            held = np.maximum(PREFILL_PROMPTS_HELD, np.floor(PREFILL_STEPS_HELD * chunks / target.isl))
            return self._fitting(held, chunks, target.isl)
        count = len(chunks) if function == "colocated" else 1
        chunks = chunks if function == "colocated" else np.zeros(1)
        return self._fitting(np.repeat(batches, count), np.tile(chunks, len(batches)), target.held_tokens)

    def _shards(self, shape: Indices) -> Shards:
        rows = np.array([(s.tp, s.pp, s.dp, s.moe_tp, s.ep) for s in self.space.shapes], dtype=np.float64)
        return Shards.of(*rows[shape].T)

    def _fitting(self, batches: FloatArray, chunks: FloatArray, held_tokens: float) -> _Points:
        """Every shape with each pair of batch and chunk, where weights, cache and activations fit."""
        count = len(self.space.shapes)
        shape = np.repeat(np.arange(count, dtype=np.intp), len(batches))
        batch, chunk = np.tile(batches, count), np.tile(chunks, count)
        arch, engine = self.place.costs.arch, self.place.costs.engine
        shards = self._shards(shape)
        kv = kv_cache_bytes(arch, shards, held_tokens) * batch
        activations = activation_bytes(arch, shards, np.maximum(chunk, batch), batch)
        fixed = weight_bytes(arch, shards) + engine.workspace_bytes
        heavy = fixed > self.place.memory_bytes
        full = ~heavy & (fixed + kv + activations > self.place.memory_bytes)
        self.tally.evaluated += len(shape)
        self.tally.drop("weights do not fit in memory", int(np.sum(heavy)))
        self.tally.drop("KV cache does not fit in memory", int(np.sum(full)))
        return _Points(shape, batch, chunk, kv, activations).take(~(heavy | full))

    def _evaluate(self, function: str, target: Target, points: _Points, tally: Tally) -> _Evaluated:
        match function:
            case "decode":
                return self._decode(target, points, tally)
            case "prefill":
                return self._prefill(target, points, tally)
            case _:
                return self._colocated(target, points, tally)

    def _decode(self, target: Target, points: _Points, tally: Tally) -> _Evaluated:
        shards = self._shards(points.shape)
        context = np.full(len(points), target.context)
        step = decode_step(self.place.costs, shards, pad_graph_batch(points.batch), context)
        tpot, none = step.seconds, np.zeros(len(points))
        good = tpot <= target.tpot_limit_s
        tally.drop("slo.tpot", int(np.sum(~good)))
        rate = points.batch * shards.dp / (target.osl * tpot)
        return _Evaluated(rate, none, tpot, none, none, none, tpot, good, step)

    def _prefill(self, target: Target, points: _Points, tally: Tally) -> _Evaluated:
        shards = self._shards(points.shape)
        prefill = prefill_alone(self.place.costs, shards, np.full(len(points), target.isl), points.chunk)
        moved = target.transfer_s(self.place.pool, shards)
        service = prefill.latency_s + self.place.costs.engine.request_s + moved
        busy = self._utilisation(target, prefill.busy_s, service)
        ttft = service + _wait_s(target, busy, prefill.busy_s)
        good = (busy > 0) & _keeps_ttft(target, busy, prefill.busy_s, service)
        tally.drop("slo.ttft", int(np.sum(~good)))
        rate = busy / np.maximum(prefill.busy_s, 1e-12) * shards.dp
        none = np.zeros(len(points))
        return _Evaluated(rate, ttft, none, busy, service, prefill.busy_s, none, good, prefill.step)

    def _utilisation(self, target: Target, busy_s: FloatArray, service_s: FloatArray) -> FloatArray:
        """How busy prefill may run: as much as every limit on the wait allows, and no more than asked for."""
        busy = np.full(len(busy_s), self.options.max_prefill_utilisation)
        for limit in target.ttft_limits:
            if np.isfinite(limit.limit_s):
                room = np.maximum(limit.limit_s - service_s, 0.0)
                busy = np.minimum(busy, limit.utilisation(room, busy_s, target.arrival_cv2, target.service_cv2))
        return busy

    def _colocated(self, target: Target, points: _Points, tally: Tally) -> _Evaluated:
        shards, context = self._shards(points.shape), np.full(len(points), target.context)
        alone = decode_step(self.place.costs, shards, pad_graph_batch(points.batch), context).seconds
        isl = np.full(len(points), target.isl)
        mixed = prefill_mixed(self.place.costs, shards, isl, points.chunk, points.batch, context, alone)
        tpot = colocated_tpot_s(alone, mixed.busy_s, points.batch, np.asarray(target.osl))
        per_rank = points.batch / (target.osl * tpot)
        busy = np.minimum(per_rank * mixed.latency_s, self.options.max_prefill_utilisation)
        service = mixed.latency_s + tpot / 2.0 + self.place.costs.engine.request_s
        ttft = service + _wait_s(target, busy, mixed.latency_s)
        slow = tpot > target.tpot_limit_s
        late = ~slow & ~_keeps_ttft(target, busy, mixed.latency_s, service)
        lagging = ~slow & ~late & (ttft + (target.osl - 1.0) * tpot > target.latency_limit_s)
        tally.drop("slo.tpot", int(np.sum(slow)))
        tally.drop("slo.ttft", int(np.sum(late)))
        tally.drop("slo.latency", int(np.sum(lagging)))
        good = ~(slow | late | lagging)
        return _Evaluated(per_rank * shards.dp, ttft, tpot, busy, service, mixed.busy_s, alone, good, mixed.step)

    def _rows(
        self,
        function: str,
        points: _Points,
        evaluated: Sequence[_Evaluated],
        targets: Sequence[Target],
        num_targets: int,
    ) -> list[Candidate]:
        rows = []
        weights = weight_bytes(self.place.costs.arch, self._shards(points.shape))
        for i in range(len(points)):
            served: list[Served | None] = [None] * num_targets
            for target, result in zip(targets, evaluated, strict=True):
                served[target.index] = result.served(i)
            first = max(evaluated, key=lambda result: float(result.rate[i]) * bool(result.good[i]))
            rows.append(
                Candidate(
                    function=function,
                    model=self.model,
                    pool=self.place.index,
                    shape=self.space.shapes[int(points.shape[i])],
                    max_batch=int(points.batch[i]),
                    chunk_tokens=int(points.chunk[i]),
                    served=tuple(served),
                    memory=(
                        float(weights[i]),
                        float(points.kv_bytes[i]),
                        float(points.activation_bytes[i]),
                        self.place.costs.engine.workspace_bytes,
                    ),
                    basis=first.step.shares(i),
                    breakdown={name: float(s[i]) for name, s in first.step.by_operator.items() if s[i] > 0},
                    host_s=float(first.step.host_s[i]),
                )
            )
        return rows


def _axis(wanted: tuple[int, ...] | None, default: tuple[int, ...]) -> FloatArray:
    return np.array(sorted(set(wanted or default)), dtype=np.float64)


def _wait_s(target: Target, busy: FloatArray, service_s: FloatArray) -> FloatArray:
    """Waiting for prefill at the strictest statistic."""
    return target.ttft_limits[0].wait_s(busy, service_s, target.arrival_cv2, target.service_cv2)


def _keeps_ttft(target: Target, busy: FloatArray, queue_s: FloatArray, service_s: FloatArray) -> Mask:
    """Whether every statistic of the time to first token keeps its limit."""
    kept = np.ones(len(busy), dtype=np.bool_)
    for limit in target.ttft_limits:
        wait = limit.wait_s(busy, queue_s, target.arrival_cv2, target.service_cv2)
        kept &= service_s + wait <= limit.limit_s * (1.0 + 1e-9)
    return kept


def _best_rows(points: _Points, result: _Evaluated) -> Indices:
    """For each shape its good point of highest rate; of equal ones the smallest batch and chunk."""
    order = np.lexsort((points.chunk, points.batch, -result.rate))
    order = order[result.good[order]]
    _, first = np.unique(points.shape[order], return_index=True)
    return np.sort(order[first])


def _take(result: _Evaluated, chosen: Indices) -> _Evaluated:
    step = StepTime(
        result.step.device_s[chosen],
        result.step.host_s[chosen],
        {name: seconds[chosen] for name, seconds in result.step.by_operator.items()},
        result.step.by_basis[:, chosen],
    )
    arrays = {f.name: getattr(result, f.name)[chosen] for f in fields(result) if f.name != "step"}
    return _Evaluated(**arrays, step=step)
