"""Generators and trainer simulated together, beside the price of the same plan, which is worked out otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from coupled_cases import KINDS, coupled_case

from planner.rl.coupled.batchwise import rollout
from planner.rl.coupled.iterations import Work
from planner.rl.coupled.referee import coupled_iteration_s, why_not
from planner.rl.curves import Service
from planner.rl.evaluate import evaluate
from planner.rl.generation import batch_finish_times
from planner.rl.plan import Fusion, RlMode, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.services import flowing_busy_s


@pytest.mark.parametrize("seed", range(10))
def test_a_rollout_ends_as_it_is_priced(seed: int) -> None:
    problem, plan = coupled_case(seed, "batchwise", 48)
    groups = [(group.option.curve, group.replicas) for group in plan.groups]
    for batch in problem.batches:
        lengths = list(zip(batch.prompt_tokens_N.tolist(), batch.output_tokens_N.tolist(), strict=True))
        priced = batch_finish_times(batch, plan.groups, problem.dispatch, 0.0)
        assert rollout(groups, Work(lengths, [range(len(lengths))])) == pytest.approx(priced)


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("seed", range(12))
def test_iterations_of_whole_batches_take_what_they_are_priced_at(seed: int, kind: str) -> None:
    problem, plan = coupled_case(seed, kind, 32)
    unhindered = replace(plan.mode, stops=False)
    problem, plan = replace(problem, modes=(unhindered,)), replace(plan, mode=unhindered)
    priced = evaluate(problem, plan)
    assert coupled_iteration_s(problem, plan, priced.handover_s) == pytest.approx(priced.iteration_s)


@pytest.mark.parametrize("seed", range(12))
def test_generators_that_stop_once_for_several_versions_are_no_slower_than_priced(seed: int) -> None:
    problem, plan = coupled_case(seed, "batchwise", 32)
    priced = evaluate(problem, plan)
    coupled_s = coupled_iteration_s(problem, plan, priced.handover_s)
    assert 0.95 * priced.iteration_s <= coupled_s <= priced.iteration_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_servers_of_whole_batches_hold_up_training_as_priced(seed: int, kind: str) -> None:
    problem, plan = coupled_case(seed, kind, 64)
    problem, plan = with_server(problem, replace(plan, mode=replace(plan.mode, stops=False)), 0.3, whole=True)
    priced, alone = evaluate(problem, plan), evaluate(problem, replace(plan, services=()))
    share = 0.05 if plan.mode.in_flight else 1e-6
    assert coupled_iteration_s(problem, plan, priced.handover_s) == pytest.approx(priced.iteration_s, rel=share)
    assert priced.iteration_s >= alone.iteration_s


@pytest.mark.parametrize("busy", [0.5, 0.9, 1.3])
@pytest.mark.parametrize("seed", range(4))
def test_iterations_in_flight_behind_servers_take_about_what_they_are_priced_at(seed: int, busy: float) -> None:
    problem, plan = with_server(*coupled_case(seed, KINDS[2], 256), busy)
    priced = evaluate(problem, plan)
    assert coupled_iteration_s(problem, plan, priced.handover_s) == pytest.approx(priced.iteration_s, rel=0.07)
    assert priced.iteration_s >= flowing_busy_s(plan.services, problem.batches)


def with_server(problem: RlProblem, plan: RlPlan, busy: float, *, whole: bool = False) -> tuple[RlProblem, RlPlan]:
    """Two servers that are busy for such a share of an iteration without them."""
    tokens = sum(int(batch.tokens_N.sum()) for batch in problem.batches) / len(problem.batches)
    seconds = 2.0 * busy * evaluate(problem, plan).iteration_s
    service = Service("reward", "gpus", 1, 2, 8, 4.0 * seconds / problem.trained_samples, seconds / 2 / tokens)
    service = replace(service, whole=whole)
    return replace(problem, services=(service,)), replace(plan, services=(service,))


@pytest.mark.parametrize("seed", range(12))
def test_iterations_in_flight_take_about_what_they_are_priced_at(seed: int) -> None:
    problem, plan = coupled_case(seed, KINDS[2], 256)
    priced = evaluate(problem, plan)
    assert coupled_iteration_s(problem, plan, priced.handover_s) == pytest.approx(priced.iteration_s, rel=0.05)


def test_weights_that_may_be_older_never_make_an_iteration_of_whole_batches_longer() -> None:
    problem, plan = coupled_case(5, "batchwise", 32)
    ahead = [replace(plan, mode=replace(plan.mode, staleness=staleness, stops=False)) for staleness in (1, 2, 4)]
    taken = [coupled_iteration_s(problem, each, 1.0) for each in ahead]
    assert sorted(taken, reverse=True) == pytest.approx(taken)


def test_what_is_not_simulated_together_is_named() -> None:
    problem, plan = coupled_case(0, "batchwise", 32)
    assert why_not(problem, plan) is None
    assert "rollout" in str(why_not(problem, replace(plan, mode=RlMode("colocated", "sync"))))
    assert "part" in str(why_not(replace(problem, samples=16), plan))
    assert "change" in str(why_not(problem, replace(plan, fusion=Fusion(0.2, 1))))
    served = replace(plan, services=(Service("rule", "", 0, 8, 1, 1.0, 0.0),))
    assert "servers" in str(why_not(problem, served))
    dropped = replace(problem.batches[0], prompt_N=np.zeros(problem.batches[0].size, np.int64))
    assert "dropped" in str(why_not(replace(problem, batches=(dropped,)), plan))
