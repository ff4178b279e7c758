"""Our simulator against vLLM's own scheduler and KV-cache manager: the same requests, the same step times.

Ten seeded streams of one engine: chunked prefill, preemption and prefix caching, lengths of CV 0 to 2, loads of half to
beyond what the engine takes. vLLM's Scheduler runs in an environment of its own, `$VALIDATORS_HOME/vllm` (default
~/.cache/planner-validators, made by ../shared/validators/setup.sh vllm), by `referees/vllm_engine.py`. Errors are the
largest of p50, p90 and p99, relative to vLLM's. The trivial answer: each request alone on the engine. Engines form
steps one ahead, as vLLM does by default, and then each when the one before has ended (`--no-async-scheduling`).
`--freeze` writes small streams with vLLM's outcome to benchmarks/data/scheduler_referee.json, which the tests hold the
simulator against.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from simulated_steps import Step, steps_of

from planner.arrays import Floats, Ints
from planner.simulate.fleet.front_ends import fronts_of, tokenised_s, turn_s
from planner.simulate.fleet.instances import UNLIMITED, Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

DRIVER = Path(__file__).parent / "referees" / "vllm_engine.py"
FROZEN = Path(__file__).parent / "data" / "scheduler_referee.json"
QUANTILES = (0.5, 0.9, 0.99)
GRID = StepGrid.affine(6e-3, sequence_s=3e-5, context_s=4e-8, token_s=3e-5, pair_s=1e-9, prefill_s=1e-3)
FROZEN_REQUESTS = 24


@dataclass(frozen=True)
class Case:
    """How a stream is drawn: coefficients of variation of lengths and gaps, load over what the engine takes."""

    name: str
    lengths: float
    load: float
    gaps: float = 1.0
    input_tokens: float = 400.0
    output_tokens: float = 120.0
    budget: int = 512
    sequences: int = 64
    kv_blocks: int = 20_000
    watermark: float = 0.0
    shared: str = ""  # what prompts share: `system` prompts, `turns` of conversations


CASES = (
    Case("equal lengths, half load", 0.0, 0.5),
    Case("chunks of 512", 1.0, 0.8),
    Case("chunks of 256, long tails", 2.0, 0.9, budget=256),
    Case("bursts", 1.0, 0.7, gaps=4.0, budget=1024),
    Case("preemption", 1.0, 1.2, kv_blocks=400),
    Case("preemption, long prompts", 1.0, 1.5, input_tokens=1500.0, budget=128, kv_blocks=600),
    Case("preemption, long tails, watermark", 2.0, 1.5, budget=256, kv_blocks=500, watermark=0.01),
    Case("more than it runs", 0.0, 2.0, sequences=16),
    Case("system prompts", 1.0, 0.7, shared="system"),
    Case("conversations, preemption", 1.5, 1.3, kv_blocks=500, shared="turns"),
)

SMALL_CASES = tuple(  # for the tests: shorter requests, and as little room for them
    replace(
        case,
        input_tokens=case.input_tokens / 4,
        output_tokens=30.0,
        budget=case.budget // 4,
        sequences=case.sequences // 4,
        kv_blocks=blocks,
    )
    for case, blocks in zip(CASES, (5000, 5000, 5000, 5000, 16, 28, 30, 5000, 5000, 36), strict=True)
)


@dataclass(frozen=True)
class Stream:
    """One engine and the requests that come to it."""

    name: str
    fleet: Fleet
    requests: Requests


@dataclass(frozen=True)
class Outcome:
    """What became of a stream: times of tokens and counts by request; steps with end and tokens by request."""

    token_s: list[list[float]]
    preempted: list[int]
    cached: list[int]
    steps: list[tuple[float, dict[int, int]]]

    @classmethod
    def simulated(cls, stream: Stream) -> "Outcome":
        """Ours."""
        steps, result = steps_of(stream.fleet, stream.requests), simulate(stream.fleet, stream.requests)
        times = token_s(len(stream.requests), steps)
        if [row[-1] for row in times] != result.finished_s.tolist():
            raise AssertionError("steps looked at one by one end otherwise than those looked ahead over")
        in_order = sorted(steps, key=lambda step: (step.start_s, step.instance))
        ends = [(step.end_s, step.tokens) for step in in_order]
        return cls(times, result.preempted.tolist(), result.cached_tokens.tolist(), ends)

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Outcome":
        """The referee's."""
        steps = [(end_s, dict(tokens)) for _, end_s, tokens, _ in sorted(values["steps"], key=lambda step: step[::3])]
        return cls(values["token_s"], values["preempted"], values["cached"], steps)

    def ttft_s(self, requests: Requests) -> Floats:
        """From arrival to the first token [R]."""
        return np.array([times[0] for times in self.token_s]) - requests.arrival_s

    def itl_s(self) -> Floats:
        """Times between tokens of a request, of all requests."""
        return np.concatenate([np.diff(times) for times in self.token_s])


