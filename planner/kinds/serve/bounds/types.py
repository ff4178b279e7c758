"""What one instance of every shape can do at most: its prices, and the prompts that it can answer in time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.serving.media import EncodeTimes
from planner.kinds.serve.bounds.demands import GoodSteps, SharedLimit, Workload, priced, thresholds_of
from planner.kinds.serve.bounds.engines import EngineType, steps_of
from planner.kinds.serve.bounds.prices import WHOLE, Effort, step_prices
from planner.simulate.goodput.step_prices import shortest_prefill_s

SAFETY = 1.0 + 1e-9  # of rounding


@dataclass(frozen=True, slots=True)
class WorkloadBound:
    """What requests of a workload cost an instance of a type at least, in seconds of one of its engines.

    A request costs `base_s`, whatever the limits. Together, where r come a second, of which y keep a percentile of the
    time per output token, or which have V seconds of it together: r limited_s + y good_s - V spent at least.
    """

    base_s: float
    limited_s: float
    good_s: float = 0.0
    spent: float = 0.0
    good_share: float = 0.0  # of all requests that must keep the percentile
    least_tpot_s: float = 0.0
    keeps: bool = True  # whether any step keeps the limit
    late_share: tuple[float, ...] = ()  # by limit on TTFT: of the prompts that take too long on an idle engine
    idle_s: float = 0.0  # mean time to first token there


@dataclass(frozen=True, slots=True)
class TypeBound:
    """An instance type with what each workload costs it; None of other models."""

    engine: EngineType
    workloads: tuple[WorkloadBound | None, ...]


def type_bound(
    engine: EngineType,
    workloads: Sequence[Workload],
    own: Sequence[int],
    context_tokens: int,
    overhead_s: float,
    encoding: Sequence[EncodeTimes | None] = (),
    effort: Effort = WHOLE,
) -> TypeBound:
    """The bound of a type that serves the workloads `own`, its answers cut at `context_tokens`.

    Contexts cost nothing where its table has steps of one alone, which others do not undercut. `encoding`, by workload,
    lengthens the steps that prompts begin in, by which engines are busy beside all that prices are of.
    """
    served = [workloads[index].within(context_tokens) for index in own]
    contexts = engine.instance.grid.contexts
    thresholds = thresholds_of(tuple(served), tuple(contexts.tolist())) if engine.decodes and len(contexts) > 1 else ()
    steps = steps_of(engine, thresholds)
    decoding = steps.seconds[steps.sequences > 0.0]
    least_s = float(decoding.min()) if engine.decodes else 0.0
    keeps = [each.tpot is None or not engine.decodes or least_s < each.tpot.bound_s for each in served]
    demands = [
        priced(
            each,
            thresholds,
            prefills=engine.prefills,
            decodes=engine.decodes,
            possible=possible,
            contexts_cost=len(contexts) > 1,
        )
        for each, possible in zip(served, keeps, strict=True)
    ]
    prices = step_prices(steps, demands, effort)
    rows: list[WorkloadBound | None] = [None] * len(workloads)
    for place, (index, each, demand) in enumerate(zip(own, served, demands, strict=True)):
        encoded_s = _encoded_s(each, encoding[index]) if encoding and engine.prefills else 0.0
        loads_s, classes = prices.base_s(demand), prices.of_classes[place]
        base_s = (prices.unlimited * loads_s + encoded_s) / SAFETY
        limit = each.tpot if engine.decodes else None
        limited_s, good_s, spent, good_share = (loads_s + encoded_s) / SAFETY, 0.0, 0.0, 0.0
        if limit is not None and limit.share is not None:
            line = GoodSteps.of(each, limit.share)
            good_share = line.at
            if demand.classes:
                limited_s += classes[0] * (line.steps - line.slope * line.at) / SAFETY
                good_s = classes[0] * line.slope / SAFETY
        elif limit is not None and demand.classes:
            own_s = sum(price * item.steps for price, item in zip(classes, demand.classes, strict=True))
            limited_s, spent = limited_s + own_s / SAFETY, prices.of_limits[place]
        late, idle_s = _idle(engine, each, overhead_s) if effort.idle else ((0.0,) * len(each.ttft), 0.0)
        rows[index] = WorkloadBound(base_s, limited_s, good_s, spent, good_share, least_s, keeps[place], late, idle_s)
    return TypeBound(engine, tuple(rows))


def _encoded_s(workload: Workload, encoding: EncodeTimes | None) -> float:
    """Seconds that an engine encodes for a request on average."""
    if encoding is None or workload.encoded is None:
        return 0.0
    return float(encoding.of_tokens(workload.encoded).mean())


def _idle(engine: EngineType, workload: Workload, overhead_s: float) -> tuple[tuple[float, ...], float]:
    """By limit on TTFT the share of the prompts that an idle engine answers too late, and the mean time there."""
    if not engine.prefills or not workload.ttft:
        return tuple(0.0 for _ in workload.ttft), 0.0
    idle_R = _idle_s(engine, workload.prefilled_tokens) + overhead_s
    return tuple(_late(idle_R, limit) for limit in workload.ttft), float(idle_R.mean()) / SAFETY


def _idle_s(engine: EngineType, input_tokens: Floats) -> Floats:
    """Least seconds to prefill each prompt [R]: the lines below all steps are chosen for prompts of like length."""
    idle_R = np.zeros(len(input_tokens))
    edges = np.quantile(input_tokens, [0.0, 0.9, 1.0])
    group_R = np.searchsorted(edges[1:-1], input_tokens, side="left")
    for group in np.unique(group_R):
        rows = group_R == group
        idle_R[rows] = shortest_prefill_s(engine.instance, input_tokens[rows])
    return idle_R


def _late(idle_R: Floats, limit: SharedLimit) -> float:
    return float(np.mean(idle_R > limit.bound_s * SAFETY))
