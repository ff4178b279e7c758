"""The worth of a day by the definition: minute by minute, with nothing of the program's own formulas."""

import itertools
from typing import Any


def best_day(problem: dict[str, Any]) -> float:
    """The most that any split of the nodes is worth, enumerated; jobs have curves, and keep nodes for a window."""
    options, nodes = problem["options"], problem["cluster"]["pools"][0]["nodes"]
    jobs, windows = options["jobs"], options["windows"]
    choices = [[0, *(point["nodes"] for point in job["curve"])] for job in jobs]
    columns = [each for each in itertools.product(*choices) if sum(each) <= nodes - options.get("reserve_nodes", 0)]
    worths = [
        {path: worth(job, [*path], options["window_s"]) for path in itertools.product(own, repeat=windows)}
        for job, own in zip(jobs, choices, strict=True)
    ]
    days = itertools.product(columns, repeat=windows)
    return max(sum(map(dict.__getitem__, worths, zip(*day, strict=True))) for day in days)


def worth(job: dict[str, Any], nodes: list[int], window_s: float) -> float:
    """What one job's day is worth, counted by minutes."""
    rate = {0: 0.0, **{point["nodes"]: point["units_per_hour"] / 60.0 for point in job["curve"]}}
    minutes, before, done, usd, made = round(window_s / 60.0), job.get("nodes_before", 0), 0.0, 0.0, 0.0
    load, usd_per_missing = job.get("load"), job.get("usd_per_missing", 0.0)
    for window, now in enumerate(nodes):
        for minute in range(minutes):
            speed = rate[now]
            if minute < job.get("start_up_s", 0.0) / 60.0 and now != before:
                held = max(count for count in rate if count <= min(before, now))
                speed = 0.0 if job.get("restarts") == "job" else rate[held]
            if load is not None:
                slots = len(load["rates_per_s"]) // len(nodes)
                slot = window * slots + minute * slots // minutes
                for level in load["levels"]:
                    asked = 60.0 * load["rates_per_s"][slot] * level
                    took = min(asked, speed)
                    usd += (job["usd_per_unit"] * took - usd_per_missing * (asked - took)) / len(load["levels"])
            elif "target" not in job:
                usd += job["usd_per_unit"] * speed
            elif (window * minutes + minute) * 60.0 < job.get("deadline_s", 1e9):
                done += speed
        before = now
    if "target" in job:
        made = min(done, job["target"])
        usd += job["usd_per_unit"] * made - usd_per_missing * (job["target"] - made)
    return usd
