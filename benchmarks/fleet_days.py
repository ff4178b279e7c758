"""Generated days of 4 to 7 jobs on 24 to 48 nodes: gap and CPU seconds, beside the trivial splits.

Cases have the form of `fleet_day_*` in `../shared/data/cases` and go through `case_kinds/fleet_day.py`: services with
a load by the hour, batch jobs, and jobs with a target. The trivial splits are the best one for all hours (by a knapsack
over jobs, exact) and hour by hour, each hour for its own worth; units of a target are worth what they are paid and cost
until it is made. A scorer of its own adds up every split from the case alone.
"""

import argparse
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from case_kinds.fleet_day import solve

from planner.solvers.result import relative_gap

Case = dict[str, Any]
Rows = list[list[int]]
"""Nodes of every job by hour. [T][K]"""

MOST_GAP, MOST_CPU_S = 0.01, 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 days")
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first day; the others follow")
    asked = parser.parse_args()
    print("seed jobs nodes targets       USD       gap  CPU-s  hour by hour    static  gap of the best trivial")
    missed = 0
    for seed in range(asked.seed, asked.seed + (5 if asked.quick else asked.days)):
        case = drawn(seed)
        started = time.process_time()
        answer = solve(case, Path())
        cpu_s = time.process_time() - started
        assert answer.objective is not None
        assert answer.bound is not None
        usd, gap = scored(case, answer.answer["nodes"]), relative_gap(answer.objective, answer.bound) or 0.0
        assert math.isclose(usd, answer.objective, rel_tol=1e-9), "the scorer and the solver differ"
        trivial = [scored(case, hour_by_hour(case)), scored(case, static(case))]
        assert max(*trivial, usd) <= answer.bound * (1 + 1e-9), "a split above the bound"
        missed += gap > MOST_GAP or cpu_s > MOST_CPU_S
        targets = sum("target" in job for job in case["jobs"])
        print(
            f"{seed:4} {len(case['jobs']):4} {case['nodes']:5} {targets:7} {usd:9,.0f} {100 * gap:8.3f}% {cpu_s:6.1f} "
            f"{trivial[0]:13,.0f} {trivial[1]:9,.0f} {100 * (answer.bound / max(trivial) - 1):9.2f}%",
            flush=True,
        )
    print(f"{missed} beyond a gap of {MOST_GAP:.0%} or {MOST_CPU_S:g} CPU-s")


