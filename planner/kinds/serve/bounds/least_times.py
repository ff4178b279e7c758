"""Limits that no arrival process keeps: what their answers take on idle engines is more.

Steady state knows answers of whole requests by their mean. A limit on a quantile of the whole request is kept for that
share of them only where answers of that quantile are decoded in time by an engine that holds them alone.
"""

import math
from collections.abc import Iterator

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards
from planner.documents.units import format_si
from planner.errors import Conflict
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.points import PoolCosts
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.steady.steps.formulas import decode_step
from planner.kinds.serve.steady.time_limits import TimeLimit
from planner.kinds.serve.steady.units import FUNCTION as ATTENTION
from planner.problem.lengths import LengthFacts, length_quantile
from planner.problem.schema import Lengths

_DECODING = {"colocated": "colocated", "disaggregated": "decode"}
SURE = 0.95
"""Of the least time: a limit below it is kept by nobody. What lies between may be the grid of a simulator's prices."""


def impossible_limits(setting: ServeSetting) -> list[Conflict]:
    """The limits on quantiles that idle engines break, each with the least value that one could have."""
    return [row for index, target in enumerate(setting.targets) for row in _impossible(setting, index, target)]


def _impossible(setting: ServeSetting, index: int, target: Target) -> Iterator[Conflict]:
    workload = setting.resolved.workloads[index]
    if ATTENTION + "-ffn" in setting.options.modes or not target.outputs.vary:
        return  # decodes on engines that are no single one; answers of one length are as long as the mean one
    answers = (workload.spec.output_tokens, workload.output)
    for limit in target.latency_limits:
        if limit.quantile is not None and math.isfinite(limit.limit_s):
            tokens = _tokens(*answers, limit.quantile, target.context_tokens - target.isl)
            least_s = (tokens - 1.0) * _least_token_s(setting, workload.model, target)
            yield from _row(target, "latency", limit, least_s, target.margins.tpot, f"an answer of {tokens:.0f} tokens")


def _row(target: Target, time: str, limit: TimeLimit, least_s: float, margin: float, what: str) -> Iterator[Conflict]:
    if limit.limit_s < SURE * least_s < math.inf:
        stated, least = (format_si(value * margin, "s") for value in (limit.limit_s, least_s))
        why = f"no arrivals keep it: {what}, which {limit.statistic} is about, takes {least} on an idle engine"
        yield Conflict(limit=f"{target.name}: {limit.statistic} {time} <= {stated} ({why})", nearest=f"{time} {least}")


def _tokens(lengths: Lengths, facts: LengthFacts, quantile: float, most: float) -> float:
    return max(min(length_quantile(lengths, facts, quantile), most), 1.0)


def _least_token_s(setting: ServeSetting, model: str, target: Target) -> float:
    """Seconds of a token of a sequence that is alone on the fastest engine of any pool, with as many drafts as suit."""
    least = math.inf
    for pool_costs, shapes in _engines(setting, model):
        drafts = np.array(setting.options.searched_drafts, dtype=np.float64)
        many = np.repeat(np.arange(len(shapes)), len(drafts))
        drafts_N, one = np.tile(drafts, len(shapes)), np.ones(len(many))
        for function in (_DECODING[mode] for mode in setting.options.modes):
            costs = pool_costs.costs.of_role(function)
            step = decode_step(costs, _shards(shapes, many), one, target.isl * one, drafts_N)
            least = min(least, float((step.seconds / costs.tokens_per_step(drafts_N)).min()))
    return least


def _engines(setting: ServeSetting, model: str) -> Iterator[tuple[PoolCosts, list[InstanceShape]]]:
    for key, space in setting.spaces.items():
        if key[0] == model and space.shapes:
            yield setting.costs_of_pool[key], space.shapes


def _shards(shapes: list[InstanceShape], rows: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> Shards:
    degrees: Floats = np.array([s.all_degrees for s in shapes], dtype=np.float64)[rows]
    return Shards.of(*degrees.T)
