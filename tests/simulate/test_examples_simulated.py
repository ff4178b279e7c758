"""Plans of the examples keep their limits at their own rate when every step is simulated, or miss one by little."""

from pathlib import Path

import pytest
from static_level import solve

from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_problem
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan, slos_of
from planner.simulate.run.summary import statistic

EXAMPLES = Path(__file__).parents[2] / "examples"
MISSED = 1.1  # of a limit: plans use all of it, by a formula for waits, where a percent of a rate is a tenth of them


@pytest.mark.parametrize(
    "name",
    [
        "serve-deepseek-v3-h200 options.max_shapes=2",  # arrivals split over decode types by chance wait for seats
        "serve-qwen3-32b-h200",
        "serve-cost-two-pools",
        "serve-qwen3-32b-drafts-h200 options.max_decode_occupancy=0.85",  # of 8 and 24 places a rank, as its plan says
    ],
)
def test_a_plan_keeps_its_limits_at_its_own_rate(name: str) -> None:
    example, *overrides = name.split()
    plan = solve(load_problem(EXAMPLES / f"{example}.yaml", overrides=overrides))
    simulated = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(), Policies())
    assert simulated.result.drained
    assert not simulated.summary["saturated"]
    (slo,) = slos_of(simulated.planned.problem)
    for limit, values in ((slo.ttft, simulated.result.ttft_s), (slo.tpot, simulated.result.tpot_s)):
        for of, bound in limit.statistics().items() if limit is not None else ():
            assert statistic(values, of) <= MISSED * bound
    (rate,) = (
        prediction.value
        for prediction in plan.predictions
        if (prediction.metric, prediction.of) == ("requests_per_s", "chat")
    )
    arrivals = simulated.result.requests.arrival_s
    assert len(arrivals) / float(arrivals[-1]) == pytest.approx(rate, rel=0.03)
