"""Many models on groups of GPUs (AlpaServe): models, profiles, arrivals, and the headline of cases that have one."""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_fillings import fill, partitions
from planner.solvers.placement.group_search import Effort, search, share_on_time
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import GroupShape, SharedGroups

STAGE_OVERHEAD, DELIVERY_S = 0.009, 0.011  # the simulator's rule in the case: lat * (1 + 0.009 pp), finish + 0.011
SEARCH_SEEDS, JUDGED_SEEDS = range(101, 121), range(201, 241)
REQUESTS = 12_000_000  # simulated for a share on time at a stated rate
HEADLINE_REQUESTS = 2_000_000_000  # simulated for the highest rate
RATE_ABOVE = 1.04  # of the highest rate of groups alike: where placements are told apart
STEPS = 5  # bisections of the bound


def problem_of(case: dict[str, Any]) -> SharedGroups:
    """The case without its arrivals."""
    models = case["models"]
    keys = sorted({key for model in models for key in case["profiles"][model["profile"]]}, key=_degrees)
    shapes = tuple(_shape(case, key) for key in keys)
    limit_s = np.array([model["slo_s"] for model in models]) - DELIVERY_S
    cluster = case["cluster"]
    return SharedGroups(
        cluster["num_gpus"], cluster["gpus_per_node"], cluster["mem_budget_bytes_per_gpu"], shapes, limit_s
    )


def _degrees(key: str) -> tuple[int, int]:
    intra, stages = key.split("_")
    return int(intra.removeprefix("op")), int(stages.removeprefix("pp"))


def _shape(case: dict[str, Any], key: str) -> GroupShape:
    intra, stages = _degrees(key)
    rows, weights = [], []
    for model in case["models"]:
        figures = case["profiles"][model["profile"]].get(key)
        if figures is None:
            rows.append([0.0] * stages)
            weights.append(np.inf)
        else:
            rows.append(figures["stage_latency_s_by_batch"]["1"])
            weights.append(max(figures["stage_weight_bytes"]))
    stage_s = np.array(rows) * (1.0 + STAGE_OVERHEAD * stages)
    return GroupShape(key, intra * stages, stage_s, np.array(weights))


def arrivals(case: dict[str, Any], rate_per_s: float, cv: float, seed: int) -> Stream:
    """Gamma renewal arrivals of every model from one generator, in the order of `arrival.generator` of the case."""
    draws, duration_s = np.random.default_rng(seed), case["arrival"]["duration_s"]
    total = sum(model["rate_rps"] for model in case["models"])
    times, models = [], []
    for index, model in enumerate(case["models"]):
        rate = rate_per_s * model["rate_rps"] / total
        drawn = np.cumsum(draws.gamma(1 / cv**2, cv**2 / rate, int(rate * duration_s * 2 + 50)))
        times.append(drawn[drawn < duration_s])
        models.append(np.full(len(times[-1]), index))
    time_s, model_J = np.concatenate(times), np.concatenate(models)
    order = np.argsort(time_s, kind="stable")
    return Stream(time_s[order], model_J[order])


def recorded(case: dict[str, Any], directory: Path) -> Stream:
    """The arrivals that the case's own score is told on."""
    with gzip.open(directory / case["arrival"]["eval_arrivals"], "rt") as lines:
        rows = sorted((int(row[0]), int(row[1])) for row in csv.reader(lines) if row[0].isdigit())
    return Stream(np.array([us for us, _ in rows]) / 1e6, np.array([model for _, model in rows], dtype=np.intp))


def highest(case: dict[str, Any], keeps: Callable[[float], bool]) -> float:
    """The highest rate that keeps the attainment of the headline, by the bisections that it states [1/s]."""
    low, high = case["headline"]["rates"]
    for _ in range(case["headline"]["bisections"]):
        middle = (low + high) / 2.0
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return float(low)


def highest_rate(case: dict[str, Any], problem: SharedGroups, groups: Sequence[Group], seeds: Sequence[int]) -> float:
    """With these groups, on the mean of the seeds [1/s]."""
    share, cv = case["headline"]["attainment"], case["headline"]["cv"]
    return highest(
        case, lambda rate: share_on_time(problem, groups, [arrivals(case, rate, cv, seed) for seed in seeds]) >= share
    )


def rate_bound(
    case: dict[str, Any], problem: SharedGroups, seeds: Sequence[int], *, above: float, steps: int = STEPS
) -> float | None:
    """A rate at which no groups keep the attainment on the mean of the seeds; `above` is one that some keep [1/s].

    Bisected: the bound is of the rate that is returned, and of those above it as far as attainment falls with the rate.
    None where the highest rate of the headline might still be kept.
    """
    share, cv, most = case["headline"]["attainment"], case["headline"]["cv"], float(case["headline"]["rates"][1])

    def kept(rate: float) -> bool:
        return bound_on_time(problem, [arrivals(case, rate, cv, seed) for seed in seeds]) >= float(share)

    low, high = above, min(2.0 * above, most)
    while kept(high):
        if high >= most:
            return None
        low, high = high, min(2.0 * high, most)
    for _ in range(steps):
        middle = (low + high) / 2.0
        low, high = (middle, high) if kept(middle) else (low, middle)
    return high


def placed(case: dict[str, Any], problem: SharedGroups) -> tuple[Group, ...]:
    """The groups that simulation finds, on seeds of its own."""
    load_M = np.array([model["rate_rps"] for model in case["models"]])
    rate, cv = float(load_M.sum()), float(case["arrival"].get("eval_cv", case["models"][0]["cv"]))
    effort = Effort(REQUESTS)
    if "headline" in case:
        cv = case["headline"]["cv"]
        alone = (fill(problem, partitions(problem, shape), load_M) for shape in problem.usable)
        rate = RATE_ABOVE * max(highest_rate(case, problem, groups, SEARCH_SEEDS[:2]) for groups in alone)
        effort = Effort(HEADLINE_REQUESTS)
    streams = [arrivals(case, rate, cv, seed) for seed in SEARCH_SEEDS[: 16 if "headline" in case else 10]]
    judged = [arrivals(case, rate, cv, seed) for seed in JUDGED_SEEDS]
    groups = search(problem, load_M, streams, judged, effort).solution
    assert groups is not None
    return groups


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The highest rate of the headline on its seeds; without one, the share on time of the recorded arrivals."""
    problem = problem_of(case)
    groups = placed(case, problem)
    names = Counter(problem.shapes[group.shape].name for group in groups)
    degrees = [_degrees(problem.shapes[group.shape].name) for group in groups]
    answer = {
        "groups": [
            {"op": op, "pp": pp, "models": list(group.models)} for (op, pp), group in zip(degrees, groups, strict=True)
        ]
    }
    if "headline" in case:
        seeds = case["headline"]["seeds"]
        objective = highest_rate(case, problem, groups, seeds)
        bound = rate_bound(case, problem, seeds, above=objective)
    else:
        stream = recorded(case, directory)
        objective, bound = share_on_time(problem, groups, [stream]), bound_on_time(problem, [stream])
    return CaseAnswer(answer, objective, bound, " + ".join(f"{count} x {name}" for name, count in names.items()))
