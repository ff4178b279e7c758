"""Actor and critic trained at the same time: bubbles, orders as they are written, memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.rl.curves import Critic, CurvePool, DecodeCurve, GenerationOption, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.paired import Pair, least_bubble, pairs, pairs_with, read_order, solve_pair, written_order
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.trajectories import SampleBatch
from planner.solvers.schedules.fused_pipelines import one_after_the_other

ACTOR_S, CRITIC_S = 0.006, 0.003  # GPU seconds of a token
SHARE = CRITIC_S / (ACTOR_S + CRITIC_S)


def option(**changes: Any) -> TrainingOption:  # noqa: ANN401
    """Four stages of one GPU; the critic's two stages wait one of its micro-batches, half of the actor's work."""
    rate = 4 / (ACTOR_S + CRITIC_S)
    made = TrainingOption("a", 4, rate, 1e4, 1000, 1, 4, critic_share=SHARE, critic_bubble=SHARE * 2)
    return replace(made, **changes)


CRITIC = Critic(
    pp=2,
    gpus=2,
    micro_tokens=1000,
    forward_gpu_s=CRITIC_S / 3,
    backward_gpu_s=2 * CRITIC_S / 3,
    actor_forward_gpu_s=ACTOR_S / 3,
    actor_backward_gpu_s=2 * ACTOR_S / 3,
    in_flight_bytes=1.0,
    actor_in_flight_bytes=1.0,
    room_bytes=8.0,
)


def problem(trained: TrainingOption, samples: int = 8) -> RlProblem:
    curve = DecodeCurve(0.01, 0.001, 0.0, 1e6, 64, 10**6)
    batch = SampleBatch(np.full(samples, 500, np.int64), np.full(samples, 1500, np.int64))
    return RlProblem(
        (CurvePool("a", 8),),
        (GenerationOption("a", 1, curve, 1),),
        (trained,),
        (batch,),
        1,
        (RlMode("colocated", "sync"),),
    )


def pair(samples: int = 8, critic: Critic = CRITIC) -> Pair:
    trained = option()
    choice = TrainingChoice(trained, 1)
    return pairs(problem(trained, samples), [choice], {trained: critic})[choice]


def test_the_mean_minibatch_is_cut_into_micro_batches_of_both_models() -> None:
    example = pair()
    assert (example.actor_jobs, example.critic_jobs) == (16, 8)
    assert example.work_s == pytest.approx(16_000 * (ACTOR_S + CRITIC_S) / 4)
    fused = example.pipelines()
    assert [pipeline.machines for pipeline in fused.pipelines] == [(0, 1, 2, 3), (1, 0), (3, 2)]
    busy = sum((pipeline.jobs * (pipeline.forward[0] + pipeline.backward[0])) for pipeline in fused.pipelines[:2])
    assert busy == pytest.approx(example.work_s)


def test_critics_side_by_side_share_the_minibatch_of_an_actor_of_two_gpus_a_stage() -> None:
    trained = option(gpus=8)
    choice = TrainingChoice(trained, 1)
    example = pairs(problem(trained), [choice], {trained: CRITIC})[choice]
    assert (example.actor_jobs, example.critic_jobs) == (16, 4)  # 16000 tokens; four critic replicas of 2 GPUs
    actor, *critics = example.pipelines().pipelines
    assert (actor.forward[0], actor.backward[0]) == pytest.approx((1000 * 0.002 / 8, 1000 * 0.004 / 8))
    assert len(critics) == 2  # blocks of stages
    assert [critic.forward[0] for critic in critics] == pytest.approx([1000 * 0.001 / 2] * 2)
    assert [critic.backward[0] for critic in critics] == pytest.approx([1000 * 0.002 / 2] * 2)
    assert [example.bubble(share * example.work_s) for share in (0.5, 1.0, 1.25)] == pytest.approx([0.0, 0.0, 4.0])


def test_training_in_turn_takes_what_its_schedule_does() -> None:
    example = pair()
    serial = one_after_the_other(example.pipelines())
    assert serial is not None
    in_turn_s = example.makespan_s(example.option.update_bubble)
    actor = 16 * 1500 * ACTOR_S / 4 / 1.5 * (16 + 3) / 16
    critic = 16_000 * CRITIC_S / 4 * (8 + 1) / 8
    assert in_turn_s == pytest.approx(actor + critic)
    assert serial.makespan <= in_turn_s + 1e-9


def test_a_schedule_meets_the_bound_and_survives_being_written() -> None:
    example = pair()
    solved = solve_pair(example, time_limit_s=5.0, seed=0)
    assert solved.solution is not None
    bubble = example.bubble(solved.solution.makespan)
    assert least_bubble(example) <= bubble < example.option.update_bubble
    assert example.makespan_s(bubble) == pytest.approx(solved.solution.makespan)
    texts = written_order(example, solved.solution.order)
    assert [len(text) for text in texts] == [48] * 4
    assert read_order(example, texts) == solved.solution


def test_the_bubble_of_a_schedule_is_what_the_evaluator_charges() -> None:
    trained = option()
    stated = problem(trained)
    choice = TrainingChoice(trained, 1)
    plan = RlPlan(RlMode("colocated", "sync"), (GenerationGroup(stated.generation[0], 4),), choice)
    in_turn, fused = (evaluate(replace(stated, bubbles=bubbles), plan).training_s for bubbles in ({}, {choice: 1.0}))
    example = pair()
    assert in_turn - fused == pytest.approx(example.makespan_s(trained.update_bubble) - example.makespan_s(1.0))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda texts: texts[1:], "orders of 3 stages"),
        (lambda texts: ["x" + texts[0][1:], *texts[1:]], "knows passes"),
        (lambda texts: [texts[0][:-1], *texts[1:]], "leaves passes out"),
        (lambda texts: ["a" + texts[0], *texts[1:]], "leaves passes out"),
        (lambda texts: [texts[0][::-1], *texts[1:]], "wait for each other"),
    ],
)
def test_what_is_no_schedule_is_refused(change: Any, what: str) -> None:  # noqa: ANN401
    example = pair()
    serial = one_after_the_other(example.pipelines())
    assert serial is not None
    with pytest.raises(PlannerError, match=what):
        read_order(example, change(written_order(example, serial.order)))


def test_a_schedule_that_holds_more_than_there_is_room_for_is_refused() -> None:
    roomy, tight = pair(), pair(critic=replace(CRITIC, room_bytes=2.0))
    serial = one_after_the_other(roomy.pipelines())
    assert serial is not None
    with pytest.raises(PlannerError, match="holds 4 of 2"):
        read_order(tight, written_order(roomy, serial.order))


@pytest.mark.parametrize(
    ("critic", "actor", "expected"),
    [((2, 2), (4, 4), True), ((4, 2), (8, 4), True), ((4, 1), (8, 4), False), ((2, 4), (8, 2), False)],
)
def test_whole_pipelines_of_a_critic_must_lie_on_the_stages(
    critic: tuple[int, int], actor: tuple[int, int], *, expected: bool
) -> None:
    assert pairs_with(*critic, *actor) == expected
