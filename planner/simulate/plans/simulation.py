"""Simulates a serving plan, and checks its limits and predictions against the run."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope, Prediction
from planner.problem.encoded import Media
from planner.problem.recorded import media_by_workload, recorded_problem
from planner.problem.schema import Problem
from planner.problem.slo import SloSpec
from planner.simulate.judge.intervals import Estimate
from planner.simulate.judge.judging import MOST_REQUESTS, PILOT_SEED, judge
from planner.simulate.judge.limits import STREAMS, JudgedLimit, Judgement, Verdict, judge_runs
from planner.simulate.plans.fleet import PlannedFleet, fleet_of_plan, serving_problem
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.trace_streams import TraceRows, buys_memory
from planner.simulate.plans.workload import own_requests
from planner.simulate.requests.stream import Requests, all_requests
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.engine import simulate, simulate_streams
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import figures, summarise

OWN_REQUESTS = 10_000
JUDGED_SEED = 500_000  # of the streams that plans are judged on; searches draw others
STREAM_SEEDS = 1000  # between those of two streams
LOWER = "lower the rate"
PLAN_AGAIN = "solve with the limits verified by simulation: `planner solve PROBLEM --level verified`"
MORE = "simulate more requests"
SIMULATE_AGAIN = "the interval holds the limit: lower the rate a little where it must be kept for certain"
SIGMAS, SPARE = 4.0, 2  # of the count of requests beyond the context, whose share a plan states, and of small counts


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests to simulate: a trace, or the plan's own workload where there is none.

    Raises PlannerError for what only a trace takes without one.
    """

    trace: str | None = None
    first: int | None = None  # requests of the trace, or of the own workload
    rate_per_s: float | None = None  # to which the trace is scaled
    rate_scale: float = 1.0
    clients: int = 0  # closed loop on the lengths of the trace, instead of its times
    drop_empty: bool = False
    warm_up: int = 0  # requests left out of the figures

    def __post_init__(self) -> None:
        of_traces = {
            "--rate": self.rate_per_s is not None,
            "--rate-scale": self.rate_scale != 1.0,
            "--clients": self.clients > 0,
            "--drop-empty": self.drop_empty,
        }
        flag = next((flag for flag, given in of_traces.items() if given), None)
        if self.trace is None and flag is not None:
            what = "is for a trace; the plan's own workload is sent as its problem says"
            raise PlannerError(what, where=flag, hint="give a trace too: `--trace FILE`")


@dataclass(frozen=True, slots=True, repr=False)
class PlanSimulation:
    """A run of a plan, and what it, or several on independent streams, say of the limits."""

    planned: PlannedFleet
    result: SimulationResult
    summary: dict[str, object]
    judgement: Judgement

    def __repr__(self) -> str:
        limits = self.judgement.limits
        said = "".join(
            f", {row.time} {row.statistic} {row.estimate.value:.4g}, limit {row.limit:.4g}" for row in limits
        )
        return f"<PlanSimulation: {len(self.result.requests)} requests{said}>"


def simulate_plan(
    envelope: Envelope,
    decision: Decision,
    load: Traffic,
    policies: Policies,
    *,
    seed: int = 0,
    limit_s: float = math.inf,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
) -> PlanSimulation:
    """Simulates a serving plan on requests; raises PlannerError for what cannot be simulated."""
    requests = requests_of(envelope, serving_problem(envelope), load, seed)
    if policies.operation is not None:
        requests = policies.operation.with_adapters(requests, seed)
    if len(requests.prefix_tokens) and (_hits(envelope) > 0.0 or buys_memory(decision)):
        policies = replace(policies, prefix_caching=True)
    if load.warm_up >= len(requests):
        raise PlannerError(
            f"the warm-up of {load.warm_up} requests leaves none of {len(requests)}",
            where=load.trace or "",
            hint="leave less out, or give more requests",
        )
    planned = fleet_of_plan(envelope, decision, requests, policies, profiles=profiles, calibration=calibration)
    result = simulate(planned.fleet, with_models(planned, requests), seed=seed, limit_s=limit_s)
    return _summarised(planned, judge_runs((result,), slos_of(planned.problem)), load.warm_up)


