"""A service over a day: copies of its plan that start and stop by the clock, simulated request by request."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem
from planner.simulate.fleet.operation_spec import ChangeSpec, OperationSpec
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import with_models
from planner.simulate.plans.workload import lengths_of
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult


def simulate_day(
    envelope: Envelope,
    decision: Decision,
    requests: Requests,
    copies_W: Sequence[int],
    *,
    before: int,
    window_s: float,
    start_up_s: float,
) -> SimulationResult:
    """The requests of a day on as many copies of a serving plan as each window has, those that arrive after start-up.

    Copies are one pool to the router. Raises PlannerError for plans that serve no requests, and for none at all.
    """
    most = max(before, *copies_W)
    if most < 1:
        raise PlannerError("no copy of the plan runs in any window", hint="give the service nodes")
    copied = decision.model_copy(
        update={"roles": tuple(role.model_copy(update={"replicas": role.replicas * most}) for role in decision.roles)}
    )
    changes = tuple(
        ChangeSpec(time_s=time_s, role=role.name, replica=copy * role.replicas + replica, action=action)
        for time_s, copy, action in _changes(copies_W, before, most, window_s, start_up_s)
        for role in decision.roles
        for replica in range(role.replicas)
    )
    planned = fleet_of_plan(envelope, copied, requests, Policies(operation=OperationSpec(changes=changes)))
    return simulate(planned.fleet, with_models(planned, requests))


def _changes(
    copies_W: Sequence[int], before: int, most: int, window_s: float, start_up_s: float
) -> Iterator[tuple[float, int, Any]]:
    """When which copy starts or drains; all that there can be are up as the simulation begins."""
    yield from ((0.0, copy, "drain") for copy in range(before, most))
    for window, (was, now) in enumerate(pairwise((before, *copies_W))):
        yield from ((window * window_s + start_up_s, copy, "start") for copy in range(was, now))
        yield from ((window * window_s, copy, "drain") for copy in range(now, was))


def drawn_day(envelope: Envelope, rates_per_s: Floats, seed: int) -> Requests:
    """Requests of the only workload of a plan, Poisson at these rates of equal slots of a day."""
    return drawn_stretch(envelope, rates_per_s, 86_400.0 / len(rates_per_s), (0.0, 86_400.0), seed)


def drawn_stretch(
    envelope: Envelope, rates_per_s: Floats, slot_s: float, between_s: tuple[float, float], seed: int
) -> Requests:
    """Requests from one second of a day to another, counted from the first: Poisson at the rates of its slots."""
    problem = recorded_problem(envelope.inputs)
    if problem is None or len(problem.workloads) != 1:
        raise PlannerError("a day is drawn of one workload", hint="give a plan of one")
    draws, (low_s, high_s) = np.random.default_rng(seed), between_s
    first_S = np.maximum(np.arange(len(rates_per_s)) * slot_s, low_s)
    held_S = np.clip(np.minimum(np.arange(1, len(rates_per_s) + 1) * slot_s, high_s) - first_S, 0.0, None)
    counts = draws.poisson(rates_per_s * held_S)
    starts_s, lengths_s = np.repeat(first_S - low_s, counts), np.repeat(held_S, counts)
    arrival_s = np.sort(starts_s + draws.uniform(0.0, 1.0, len(starts_s)) * lengths_s)
    inputs, outputs = lengths_of(problem.workloads[0], len(arrival_s), seed + 1)
    return Requests.open_stream(arrival_s, inputs, outputs)