def token_s(count: int, steps: list[Step]) -> list[list[float]]:
    """When each request has its tokens."""
    times: list[list[float]] = [[] for _ in range(count)]
    for step in steps:
        for r in step.answered:
            times[r].append(step.end_s)
    return times


def lengths(rng: np.random.Generator, mean: float, cv: float, count: int) -> Ints:
    """Lognormal lengths of a mean, at least 1 token."""
    sigma = np.sqrt(np.log1p(cv**2))
    return np.maximum(np.rint(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)), 1).astype(np.int64)


def prompts(case: Case, rng: np.random.Generator, inputs: Ints) -> tuple[Ints, list[list[tuple[int, int]]]]:
    """Lengths of prompts with what they share, and the names of the blocks of 16 tokens of that."""
    if case.shared == "system":
        which, blocks = rng.integers(0, 6, len(inputs)), rng.integers(4, 20, 6)
        return inputs + 16 * blocks[which], [[(int(p), block) for block in range(blocks[p])] for p in which]
    if case.shared == "turns":
        talks, so_far = rng.integers(0, max(len(inputs) // 6, 1), len(inputs)), dict[int, int]()
        whole = inputs.copy()
        for r, talk in enumerate(talks.tolist()):
            whole[r] = so_far[talk] = so_far.get(talk, 0) + max(int(inputs[r]) // 3, 1)
        return whole, [[(talk, block) for block in range(whole[r] // 16)] for r, talk in enumerate(talks.tolist())]
    return inputs, [[] for _ in inputs]


def draw(case: Case, seed: int, count: int) -> Stream:
    """The stream of a case, its load over what the engine gets done when all requests are there at once."""
    rng = np.random.default_rng(seed)
    most = 16 * case.kv_blocks // 3
    outputs = np.minimum(lengths(rng, case.output_tokens, case.lengths, count), most)
    inputs, names = prompts(case, rng, np.minimum(lengths(rng, case.input_tokens, case.lengths, count), most))
    kept = np.minimum(inputs, 16 * case.kv_blocks - outputs - 16)
    names = [row[: int(kept[r]) // 16] for r, row in enumerate(names)]
    instance = Instance(
        GRID,
        kv_tokens=16 * case.kv_blocks,
        token_budget=case.budget,
        most_sequences=case.sequences,
        watermark=case.watermark,
    )
    fleet = Fleet((instance,), prefix_caching=bool(case.shared))
    at_once = Requests.open_stream(np.zeros(count), kept, outputs).with_prefixes(names, block_tokens=16)
    rate = case.load * count / float(simulate(fleet, at_once).finished_s.max())
    gaps = rng.gamma(1 / case.gaps**2, case.gaps**2 / rate, count)
    return Stream(case.name, fleet, replace(at_once, arrival_s=np.cumsum(gaps)))


def scheduled(stream: Stream, *, asynchronous: bool) -> Stream:
    """The stream with engines that form steps one ahead, or not."""
    engines = tuple(replace(engine, asynchronous=asynchronous) for engine in stream.fleet.instances)
    return replace(stream, fleet=replace(stream.fleet, instances=engines))


def drawn(cases: tuple[Case, ...], count: int, only: str = "") -> list[Stream]:
    """The streams of the cases whose name has `only` in it, of so many requests."""
    return [draw(case, seed, count) for seed, case in enumerate(cases) if only in case.name]


def for_referee(stream: Stream) -> dict[str, Any]:
    """What the referee reads of a stream."""
    fleet, requests = stream.fleet, stream.requests
    ends = requests.prefix_of.tolist()
    return {
        "engines": [
            {
                "token_budget": instance.token_budget,
                "most_sequences": instance.most_sequences,
                "kv_blocks": instance.kv_tokens // fleet.block_tokens,
                "block_tokens": fleet.block_tokens,
                "prefix_caching": fleet.prefix_caching,
                "watermark": instance.watermark,
                "asynchronous": instance.asynchronous,
            }
            for instance in fleet.instances
        ],
        "routing": fleet.routing,
        "requests": {
            "arrival_s": tokenised_at_s(fleet, requests).tolist(),
            "input_tokens": requests.input_tokens.tolist(),
            "output_tokens": requests.output_tokens.tolist(),
            "prefix": [requests.prefix[first:last].tolist() for first, last in pairwise(ends)],
            "prefix_tokens": requests.prefix_tokens.tolist(),
        },
    }


def table_of(grid: StepGrid) -> dict[str, Any]:
    """Step times as the referee reads them."""
    return {
        name: getattr(grid, name).tolist()
        for name in ("decode_s", "mixed_s", "batches", "contexts", "tokens", "attended")
    }


def interpreter() -> Path | None:
    """The Python that has vLLM; None where there is none."""
    home = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
    python = home / "vllm" / "bin" / "python"
    return python if python.exists() else None


def judged(streams: list[Stream]) -> tuple[str, list[Outcome]]:
    """vLLM's release, and what its scheduler makes of the streams."""
    python = interpreter()
    if python is None:
        sys.exit("no vLLM under $VALIDATORS_HOME: run ../shared/validators/setup.sh vllm")
    engines = [[engine.grid for engine in stream.fleet.instances] for stream in streams]
    grids = {id(grid): grid for row in engines for grid in row}
    number = {key: index for index, key in enumerate(grids)}
    given = {
        "tables": [table_of(grid) for grid in grids.values()],
        "streams": [
            for_referee(stream) | {"tables": [number[id(grid)] for grid in row]}
            for stream, row in zip(streams, engines, strict=True)
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "in.json", Path(folder) / "out.json"
        asked.write_text(json.dumps(given))
        subprocess.run([str(python), str(DRIVER), str(asked), str(answer)], check=True, stderr=subprocess.DEVNULL)
        values = json.loads(answer.read_text())
    return values["release"], [Outcome.read(outcome) for outcome in values["streams"]]


def tokenised_at_s(fleet: Fleet, requests: Requests) -> Floats:
    """When requests come from the front ends of a fleet of one model whose engines all do both [R]."""
    free_s, last_s = (dict.fromkeys(fronts_of(fleet), 0.0) for _ in range(2))
    arrival_s = requests.arrival_s + fleet.request_overhead_s
    busy_s, whole_s = (times(fleet, requests.input_tokens.astype(float)) for times in (turn_s, tokenised_s))
    ready_s = np.zeros(len(requests))
    for r in np.argsort(arrival_s, kind="stable").tolist():
        front = min(free_s, key=lambda each: (free_s[each], each))
        free_s[front] = max(free_s[front], arrival_s[r]) + busy_s[r]
        ready_s[r] = last_s[front] = max(free_s[front] + whole_s[r] - busy_s[r], last_s[front])
    return ready_s


def not_expressible(fleet: Fleet) -> str | None:
    """What of a fleet the referee does not have, in words; None where it has everything."""
    first = fleet.instances[0]
    missing = {
        "prefill and decode engines apart": first.role != "colocated",
        "pipelines": any(engine.stages > 1 for engine in fleet.instances),
        "engines other than vLLM": any(engine.policy != "mixed" or engine.reserves for engine in fleet.instances),
        "swapping": any(engine.preemption != "recompute" for engine in fleet.instances),
        "drafts": any(engine.speculation is not None for engine in fleet.instances),
        "ranks that step together": max(fleet.groups, default=1) > 1,
        f"routing `{fleet.routing}`": len(fleet.instances) > 1 and fleet.routing not in ("round-robin", "least-loaded"),
        f"queueing `{fleet.queueing}`": fleet.queueing != "fcfs",
        "several paths or models": len({engine.model for engine in fleet.instances}) > 1,
        "operation": bool(fleet.changes) or fleet.control is not None or fleet.elastic is not None,
        "migration, skew or a prefix store": fleet.migration_period_s < np.inf
        or len(fleet.skew) > 0
        or len(fleet.tiers) > 0,
        "context limits": any(engine.most_context != UNLIMITED for engine in fleet.instances),
    }
    return next((what for what, present in missing.items() if present), None)


def first_difference(own: Outcome, other: Outcome) -> int | None:
    """The number of the first step in which other requests, other tokens of them or another end are found."""
    for number, ((end_s, tokens), (other_end_s, other_tokens)) in enumerate(zip(own.steps, other.steps, strict=False)):
        if tokens != other_tokens or abs(end_s - other_end_s) > 1e-9 * other_end_s:
            return number
    return None if len(own.steps) == len(other.steps) else min(len(own.steps), len(other.steps))


def error(own: Floats, other: Floats) -> float:
    """The largest relative error of p50, p90 and p99."""
    theirs = np.quantile(other, QUANTILES)
    return float(np.max(np.abs(np.quantile(own, QUANTILES) - theirs) / theirs))


def alone(stream: Stream) -> Outcome:
    """Each request as if it were the only one: the trivial answer."""
    apart_s = np.arange(len(stream.requests), dtype=np.float64) * 1e5
    fleet = replace(stream.fleet, prefix_caching=False)
    outcome = Outcome.simulated(replace(stream, fleet=fleet, requests=replace(stream.requests, arrival_s=apart_s)))
    shift = (stream.requests.arrival_s - apart_s).tolist()
    return replace(outcome, token_s=[[t + by for t in times] for times, by in zip(outcome.token_s, shift, strict=True)])


def line(stream: Stream, own: Outcome, other: Outcome) -> str:
    """One line of the table."""
    differs = first_difference(own, other)
    trivial, requests = alone(stream), stream.requests
    return (
        f"{stream.name:35}{len(other.steps):6}  {'all' if differs is None else f'first {differs}':12}"
        f"{sum(own.preempted):5} {sum(other.preempted):5} {sum(own.cached):8} {sum(other.cached):8}"
        f"{error(own.ttft_s(requests), other.ttft_s(requests)):9.2%} {error(own.itl_s(), other.itl_s()):7.2%}"
        f"{error(trivial.ttft_s(requests), other.ttft_s(requests)):9.0%} {error(trivial.itl_s(), other.itl_s()):7.0%}"
    )


def frozen_streams(values: dict[str, Any]) -> list[tuple[Stream, Outcome]]:
    """The streams of a frozen file, and what vLLM's scheduler made of them."""
    pairs = []
    for kept in values["streams"]:
        (engine,), given = kept["engines"], kept["requests"]
        fields = {name: engine[name] for name in ("token_budget", "most_sequences", "watermark", "asynchronous")}
        instance = Instance(GRID, kv_tokens=16 * engine["kv_blocks"], **fields)
        requests = Requests.open_stream(given["arrival_s"], given["input_tokens"], given["output_tokens"])
        requests = requests.with_prefixes(given["prefix"], block_tokens=16)
        stream = Stream(kept["name"], Fleet((instance,), prefix_caching=engine["prefix_caching"]), requests)
        pairs.append((stream, thawed(kept["outcome"])))
    return pairs


def compact(outcome: Outcome) -> dict[str, Any]:
    """An outcome with the numbers of steps in place of their ends, and single tokens as a list."""
    step_of = {end_s: number for number, (end_s, _) in enumerate(outcome.steps)}
    return {
        "preempted": outcome.preempted,
        "cached": outcome.cached,
        "tokens": [[step_of[end_s] for end_s in times] for times in outcome.token_s],
        "steps": [
            [end_s, sorted(r for r, n in tokens.items() if n == 1), [[r, n] for r, n in tokens.items() if n != 1]]
            for end_s, tokens in outcome.steps
        ],
    }


def thawed(kept: dict[str, Any]) -> Outcome:
    """The outcome that `compact` had."""
    steps = [(end_s, dict.fromkeys(single, 1) | dict(several)) for end_s, single, several in kept["steps"]]
    token_s = [[steps[number][0] for number in numbers] for numbers in kept["tokens"]]
    return Outcome(token_s, kept["preempted"], kept["cached"], steps)


def freeze() -> None:
    """Writes small streams with vLLM's outcome."""
    drawn_once = drawn(SMALL_CASES, FROZEN_REQUESTS)
    streams = [scheduled(stream, asynchronous=ahead) for ahead in (True, False) for stream in drawn_once]
    release, outcomes = judged(streams)
    kept = [
        {"name": stream.name} | for_referee(stream) | {"outcome": compact(outcome)}
        for stream, outcome in zip(streams, outcomes, strict=True)
    ]
    FROZEN.write_text(json.dumps({"vllm": release, "streams": kept}, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="30 requests a stream")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--freeze", action="store_true")
    chosen = parser.parse_args()
    if chosen.freeze:
        freeze()
        return
    streams = drawn(CASES, 30 if chosen.quick else chosen.requests, chosen.only)
    for asynchronous in (True, False):
        streams = [scheduled(stream, asynchronous=asynchronous) for stream in streams]
        own = [Outcome.simulated(stream) for stream in streams]
        release, outcomes = judged(streams)
        print(f"\nvLLM {release}{', one step ahead' if asynchronous else ', step by step'}: ours against its scheduler")
        print(f"{'':35} steps  the same    preempted    prompt tokens cached     TTFT     ITL    alone: TTFT, ITL")
        for stream, ours, theirs in zip(streams, own, outcomes, strict=True):
            print(line(stream, ours, theirs))


if __name__ == "__main__":
    main()
