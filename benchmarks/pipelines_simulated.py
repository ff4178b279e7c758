"""The simulator's pipelined engines beside a slow simulator written from the definition: mean and p99 of TTFT.

One engine of pp stages that prefills alone, or prefills and decodes, on prompts of 1000 tokens in the mean, at a share
of the rate at which it works off requests that are all there. Beside it stands what a pipeline was before: pp engines
that step through the whole pipeline, each with its share of the sequences.
`--quick`: 4,000 requests instead of 20,000.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))
import tandem_simulator as slow

from planner.arrays import Floats, Ints
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

REQUESTS, QUICK_REQUESTS = 20_000, 4_000
STAGES, SPREADS, USED, OUTPUTS = (2, 4, 8, 16), (0.0, 1.0, 2.0), (0.6, 0.85), (1, 50)
MEAN_TOKENS, BUDGET, SEQUENCES = 1000, 1000, 96
FIXED_S, SEQUENCE_S, TOKEN_S = 0.15, 0.002, 1e-3
TARGET = 0.03


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests by arrival."""

    arrival_s: Floats
    inputs: Ints
    outputs: Ints


def lengths(mean: float, cv: float, count: int, rng: np.random.Generator) -> Ints:
    """Lognormal lengths."""
    deviation = np.sqrt(np.log1p(cv**2))
    drawn = rng.lognormal(np.log(mean) - deviation**2 / 2.0, deviation, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def instance_of(pp: int) -> Instance:
    """An engine of pp stages, with memory for all that it may run."""
    grid = StepGrid.affine(FIXED_S, sequence_s=SEQUENCE_S, token_s=TOKEN_S, most_sequences=SEQUENCES)
    return Instance(grid, kv_tokens=10**9, token_budget=BUDGET, most_sequences=SEQUENCES, stages=pp)


def simulated(instances: Sequence[Instance], stream: Stream) -> Floats:
    """TTFT of every request in the compiled loop [R]."""
    requests = Requests.open_stream(stream.arrival_s, stream.inputs, stream.outputs)
    result = simulate(Fleet(tuple(instances)), requests)
    return np.asarray(result.first_token_s - stream.arrival_s)


def by_definition(pp: int, stream: Stream) -> Floats:
    """TTFT of every request in the slow simulator [R]."""

    def stage_s(part: slow.Part) -> list[float]:
        whole_s = FIXED_S + SEQUENCE_S * len(part.decodes) + TOKEN_S * part.tokens
        return [whole_s / pp] * pp

    rows = zip(stream.arrival_s.tolist(), stream.inputs.tolist(), stream.outputs.tolist(), strict=True)
    requests = [slow.Request(number, *row) for number, row in enumerate(rows)]
    slow.simulate([slow.Engine(slow.Rules(stage_s, pp, token_budget=BUDGET, most_sequences=SEQUENCES))], requests)
    return np.array([request.first_s for request in requests]) - stream.arrival_s


def capacity_per_s(pp: int, inputs: Ints, outputs: Ints) -> float:
    """Requests a second when all are there from the start."""
    requests = Requests.open_stream(np.zeros(len(inputs)), inputs, outputs)
    return len(inputs) / float(simulate(Fleet((instance_of(pp),)), requests).finished_s.max())


def errors(times_s: Floats, true_s: Floats) -> tuple[float, float]:
    """Relative errors of the mean and of the 99th percentile, the first fifteenth left out."""
    kept = slice(len(true_s) // 15, None)
    return (
        abs(float(times_s[kept].mean() / true_s[kept].mean()) - 1.0),
        abs(_p99(times_s[kept]) / _p99(true_s[kept]) - 1.0),
    )


def _p99(times_s: Floats) -> float:
    return float(np.quantile(times_s, 0.99))


def main() -> int:
    """One row a cell; 1 where the simulator is further off than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    count = QUICK_REQUESTS if parser.parse_args().quick else REQUESTS
    worst, before, started = [0.0, 0.0], [], time.process_time()
    print(f"{'role':10} pp  cv  used |   mean    p99 | pp engines: mean  p99")
    for most in OUTPUTS:
        for pp in STAGES:
            for cv in SPREADS:
                rng = np.random.default_rng(7)
                inputs = lengths(MEAN_TOKENS, cv, count, rng)
                outputs = np.ones_like(inputs) if most == 1 else lengths(most, 0.5, count, rng)
                gaps = rng.exponential(1.0 / capacity_per_s(pp, inputs, outputs), count)
                for used in USED:
                    stream = Stream(np.cumsum(gaps) / used, inputs, outputs)
                    true_s, own = by_definition(pp, stream), instance_of(pp)
                    off = errors(simulated([own], stream), true_s)
                    shared = replace(own, stages=1, most_sequences=max(SEQUENCES // pp, 1))
                    old = errors(simulated([shared] * pp, stream), true_s)
                    worst = [max(pair) for pair in zip(worst, off, strict=True)]
                    before.append(old)
                    name = f"{'prefill' if most == 1 else 'colocated':10} {pp:2} {cv:3g} {used:5g}"
                    print(f"{name} | {off[0]:6.2%} {off[1]:6.2%} | {old[0]:14.1%} {old[1]:6.1%}")
    mean, p99 = (float(np.mean(column)) for column in zip(*before, strict=True))
    print(f"largest error: mean {worst[0]:.2%}, p99 {worst[1]:.2%}; as pp engines, on average: {mean:.1%}, {p99:.1%}")
    print(f"{count} requests a cell, {time.process_time() - started:.0f} CPU-s")
    return 0 if max(worst) <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