def drawn(seed: int) -> Case:
    """A day of 4 to 7 jobs, 1 or 2 of them services, on 24 to 48 nodes."""
    draw = random.Random(seed)
    count, nodes = draw.randint(4, 7), draw.randint(24, 48)
    services, targets = draw.randint(1, 2), draw.randint(0, 3)
    jobs = [_service(draw, nodes / services) for _ in range(services)]
    jobs += [_batch(draw, nodes, target=k < targets) for k in range(count - services)]
    start = [draw.choice(job["allowed"][: max(1, len(job["allowed"]) // 2)]) for job in jobs]
    return {"kind": "fleet_day", "nodes": nodes, "hours": 24, "start": start, "jobs": jobs}


def _service(draw: random.Random, share: float) -> Case:
    """One number of nodes after the other; its load has a peak that takes up to most of its share."""
    rate, peak_hour = draw.uniform(5.0, 15.0), draw.uniform(8.0, 20.0)
    most = max(int(draw.uniform(0.5, 1.0) * share), 2)
    peak = rate * most * draw.uniform(0.7, 1.1)
    load = [
        round(peak * (0.15 + 0.85 * math.exp(-(((hour - peak_hour) / 5.0) ** 2))) * draw.uniform(0.9, 1.1), 2)
        for hour in range(24)
    ]
    return {
        "type": "serving",
        "allowed": list(range(draw.randint(0, 1), most + 1)),
        "speed": [round(rate * n, 4) for n in range(most + 1)],
        "load": load,
        "usd_per_unit": round(draw.uniform(2.0, 6.0), 2),
        "usd_per_miss": round(draw.uniform(0.0, 15.0), 2),
        "startup_h": round(draw.uniform(0.05, 0.3), 2),
        "by_node": True,
    }


def _batch(draw: random.Random, nodes: int, *, target: bool) -> Case:
    """Some numbers of nodes, with speeds that grow by a power below 1."""
    power, most = draw.uniform(0.75, 0.97), draw.randint(6, max(nodes // 2, 8))
    sizes = sorted(draw.sample(range(1, most + 1), draw.randint(3, min(8, most))))
    job: Case = {
        "type": "batch",
        "allowed": [0, *sizes],
        "speed": [round(n**power, 4) for n in range(most + 1)],
        "usd_per_unit": round(draw.uniform(15.0, 60.0), 2),
        "startup_h": round(draw.uniform(0.1, 0.5), 2),
        "by_node": draw.random() < 0.3,
    }
    if target:
        job["target"] = round(24.0 * sizes[-1] ** power * draw.uniform(0.2, 0.7), 2)
        job["usd_per_missing"] = round(draw.choice([0.0, draw.uniform(10.0, 80.0)]), 2)
    return job


def speed(job: Case, before: int, nodes: int) -> float:
    """Units of an hour, less the start-up of what arrives."""
    arrived = max(nodes - before, 0)
    lost = (arrived / nodes if job["by_node"] else 1.0) * job["startup_h"] if arrived else 0.0
    return float(job["speed"][nodes] * (1.0 - lost))


def hour_usd(job: Case, hour: int, before: int, nodes: int, left: float) -> float:
    """Worth of an hour; `left` of a target is to be made."""
    units = speed(job, before, nodes)
    if job["type"] == "serving":
        served = min(units, job["load"][hour])
        return float(job["usd_per_unit"] * served - job["usd_per_miss"] * (job["load"][hour] - served))
    if "target" in job:
        return float((job["usd_per_unit"] + job["usd_per_missing"]) * min(units, left))
    return float(job["usd_per_unit"] * units)


def day_usd(job: Case, start: int, nodes_T: Sequence[int]) -> float:
    usd, left = 0.0, job.get("target", 0.0)
    for hour, (before, nodes) in enumerate(zip([start, *nodes_T[:-1]], nodes_T, strict=True)):
        usd += hour_usd(job, hour, before, nodes, left)
        left = max(left - speed(job, before, nodes), 0.0)
    return usd - float(job.get("usd_per_missing", 0.0) * job.get("target", 0.0))


def scored(case: Case, rows: Rows) -> float:
    """Worth of a split, from the case alone."""
    assert all(sum(row) <= case["nodes"] for row in rows)
    columns = zip(*rows, strict=True)
    jobs = zip(case["jobs"], case["start"], columns, strict=True)
    return math.fsum(day_usd(job, start, nodes_T) for job, start, nodes_T in jobs)


def static(case: Case) -> Rows:
    """The split that is best where it is the same in every hour."""
    tables = [
        {n: day_usd(job, start, [n] * case["hours"]) for n in job["allowed"]}
        for job, start in zip(case["jobs"], case["start"], strict=True)
    ]
    return [packed(tables, case["nodes"])] * case["hours"]


def hour_by_hour(case: Case) -> Rows:
    """Every hour for its own worth, after what ran before it."""
    before, left, rows = case["start"], [job.get("target", 0.0) for job in case["jobs"]], []
    for hour in range(case["hours"]):
        tables = [
            {n: hour_usd(job, hour, had, n, rest) for n in job["allowed"]}
            for job, had, rest in zip(case["jobs"], before, left, strict=True)
        ]
        row = packed(tables, case["nodes"])
        steps = zip(case["jobs"], left, before, row, strict=True)
        left = [max(rest - speed(job, had, n), 0.0) for job, rest, had, n in steps]
        before = row
        rows.append(row)
    return rows


def packed(tables: Sequence[dict[int, float]], nodes: int) -> list[int]:
    """One number of nodes for every job, worth most within `nodes`: a knapsack, job after job."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for table in tables:
        wider: dict[int, tuple[float, list[int]]] = {}
        for used, (usd, chosen) in best.items():
            for n, more in table.items():
                if used + n <= nodes and usd + more > wider.get(used + n, (-math.inf, []))[0]:
                    wider[used + n] = (usd + more, [*chosen, n])
        best = wider
    return max(best.values())[1]


if __name__ == "__main__":
    main()
