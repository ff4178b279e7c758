"""Engines that share groups of devices in turns, request by request in plain Python, as the rule is written.

It knows nothing of `planner.simulate` or of the compiled rule. `PlanPrices` prices every step of a plan's groups from
the costs of its operators, prompts by their own lengths; decoding runs the smallest captured CUDA graph that has room:
1, 2, 4 sequences, multiples of 8, and the largest batch (vLLM's sizes).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.step import step_time
from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.problem.resolve import Resolved

NEAR_TOKENS = 16  # to which contexts are rounded


class Prices(Protocol):
    """What engines take, by group and model."""

    def most(self, model: int) -> int: ...

    def chunk(self, model: int) -> int: ...

    def room(self, model: int) -> int: ...

    def prefill_s(self, group: int, model: int, prompts: Sequence[int]) -> float: ...

    def decode_s(self, group: int, model: int, count: int, mean: float) -> float: ...


@dataclass
class Engine:
    """One model on a group."""

    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, int] = field(default_factory=dict)  # tokens that each request has made


@dataclass
class Turns:
    """One group: its engines in turn, the step that runs, and its end."""

    engines: dict[int, Engine]
    last: int = -1
    ends_s: float = 0.0
    joined: list[int] = field(default_factory=list)
    busy: bool = False

    def flight(self, model: int) -> int:
        engine = self.engines[model]
        return len(engine.waiting) + len(engine.running) + (len(self.joined) if self.last == model else 0)


@dataclass
class Run:
    """All groups over one stream, and the times of the first and the last token of every request."""

    prices: Prices
    groups: Sequence[Sequence[int]]  # the models of each
    prompt: list[int]
    answer: list[int]
    pairs: Floats  # draws of the two groups of each request
    turns: list[Turns] = field(init=False)
    first: list[float] = field(init=False)
    last: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = [Turns({model: Engine() for model in models}) for models in self.groups]
        self.first, self.last = [np.nan] * len(self.prompt), [np.nan] * len(self.prompt)

    def whole(self, requests: Sequence[int]) -> int:
        return sum(self.prompt[j] + self.answer[j] for j in requests)

    def start(self, g: int, now: float) -> None:
        group, order = self.turns[g], list(self.turns[g].engines)
        place = order.index(group.last) + 1 if group.last in order else 0
        for model in order[place:] + order[:place]:
            joined = self.joining(model, group.engines[model])
            if joined or group.engines[model].running:
                group.last, group.joined, group.busy = model, joined, True
                group.ends_s = now + self.seconds(g, model, group.engines[model], joined)
                return
        group.busy = False

    def joining(self, model: int, engine: Engine) -> list[int]:
        joined: list[int] = []
        while engine.waiting and len(engine.running) + len(joined) < self.prices.most(model):
            trial = [*joined, engine.waiting[0]]
            over = joined and sum(self.prompt[j] for j in trial) > self.prices.chunk(model)
            if over or self.whole([*engine.running, *trial]) > self.prices.room(model):
                break
            joined.append(engine.waiting.popleft())
        return joined

    def seconds(self, g: int, model: int, engine: Engine, joined: Sequence[int]) -> float:
        if joined:
            return self.prices.prefill_s(g, model, [self.prompt[j] for j in joined])
        count = len(engine.running)
        mean = sum(self.prompt[j] + made for j, made in engine.running.items()) / count
        return self.prices.decode_s(g, model, count, mean)

    def end(self, g: int) -> None:
        group = self.turns[g]
        engine = group.engines[group.last]
        if group.joined:
            for j in group.joined:
                self.first[j], engine.running[j] = group.ends_s, 1
            group.joined = []
        else:
            for j in engine.running:
                engine.running[j] += 1
        for j in [j for j, made in engine.running.items() if made == self.answer[j]]:
            del engine.running[j]
            self.last[j] = group.ends_s
        self.start(g, group.ends_s)

    def until(self, now: float) -> None:
        for g, group in enumerate(self.turns):
            while group.busy and group.ends_s <= now:
                self.end(g)

    def come(self, j: int, now: float, model: int) -> None:
        hosts = [g for g, models in enumerate(self.groups) if model in models]
        if not hosts or self.whole([j]) > self.prices.room(model):
            return
        self.until(now)
        u, v = self.pairs[j]
        first = int(u * len(hosts))
        pair = [hosts[first], hosts[(first + 1 + int(v * (len(hosts) - 1))) % len(hosts)]]
        chosen = min(pair, key=lambda g: self.turns[g].flight(model))
        self.turns[chosen].engines[model].waiting.append(j)
        if not self.turns[chosen].busy:
            self.start(chosen, now)

    def run(self, times: Sequence[float], models: Sequence[int]) -> None:
        """The whole stream."""
        for j, (now, model) in enumerate(zip(times, models, strict=True)):
            self.come(j, now, model)
        self.until(np.inf)


class PlanPrices:
    """The engines of a plan whose groups have one stage."""

    def __init__(self, resolved: Resolved, decision: PlaceDecision) -> None:
        options = PlaceOptions.model_validate(resolved.problem.options)
        engine = resolved.problem.engine
        calibration = load_calibration(resolved.problem.costs.calibration)
        overheads = calibration.engine(engine.name, engine.version)
        self.options, self.workloads = options, resolved.workloads
        self.tp = [role.parallelism.tp for role in decision.roles]
        self.way_s = [float(overheads.request_s(each.input.mean_tokens)) for each in resolved.workloads]
        most = self.sequences = decision.hosts[0].max_batch
        self.captured = sorted({size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most})

        @cache
        def step_s(tp: int, model: int, tokens: int, prompts: int, count: int, context: int) -> float:
            arch = resolved.models[self.workloads[model].model]
            pricer = make_pricer(
                resolved.pools[0], arch, engine=engine.name, version=engine.version, calibration=calibration, store=None
            )
            work = Work.of(np.array([float(tokens)]), float(prompts), 0.0, float(count), float(context))
            return float(step_time(arch, pricer, Shards.of(float(tp)), work, overheads).seconds[0])

        self.step_s = step_s

    def most(self, model: int) -> int:
        return self.sequences

    def chunk(self, model: int) -> int:
        return self.options.chunk_tokens

    def room(self, model: int) -> int:
        sides = (self.workloads[model].input, self.workloads[model].output)
        mean, long = (
            sum(side.mean_tokens for side in sides),
            sum(side.mean_tokens * (1 + 4 * side.cv) for side in sides),
        )
        return int(max(self.sequences * mean, long))

    def prefill_s(self, group: int, model: int, prompts: Sequence[int]) -> float:
        tokens = NEAR_TOKENS * -(-sum(prompts) // NEAR_TOKENS)
        return self.step_s(self.tp[group], model, tokens, len(prompts), 0, 0)

    def decode_s(self, group: int, model: int, count: int, mean: float) -> float:
        captured = next(size for size in self.captured if size >= count)
        return self.step_s(self.tp[group], model, 0, 0, captured, NEAR_TOKENS * max(round(mean / NEAR_TOKENS), 1))


def drawn(resolved: Resolved, count: int, seed: int) -> tuple[Floats, list[int], list[int], list[int]]:
    """Times, models, prompts and answers of some requests: gamma gaps, log-normal lengths."""
    draws = np.random.default_rng(seed)
    loads = [workload.spec.load for workload in resolved.workloads]
    rates = [load.rate_per_s or 0.0 for load in loads if load is not None]
    cvs = [load.arrival_cv for load in loads if load is not None]
    horizon_s = count / sum(rates)
    rows = []
    for model, (workload, rate, cv) in enumerate(zip(resolved.workloads, rates, cvs, strict=True)):
        number = int(2 * rate * horizon_s) + 100
        times = np.cumsum(draws.gamma(cv**-2, cv**2 / rate, number))
        lengths = [_lognormal(draws, side.mean_tokens, side.cv, number) for side in (workload.input, workload.output)]
        rows += [
            (float(time_s), model, int(prompt), int(answer))
            for time_s, prompt, answer in zip(times, *lengths, strict=True)
            if time_s < horizon_s
        ]
    rows.sort()
    return np.array([row[0] for row in rows]), *([row[i] for row in rows] for i in (1, 2, 3))  # type: ignore[return-value]  # three lists


def _lognormal(draws: np.random.Generator, mean: float, cv: float, number: int) -> Floats:
    spread = np.log1p(cv**2)
    return np.maximum(np.rint(draws.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), number)), 1.0)


def attained(
    resolved: Resolved, decision: PlaceDecision, count: int, seed: int, *, warm_up: float = 0.1
) -> list[float]:
    """The share of each workload's requests that keeps its limits, of those after the first."""
    prices = PlanPrices(resolved, decision)
    keys = [workload.model for workload in resolved.workloads]
    groups = [[keys.index(host.model) for host in decision.hosts if host.group == role.name] for role in decision.roles]
    times, models, prompts, answers = drawn(resolved, count, seed)
    run = Run(prices, groups, prompts, answers, np.random.default_rng(seed + 1).random((len(times), 2)))
    run.run(times.tolist(), models)
    kept: list[list[bool]] = [[] for _ in keys]
    for j in range(int(warm_up * len(times)), len(times)):
        limits = resolved.workloads[models[j]].spec.slo.percentile_limits()
        gaps = max(answers[j] - 1, 1)
        stated = {
            "ttft": run.first[j] - times[j] + prices.way_s[models[j]],
            "tpot": (run.last[j] - run.first[j]) / gaps,
            "latency": run.last[j] - times[j] + prices.way_s[models[j]],
        }
        kept[models[j]].append(all(stated[name] <= limit for name, limit in limits.items()))
    return [sum(of_model) / len(of_model) for of_model in kept]
