"""Agentic problems of examples/rl-problems: the search beside brute force over every plan and every assignment.

Brute force simulates every mix of at most two kinds of workers under every policy and every assignment, and prices it
with every training and staleness; it shares the rollout simulator with the search, and neither bounds nor the program
over sets. The trivial answer is one kind of workers on all GPUs that some training leaves, first come first served.
Exits 1 where the search is not equal to brute force.
"""

import resource
import sys
from itertools import combinations, product
from math import inf
from pathlib import Path

import numpy as np

from planner.documents.read import load_document
from planner.interchange.rl_agentic import read_agentic
from planner.rl.agentic import AgenticPlan, AgenticProblem, evaluate_agentic, policy_of, queues_for, token_parts
from planner.rl.evaluate import gpus_of_pool, handover_s, hourly_usd, weight_sync_s
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.rollouts.rollout import RolloutWorker, simulate
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.trainings import training_choices
from planner.rl.training import Rollout, TrainingTable, iteration_s, minibatch_s

PROBLEMS = Path(__file__).parent.parent / "examples" / "rl-problems"
Mix = tuple[GenerationGroup, ...]


def mixes(problem: AgenticProblem) -> list[Mix]:
    """All mixes of at most two kinds that fit the pools."""
    pools = problem.curves.pool_of
    mixes: list[Mix] = []
    for number in (1, 2):
        for kinds in combinations(problem.curves.generation, number):
            for counts in product(*(range(1, pools[kind.pool].gpus // kind.gpus + 1) for kind in kinds)):
                mix = tuple(GenerationGroup(kind, count) for kind, count in zip(kinds, counts, strict=True))
                used = {name: sum(group.gpus for group in mix if group.option.pool == name) for name in pools}
                if all(used[name] <= pools[name].gpus for name in pools):
                    mixes.append(mix)
    return mixes


def shortest_ends(problem: AgenticProblem, mix: Mix) -> list[list[float]]:
    """For every policy, when the rollout of each batch ends, under the best assignment where there is one."""
    curves = [group.option.curve for group in mix for _ in range(group.replicas)]
    plans = []
    for dispatch, priority, threshold in product(problem.dispatches, problem.priorities, problem.move_thresholds):
        policy = policy_of(problem, priority, threshold)
        ends = []
        for batch in problem.batches:
            every = product(range(len(curves)), repeat=batch.size) if dispatch == "assigned" else [()]
            best = inf
            for places in every:
                of_worker, queues = queues_for(dispatch, batch, len(curves), places)
                workers = tuple(RolloutWorker(curve, queue) for curve, queue in zip(curves, of_worker, strict=True))
                best = min(best, simulate(workers, batch, queues, policy).end_s)
            ends.append(best)
        plans.append(ends)
    return plans


def price(problem: AgenticProblem, mix: Mix, ends: list[float]) -> float:
    """The best objective over all trainings and modes."""
    curves = problem.curves
    best = inf
    for choice in training_choices(curves):
        table = TrainingTable.of((choice,), [pool.name for pool in curves.pools])
        work, tokens = minibatch_s(table, token_parts(problem)), token_parts(problem)
        for mode in curves.modes:
            plan = RlPlan(mode, mix, choice)
            if not _goes(problem, plan, choice, mode):
                continue
            rollout = Rollout(np.array(ends), tokens, np.zeros((0, 0)))
            time_s = float(iteration_s(mode, rollout, work, np.array([handover_s(curves, plan)]))[0])
            cost = hourly_usd(curves, gpus_of_pool(plan)) * time_s / 3600
            best = min(best, time_s if curves.objective == "iteration_time" else cost)
    return best


def _goes(problem: AgenticProblem, plan: RlPlan, choice: TrainingChoice, mode: RlMode) -> bool:
    pools = problem.curves.pool_of
    if any(count > pools[name].gpus for name, count in gpus_of_pool(plan).items()):
        return False
    generating = {group.option.pool for group in plan.groups}
    if mode.placement == "colocated":
        return generating == {choice.option.pool} and sum(group.gpus for group in plan.groups) == choice.gpus
    return weight_sync_s(problem.curves, generating, choice.option.pool) is not None


def trivial(problem: AgenticProblem) -> float:
    """One kind of workers, first come first served, nobody moves, on as many GPUs as some training leaves."""
    best = inf
    for mode, option, choice in product(
        problem.curves.modes, problem.curves.generation, training_choices(problem.curves)
    ):
        count = problem.curves.pool_of[option.pool].gpus // option.gpus
        while count:
            group = GenerationGroup(option, count)
            plan = AgenticPlan(mode, (group,), choice, "fifo", problem.priorities[0], problem.move_thresholds[0])
            evaluation = evaluate_agentic(problem, plan)
            if not evaluation.broken:
                best = min(best, evaluation.objective)
                break
            count -= 1
    return best


def main() -> int:
    worse = False
    print(f"{'problem':26} {'brute force':>11} {'ours':>9} {'gap':>6} {'CPU':>6}  {'simulated':>9}  trivial")
    for path in sorted(PROBLEMS.glob("agentic-*.json")):
        problem = read_agentic(load_document(path))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        solution = solve_agentic(problem)
        cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        every = mixes(problem)
        best = min(price(problem, mix, ends) for mix in every for ends in shortest_ends(problem, mix))
        assert solution.objective is not None
        print(
            f"{path.stem:26} {best:11.4f} {solution.objective:9.4f} {solution.gap or 0:6.2%} {cpu_s:5.2f}s  "
            f"{len(every):5d} mixes  {trivial(problem) / best - 1:+.1%}"
        )
        worse |= abs(solution.objective / best - 1) > 1e-9
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
