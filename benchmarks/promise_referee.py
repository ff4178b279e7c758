"""Plans judged by simulators that no plan was chosen with: vLLM's own scheduler, or slow ones written from definitions.

Colocated engines of one stage are driven by vLLM's Scheduler and KV-cache manager (`scheduler_referee.py`): one engine
of each of `STREAMS` streams, with the requests that routers send it, since vLLM's takes some 20 ms a request. Engines
with stages are those of `tests/oracles/tandem_simulator.py` (the least loaded takes a request, whatever the plan's
routers do), prefill and decode engines apart and ranks that step together those of `step_simulator.py` and
`ahead_simulator.py`. Stages with roles apart have no other simulator, and are judged by the one that plans are chosen
with. A limit is broken where the 95 % interval of its statistic by the values of streams (Student's) lies above it.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "oracles"))

import tandem_simulator as tandem
from ahead_simulator import AheadSimulator
from scheduler_referee import Stream, interpreter, judged, not_expressible, tokenised_at_s
from step_prices import decode_s, mixed_s
from step_simulator import StepSimulator

from planner.arrays import Floats
from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_problem
from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import UNLIMITED, Fleet
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.judge.judging import warmed
from planner.simulate.judge.limits import Judgement, judge_runs
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.workload import own_requests
from planner.simulate.requests.stream import Requests, all_requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import statistic

STREAMS = 5
STREAM_SEEDS = 1000
TOKENS = 100_000  # generated in what is judged of a stream
FEWEST, MOST = 400, 1_000  # requests of that
REFERENCE = 2_000  # of a stream that slow simulators take whole
STUDENT_95 = 2.776  # of four degrees of freedom


@dataclass(frozen=True, slots=True)
class Judged:
    """What judged a plan, and the limits that it breaks, with how far the interval lies beyond them."""

    by: str
    broken: tuple[str, ...]


def referee(plan: Envelope, slo: SloSpec, seed: int) -> Judged:
    """The limits of a plan of one workload, judged on fresh streams by another simulator than it was chosen with."""
    problem = recorded_problem(plan.inputs)
    assert problem is not None
    decision = ServeDecision.model_validate(plan.decision)
    sample = own_requests(plan, problem, FEWEST, seed)
    count = int(min(max(TOKENS / sample.output_tokens.mean(), FEWEST), MOST))
    planned = fleet_of_plan(plan, decision, sample, Policies()).fleet
    whole = count * len(planned.instances) if _expressible(planned) else REFERENCE
    streams = [own_requests(plan, problem, whole, seed + STREAM_SEEDS * number) for number in range(STREAMS)]
    fleet = fleet_of_plan(plan, decision, all_requests(streams), Policies()).fleet
    own = [simulate(fleet, requests) for requests in streams]
    by, runs = _by_vllm(fleet, own) if _expressible(fleet) else _by_reference(fleet, own)
    judgement = warmed(judge_runs(runs, (slo,)), (slo,))
    return Judged(by, tuple(_broken(judgement)))


def _broken(judgement: Judgement) -> Iterator[str]:
    """Limits that the interval of a statistic lies beyond."""
    for limit in judgement.limits:
        values = [statistic(each[~np.isnan(each)], limit.statistic) for each in judgement.values(0, limit.time)]
        half = STUDENT_95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        if (low := float(np.mean(values)) - half) > limit.limit:
            yield f"{limit.statistic} {limit.time} {low / limit.limit - 1.0:+.1%}"
    if judgement.saturated:
        yield "waits grow"


def _expressible(fleet: Fleet) -> bool:
    """Whether vLLM's scheduler can be driven with it, and is here."""
    staged = any(engine.stages > 1 for engine in fleet.instances)
    return _alone(fleet) and not staged and interpreter() is not None and not_expressible(_plain(fleet)) is None


def _by_reference(fleet: Fleet, own: Sequence[SimulationResult]) -> tuple[str, list[SimulationResult]]:
    """The runs with the times of the first slow simulator that takes the fleet."""
    staged = any(engine.stages > 1 for engine in fleet.instances)
    if staged and not _alone(fleet):
        return "own", list(own)
    name, slow = ("tandem", _by_tandem) if staged else ("slow", _by_steps)
    return name, [slow(fleet, run) for run in own]


