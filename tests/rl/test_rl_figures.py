"""Bounds, exact prices and broken rules of RL plans drawn by seed are those of the table in tests/golden/rl.

What changes a formula on purpose writes the table anew with `pytest --update-golden`, and the difference is read.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from rl_problems import FEATURES, random_problem

from planner.arrays import Floats
from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.curves import Scoring
from planner.rl.evaluate import evaluate
from planner.rl.plan import Fusion, LateReplicas, RlMode, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.enumeration import build_space
from planner.rl.search.pricing import pricing_of
from planner.rl.search.search import Simulations
from planner.rl.search.trainings import training_choices

MODES = (
    RlMode("colocated", "sync"),
    RlMode("colocated", "stream_sync"),
    RlMode("disaggregated", "stream_sync"),
    RlMode("disaggregated", "one_step_async", 1),
    RlMode("disaggregated", "k_step_async", 2),
    RlMode("hybrid", "sync"),
)
CONFIGURATIONS, PLANS = 6, 8


def _problems() -> Iterator[tuple[str, RlProblem]]:
    for feature in FEATURES:
        for seed in (0, 1):
            yield f"{feature}-{seed}", read_problem(given_document(random_problem(seed, feature), "problem"))
    base = read_problem(given_document(random_problem(2, "sync"), "problem"))
    roomy = tuple(replace(option, curve=replace(option.curve, max_running=8)) for option in base.generation)
    trained = tuple(
        replace(option, score_gpu_s=0.8 * option.gpus / option.forward_tokens_per_s) for option in base.training
    )
    scoring = {pool.name: (Scoring(trained[0].score_gpu_s, 0.05, 0.01, 1e-4),) for pool in base.pools}
    wide = replace(base, generation=roomy, modes=MODES)
    few = base.trained_samples - 2
    yield "modes", wide
    yield "overlapped", replace(wide, weight_sync_overlapped=True, objective="cost_per_iter")
    yield "fused", replace(wide, training=trained, scoring=scoring, fusion_thresholds=(0.2, 0.5))
    yield "late", replace(wide, late_thresholds=(0.2, 0.5), late_change_s=0.02)
    yield "tails", replace(wide, max_groups=2, tail_fractions=(0.2, 0.4), dispatch="predicted_longest_first")
    yield "over-sampled", replace(wide, samples=few, minibatches=2)
    yield "partial", replace(wide, samples=few, minibatches=2, partial=True, max_staleness=2)
    yield "even", replace(wide, equal_shares=True, minibatches=2)
    yield "capped", replace(wide, max_iteration_s=0.9 * evaluate(wide, _plan(wide, random.Random(0))).iteration_s)


def _plan(problem: RlProblem, draw: random.Random) -> RlPlan:
    """Any plan, whatever rules it breaks."""
    groups = build_space(problem).groups
    choices = sorted(training_choices(problem), key=lambda choice: (problem.training.index(choice.option), choice.dp))
    group, other = draw.choice(groups), draw.choice(groups)
    plan = RlPlan(draw.choice(problem.modes), (group,), draw.choice(choices) if choices else None)
    if problem.fusion_thresholds and draw.random() < 0.6:
        return replace(plan, fusion=Fusion(draw.choice((0.2, 0.5)), draw.randint(1, 3)))
    if problem.late_thresholds and draw.random() < 0.6:
        return replace(plan, late=LateReplicas(draw.choice((0.2, 0.5)), other))
    if problem.tail_fractions and draw.random() < 0.6:
        return replace(plan, groups=(group, other), tail_fraction=draw.choice(problem.tail_fractions))
    return plan


def _line(*values: object) -> str:
    return ",".join(f"{value:.8g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def _weighed(values: Floats) -> tuple[object, ...]:
    """How many are finite, their least, and a sum in which each has a weight of its own."""
    finite = np.isfinite(values)
    weights = np.arange(1, values.size + 1).reshape(values.shape)
    least = float(values[finite].min()) if finite.any() else "none"
    return int(finite.sum()), least, float((values[finite] * weights[finite]).sum())


def _lines() -> Iterator[str]:
    for name, problem in _problems():
        draw = random.Random(f"figures/{name}")
        space = build_space(problem)
        pricing, simulations = pricing_of(space), Simulations(space)
        yield _line(name, len(space.groups), len(space.first_C), pricing.total, *_weighed(pricing.quick_C))
        for config in draw.sample(range(len(space.first_C)), min(CONFIGURATIONS, len(space.first_C))):
            rollout = simulations.rollout(config)
            generated = (*_weighed(rollout.generation_s_B), *_weighed(space.generation_bound_CB[config]))
            prices = (*_weighed(pricing.bound_MT(config)), *_weighed(pricing.exact_MT(config, rollout)))
            yield _line(name, config, *generated, *prices)
        for _ in range(PLANS):
            evaluation = evaluate(problem, _plan(problem, draw))
            times = (evaluation.objective, evaluation.iteration_s, evaluation.cost_usd, evaluation.generation_s)
            rest = (evaluation.training_s, evaluation.handover_s, *evaluation.gpus_of_pool.items())
            yield _line(name, "plan", *times, *rest, " / ".join(evaluation.broken))


def test_bounds_prices_and_rules_are_those_of_the_table(golden: Callable[[str, str], None]) -> None:
    golden("rl/plans.csv", "".join(_lines()))
