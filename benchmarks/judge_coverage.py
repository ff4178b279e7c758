"""How often the 95 % intervals of simulated statistics hold the exact values of single servers, over seeds.

python benchmarks/judge_coverage.py              200 seeds a row, the queues that the method was chosen on
python benchmarks/judge_coverage.py --others     others, at other loads and on other seeds, that it was not
python benchmarks/judge_coverage.py --quick      20 seeds a row

Sojourn times of one server in order of arrival, by Lindley's recursion, which the simulator follows to the last bit
(`tests/simulate/test_simulation_identities.py`) and which is fast enough for so many seeds. Poisson arrivals with
constant (M/D/1), exponential (M/M/1), Erlang (M/E4/1) and hyperexponential (M/H2/1, of CV 2 and 3, balanced means)
services of 1 s; gamma gaps of CV 2, 4 and 6 with exponential services (G/M/1). Exact values: M/D/1 by Erlang's series
(Franx, "A simple solution for the M/D/c waiting time distribution", Operations Research Letters 2001, eq. 1 for c = 1);
G/M/1 exponential with the root of its transform (Kleinrock, Queueing Systems, vol. 1, eq. 6.29); the others by the
poles of the transform of Pollaczek and Khinchin. Limits lie 10 % above the exact values: run lengths follow them.

`told`: streams as long as the pilot asked for; the others are too close to call, whatever their interval. `held`: of
those told, whose interval holds the exact value. The trivial interval takes the requests of the same runs as
independent (Student's t, order statistics).
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, getcontext
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.problem.slo import Limit, SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.judge.judging import Streams, judge
from planner.simulate.judge.limits import STREAMS, Judgement
from planner.simulate.requests.stream import Requests
from planner.simulate.run.gaps import Gaps
from planner.simulate.run.result import SimulationResult

STATISTICS = ("mean", "p50", "p90", "p99")
ABOVE = 1.1  # the limit, in exact values
NORMAL_95 = 1.96
FIRST_OTHER_SEED = 10_000


@dataclass(frozen=True, slots=True)
class Queue:
    """One server with a service of 1 s on average; the letters are Kendall's, `cv` that which they leave open."""

    arrivals: str  # M, G
    service: str  # D, M, E4, H2
    busy: float
    cv: float = 1.0

    @property
    def name(self) -> str:
        """Kendall's, with the CV where it is none of the letters'."""
        return f"{self.arrivals}/{self.service}/1" + (f" cv {self.cv:g}" if self.cv != 1.0 else "")


CHOSEN_ON = tuple(
    [Queue("M", service, busy, cv) for service, cv in (("D", 1.0), ("M", 1.0), ("H2", 2.0)) for busy in (0.5, 0.8, 0.9)]
    + [Queue("G", "M", busy, 4.0) for busy in (0.5, 0.8)]
)
OTHERS = tuple(
    Queue(arrivals, service, busy, cv)
    for arrivals, service, cv in (("M", "E4", 1.0), ("M", "H2", 3.0), ("G", "M", 2.0), ("G", "M", 6.0))
    for busy in (0.6, 0.85)
)


