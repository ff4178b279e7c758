"""A day of a cluster: the plan of the example beside a day split hour by hour and the best static partition.

All three have the curves of the plan and one judge: the worth of `planner.kinds.fleet.formulate`, on the levels of the
problem and on days that no plan saw, whose 10-minute rates are drawn anew at levels of 80 to 120 %. With `--simulate`
the service is simulated request by request around every switch of one such day.
"""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from planner.api import solve
from planner.arrays import Floats
from planner.check import check_plan
from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.formulate import FleetDay, Share, earned, loads, made, states
from planner.kinds.fleet.restate import day_of_plan, shares_by_window
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, recorded_problem

EXAMPLE = Path(__file__).parent.parent / "examples" / "fleet-256-h100.yaml"
LOW, HIGH = 0.8, 1.2  # of the levels of unseen days
SECONDS = 3600.0
Nodes = list[list[Share]]
"""Of every job by window and pool. [K][W][P]"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 unseen days in place of 50")
    parser.add_argument("--simulate", action="store_true", help="the service around the switches of an unseen day")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    started = time.process_time()
    envelope = solve(EXAMPLE)
    decision = FleetDecision.model_validate(envelope.decision)
    right = passed(check_plan(envelope, decision))
    print(
        f"problem to checked plan: {time.process_time() - started:.1f} CPU-s, check {'passed' if right else 'FAILED'}"
    )
    day = day_of_plan(envelope, decision, AtHand())
    ways = {
        "plan": shares_by_window(day, decision),
        "hour by hour": hour_by_hour(day),
        "best static partition": best_static(day),
    }
    certificate = envelope.certificate
    print(f"bound {certificate.bound:,.0f} USD, gap {100 * (certificate.gap or 0.0):.2f} %")
    own = {name: float(day.split().worth(day.day_of(nodes))) for name, nodes in ways.items()}
    told("on the levels of the problem", own)
    days = unseen(day, 5 if asked.quick else 50, asked.seed)
    told(f"on {len(days)} unseen days, in the mean", {name: judged(day, nodes, days) for name, nodes in ways.items()})
    if asked.simulate:
        simulate_switches(envelope, decision, day, days[0])


def told(title: str, usd: dict[str, float]) -> None:
    print(title)
    for name, value in usd.items():
        print(f"  {name:22} {value:10,.0f} USD   plan {100 * (usd['plan'] / value - 1):+.2f} %")


def hour_by_hour(day: FleetDay) -> Nodes:
    """Every window split for its own worth, by what ran before it; targets are paid as far as they are not made."""
    before, left = [day.before(k) for k in range(len(day.jobs))], [job.spec.target or 0.0 for job in day.jobs]
    counts, columns = rows_of(day)
    chosen = []
    for window in range(day.options.windows):
        tables = [{n: window_worth(day, k, window, before[k], n, left[k]) for n in own} for k, own in enumerate(counts)]
        best = max(columns, key=lambda each: sum(table[n] for table, n in zip(tables, each, strict=True)))
        for k, job in enumerate(day.jobs):
            if job.spec.target is not None and in_time(day, k, window):
                left[k] = max(left[k] - made(job, before[k], best[k], day.options), 0.0)
        before = [*best]
        chosen.append(best)
    return [[*row] for row in zip(*chosen, strict=True)]


def rows_of(day: FleetDay) -> tuple[list[list[Share]], list[tuple[Share, ...]]]:
    """What every job can have, and what all can have together."""
    counts = [sorted({nodes for nodes, _ in states(job, len(day.free_nodes))}) for job in day.jobs]
    rows = itertools.product(*counts)
    fits = [all(np.array(row).sum(axis=0) <= day.free_nodes) for row in itertools.product(*counts)]
    return counts, [row for row, there in zip(rows, fits, strict=True) if there]


def in_time(day: FleetDay, k: int, window: int) -> bool:
    """Whether a window lies before the deadline of a job."""
    deadline = day.options.deadline_windows(day.jobs[k].spec)
    return deadline is None or window < deadline


def window_worth(day: FleetDay, k: int, window: int, before: Share, nodes: Share, left: float) -> float:
    job, options = day.jobs[k], day.options
    if job.spec.load is not None:
        return float(earned(job, loads(job, options), before, nodes, options)[:, window].mean())
    units = made(job, before, nodes, options)
    if job.spec.target is None:
        return (job.spec.usd_per_unit or 0.0) * units
    return ((job.spec.usd_per_unit or 0.0) + job.spec.usd_per_missing) * min(units, left) * in_time(day, k, window)


def best_static(day: FleetDay) -> Nodes:
    """The one split for all windows that is worth most."""
    split, (_, columns) = day.split(), rows_of(day)
    best = max(columns, key=lambda each: split.worth(day.day_of([[n] * day.options.windows for n in each])))
    return [[n] * day.options.windows for n in best]


def unseen(day: FleetDay, count: int, seed: int) -> list[Floats]:
    """Rates of unseen days by slot: Poisson counts of the day's rates, at a level of their own."""
    draws = np.random.default_rng(seed)
    (load,) = [job.spec.load for job in day.jobs if job.spec.load is not None]
    rates = np.array(load.rates_per_s) * load.scale
    slot_s = day.options.windows * day.options.window_s / len(rates)
    return [draws.poisson(draws.uniform(LOW, HIGH) * rates * slot_s) / slot_s for _ in range(count)]


