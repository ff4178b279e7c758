"""Placement of models: shared groups (AlpaServe) and layers on unequal nodes (Helix), trivial answers beside.

    python benchmarks/place.py                   some 20 minutes
    python benchmarks/place.py --quick           8 GPUs, four language models and six clusters, some 60 s
    python benchmarks/place.py --only language   one part: eight, thirty-two, language or clusters

Shared groups: 8 GPUs on ten fresh seeds; 32 GPUs at two latency limits on seeds 11 to 20, all shapes on the same seeds:
the highest rate at 99 % by the case's own rule, the share on time at rates around it, whether any groups can keep 99 %
at the last of them, and every mix of group shapes that was filled, with its paired difference to the best shape alone.
Layers: generated clusters of 10 to 40 nodes, two to four GPU types in one to three regions with thin links between.
Language models: `examples/place-four-models.yaml` solved, and its plan on streams of a slow reference
(`tests/oracles/turns_simulator.py`) that prices every step by its own prompts; GPUs apart for each model, by its share
of the work, stand beside it.
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from case_kinds.multi_model_placement import arrivals, highest_rate, placed, problem_of
from inputs import SHARED, required, shown

from planner.api import solve
from planner.arrays import Floats
from planner.errors import PlannerError
from planner.kinds.place.choose import claimed_streams
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.reached import reached
from planner.kinds.place.setting import PlaceSetting, read_setting
from planner.load.problems import load_problem
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_fillings import BEST_SHAPES, MIXED, fill, partitions
from planner.solvers.placement.group_search import share_on_time, shares_on_time
from planner.solvers.placement.group_streams import Group
from planner.solvers.placement.layers.flow import max_flow
from planner.solvers.placement.layers.place import place_layers
from planner.solvers.placement.layers.problem import LayerProblem, Node
from planner.solvers.placement.shared_groups import SharedGroups

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "oracles"))
from turns_simulator import attained  # noqa: E402 - behind its path

DATA = SHARED
REFERENCE_REQUESTS = 8000
FRESH_8, FRESH_32 = range(1001, 1011), range(11, 21)
ASKED = {
    "place_alpaserve_32gpu": (240.0, 248.0, 256.0, 264.0, 270.0),
    "place_alpaserve_32gpu_slo2": (96.0, 102.0, 108.0, 160.0),
}
UNIFORM = ("op1_pp1", "op1_pp2", "op2_pp2", "op1_pp4")
GPUS = {
    "A100": (12_000.0, 20),
    "V100": (5_500.0, 9),
    "L4": (2_600.0, 11),
    "T4": (1_500.0, 8),
}  # tokens/s x layers, most


def uniform(
    problem: SharedGroups, load_M: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> dict[str, tuple[Group, ...]]:
    """Groups alike of some shapes, filled in turn: the trivial answers."""
    names = [shape.name for shape in problem.shapes]
    return {name: fill(problem, partitions(problem, names.index(name)), load_M) for name in UNIFORM if name in names}


def eight() -> None:
    case = json.loads(required(DATA / "placement" / "bert13b_8gpu_32m.json").read_text())
    problem, rate = problem_of(case), sum(model["rate_rps"] for model in case["models"])
    placed(case, problem)  # compiles
    started_s = time.process_time()
    groups = placed(case, problem)
    cpu_s = time.process_time() - started_s
    streams = [arrivals(case, rate, 4, seed) for seed in FRESH_8]
    load_M = np.array([model["rate_rps"] for model in case["models"]])
    beside = {name: share_on_time(problem, each, streams) for name, each in uniform(problem, load_M).items()}
    share, bound = share_on_time(problem, groups, streams), bound_on_time(problem, streams)
    gpus = case["cluster"]["num_gpus"]
    print(
        f"{gpus} GPUs, {len(streams)} fresh seeds: {share:.4f} on time, no groups above {bound:.4f}; {cpu_s:.2f} CPU-s"
    )
    print("    filled alike: " + ", ".join(f"{name} {value:.4f}" for name, value in beside.items()))


def thirty_two(name: str) -> None:
    case = json.loads((DATA / "cases" / f"{name}.json").read_text())
    problem = problem_of(case)
    started_s = time.process_time()
    groups = placed(case, problem)
    cpu_s = time.process_time() - started_s
    load_M = np.array([model["rate_rps"] for model in case["models"]])
    every = {"placed": groups, **uniform(problem, load_M)}
    shapes = sorted({problem.shapes[group.shape].name for group in groups})
    print(f"{name}: {', '.join(shapes)}, {cpu_s:.0f} CPU-s; highest rate on seeds 11 to 20:")
    rates = {key: highest_rate(case, problem, each, FRESH_32) for key, each in every.items()}
    print("    " + ", ".join(f"{key} {rate:.1f}/s" for key, rate in rates.items()))
    for rate in ASKED[name]:
        streams = [arrivals(case, rate, case["headline"]["cv"], seed) for seed in FRESH_32]
        shares = ", ".join(f"{key} {share_on_time(problem, each, streams):.4f}" for key, each in every.items())
        bound = f"; no groups above {bound_on_time(problem, streams):.4f}" if rate == ASKED[name][-1] else ""
        print(f"    {rate:g}/s: {shares}{bound}")
    mixes(case, problem, load_M, groups)


def mixes(case: dict[str, Any], problem: SharedGroups, load_M: Floats, placed_groups: tuple[Group, ...]) -> None:
    """Mixes of the shapes that serve most alone, filled alike, on fresh seeds at the rate that the best of them has."""
    alone = {c: fill(problem, partitions(problem, c), load_M) for c in problem.usable}
    rates = {c: highest_rate(case, problem, groups, FRESH_32[:2]) for c, groups in alone.items()}
    best, *others = sorted(rates, key=lambda c: -rates[c])[:BEST_SHAPES]
    rate = highest_rate(case, problem, alone[best], FRESH_32)
    streams = [arrivals(case, rate, case["headline"]["cv"], seed) for seed in FRESH_32]
    share_S = shares_on_time(problem, alone[best], streams)
    print(f"    differences to {problem.shapes[best].name} alone at {rate:.1f}/s, of {len(streams)} paired seeds:")
    for shape, other in itertools.permutations((best, *others), 2):
        if problem.shapes[shape].devices < problem.shapes[other].devices:
            for part in MIXED:
                groups = fill(problem, partitions(problem, shape, other, part), load_M)
                _difference(problem, groups, shares_on_time(problem, groups, streams) - share_S)
    _difference(problem, placed_groups, shares_on_time(problem, placed_groups, streams) - share_S)


def _difference(problem: SharedGroups, groups: tuple[Group, ...], gain_S: Floats) -> None:
    counts = Counter(problem.shapes[group.shape].name for group in groups)
    alike = " + ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    error = float(gain_S.std(ddof=1)) / len(gain_S) ** 0.5
    print(f"        {alike}: {gain_S.mean():+.4f} +- {error:.4f}")


def language_models(seeds: range) -> None:
    """The stated shares on time beside those of the slow reference, and GPUs apart for each model."""
    resolved = load_problem(ROOT / "examples" / "place-four-models.yaml")
    started_s = time.process_time()
    plan = solve(resolved)
    cpu_s = time.process_time() - started_s
    decision = PlaceDecision.model_validate(plan.decision)
    stated = plan.certificate.objective.value
    rates = [workload.spec.load.rate_per_s or 0.0 for workload in resolved.workloads if workload.spec.load is not None]
    slow = [np.average(attained(resolved, decision, REFERENCE_REQUESTS, seed), weights=rates) for seed in seeds]
    error = np.std(slow, ddof=1) / len(slow) ** 0.5
    setting = read_setting(resolved)
    apart = reached(setting.groups, gpus_apart(setting), claimed_streams(setting)).share
    print(
        f"four language models on 8 GPUs: {stated:.4f} on time stated, {np.mean(slow):.4f} +- {error:.4f} by the slow "
        f"reference, bound {plan.certificate.bound:.4f}; GPUs apart for each model {apart:.4f}; {cpu_s:.1f} CPU-s"
    )


def gpus_apart(setting: PlaceSetting) -> tuple[Group, ...]:
    """The trivial answer: every model has GPUs of its own, by its share of the work, one at least."""
    share_M = setting.load_M / setting.load_M.sum()
    spare = setting.groups.devices - setting.groups.models
    count_M = 1 + np.floor(share_M * spare).astype(int)
    for model in np.argsort(count_M - share_M * setting.groups.devices)[: setting.groups.devices - count_M.sum()]:
        count_M[model] += 1
    return tuple(Group(0, (model,)) for model, count in enumerate(count_M.tolist()) for _ in range(count))


def cluster(seed: int) -> LayerProblem:
    """A generated cluster: work falls with layers as 1 / layers, and by half where little is left for the KV cache."""
    draws = np.random.default_rng(seed)
    count, kinds, regions = int(draws.integers(10, 41)), int(draws.integers(2, 5)), int(draws.integers(1, 4))
    chosen = draws.permutation(sorted(GPUS))[:kinds]
    nodes = []
    for _ in range(count):
        name = str(draws.choice(chosen))
        work, most = GPUS[name]
        rates = tuple(work / k * (0.5 if k > 0.85 * most else 1.0) for k in range(1, most + 1))
        nodes.append(Node(name, rates, region=f"r{draws.integers(regions)}"))
    region = np.array([node.region for node in nodes])
    links = np.where(region[:, None] == region[None, :], 75_000.0, float(draws.choice([200.0, 2_000.0])))
    layers = int(draws.choice([48, 60, 80]))
    return LayerProblem(layers, tuple(nodes), links, np.full(count, 5e8), np.full(count, 5e8))


def one_pipeline(problem: LayerProblem) -> float:
    """The trivial answer: all nodes in one row, equal layers each as far as they hold them."""
    held: list[tuple[int, int] | None] = []
    start = 0
    for index, node in enumerate(problem.nodes):
        even = -(-(problem.layers - start) // (len(problem.nodes) - index))
        number = min(max(even, 1), len(node.tokens_per_s), problem.layers - start)
        held.append((start, start + number) if number else None)
        start += number
    return max_flow(problem, held)[0] if start == problem.layers else 0.0


def clusters(seeds: range) -> None:
    gaps, seconds = [], []
    for seed in seeds:
        try:
            problem = cluster(seed)
        except PlannerError as error:
            print(f"cluster {seed}: {error.what}")
            continue
        started_s = time.process_time()
        result = place_layers(problem)
        seconds.append(time.process_time() - started_s)
        if result.objective is None or result.gap is None:
            print(f"cluster {seed}: {result.status}")
            continue
        gaps.append(result.gap)
        print(
            f"cluster {seed}: {len(problem.nodes)} nodes, {problem.layers} layers: {result.objective:.0f} tokens/s "
            f"of at most {result.bound:.0f} (gap {result.gap:.1%}), {seconds[-1]:.2f} CPU-s; "
            f"one pipeline {one_pipeline(problem):.0f}"
        )
    print(f"{len(gaps)} clusters: largest gap {max(gaps):.1%}, most {max(seconds):.2f} CPU-s")


PARTS = ("eight", "thirty-two", "language", "clusters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 GPUs, four language models and six clusters")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    arguments = parser.parse_args()
    parts = {arguments.only} if arguments.only else set(PARTS) - ({"thirty-two"} if arguments.quick else set())
    if not DATA.exists() and "thirty-two" in parts:
        print(f"needs {shown(DATA)} for 32 GPUs: the rest alone", file=sys.stderr)
        parts -= {"thirty-two"}
    if "eight" in parts:
        eight()
    for name in ASKED if "thirty-two" in parts else ():
        thirty_two(name)
    if "language" in parts:
        language_models(range(1, 4 if arguments.quick else 13))
    if "clusters" in parts:
        clusters(range(6 if arguments.quick else 30))


if __name__ == "__main__":
    main()
