"""Graphs and pipelines of stages: generated instances beside a one-line rule.

    python benchmarks/workflow.py            sizes up to those that are not proven in the time limit
    python benchmarks/workflow.py --quick    small ones

A row has what was solved, the objective, the gap to the proven bound, the rule's value, and CPU seconds. Rules:
batches of all that waits, first the oldest query and its longest way left; Johnson's order; the cheapest options,
changed one at a time where most mean seconds fall for a dollar; functions without groups, exactly.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.solvers.result import SolveResult
from planner.solvers.workflow.chance import ChanceProblem, StageOptions, cheapest_options, share_held
from planner.solvers.workflow.engine_batches import (
    EngineBatches,
    Primitive,
    PrimitiveType,
    by_depth,
    least_mean_latency,
    mean_latency_s,
)
from planner.solvers.workflow.server_groups import EVERY, GraphStage, ServerGroups, Work, group_stages
from planner.solvers.workflow.transfer_order import Clusters, johnson, least_makespan, makespan_s

SEEDS = (1, 2, 3)
TIME_LIMIT_S = 30.0
RAG = (  # type, parents: a retrieval with split prefill, after Teola's figure 3
    Primitive(0, ()),
    Primitive(3, ()),
    Primitive(4, (1,)),
    Primitive(5, (2,)),
    Primitive(1, (0, 3)),
    Primitive(2, (4,)),
)


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    objective: float
    gap: float | None
    rule: float | None
    cpu_s: float


def timed(name: str, solve: object, rule: float | None) -> Row:
    """One row of a solve that takes no arguments."""
    assert callable(solve)
    started_s = time.process_time()
    result: SolveResult[object] = solve()
    assert result.objective is not None
    return Row(name, result.objective, result.gap, rule, time.process_time() - started_s)


def batches(queries: int, seed: int) -> Row:
    """Queries of a retrieval graph with an exponential gap of 200 ms on four engines."""
    draws = np.random.default_rng(seed)
    rows = ((0, 40, 25, 4), (0, 60, 90, 2), (0, 260, 12, 8), (1, 12, 6, 16), (2, 18, 22, 8), (3, 30, 40, 4))
    types = tuple(PrimitiveType(e, a / 1000, b / 1000, m) for e, a, b, m in rows)
    release_s = np.round(np.cumsum(draws.exponential(0.2, queries)), 3)
    problem = EngineBatches(RAG, types, tuple(release_s.tolist()))
    rule = mean_latency_s(problem, by_depth(problem))
    name = f"batches on engines, {queries} queries, seed {seed} [s]"
    return timed(name, lambda: least_mean_latency(problem, time_limit_s=TIME_LIMIT_S), rule)


def transfers(clusters: int, seed: int) -> Row:
    draws = np.random.default_rng(seed)
    size_I = draws.integers(10, 200, clusters)
    transfer_s = np.round(size_I * 95e-6 + draws.uniform(0, 2e-3, clusters), 4)
    compute_s = np.round(size_I * 120e-6 * draws.uniform(0.6, 1.4, clusters), 4)
    room = float(size_I.max() + draws.integers(10, 150))
    problem = Clusters(
        tuple(transfer_s.tolist()), tuple(compute_s.tolist()), tuple(size_I.astype(float).tolist()), room
    )
    rule = makespan_s(problem, johnson(problem))
    name = f"transfers in a buffer, {clusters} clusters, seed {seed} [s]"
    return timed(name, lambda: least_makespan(problem, time_limit_s=TIME_LIMIT_S), rule)


def chances(stages: int, seed: int) -> Row:
    """Stages in two ways that join; times fall as costs rise, with a lognormal spread."""
    draws = np.random.default_rng(seed)
    rows = []
    for stage in range(stages):
        parents = () if stage == 0 else (0,) if stage < stages - 1 else tuple(range(1, stages - 1)) or (0,)
        mean_s_O = np.sort(draws.uniform(1, 10, 12))[::-1]
        cost_O = draws.uniform(0.5, 2.0) * (10 / mean_s_O) ** 0.7
        rows.append(StageOptions(parents, cost_O, mean_s_O[:, None] * draws.lognormal(0.0, 0.3, (12, 5000))))
    problem = ChanceProblem(tuple(rows), 12.0, 0.95)
    name = f"options under a chance, {stages} stages, seed {seed} [$]"
    return timed(name, lambda: cheapest_options(problem), greedy(problem))


def greedy(problem: ChanceProblem) -> float | None:
    """From the cheapest options, changes of one stage that save most mean seconds for a dollar, if there are any."""
    options = [int(np.argmin(stage.cost_O)) for stage in problem.stages]
    while share_held(problem, options) < problem.probability:
        moves = []
        for s, stage in enumerate(problem.stages):
            for other in range(len(stage.cost_O)):
                paid = float(stage.cost_O[other] - stage.cost_O[options[s]])
                faster = float(stage.time_s_OK[options[s]].mean() - stage.time_s_OK[other].mean())
                if paid > 0 and faster > 0:
                    moves.append((faster / paid, s, other))
        if not moves:
            return None
        _, s, other = max(moves)
        options[s] = other
    return sum(float(stage.cost_O[o]) for stage, o in zip(problem.stages, options, strict=True))


def groups(stages: int, seed: int) -> Row:
    """A tree of stages on servers of ten slots; shared memory is fifty times as fast."""
    draws = np.random.default_rng(seed)
    rows = []
    for stage in range(stages):
        parents = tuple(p for p in range(max(0, stage - 2), stage) if draws.random() < 0.6)
        base, reads, writes = draws.uniform(0.1, 5, 2), draws.uniform(1, 60, 2), draws.uniform(0.1, 20, 2)
        work = {
            (r, w): Work(*(float(base[i] + reads[i] / (50 if r else 1) + writes[i] / (50 if w else 1)) for i in (0, 1)))
            for r, w in EVERY
        }
        rows.append(GraphStage(parents, work))
    problem = ServerGroups(tuple(rows), (10, 10, 10), 3)
    alone = group_stages(ServerGroups(problem.stages, problem.slots_V, 1)).objective
    return timed(f"functions in groups, {stages} stages, seed {seed} [s]", lambda: group_stages(problem), alone)


def instances(*, quick: bool) -> Iterator[Row]:
    for seed in SEEDS:
        for queries in (3, 4) if quick else (4, 6, 8):
            yield batches(queries, seed)
        for clusters in (8,) if quick else (8, 12, 16):
            yield transfers(clusters, seed)
        for stages in (4,) if quick else (4, 6):
            yield chances(stages, seed)
        for stages in (6,) if quick else (6, 9):
            yield groups(stages, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small instances alone")
    arguments = parser.parse_args()
    for row in instances(quick=arguments.quick):
        gap = "none" if row.gap is None else f"{row.gap:.2%}"
        rule = "none" if row.rule is None else f"{row.rule:.5g}"
        print(f"{row.name}: {row.objective:.5g}, gap {gap}, rule {rule}, {row.cpu_s:.2f} CPU-s", flush=True)


if __name__ == "__main__":
    main()
