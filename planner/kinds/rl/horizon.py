"""RL plans over training time: lengths of every period, each change of the split charged, from what runs now."""

from pathlib import Path

from pydantic import ValidationError

from planner.errors import PlannerError
from planner.kinds.rl.decision import HorizonStep, RlDecision
from planner.kinds.rl.drawn import draw_periods
from planner.kinds.rl.names import choice_name, group_name, mode_name
from planner.kinds.rl.options import RlOptions, Running
from planner.plan.reader import load_plan_document
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.horizon import ChangeCosts, HorizonEvaluation, HorizonProblem, Period
from planner.rl.search.trainings import training_choices

METRICS = {"iteration_time": "horizon_time_s", "cost_per_iter": "horizon_usd"}
"""What a horizon minimises, by the objective of an iteration."""


def horizon_problem(
    problem: Problem, options: RlOptions, searched: RlProblem, running: RlPlan | None
) -> HorizonProblem:
    """The horizon that `problem` asks for, on the curves of `searched`."""
    horizon = options.horizon
    assert horizon is not None
    lengths = draw_periods(problem, options)
    periods = [Period(batches, part.iterations) for batches, part in zip(lengths, horizon.periods, strict=True)]
    change = ChangeCosts(horizon.generation_change_s, horizon.training_change_s, horizon.circuit_change_s)
    return HorizonProblem(searched, tuple(periods), change, running)


def read_running(resolved: Resolved) -> RlDecision | None:
    """The plan that runs now, where the problem names one; raises PlannerError when it is no RL plan."""
    path = resolved.problem.current
    if path is None:
        return None
    data = load_plan_document(Path(path)).data
    if data.get("kind") != "rl":
        raise PlannerError(
            f"the current plan is of kind `{data.get('kind')}`, not `rl`",
            where=resolved.where(("current",)),
            hint="name an RL plan",
        )
    try:
        return RlDecision.model_validate(data["decision"])
    except ValidationError as error:
        first = error.errors()[0]
        raise PlannerError(
            f"the current plan is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            where=resolved.where(("current",)),
            hint="run `planner check` on it",
        ) from None


def running_of(plan: RlPlan) -> Running:
    """A plan in words."""
    assert plan.training is not None
    return Running(
        mode=mode_name(plan.mode), generation=group_name(plan.groups[0]), training=choice_name(plan.training)
    )


def steps_of(options: RlOptions, plans: tuple[RlPlan, ...], evaluation: HorizonEvaluation) -> tuple[HorizonStep, ...]:
    """The periods as a plan states them."""
    assert options.horizon is not None
    return tuple(
        HorizonStep(
            **running_of(plan).model_dump(),
            iterations=period.iterations,
            output_scale=period.output_scale,
            iteration_s=priced.iteration_s,
            changed=changed,
        )
        for period, plan, priced, changed in zip(
            options.horizon.periods, plans, evaluation.evaluations, evaluation.changed, strict=True
        )
    )


def plan_named(stated: Running, searched: RlProblem) -> RlPlan | None:
    """The plan of `searched` that these words stand for; None where there is none."""
    mode = next((mode for mode in searched.modes if mode_name(mode) == stated.mode), None)
    choice = next((choice for choice in training_choices(searched) if choice_name(choice) == stated.training), None)
    for option in searched.generation:
        for replicas in range(1, searched.pool_of[option.pool].gpus // option.gpus + 1):
            group = GenerationGroup(option, replicas)
            if mode is not None and choice is not None and group_name(group) == stated.generation:
                return RlPlan(mode, (group,), choice)
    return None
