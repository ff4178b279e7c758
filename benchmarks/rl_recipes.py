"""Recipes that people start from, as plans: the best trivial answers beside the solver's."""

import math
from collections.abc import Iterator

from planner.rl.curves import NEVER_FITS, GenerationOption, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem


def best_recipe(problem: RlProblem, *, tuned: bool) -> tuple[str, float]:
    """The name and the objective of the best feasible recipe; infinite where none is.

    Every split takes the smallest TP that fits, or, `tuned`, each TP in turn, priced by our evaluator.
    """
    evaluated = [(evaluate(problem, plan), name) for name, plan in recipes(problem, tuned=tuned)]
    feasible = [(evaluation.objective, name) for evaluation, name in evaluated if evaluation.feasible]
    value, name = min(feasible, default=(math.inf, "none"))
    return name, value


def recipes(problem: RlProblem, *, tuned: bool) -> Iterator[tuple[str, RlPlan]]:
    """Colocated on everything; halves; three quarters for generation; one pool each."""
    sizes = {pool.name: pool.gpus for pool in problem.pools}
    dearest = max(problem.pools, key=lambda pool: pool.usd_per_gpu_hour).name
    cheapest = min(problem.pools, key=lambda pool: pool.usd_per_gpu_hour).name
    if not problem.training:
        for option in _generation(problem, dearest, tuned):
            plan = RlPlan(problem.modes[0], (_all_of(option, sizes[dearest]),), None)
            yield f"one group of tp{option.tp}", plan
        return
    syncs = [mode for mode in problem.modes if mode.placement == "disaggregated"]
    for mode in problem.modes:
        if mode.placement == "colocated":
            yield from _split(problem, "colocated", mode, dearest, dearest, sizes[dearest], sizes[dearest], tuned)
    for mode in syncs[-1:]:
        size = sizes[dearest]
        yield from _split(problem, "half and half", mode, dearest, dearest, size // 2, size // 2, tuned)
        yield from _split(problem, "3 : 1", mode, dearest, dearest, size * 3 // 4, size // 4, tuned)
        if cheapest != dearest:
            yield from _split(problem, "a pool each", mode, cheapest, dearest, sizes[cheapest], size, tuned)


def _split(
    problem: RlProblem,
    name: str,
    mode: RlMode,
    generators: str,
    other: str,
    generating: int,
    training: int,
    tuned: bool,
) -> Iterator[tuple[str, RlPlan]]:
    choice = _training(problem, other, training)
    for option in _generation(problem, generators, tuned):
        if choice is not None and generating >= option.gpus:
            yield f"{name}, tp{option.tp}", RlPlan(mode, (_all_of(option, generating),), choice)


def _all_of(option: GenerationOption, gpus: int) -> GenerationGroup:
    return GenerationGroup(option, gpus // option.gpus)


def _generation(problem: RlProblem, pool: str, tuned: bool) -> list[GenerationOption]:
    """The smallest option that holds the longest sample, or all that do."""
    longest = max(int(batch.tokens_N.max()) for batch in problem.batches)
    fitting = [option for option in problem.generation if option.pool == pool and option.curve.kv_tokens >= longest]
    return sorted(fitting, key=lambda option: option.gpus)[: None if tuned else 1]


def _training(problem: RlProblem, pool: str, gpus: int) -> TrainingChoice | None:
    """The smallest replica that fits when data parallelism takes all GPUs."""
    for option in sorted((candidate for candidate in problem.training if candidate.pool == pool), key=_smallness):
        dp = gpus // option.gpus
        if option.min_dp < NEVER_FITS and dp >= option.min_dp and dp * option.gpus == gpus:
            return TrainingChoice(option, dp)
    return None


def _smallness(option: TrainingOption) -> tuple[int, int]:
    return option.gpus, option.pp