def main() -> int:
    """Prints one row for each queue and statistic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 seeds a row")
    parser.add_argument("--others", action="store_true", help="queues and seeds that the method was not chosen on")
    given = parser.parse_args()
    seeds = range(FIRST_OTHER_SEED if given.others else 0, (FIRST_OTHER_SEED if given.others else 0) + 200)
    print("queue        load  statistic   exact [s]  told   held  independent  half interval  requests")
    for queue in OTHERS if given.others else CHOSEN_ON:
        for name in STATISTICS:
            exact = exact_s(queue, name)
            judged = [judgement_of(queue, name, seed) for seed in (seeds[:20] if given.quick else seeds)]
            told = [each for each in judged if each.long_enough] or judged
            held = np.mean([holds(each, exact) for each in told])
            independent = np.mean([held_if_independent(each, name, exact) for each in told])
            half = np.mean([0.5 * (e.limits[0].estimate.high - e.limits[0].estimate.low) for e in told]) / exact
            count = np.mean([each.limits[0].estimate.count for each in judged])
            share = sum(each.long_enough for each in judged) / len(judged)
            print(
                f"{queue.name:<12} {queue.busy:<5} {name:<9} {exact:11.3f}  {share:4.0%}  {held:5.1%}"
                f"  {independent:11.0%}  {half:13.1%}  {count:8.0f}",
                flush=True,
            )
    return 0


def judgement_of(queue: Queue, name: str, seed: int) -> Judgement:
    """A limit on the time to first token of a single server, judged on streams of a seed."""
    limit_s = ABOVE * exact_s(queue, name)
    return judge(runs_of(queue, seed), [SloSpec(ttft=Limit.model_validate({f"{name}_s": limit_s}))])


def runs_of(queue: Queue, seed: int) -> Streams:
    """Runs of so many requests together on independent streams."""

    def run(count: int, *key: int) -> SimulationResult:
        rng = np.random.default_rng([seed, *key])
        gap_s, service_s = _gaps_s(queue, count, rng), _services_s(queue, count, rng)
        return served(np.cumsum(gap_s), service_s)

    def runs(requests: int, *, pilot: bool) -> Sequence[SimulationResult]:
        return [run(requests // STREAMS, int(pilot), stream) for stream in range(STREAMS)]

    return runs


def served(arrival_s: Floats, service_s: Floats) -> SimulationResult:
    """What one server makes of requests in order of arrival, each with one token (Lindley's recursion) [R]."""
    count = len(arrival_s)
    behind = np.concatenate([[0.0], np.cumsum(service_s[:-1] - np.diff(arrival_s))])
    started_s = arrival_s + behind - np.minimum.accumulate(behind)
    ended_s = started_s + service_s
    unused = np.zeros(count, dtype=np.int64)
    fields: dict[str, Any] = {field.name: unused for field in dataclasses.fields(SimulationResult)}
    known = {
        "requests": Requests.open_stream(arrival_s, np.ones(count), np.ones(count)),
        "complete": np.ones(count, dtype=np.bool_),
        "arrival_s": arrival_s,
        "started_s": started_s,
        "prefilled_s": ended_s,
        "first_token_s": ended_s,
        "finished_s": ended_s,
        "gaps": Gaps.of_counts(np.zeros((1, 1, 1), dtype=np.int64), np.zeros((1, 1))),
        "end_s": float(ended_s[-1]),
        "num_events": 2 * count,
    }
    return SimulationResult(**{**fields, **known})


def _gaps_s(queue: Queue, count: int, rng: np.random.Generator) -> Floats:
    if queue.arrivals == "M":
        return rng.exponential(1.0 / queue.busy, count)
    return rng.gamma(queue.cv**-2, queue.cv**2 / queue.busy, count)


def _services_s(queue: Queue, count: int, rng: np.random.Generator) -> Floats:
    if queue.service == "D":
        return np.ones(count)
    if queue.service == "E4":
        return rng.gamma(4.0, 0.25, count)
    if queue.service == "M":
        return rng.exponential(1.0, count)
    share, rates = _phases(queue.cv)
    phase = (rng.random(count) >= share[0]).astype(np.int64)
    scaled_s: Floats = rng.exponential(1.0, count) / rates[phase]
    return scaled_s


def _phases(cv: float) -> tuple[Floats, Floats]:
    """Shares and rates of a hyperexponential time of mean 1 with balanced means."""
    share = 0.5 * (1.0 + math.sqrt((cv**2 - 1.0) / (cv**2 + 1.0)))
    shares = np.array([share, 1.0 - share])
    return shares, 2.0 * shares


def exact_s(queue: Queue, name: str) -> float:
    """The mean or a percentile of the time in the system."""
    quantile = quantile_of(name)
    if queue.service == "D":
        if quantile is None:
            return 1.0 + queue.busy / (2.0 * (1.0 - queue.busy))
        return 1.0 + _crossing(lambda time: 1.0 - waits_no_longer(time, queue.busy), quantile)
    weights, rates = _poles(queue)
    if quantile is None:
        return float(np.real(np.sum(weights / rates)))
    return _crossing(lambda time: float(np.real(np.sum(weights * np.exp(-rates * time)))), quantile)


def _crossing(beyond: Callable[[float], float], quantile: float) -> float:
    low, high = 0.0, 1.0
    while beyond(high) > 1.0 - quantile:
        high *= 2.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if beyond(middle) > 1.0 - quantile else (low, middle)
    return high


def _poles(queue: Queue) -> tuple[Any, Any]:
    """Weights and rates of the exponentials that P(time in the system > t) is a sum of."""
    if queue.arrivals == "G":
        shape = queue.cv**-2
        root = 0.5
        for _ in range(10_000):  # a contraction to the root below 1
            root = (1.0 + (1.0 - root) / (shape * queue.busy)) ** -shape
        return np.array([1.0]), np.array([1.0 - root])
    shares, rates = (np.array([1.0]), np.array([1.0])) if queue.service == "M" else _phases(queue.cv)
    poly = np.polynomial.Polynomial
    if queue.service == "E4":
        above, below = poly([256.0]), poly([4.0, 1.0]) ** 4
    else:
        below = math.prod((poly([rate, 1.0]) for rate in rates), start=poly([1.0]))
        above = sum(
            (share * rate * below // poly([rate, 1.0]) for share, rate in zip(shares, rates, strict=True)), poly([0.0])
        )
    whole = (poly([-queue.busy, 1.0]) * below + queue.busy * above) // poly([0.0, 1.0])
    roots = whole.roots()
    return (1.0 - queue.busy) * above(roots) / whole.deriv()(roots) / -roots, -roots


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
