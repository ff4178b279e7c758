"""Limits that no arrival process keeps: what their prompts and answers take on idle engines is more.

Steady state knows prompts and answers by their mean. A limit on a quantile of TTFT is kept for that share of the
requests only where prompts of that quantile are prefilled in time by an engine that does nothing else, and one on a
quantile of the whole request where answers of that quantile are decoded in time by one that holds them alone.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.documents.units import format_si
from planner.errors import Conflict
from planner.kinds.serve.steady.demand import Target, TimeLimit
from planner.kinds.serve.steady.formulas import decode_step, prefill_alone
from planner.kinds.serve.steady.pipelines import prefill_in_stages
from planner.kinds.serve.steady.points import PoolCosts, prefill_chunks
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.steady.units import FUNCTION as ATTENTION
from planner.problem.lengths import LengthFacts, length_quantile
from planner.problem.schema import Lengths

SURE = 0.95
"""Of the least time: a limit below it is kept by nobody. What lies between may be the grid of a simulator's prices."""


def impossible_limits(setting: ServeSetting) -> list[Conflict]:
    """The limits on quantiles that idle engines break, each with the least value that one could have."""
    return [row for index, target in enumerate(setting.targets) for row in _impossible(setting, index, target)]


def _impossible(setting: ServeSetting, index: int, target: Target) -> Iterator[Conflict]:
    workload = setting.resolved.workloads[index]
    prompts = (workload.spec.input_tokens, workload.input)
    for limit in target.ttft_limits:
        if limit.quantile is not None and math.isfinite(limit.limit_s):
            tokens = _tokens(*prompts, limit.quantile, target.context_tokens)
            least_s = _least_prefill_s(setting, workload.model, target, tokens)
            yield from _row(target, "ttft", limit, least_s, target.margins.ttft, f"a prompt of {tokens:.0f} tokens")
    if ATTENTION + "-ffn" in setting.options.modes:
        return  # decodes on engines that are no single one
    answers = (workload.spec.output_tokens, workload.output)
    for limit in target.latency_limits:
        if limit.quantile is not None and math.isfinite(limit.limit_s):
            tokens = _tokens(*answers, limit.quantile, target.context_tokens - target.isl)
            least_s = (tokens - 1.0) * _least_token_s(setting, workload.model, target)
            yield from _row(target, "latency", limit, least_s, target.margins.tpot, f"an answer of {tokens:.0f} tokens")


def _row(target: Target, time: str, limit: TimeLimit, least_s: float, margin: float, what: str) -> Iterator[Conflict]:
    if limit.limit_s < SURE * least_s:
        stated, least = (format_si(value * margin, "s") for value in (limit.limit_s, least_s))
        why = f"no arrivals keep it: {what}, which {limit.statistic} is about, takes {least} on an idle engine"
        yield Conflict(limit=f"{target.name}: {limit.statistic} {time} <= {stated} ({why})", nearest=f"{time} {least}")


def _tokens(lengths: Lengths, facts: LengthFacts, quantile: float, most: float) -> float:
    return max(min(length_quantile(lengths, facts, quantile), most), 1.0)


def _least_prefill_s(setting: ServeSetting, model: str, target: Target, tokens: float) -> float:
    """Seconds to the first token of a prompt of so many tokens on the fastest engine of any pool, which is idle."""
    alone = replace(target, isl=tokens)
    least = math.inf
    for pool_costs, shapes in _engines(setting, model):
        chunks = prefill_chunks(setting.options, [alone])
        many = np.repeat(np.arange(len(shapes)), len(chunks))
        shards, chunk = _shards(shapes, many), np.tile(chunks, len(shapes))
        isl, cached = np.full(len(many), alone.prefilled_tokens), alone.isl - alone.prefilled_tokens
        plain = prefill_alone(pool_costs.costs, shards, isl, chunk, cached=cached)
        staged, _ = prefill_in_stages(pool_costs.costs, shards, isl, chunk, plain, 0.0, cached)
        engine = pool_costs.costs.engine
        before = min(engine.router_s + engine.arrival_s + engine.handover_s, engine.request_s)
        least = min(least, float(np.minimum(plain.latency_s, staged.latency_s).min()) + before)
    return least


def _least_token_s(setting: ServeSetting, model: str, target: Target) -> float:
    """Seconds of a token of a sequence that is alone on the fastest engine of any pool, with as many drafts as suit."""
    least = math.inf
    for pool_costs, shapes in _engines(setting, model):
        costs, drafts = pool_costs.costs, np.array(setting.options.searched_drafts, dtype=np.float64)
        many = np.repeat(np.arange(len(shapes)), len(drafts))
        drafts_N, one = np.tile(drafts, len(shapes)), np.ones(len(many))
        step = decode_step(costs, _shards(shapes, many), one, target.isl * one, drafts_N)
        least = min(least, float((step.seconds / costs.tokens_per_step(drafts_N)).min()))
    return least


def _engines(setting: ServeSetting, model: str) -> Iterator[tuple[PoolCosts, list[InstanceShape]]]:
    for key, space in setting.spaces.items():
        if key[0] == model and space.shapes:
            yield setting.costs_of_pool[key], space.shapes


def _shards(shapes: list[InstanceShape], rows: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> Shards:
    degrees: Floats = np.array([(s.tp, s.pp, s.dp, s.moe_tp, s.ep, s.micro_batches) for s in shapes], dtype=np.float64)[
        rows
    ]
    return Shards.of(*degrees.T)
