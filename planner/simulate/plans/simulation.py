"""Simulates a serving plan, and checks its limits and predictions against the run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import PlannerError
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope, Prediction
from planner.problem.recorded import recorded_problem
from planner.problem.schema import SloSpec
from planner.simulate.plans.fleet import PlannedFleet, Policies, fleet_of_plan
from planner.simulate.plans.workload import own_requests
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.traces import read_trace
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import attained, figures, statistic, summarise

OWN_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests to simulate: a trace, or the plan's own workload where there is none."""

    trace: str | None = None
    first: int | None = None  # requests of the trace, or of the own workload
    rate_per_s: float | None = None  # to which the trace is scaled
    rate_scale: float = 1.0
    clients: int = 0  # closed loop on the lengths of the trace, instead of its times
    drop_empty: bool = False
    warm_up: int = 0  # requests left out of the figures


@dataclass(frozen=True, slots=True)
class PlanSimulation:
    """A run of a plan."""

    planned: PlannedFleet
    result: SimulationResult
    summary: dict[str, object]
    slos: tuple[SloSpec, ...]  # by workload


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
    requests = requests_of(envelope, load, seed)
    if policies.operation is not None:
        requests = policies.operation.with_adapters(requests, seed)
    planned = fleet_of_plan(envelope, decision, requests, policies, profiles=profiles, calibration=calibration)
    if requests.workload is not None:
        requests = replace(requests, model=np.array(planned.model_of_workload)[requests.workload])
    result = simulate(planned.fleet, requests, seed=seed, limit_s=limit_s)
    slos = tuple(workload.slo for workload in planned.problem.workloads)
    summary = summarise(result, slos, gpus=planned.gpus, roles=planned.role_of_instance, warm_up=load.warm_up)
    if requests.workload is not None:
        names = [workload.name for workload in planned.problem.workloads]
        summary["workloads"] = {
            name: figures(result.of_workload(index), slos[index], load.warm_up) for index, name in enumerate(names)
        }
    return PlanSimulation(planned, result, summary, slos)


def requests_of(envelope: Envelope, load: Traffic, seed: int) -> Requests:
    """The requests of a load."""
    problem = recorded_problem(envelope.inputs)
    if load.trace is None:
        if problem is None:
            raise PlannerError("the plan holds no valid problem", hint="check it: `planner check PLAN`")
        if load.rate_per_s is not None or load.clients or load.rate_scale != 1.0:
            raise PlannerError(
                "a rate and clients are for a trace; the plan's own workload has its own",
                hint="give a trace too: `--trace FILE`",
            )
        return own_requests(envelope, problem, load.first or OWN_REQUESTS, seed)
    trace = read_trace(load.trace, drop_empty=load.drop_empty)
    trace = trace if load.first is None else trace.first(load.first)
    if load.clients:
        closed = Requests.closed_loop(trace.input_tokens, trace.output_tokens, clients=load.clients)
        return closed.with_prefixes(trace.blocks, block_tokens=trace.block_tokens) if trace.blocks else closed
    scale = load.rate_scale
    if load.rate_per_s is not None:
        span_s = float(trace.arrival_s[-1])
        if span_s <= 0.0:
            raise PlannerError(
                "has no rate that could be scaled", where=load.trace, hint="sample arrivals for it first"
            )
        scale = load.rate_per_s * span_s / max(len(trace) - 1, 1)
    return trace.at_rate(scale).requests()


def beside_stated(simulation: PlanSimulation, predictions: Sequence[Prediction]) -> Iterator[dict[str, object]]:
    """Simulated times [s] of every workload beside those that the plan states and its limits, None where there is none.

    Statistics are those that the plan or a limit names, else the mean.
    """
    result = simulation.result
    for index, workload in enumerate(simulation.planned.problem.workloads):
        if index and result.requests.workload is None:
            return
        own = result if result.requests.workload is None else result.of_workload(index)
        for name, times_s in own.times_s.items():
            stated = {
                row.statistic: row.value for row in predictions if (row.metric, row.of) == (f"{name}_s", workload.name)
            }
            limits = {of: bound_s for time, of, bound_s in workload.slo.limits() if time == name}
            for of in dict.fromkeys([*stated, *limits]) or ("mean",):
                simulated_s = statistic(times_s, of)
                yield {
                    "workload": workload.name,
                    "time": name,
                    "statistic": of,
                    "stated_s": stated.get(of),
                    "simulated_s": None if math.isnan(simulated_s) else simulated_s,
                    "limit_s": limits.get(of),
                }


def findings(simulation: PlanSimulation) -> Iterator[Finding]:
    """Whether a run drained, rejected nobody, and kept the limits of the workload."""
    result = simulation.result
    left = result.num_unfinished
    what = f"{left} of {len(result.requests)} requests were not answered" if left else "every request was answered"
    yield Finding("simulate.drains", not left, what, "", "lower the rate, or plan for it")
    rejected = int(result.rejected.sum())
    what = f"{rejected} requests are longer than an instance allows" if rejected else "every request fits"
    yield Finding("simulate.fits", not rejected, what, "", "give instances more KV cache, and a higher context limit")
    cut = int(result.cut.sum())
    what = f"{cut} answers end at the context limit of their instance" if cut else "no answer is cut"
    yield Finding("simulate.context", not cut, what, "", "solve for requests as long as these")
    grows = bool(simulation.summary["saturated"])
    what = "waits grow as long as requests come" if grows else "waits settle"
    yield Finding("simulate.saturation", not grows, what, "", "lower the rate, or plan for it")
    if result.requests.workload is None:
        yield from _limits(result, simulation.slos[0] if simulation.slos else SloSpec(), "")
        return
    for index, (workload, slo) in enumerate(zip(simulation.planned.problem.workloads, simulation.slos, strict=True)):
        yield from _limits(result.of_workload(index), slo, f"{workload.name}: ")


def _limits(result: SimulationResult, slo: SloSpec, of_workload: str) -> Iterator[Finding]:
    """Whether the requests of a workload keep its limits."""
    times_s = result.times_s
    for name, of, bound_s in slo.limits():
        simulated_s, place = statistic(times_s[name], of), f"{of_workload}{of}"
        what = f"{of} of {name} is {1e3 * simulated_s:.3g} ms, the limit {1e3 * bound_s:.3g} ms"
        hint = "lower the rate, or solve with a tighter limit"
        yield Finding(f"simulate.{name}", simulated_s <= bound_s, what, place, hint)
    if slo.attainment is not None:
        share, place = float(attained(result, (slo,)).mean()), of_workload.removesuffix(": ")
        what = f"{share:.2%} of the requests keep every limit, wanted are {slo.attainment:.2%}"
        yield Finding("simulate.attainment", share >= slo.attainment, what, place, "lower the rate, or solve again")
