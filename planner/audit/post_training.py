"""How sure the times of an RL iteration are: its generation and its training each have the interval of their kind.

Generation errs as the time of an output token does where nothing queues (`planner.costs.rates.spread`), training as a
step of its layout (`planner.costs.training.intervals`), both at 80 %. Ends are taken together, since nothing says that
the two err apart. Parts that follow each other add up, and what is beside them stays; of parts that overlap the longer
one decides.
"""

from typing import Any

import numpy as np

from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.spread import group_of_runs
from planner.costs.training.config import TrainingConfig, machine_of
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.rates import rates_on
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved

Interval = tuple[float, float]


def iteration_intervals(plan: Envelope, resolved: Resolved) -> dict[str, Interval]:
    """The 80 % intervals of generation, training and the whole, by metric; none of parts that are not predicted."""
    times = {each.metric: each.value for each in plan.predictions if not each.of}
    whole, parts = times["iteration_time_s"], (times.get("generation_s"), times.get("training_s"))
    generation, training = parts
    if generation is None or training is None:
        return {}
    decision: Any = plan.decision
    roles = {role["function"]: role for role in decision["roles"]}
    factors = _generated(roles["rollout"], resolved), _trained(roles["actor"]["parallelism"], resolved)
    overlaps = decision.get("synchrony", "synchronous") != "synchronous"

    def at(end: int) -> float:
        ended = generation * factors[0][end], training * factors[1][end]
        if overlaps:
            return float(whole * max(ended) / max(generation, training))
        return float(whole + sum(ended) - generation - training)

    return {
        "iteration_time_s": (at(0), at(1)),
        "generation_s": (generation * factors[0][0], generation * factors[0][1]),
        "training_s": (training * factors[1][0], training * factors[1][1]),
    }


def _generated(rollout: Any, resolved: Resolved) -> Interval:  # noqa: ANN401 - plain data
    """Both ends of the time of an output token over its estimate."""
    arch, accelerator = next(iter(resolved.models.values())), resolved.pools[0].node.accelerator.name
    known = load_calibration(resolved.problem.costs.calibration)
    group = group_of_runs(arch, accelerator, rollout.get("engine", {}).get("name", "vllm"))
    spread = known.spreads_of((group,)).get("tpot")
    if spread is None:
        return 1.0, 1.0
    low, high = spread.bounds(np.ones(1), np.array([[1.0, 0.0, 0.0]]))
    return float(low[0]), float(high[0])


def _trained(degrees: Any, resolved: Resolved) -> Interval:  # noqa: ANN401 - plain data
    """Both ends of the time of a training step of this layout over its estimate."""
    arch, pool = next(iter(resolved.models.values())), resolved.pools[0]
    workload = resolved.workloads[0]
    tokens = max(round(workload.input.mean_tokens + workload.output.mean_tokens), 1)
    tp, pp, cp, ep, dp = (degrees.get(name, 1) for name in ("tp", "pp", "cp", "ep", "dp"))
    config = TrainingConfig(arch, machine_of(pool.node), tokens, 1, dp * pp, tp=tp, pp=pp, cp=cp, ep=ep, dp=dp)
    return step_interval_s(config, 1.0, rates_on(pool, arch, resolved.problem.costs.calibration, None))
