"""The best RL plan with one group of replicas, scoring fused with generation or not, by pricing every one."""

import itertools

from planner.rl.curves import Learner, Service
from planner.rl.evaluate import evaluate
from planner.rl.plan import Fusion, GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.trainings import training_choices


def _scored(problem: RlProblem) -> list[tuple[Service | Learner, ...]]:
    """Every set of services of unlike parts, those of every part or not."""
    return [
        chosen
        for size in range(len(problem.services) + 1)
        for chosen in itertools.combinations(problem.services, size)
        if len({service.part for service in chosen}) == size
    ]


def _fusions(problem: RlProblem, group: GenerationGroup) -> list[Fusion]:
    return [Fusion(share, kept) for share in problem.fusion_thresholds for kept in range(1, group.replicas)]


def least_of_one_group(problem: RlProblem) -> float:
    """The objective of the best of all modes, kinds and counts of replicas, and ways to train."""
    groups = [
        GenerationGroup(option, count)
        for option in problem.generation
        for count in range(1, problem.pool_of[option.pool].gpus // option.gpus + 1)
    ]
    evaluated = [
        evaluate(problem, RlPlan(mode, (group,), choice, fusion=fusion, services=services))
        for mode, group, choice, services in itertools.product(
            problem.modes, groups, training_choices(problem), _scored(problem)
        )
        for fusion in (None, *_fusions(problem, group))
    ]
    return min(each.objective for each in evaluated if each.feasible)
