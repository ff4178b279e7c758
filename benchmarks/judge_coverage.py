"""How often the 95 % intervals of simulated statistics hold the exact values of M/D/1 and M/M/1, over seeds.

python benchmarks/judge_coverage.py            200 seeds a row
python benchmarks/judge_coverage.py --quick    20 seeds

One engine that takes a prompt at a time is a single server. Exact sojourn times: of M/M/1 exponential; of M/D/1 by
Erlang's series (Franx, "A simple solution for the M/D/c waiting time distribution", Operations Research Letters 2001,
eq. 1 for c = 1), in arithmetic of 80 digits. Limits lie 10 % above the exact values, so that run lengths follow them.
The trivial interval takes requests as independent (Student's t, order statistics) on the same runs.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, getcontext

import numpy as np

from planner.problem.schema import Limit, SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.judge.limits import STREAMS, Judgement, judge
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

SERVICE_S = 1.0
TOKENS = 1000  # of a request on average, so that exponential services are hardly rounded
UTILISATIONS = (0.5, 0.8, 0.9)
STATISTICS = ("mean", "p50", "p99")
ABOVE = 1.1  # the limit, in exact values
NORMAL_95 = 1.96


def main() -> int:
    """Prints one row for each queue, utilisation and statistic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 seeds a row")
    seeds = 20 if parser.parse_args().quick else 200
    print("queue  utilisation  statistic  exact [s]  held  held by independent  requests")
    for queue in ("M/D/1", "M/M/1"):
        for busy in UTILISATIONS:
            for name in STATISTICS:
                exact = exact_s(queue, busy, name)
                judged = [judgement_of(queue, busy, name, seed) for seed in range(seeds)]
                held = np.mean([holds(each, exact) for each in judged])
                independent = np.mean([held_if_independent(each, name, exact) for each in judged])
                count = np.mean([each.limits[0].estimate.count for each in judged])
                print(f"{queue}  {busy:<11}  {name:<9}  {exact:9.3f}  {held:4.0%}  {independent:19.0%}  {count:8.0f}")
    return 0


def judgement_of(queue: str, busy: float, name: str, seed: int) -> Judgement:
    """A limit on the time to first token of a single server, judged on streams of a seed."""
    limit_s = ABOVE * exact_s(queue, busy, name)
    return judge(runs_of(queue, busy, seed), [SloSpec(ttft=Limit.model_validate({f"{name}_s": limit_s}))])


def runs_of(queue: str, busy: float, seed: int) -> Callable[[int], Sequence[SimulationResult]]:
    """Runs of so many requests together on independent streams."""
    grid = StepGrid.affine(token_s=SERVICE_S / TOKENS, most_sequences=1)
    server = Fleet((Instance(grid, 2**30, most_sequences=1, token_budget=2**20),))

    def run(count: int, stream: int) -> SimulationResult:
        rng = np.random.default_rng([seed, stream])
        arrival_s = np.cumsum(rng.exponential(SERVICE_S / busy, count))
        work = rng.exponential(TOKENS, count) if queue == "M/M/1" else np.full(count, TOKENS)
        return simulate(server, Requests.open_stream(arrival_s, np.maximum(np.rint(work), 1), np.ones(count)))

    return lambda requests: [run(requests // STREAMS, stream) for stream in range(STREAMS)]


def exact_s(queue: str, busy: float, name: str) -> float:
    """The mean or a percentile of the time in the system."""
    quantile = quantile_of(name)
    if queue == "M/M/1":
        mean_s = SERVICE_S / (1.0 - busy)
        return mean_s if quantile is None else -math.log(1.0 - quantile) * mean_s
    if quantile is None:
        return SERVICE_S * (1.0 + busy / (2.0 * (1.0 - busy)))
    low, high = 0.0, 60.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if waits_no_longer(middle, busy) < quantile else (low, middle)
    return SERVICE_S * (1.0 + high)


def waits_no_longer(time: float, busy: float) -> float:
    """P(wait <= time) of M/D/1 with a service of 1."""
    getcontext().prec = 80
    rate, total = Decimal(busy), Decimal(0)
    for k in range(int(time) + 1):
        part = rate * (Decimal(time) - k)
        total += (-part) ** k / Decimal(math.factorial(k)) * part.exp() if k else part.exp()
    return float((1 - rate) * total)


def holds(judgement: Judgement, exact: float) -> bool:
    """Whether the interval of the limit's statistic holds the exact value."""
    estimate = judgement.limits[0].estimate
    return estimate.interval is not None and estimate.low <= exact <= estimate.high


def held_if_independent(judgement: Judgement, name: str, exact: float) -> bool:
    """Whether an interval does that takes requests as independent."""
    values, quantile = np.sort(np.concatenate(judgement.values(0, "ttft"))), quantile_of(name)
    count = len(values)
    if quantile is None:
        half = NORMAL_95 * float(values.std(ddof=1)) / math.sqrt(count)
        return abs(float(values.mean()) - exact) <= half
    middle, spread = quantile * count, NORMAL_95 * math.sqrt(count * quantile * (1.0 - quantile))
    low, high = int(middle - spread), min(math.ceil(middle + spread), count - 1)
    return bool(values[low] <= exact <= values[high])


if __name__ == "__main__":
    raise SystemExit(main())