def judged(day: FleetDay, nodes_KW: Nodes, days: list[Floats]) -> float:
    """The mean worth of a split on these days: the load as it is drawn, all other jobs as they are."""
    total, split, chosen = 0.0, day.split(), day.day_of(nodes_KW)
    for k, job in enumerate(day.jobs):
        if job.spec.load is None:
            total += split.jobs[k].worth(chosen[k])
            continue
        load_LWS = np.array(days).reshape(len(days), day.options.windows, -1) * SECONDS
        steps = zip([day.before(k), *nodes_KW[k][:-1]], nodes_KW[k], strict=True)
        total += sum(
            float(earned(job, load_LWS, before, nodes, day.options)[:, window].mean())
            for window, (before, nodes) in enumerate(steps)
        )
    return total


def simulate_switches(envelope: Envelope, decision: FleetDecision, day: FleetDay, rates: Floats) -> None:
    """Twenty minutes from every switch of the service on, after ten of warm-up before it."""
    from planner.kinds.registry import find_kind
    from planner.simulate.plans.day import drawn_day, simulate_day
    from planner.simulate.plans.simulation import slos_of
    from planner.simulate.run.summary import summarise

    k = next(k for k, job in enumerate(day.jobs) if job.spec.load is not None)
    spec, nodes = day.jobs[k].spec, [sum(share) for share in shares_by_window(day, decision)[k]]
    plan = Envelope.model_validate(next(each.plan for each in decision.plans if each.job == spec.name))
    own, problem = find_kind("serve").decision.model_validate(plan.decision), recorded_problem(plan.inputs)
    assert problem is not None
    slots, kept, requests = len(rates) // len(nodes), 0.0, 0
    for window in range(1, len(nodes)):
        was, now = nodes[window - 1] // spec.unit_nodes, nodes[window] // spec.unit_nodes
        if was == now:
            continue
        around = np.zeros(len(rates))
        around[:3] = rates[window * slots - 1 : window * slots + 2]
        stream = drawn_day(plan, around, window)
        copies = [was, now, now]
        result = simulate_day(plan, own, stream, copies, before=was, window_s=600.0, start_up_s=spec.start_up_s)
        share = summarise(result, slos_of(problem))["attainment"]
        assert isinstance(share, float)
        print(
            f"  {window:02d}:00 {was:3} to {now:3} copies: {len(stream):6} requests, {100 * share:.2f} % on time",
            flush=True,
        )
        kept, requests = kept + share * len(stream), requests + len(stream)
    print(f"  around all switches {100 * kept / max(requests, 1):.2f} % of {requests} requests on time")


if __name__ == "__main__":
    main()
