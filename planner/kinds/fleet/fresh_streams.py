"""Judges the services of a day by simulation: their copies start and stop by the clock under requests drawn anew.

The load is drawn as Poisson arrivals at the mean of the levels of its day. A day of no more than MOST_REQUESTS is
simulated whole. Of a larger one stretches are simulated: from ten minutes before every switch of the service to twenty
minutes behind it, and the fullest hour, at which no switch shows; as many of them, the fullest first, as the requests
allow. Requests of the ten minutes before a switch warm the copies up and count with the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.documents.units import clock
from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.formulate import FleetDay
from planner.kinds.fleet.restate import day_of_plan, shares_by_window
from planner.kinds.registry import find_kind
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, recorded_problem
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.plans.day import drawn_stretch, simulate_day
from planner.simulate.plans.simulation import slos_of
from planner.simulate.run.summary import summarise

MOST_REQUESTS = 60_000  # of all services together
SEED = 700_000  # of streams that nothing else is judged on
BEFORE_S, BEHIND_S = 600.0, 1200.0  # of a switch


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the day of a service, and what it is called."""

    start_s: float
    end_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Service:
    """A job with a load and a plan: rates by slot, and copies by window, with those before the day."""

    name: str
    envelope: Envelope
    rates_S: Floats
    copies_W: tuple[int, ...]
    before: int
    start_up_s: float


def judged(envelope: Envelope, decision: FleetDecision, hand: AtHand) -> tuple[list[Finding], dict[str, Any]]:
    """One finding a service and stretch, and what was simulated of which; raises as `restate` does."""
    day = day_of_plan(envelope, decision, hand)
    services = list(_services(day, decision))
    if not services:
        what = "no service of the day has a plan on one pool: nothing is simulated"
        return [Finding("simulate.services", True, what, "decision.plans", skipped=True)], _document([], 0, 0)
    findings, rows, simulated = [], [], 0
    whole = sum(_requests(day, service, 0.0, _day_s(day)) for service in services)
    for number, service in enumerate(services):
        for stretch in _stretches(day, service, whole):
            row = _row(day, service, stretch, SEED + 1000 * number)
            simulated += row["requests"]
            rows.append(row)
            findings.append(_finding(row))
    return findings, _document(rows, simulated, round(whole))


def _document(rows: list[dict[str, Any]], simulated: int, whole: int) -> dict[str, Any]:
    return {
        "schema": "planner.simulation/1",
        "requests": simulated,
        "requests_of_the_day": whole,
        "stretches": rows,
    }


def _services(day: FleetDay, decision: FleetDecision) -> Iterator[Service]:
    """The services whose copies are of one plan."""
    shares_KWP = shares_by_window(day, decision)
    for k, job in enumerate(day.jobs):
        plans = [each for each in decision.plans if each.job == job.spec.name]
        load = job.spec.load
        if job.kind != "serve" or load is None or load.rates_per_s is None or len(plans) != 1:
            continue
        unit = job.spec.unit_nodes
        yield Service(
            job.spec.name,
            Envelope.model_validate(plans[0].plan),
            np.array(load.rates_per_s) * load.scale * float(np.mean(load.levels)),
            tuple(sum(share) // unit for share in shares_KWP[k]),
            job.spec.nodes_before // unit,
            job.spec.start_up_s,
        )


def _day_s(day: FleetDay) -> float:
    return day.options.windows * day.options.window_s


def _requests(day: FleetDay, service: Service, start_s: float, end_s: float) -> float:
    """Requests of a stretch in the mean."""
    slot_s = _day_s(day) / len(service.rates_S)
    edges = np.arange(len(service.rates_S) + 1) * slot_s
    held_S = np.clip(np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s), 0.0, None)
    return float((held_S * service.rates_S).sum())


