"""The trainings of an RL problem, in the order of their speed."""

import numpy as np

from planner.rl.plan import TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.training import TrainingTable, minibatch_s


def training_choices(problem: RlProblem) -> tuple[TrainingChoice, ...]:
    """All (kind, dp) that fit in memory, in their pool, and in the samples of a minibatch (evenly, where asked for).

    The fastest come first, so that of trainings that generation hides the one with most to spare is taken.
    """
    limit = problem.trained_samples // problem.minibatches
    choices = (
        TrainingChoice(option, dp)
        for option in problem.training
        for dp in range(option.min_dp, min(limit, problem.pool_of[option.pool].gpus // option.gpus) + 1)
        if not problem.equal_shares or limit % (dp * option.ranks) == 0
        if problem.pool_of[option.pool].may_hold(dp * option.gpus, option.tp)
    )
    return _fastest_first(problem, tuple(choices))


def _fastest_first(problem: RlProblem, choices: tuple[TrainingChoice, ...]) -> tuple[TrainingChoice, ...]:
    """By what a minibatch of the longest samples takes, which is the same in all periods of a horizon."""
    if not choices:
        return ()
    longest = min(choice.option.micro_tokens / choice.option.ranks for choice in choices)
    table = TrainingTable.of(choices, [pool.name for pool in problem.pools], problem.bubbles)
    each = np.full((1, 1), longest * problem.trained_samples / problem.minibatches)
    return tuple(choices[place] for place in np.argsort(minibatch_s(table, each)[:, 0, 0], kind="stable"))