def judge_plan(
    envelope: Envelope,
    decision: Decision,
    policies: Policies,
    *,
    rows: TraceRows | None = None,
    seed: int = JUDGED_SEED,
    most_requests: int = MOST_REQUESTS,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
) -> PlanSimulation:
    """The limits of a plan's own workloads, judged on independent streams as long as they need; `result` is the first.

    `rows` are of the trace that the lengths of a workload come from. Memory that a plan buys for prefixes is used.
    Raises PlannerError for what cannot be simulated.
    """
    problem = serving_problem(envelope)
    if buys_memory(decision):
        policies = replace(policies, prefix_caching=True)
    fleets: list[PlannedFleet] = []

    def simulated(count: int, *, pilot: bool) -> list[SimulationResult]:
        first = seed + PILOT_SEED * pilot
        streams = [
            own_requests(envelope, problem, -(-count // STREAMS), first + STREAM_SEEDS * number, rows)
            for number in range(STREAMS)
        ]
        planned = fleet_of_plan(
            envelope, decision, all_requests(streams), policies, profiles=profiles, calibration=calibration
        )
        fleets.append(planned)
        return simulate_streams(planned.fleet, [with_models(planned, requests) for requests in streams], seed=seed)

    judgement = judge(simulated, slos_of(problem), most_requests=most_requests)
    return _summarised(fleets[-1], judgement, 0)


def slos_of(problem: Problem) -> tuple[SloSpec, ...]:
    """The limits by workload."""
    return tuple(workload.slo for workload in problem.workloads)


def with_models(planned: PlannedFleet, requests: Requests) -> Requests:
    """Requests of several workloads, each for the model of its own."""
    if requests.workload is None:
        return requests
    return replace(requests, model=np.array(planned.model_of_workload)[requests.workload])


def _summarised(planned: PlannedFleet, judgement: Judgement, warm_up: int) -> PlanSimulation:
    result, slos = judgement.runs[0], slos_of(planned.problem)
    summary = summarise(result, slos, gpus=planned.gpus, roles=planned.role_of_instance, warm_up=warm_up)
    if result.requests.workload is not None:
        names = [workload.name for workload in planned.problem.workloads]
        summary["workloads"] = {
            name: figures(result.of_workload(index), slos[index], warm_up) for index, name in enumerate(names)
        }
    return PlanSimulation(planned, result, summary, judgement)


def requests_of(envelope: Envelope, problem: Problem, load: Traffic, seed: int) -> Requests:
    """The requests of a load; prompts of a trace that names no blocks have the hits that the plan states for all."""
    if load.trace is None:
        return own_requests(envelope, problem, load.first or OWN_REQUESTS, seed)
    trace = read_trace(load.trace, drop_empty=load.drop_empty)
    trace = trace if load.first is None else trace.first(load.first)
    media = _media(problem)
    if load.clients:
        closed = Requests.closed_loop(trace.input_tokens, trace.output_tokens, clients=load.clients)
        if trace.blocks:
            return closed.with_prefixes(trace.blocks, block_tokens=trace.block_tokens).with_media(media)
        return closed.with_hits(_hits(envelope)).with_media(media)
    scale = load.rate_scale
    if load.rate_per_s is not None:
        span_s = float(trace.arrival_s[-1])
        if span_s <= 0.0:
            raise PlannerError(
                "has no rate that could be scaled", where=load.trace, hint="sample arrivals for it first"
            )
        scale = load.rate_per_s * span_s / max(len(trace) - 1, 1)
    requests = trace.at_rate(scale).requests().with_media(media)
    return requests if trace.blocks else requests.with_hits(_hits(envelope))


def _media(problem: Problem) -> Media | None:
    """What requests of a trace bring; raises PlannerError for a plan whose workloads differ in it."""
    media = media_by_workload(problem)
    if not any(media):
        return None
    if len(media) > 1:
        raise PlannerError(
            "a trace does not say which workload each request is of, and workloads of the plan bring images or sounds",
            hint="leave the trace out: the plan's own workloads are simulated",
        )
    return media[0]


def _hits(envelope: Envelope) -> float:
    """The share of prompts that the plan takes to be cached, where its workloads state one."""
    problem = recorded_problem(envelope.inputs)
    shares = {workload.prefix_hits or 0.0 for workload in problem.workloads} if problem is not None else {0.0}
    return shares.pop() if len(shares) == 1 else 0.0


def beside_stated(simulation: PlanSimulation, predictions: Sequence[Prediction]) -> Iterator[dict[str, object]]:
    """Simulated times [s] of every workload beside those that the plan states and its limits, None where there is none.

    Statistics are those that the plan or a limit names, else the mean; `verdict` and `margin`, the share of a limit
    that is left, are of limits.
    """
    judgement = simulation.judgement
    for index, workload in enumerate(simulation.planned.problem.workloads):
        if index and simulation.result.requests.workload is None:
            return
        for name in (*simulation.result.times_s, "itl"):
            stated = {
                row.statistic: row.value for row in predictions if (row.metric, row.of) == (f"{name}_s", workload.name)
            }
            limits = {each.statistic: each for each in judgement.limits if (each.workload, each.time) == (index, name)}
            for of in dict.fromkeys([*stated, *limits]) or (() if name == "itl" else ("mean",)):
                limit = limits.get(of)
                simulated = limit.estimate if limit is not None else judgement.estimate(index, name, of)
                yield {
                    "workload": workload.name,
                    "time": name,
                    "statistic": of,
                    "stated_s": stated.get(of),
                    "simulated_s": None if math.isnan(simulated.value) else simulated.value,
                    "interval_s": None if simulated.interval is None else list(simulated.interval),
                    "limit_s": None if limit is None else limit.limit,
                    "margin": None if limit is None or math.isnan(simulated.value) else limit.margin,
                    "verdict": None if limit is None else limit.verdict.value,
                }


def findings(simulation: PlanSimulation, predictions: Sequence[Prediction] = ()) -> Iterator[Finding]:
    """Whether runs drained, rejected and cut no more than the plan states, and kept the limits of the workloads."""
    judgement, runs = simulation.judgement, simulation.judgement.runs
    left, total = sum(run.num_unfinished for run in runs), sum(len(run.requests) for run in runs)
    what = f"{left} of {total} requests were not answered" if left else "every request was answered"
    yield Finding("simulate.drains", not left, what, "", "lower the rate, or plan for it")
    yield from _beyond(simulation, predictions)
    what = "work piles up as long as requests come" if judgement.saturated else "waits settle"
    yield Finding("simulate.saturation", not judgement.saturated, what, "", "lower the rate, or plan for it")
    if len(runs) > 1 and not judgement.saturated:
        settled = judgement.settled and judgement.told
        cuts = max((cut for cut in judgement.warm_ups if cut is not None), default=0)
        what = f"after {cuts} requests of each of {len(runs)} streams times are stationary"
        short = "streams are short beside the time in which they forget their past"
        short = short if judgement.settled else "no stream has a stationary part that is most of it"
        what = what if settled else short
        yield Finding("simulate.warm_up", True, what, "", "", close=not settled)
    many = simulation.result.requests.workload is not None
    names = [workload.name for workload in simulation.planned.problem.workloads]
    for limit in judgement.limits:
        if many or limit.workload == 0:
            yield _finding(limit, f"{names[limit.workload]}: " if many else "")


def _beyond(simulation: PlanSimulation, predictions: Sequence[Prediction]) -> Iterator[Finding]:
    """Whether as many requests are beyond the context as the plan states, by the spread of a count."""
    runs, names = simulation.judgement.runs, [workload.name for workload in simulation.planned.problem.workloads]
    texts = {
        "fits": ("requests are longer than an instance allows", "every request fits", "give instances more KV cache"),
        "context": ("answers end at the context limit of their instance", "no answer is cut", "solve for longer ones"),
    }
    for rule, metric, flags in (("fits", "refused_share", "rejected"), ("context", "cut_share", "cut")):
        stated = {row.of: row.value for row in predictions if row.metric == metric}
        count = sum(int(getattr(run, flags).sum()) for run in runs)
        most = 0.0
        for index, name in enumerate(names):
            expected = stated.get(name, 0.0) * sum(_requests_of(run, index) for run in runs)
            most += expected + SIGMAS * math.sqrt(expected) + SPARE * (expected > 0.0)
        some, none, hint = texts[rule]
        what = f"{count} {some}, the plan states {most:.3g} at most" if most else f"{count} {some}" if count else none
        yield Finding(f"simulate.{rule}", count <= most, what, "", f"{hint}, or raise `engine.max_context_tokens`")


def _requests_of(run: SimulationResult, workload: int) -> int:
    """Requests of a workload; all are of the first where a run does not tell."""
    known = run.requests.workload
    return len(run.requests) * (workload == 0) if known is None else int((known == workload).sum())


def _finding(limit: JudgedLimit, of_workload: str) -> Finding:
    """What was simulated of a limit, its interval, the verdict, and what to do about a limit that is not kept."""
    broken, close = limit.verdict is Verdict.BROKEN, limit.verdict is Verdict.CLOSE
    few = f"; {limit.estimate.count} values are too few to tell" if limit.too_few else ""
    again = MORE if few else SIMULATE_AGAIN
    if limit.time == "attainment":
        interval = _between(limit.estimate, lambda share: f"{share:.2%}")
        share = f"{limit.estimate.value:.2%} of the requests keep every limit"
        what, place = f"{share}{interval}, wanted are {limit.limit:.2%}{few}", of_workload.removesuffix(": ")
        hint = again if close else f"{PLAN_AGAIN}, or {LOWER}"
        return Finding("simulate.attainment", not broken, what, place, hint, close=close)
    value, interval = (
        format_si(limit.estimate.value, "s"),
        _between(limit.estimate, lambda time_s: format_si(time_s, "s")),
    )
    what = f"{limit.statistic} of {limit.time} is {value}{interval}, the limit {format_si(limit.limit, 's')}"
    what += f": {abs(limit.margin):.1%} {'under' if limit.margin >= 0 else 'over'}{few}"
    tighter = limit.limit * limit.limit / max(limit.estimate.value, limit.limit)
    stricter = f"with a limit of {format_si(tighter, 's')} in the problem"
    hint = again if close else f"{PLAN_AGAIN}; or solve {stricter}, or {LOWER}"
    return Finding(f"simulate.{limit.time}", not broken, what, f"{of_workload}{limit.statistic}", hint, close=close)


def _between(value: Estimate, form: Callable[[float], str]) -> str:
    return "" if value.interval is None else f" ({form(value.low)} to {form(value.high)})"