def _alone(fleet: Fleet) -> bool:
    """Whether engines are of one type, do both and step by themselves."""
    return (
        all(engine.role == "colocated" for engine in fleet.instances)
        and max(fleet.groups, default=1) == 1
        and len({engine.model for engine in fleet.instances}) == 1
    )


def _plain(fleet: Fleet) -> Fleet:
    """The first engine by itself; no request comes near the limit on its context."""
    return Fleet(
        (replace(fleet.instances[0], most_context=UNLIMITED),),
        request_overhead_s=fleet.request_overhead_s,
        frontend_s=fleet.frontend_s,
        frontend_token_s=fleet.frontend_token_s,
        tokenises_together=fleet.tokenises_together,
    )


def _by_vllm(fleet: Fleet, own: Sequence[SimulationResult]) -> tuple[str, list[SimulationResult]]:
    """vLLM's scheduler on the requests of one engine of each run, and these requests alone."""
    loads = []
    for number, run in enumerate(own):
        rows, load = np.flatnonzero(run.home == number % len(fleet.instances)), run.requests
        loads.append(Requests.open_stream(load.arrival_s[rows], load.input_tokens[rows], load.output_tokens[rows]))
    release, outcomes = judged([Stream("judged", _plain(fleet), load) for load in loads])
    runs = []
    for load, outcome in zip(loads, outcomes, strict=True):
        first, last = (np.array([times[place] for times in outcome.token_s]) for place in (0, -1))
        runs.append(_with(simulate(_plain(fleet), load), first, last))
    return f"vLLM {release}", runs


def _by_steps(fleet: Fleet, run: SimulationResult) -> SimulationResult:
    """One object a request and one event a step."""
    ahead = any(engine.asynchronous for engine in fleet.instances)
    slow = (AheadSimulator if ahead else StepSimulator)(fleet, run.requests, _draw)
    slow.run()
    return _with(run, *(np.array([getattr(r, name) for r in slow.requests]) for name in ("first_s", "finished_s")))


def _draw(number: int, request: int, offset: int) -> float:
    """SplitMix64 with the seed of a run, as routers draw."""
    mask = 2**64 - 1
    mixed = (number * 0x9E3779B97F4A7C15 + 2 * request + offset + 1) & mask
    mixed = mixed * 0x9E3779B97F4A7C15 & mask
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
    return float(((mixed ^ mixed >> 31) >> 11) / 2**53)


def _by_tandem(fleet: Fleet, run: SimulationResult) -> SimulationResult:
    """Engines with stages, every stage an equal part of a step."""
    engine, load = fleet.instances[0], run.requests
    rules = tandem.Rules(
        lambda part: [_part_s(engine.grid, part) / engine.stages] * engine.stages,
        pp=engine.stages,
        token_budget=engine.token_budget,
        most_sequences=engine.most_sequences,
        kv_tokens=engine.kv_tokens,
        block_tokens=fleet.block_tokens,
    )
    arrivals = tokenised_at_s(fleet, load).tolist()
    rows = zip(arrivals, load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True)
    requests = [tandem.Request(number, *row) for number, row in enumerate(rows)]
    tandem.simulate([tandem.Engine(rules) for _ in fleet.instances], requests)
    return _with(run, np.array([r.first_s for r in requests]), np.array([r.finished_s for r in requests]))


def _part_s(grid: StepGrid, part: tandem.Part) -> float:
    """Seconds of a step, by the lookups of the slow simulator."""
    count, tokens = len(part.decodes), part.tokens
    mean = part.context / count if count else float(grid.contexts[0])
    if not tokens:
        return decode_s(grid, count, mean)
    return mixed_s(grid, (float(count), mean, float(tokens), part.pairs / tokens))


def _with(run: SimulationResult, first_token_s: Floats, finished_s: Floats) -> SimulationResult:
    return replace(run, first_token_s=first_token_s, finished_s=finished_s)