def _stretches(day: FleetDay, service: Service, whole: float) -> list[Stretch]:
    """All of the day where it is small; else the fullest of its stretches that the requests allow, at least one."""
    end_s, window_s = _day_s(day), day.options.window_s
    if whole <= MOST_REQUESTS:
        return [Stretch(0.0, end_s, "the day")]
    share = MOST_REQUESTS * _requests(day, service, 0.0, end_s) / whole
    switches = [w for w in range(1, day.options.windows) if service.copies_W[w] != service.copies_W[w - 1]]
    stretches = [
        Stretch(max(at_s - BEFORE_S, 0.0), min(at_s + BEHIND_S, end_s), f"the switch at {clock(at_s)}")
        for at_s in (window * window_s for window in switches)
    ]
    by_hour = [(_requests(day, service, start, start + window_s), start) for start in np.arange(0.0, end_s, window_s)]
    fullest = max(by_hour)[1]
    stretches.append(Stretch(fullest, min(fullest + BEHIND_S, end_s), f"the fullest window, from {clock(fullest)}"))
    kept: list[Stretch] = []
    for stretch in sorted(stretches, key=lambda each: -_requests(day, service, each.start_s, each.end_s)):
        share -= _requests(day, service, stretch.start_s, stretch.end_s)
        if share < 0.0 and kept:
            break
        kept.append(stretch)
    return sorted(kept, key=lambda each: each.start_s)


def _row(day: FleetDay, service: Service, stretch: Stretch, seed: int) -> dict[str, Any]:
    """The share of the requests of a stretch that keep all their limits, with the number of copies before and in it."""
    problem = recorded_problem(service.envelope.inputs)
    assert problem is not None
    decision = find_kind("serve").decision.model_validate(service.envelope.decision)
    slot_s = _day_s(day) / len(service.rates_S)
    stream = drawn_stretch(service.envelope, service.rates_S, slot_s, (stretch.start_s, stretch.end_s), seed)
    before, copies, step_s = _copies(day, service, stretch)
    row: dict[str, Any] = {
        "service": service.name,
        "stretch": stretch.name,
        "from_s": stretch.start_s,
        "to_s": stretch.end_s,
        "requests": len(stream),
        "asked": _asked(problem.workloads[0].slo),
        "on_time": 1.0,
    }
    if not len(stream):
        return row
    if not max(before, *copies):
        return row | {"on_time": 0.0}
    result = simulate_day(
        service.envelope, decision, stream, copies, before=before, window_s=step_s, start_up_s=service.start_up_s
    )
    return row | {"on_time": summarise(result, slos_of(problem))["attainment"]}


def _asked(slo: SloSpec) -> float:
    """The share of the requests that must keep their limits: as it is stated, or the highest percentile of a limit."""
    if slo.attainment is not None:
        return slo.attainment
    limits = [limit for limit in (slo.ttft, slo.tpot, slo.latency) if limit is not None]
    return max((quantile_of(name) or 0.0 for limit in limits for name in limit.statistics()), default=0.0)


def _copies(day: FleetDay, service: Service, stretch: Stretch) -> tuple[int, list[int], float]:
    """Copies before a stretch and in equal steps of it, and seconds of a step: changes fall between two of them."""
    step_s = _step_s(day.options.window_s, stretch)
    held = [service.before, *service.copies_W]
    starts = np.arange(stretch.start_s, stretch.end_s - 1e-6, step_s)
    at = [int((start + 1e-6) // day.options.window_s) for start in starts]
    first = held[at[0]] if abs(stretch.start_s % day.options.window_s) < 1e-6 else held[at[0] + 1]
    return first, [service.copies_W[window] for window in at], step_s


def _step_s(window_s: float, stretch: Stretch) -> float:
    """The longest step of whole seconds that windows and the ends of the stretch are multiples of."""
    ends = [round(window_s), round(stretch.start_s), round(stretch.end_s)]
    return float(np.gcd.reduce([end for end in ends if end])) if all(ends[:1]) else window_s


def _finding(row: dict[str, Any]) -> Finding:
    what = f"{row['on_time']:.2%} of {row['requests']} requests of `{row['service']}` keep all limits"
    what += f" in {row['stretch']}, {row['asked']:.2%} are asked for"
    hint = "give the service more `safety`, a longer start-up, or a plan at `level: verified`"
    return Finding("simulate.service", row["on_time"] >= row["asked"], what, f"decision.plans.{row['service']}", hint)
