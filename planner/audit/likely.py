"""How sure figures of deployments are: 80 % intervals of times, of rates within limits, and of gains.

Times have the intervals of estimates (`planner.costs.rates.spread`). A rate within limits is read off the simulated
curve of load against limits with all times as much longer or shorter: where times are k times as long, a load r keeps a
limit L as r k does L / k. Gains of one deployment over another are surer than either rate, since what errs in both
cancels: the deviation of log(a) - log(b) by the covariance of errors of deployments (`planner.costs.rates.likeness`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.costs.rates.likeness import TPOT
from planner.costs.rates.pricer import open_store, serving_tables
from planner.estimate.case import Case, Part, Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.places import layouts
from planner.estimate.settings import priced_version
from planner.kinds.serve.deployed.bench import Curve
from planner.kinds.serve.deployed.instances import Instances
from planner.problem.resolve import Resolved

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Factors:
    """Both ends of the 80 % intervals of TTFT and TPOT over the estimates."""

    ttft: Interval
    tpot: Interval


def case_of(resolved: Resolved, instances: Sequence[Instances], rate_per_s: float) -> Case:
    """The deployment as a row of `planner estimate`."""
    (workload,), (arch,), pool = resolved.workloads, resolved.models.values(), resolved.pools[0]
    engine = resolved.problem.engine
    parts = {part.function: _part(part) for part in instances}
    decode = parts.get("colocated") or parts["decode"]
    return Case(
        id="deployed",
        arch=arch,
        pool=pool,
        engine=engine.name,
        version=priced_version(engine.name, engine.version, None),
        memory_utilisation=engine.memory_utilisation,
        isl=workload.input.mean_tokens,
        osl=workload.output.mean_tokens,
        isl_cv=workload.input.cv,
        osl_cv=workload.output.cv,
        clients=0,
        rate_per_s=rate_per_s,
        prefill=parts.get("prefill"),
        decode=decode,
        gpus=sum(part.replicas * part.shape.devices for part in instances),
        calibration=resolved.problem.costs.calibration,
    )


def _part(part: Instances) -> Part:
    shape = part.shape
    degrees = (shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
    return Part(part.replicas, *degrees, part.max_batch or 1, part.chunk_tokens, shape.micro_batches, shape.redundant)


def factors_of(resolved: Resolved, case: Case) -> Factors | None:
    """How far times of the deployment may lie from their estimates; None where no estimate of it can be made."""
    (result,) = evaluate([case], open_store(serving_tables(resolved.problem.costs.profiles)))
    if isinstance(result, Refused):
        return None
    ends = _ends(result)
    return None if ends is None else Factors(*ends)


def _ends(result: Estimate) -> tuple[Interval, Interval] | None:
    pairs = ((result.ttft_s, result.ttft_s_interval), (result.tpot_s, result.tpot_s_interval))
    ends = [
        (interval[0] / value, interval[1] / value) for value, interval in pairs if interval is not None and value > 0.0
    ]
    return (ends[0], ends[1]) if len(ends) == len(pairs) else None


def rate_interval(rate_per_s: float, scale: float, curve: Curve, factors: Factors) -> Interval:
    """Of the rate within limits, which is `scale` times the stated one."""

    def at(longer: float) -> float:
        known = curve.scale_at(1.0 / longer)
        return rate_per_s * (scale if known is None else known) / longer

    low, high = sorted((at(factors.tpot[1]), at(factors.tpot[0])))
    middle = rate_per_s * scale
    return min(low, middle), max(high, middle)


def gain_interval(gains: Sequence[float], before: Case, after: Case) -> Interval:
    """Of the rate of `after` over that of `before`; `gains` are those at the estimate and at both ends of all times."""
    flat = np.log2([max(case.rate_per_s, 1.0) for case in (before, after)])
    covariance = TPOT.covariance(flat, layouts([before, after]))
    variance = np.maximum(covariance[:1, 0] + covariance[1:, 1] - 2.0 * covariance[:1, 1], 0.0)
    off = float(TPOT.belief(np.zeros(1), variance, TPOT.freedom).half[0])
    return min(gains) * math.exp(-off), max(gains) * math.exp(off)
