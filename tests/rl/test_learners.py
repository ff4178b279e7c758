"""Critics on GPUs of their own: minibatches by definition, the search against every plan, generators beside them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from coupled_cases import KINDS, coupled_case
from rl_enumerated import least_of_one_group
from rl_problems import random_problem

from planner.documents.read import given_document
from planner.interchange.rl_problem import read_problem
from planner.rl.coupled.referee import coupled_iteration_s
from planner.rl.curves import Learner, Service, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, Halves, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.search import solve
from planner.rl.search.verify import derive_bound
from planner.rl.training import TrainingTable, minibatch_s


def test_actor_and_critic_wait_for_each_other_in_between() -> None:
    actor = TrainingOption("a", 1, 10.0, 40.0, 20, 1, optimizer_s=0.5)
    critic = TrainingOption("a", 2, 16.0, 20.0, 10, 1, 2, optimizer_s=0.25)
    table = TrainingTable.of((TrainingChoice(actor, 2),), ["a"])
    # 40 tokens: 20 on each of the actor's ranks, in one micro-batch; 40 on the critic's, in four through two stages
    forward_s, update_s = 20 / 40, 20 / 10 + 0.5
    values_s, learned_s = 40 / 20 * 5 / 4, 40 / 16 * 5 / 4 + 0.25
    assert forward_s < values_s
    assert minibatch_s(table, np.array([[40.0]]), Learner(critic, 1))[0, 0, 0] == pytest.approx(
        values_s + max(update_s, learned_s)
    )
    quick = replace(critic, forward_tokens_per_s=2000.0)
    assert minibatch_s(table, np.array([[40.0]]), Learner(quick, 4))[0, 0, 0] == pytest.approx(forward_s + update_s)


def with_critic(seed: int, *modes: RlMode) -> RlProblem:
    """A drawn problem whose critic trains on the actor's GPUs, or on others, beside rewards that a sandbox finds."""
    draw = random.Random(seed)
    problem = read_problem(given_document(random_problem(seed, "async" if seed % 2 else "cost"), "problem"))
    first, *others = problem.training[:2]
    relieved = (
        replace(
            option,
            apart="critic",
            forward_tokens_per_s=draw.uniform(2, 6) * option.forward_tokens_per_s,
            train_tokens_per_s=draw.uniform(2, 6) * option.train_tokens_per_s,
        )
        for option in (first, *others)
    )
    pool = draw.choice([pool.name for pool in problem.pools])
    learner = replace(first, pool=pool, train_tokens_per_s=draw.uniform(1, 8) * first.train_tokens_per_s)
    sandbox = Service("sandbox", "", 0, draw.randint(1, 3), 1, draw.uniform(0.0, 1.0), 0.0)
    return replace(
        problem,
        training=(first, *others, *relieved),
        services=(sandbox, Learner(learner, 1), Learner(learner, 2)),
        max_groups=1,
        modes=modes or problem.modes,
        dispatch="fifo",
        samples_per_prompt=2,
    )


IN_FLIGHT = RlMode("disaggregated", "k_step_async", 1, True, True)


@pytest.mark.parametrize(
    ("seed", "modes", "own"), [(0, (), False), (2, (), False), (9, (), True), (5, (IN_FLIGHT,), True)]
)
def test_the_search_over_critics_finds_what_pricing_every_plan_finds(
    seed: int, modes: tuple[RlMode, ...], own: bool
) -> None:
    problem = with_critic(seed, *modes)
    solution = solve(problem)
    assert solution.plan is not None
    assert any(isinstance(part, Learner) for part in solution.plan.services) == own
    best = least_of_one_group(problem)
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert derive_bound(problem, best, 1e-9).least == pytest.approx(best)
    assert derive_bound(problem, 1.1 * best, 1e-9).least == pytest.approx(best)


def test_a_critic_takes_its_gpus_and_no_others() -> None:
    problem = with_critic(0)
    learner = next(part for part in problem.services if isinstance(part, Learner))
    sandbox, apart = problem.services[0], next(option for option in problem.training if option.apart)
    group = GenerationGroup(problem.generation[0], 1)
    mode = RlMode("disaggregated", "sync")
    plans = [
        RlPlan(mode, (group,), TrainingChoice(option, max(1, option.min_dp)), services=services)
        for option, services in ((apart, (sandbox, learner)), (replace(apart, apart=""), (sandbox,)))
    ]
    own, none = (evaluate(replace(problem, modes=(mode,)), plan) for plan in plans)
    gpus = own.gpus_of_pool[learner.pool] - none.gpus_of_pool.get(learner.pool, 0)
    assert gpus == learner.gpus * learner.dp
    assert isinstance(own.halves, Halves)
    assert none.halves is None
    assert any("does not offer" in rule for rule in evaluate(problem, replace(plans[0], services=(sandbox,))).broken)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_generators_beside_actor_and_critic_take_what_they_are_priced_at(seed: int, kind: str) -> None:
    problem, plan = coupled_case(seed, kind, 64)
    option = problem.training[0]
    critic = replace(option, train_tokens_per_s=0.6 * option.train_tokens_per_s, pp=3 - option.pp)
    learner = Learner(critic, 2)
    plan = replace(plan, services=(learner,), mode=replace(plan.mode, stops=False))
    problem = replace(problem, services=(learner,))
    priced = evaluate(problem, plan)
    assert priced.training_s > evaluate(problem, replace(plan, services=())).training_s
    share = 0.05 if plan.mode.in_flight else 1e-6
    assert coupled_iteration_s(problem, plan, priced.handover_s) == pytest.approx(priced.iteration_s, rel=share)
