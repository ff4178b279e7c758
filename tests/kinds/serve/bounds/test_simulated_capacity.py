"""No batch, chunk or policy of a small engine keeps its limits in simulation beyond the bound of its type."""

from dataclasses import replace

import numpy as np
import pytest

from planner.kinds.serve.bounds.demands import SharedLimit, Workload
from planner.kinds.serve.bounds.engines import EngineType
from planner.kinds.serve.bounds.types import type_bound
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.rate import goodput
from planner.simulate.run.attainment import Draws

COUNT, WARM_UP = 4000, 400
BATCHES, CHUNKS = (8, 32, 128), (256, 1024)
CHANCE = 1.02  # by which a stream of so many requests may do better than a process that never ends


def table(most: int) -> StepGrid:
    """Steps of 5 ms, 60 us a sequence, 30 us a token of a prompt and less for what they attend to."""
    batches, contexts = np.array([0.0, 1, 2, 4, 8, 16, 32, 64, most]), np.array([1.0, 128, 256, 512, 1024, 4096])
    tokens, attended = np.array([0.0, 1, 64, 256, 1024]), np.array([1.0, 128, 512, 4096])
    n, c, t, m = np.meshgrid(batches, contexts, tokens, attended, indexing="ij")
    mixed = 0.005 + n * (6e-5 + 5e-8 * c) + t * (3e-5 + 1e-9 * m)
    return StepGrid(
        0.005 + np.arange(most + 1.0)[:, None] * (6e-5 + 5e-8 * contexts), mixed, batches, contexts, tokens, attended
    )


def bound_per_s(instance: Instance, workload: Workload) -> float:
    """The highest rate of one engine by the bound of its type."""
    engine = EngineType("colocated", "m", 0, InstanceShape(1, 1, 1, 1, 1), instance, 1)
    each = type_bound(engine, (workload,), (0,), 100_000, 0.0).workloads[0]
    assert each is not None
    late = any(share > 1.0 - (limit.share or 0.0) for share, limit in zip(each.late_share, workload.ttft, strict=True))
    spent_s = each.spent * workload.tpot.bound_s * workload.several if workload.tpot is not None else 0.0
    return 0.0 if late or not each.keeps else 1.0 / (each.limited_s + each.good_s * each.good_share - spent_s)


@pytest.mark.parametrize("policy", ["mixed", "prefill-first"])
@pytest.mark.parametrize(
    ("spread", "statistic", "tpot_s"), [(0.0, "p95", 0.01), (0.8, "p90", 0.011), (0.8, "mean", 0.009)]
)
def test_no_operating_point_beats_the_bound(policy: str, spread: float, statistic: str, tpot_s: float) -> None:
    rng = np.random.default_rng(7)
    inputs, outputs = (
        np.maximum(np.rint(mean * rng.lognormal(-(spread**2) / 2, spread, COUNT)), 2).clip(max=1500).astype(np.int64)
        for mean in (200, 50)
    )
    draws = Draws.renewal(inputs, outputs, seed=3, warm_up=WARM_UP)
    slo = SloSpec.model_validate({"ttft": {"p95_s": 0.5}, "tpot": {f"{statistic}_s": tpot_s}})
    most = Instance(table(128), 40_000, policy=policy, token_budget=1024, most_sequences=128)
    share = None if statistic == "mean" else float(statistic[1:]) / 100
    judged = slice(WARM_UP, None)
    workload = Workload(
        1.0,
        inputs[judged].astype(float),
        outputs[judged].astype(float),
        (SharedLimit(0.95, 0.5),),
        SharedLimit(share, tpot_s),
    )
    bound = bound_per_s(most, workload)
    best = 0.0
    for batch in BATCHES:
        for chunk in CHUNKS:
            fleet = Fleet((replace(most, most_sequences=batch, token_budget=chunk),))
            best = max(best, goodput(fleet, draws, slo, most_per_s=2.0 * bound, tolerance=0.02).rate_per_s)
    assert 0.3 * bound < best <= CHANCE * bound
