"""Iterations one after the other, by hand or simulated from their definition: carried over, ahead, in minibatches."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.rl.curves import DecodeCurve, Service
from planner.rl.generation import group_queues
from planner.rl.partial import Iteration, rollout_of_iterations, successive
from planner.rl.plan import RlMode
from planner.rl.problem import Dispatch
from planner.rl.rollouts.rollout import RolloutWorker
from planner.rl.training import Rollout, ahead_s, iteration_s, minibatches_of, streamed_s
from planner.rl.trajectories import SampleBatch

WORKER = RolloutWorker(DecodeCurve(1.0, 0.0, 0.0, 1e15, 2, 1000))
"""Two samples at once, a second for each step."""


def rollouts(*outputs: list[int], keep: bool) -> list[Iteration]:
    """Iterations that train on the first two samples done; prompts have one token."""
    fresh = [SampleBatch(np.ones(len(output), np.int64), np.array(output)).trajectories for output in outputs]
    return successive((WORKER,), fresh, 2, keep=keep)


def test_what_is_unfinished_goes_on_first_in_the_next_iteration() -> None:
    # 2 and 5 begin; 4 takes the place of 2 and has 3 tokens when 5 is done. It needs one more, beside 3; 9 follows it
    # and has 2 when 3 is done. Its other 7 run beside 6.
    first, second, third = rollouts([2, 5, 4], [3, 9, 7], [6, 2, 1], keep=True)
    assert [round(iteration.generation_s, 6) for iteration in (first, second, third)] == [5.0, 3.0, 7.0]
    assert [iteration.tokens for iteration in (first, second, third)] == [2 + 5, 4 + 3, 9 + 6]
    assert [iteration.stale_tokens for iteration in (first, second, third)] == [0, 3, 2]
    assert [iteration.oldest for iteration in (first, second, third)] == [0, 1, 1]
    assert [(iteration.carried, iteration.wasted_tokens) for iteration in (first, second, third)] == [(1, 0)] * 3
    assert second.done_s_D == pytest.approx([1.0, 3.0])
    assert second.context_D.tolist() == [1 + 4, 1 + 3]


def test_what_is_unfinished_is_thrown_away_where_nothing_is_kept() -> None:
    first, second = rollouts([2, 5, 4], [3, 9, 7], keep=False)
    assert [round(iteration.generation_s, 6) for iteration in (first, second)] == [5.0, 9.0]
    assert [(iteration.tokens, iteration.wasted_tokens) for iteration in (first, second)] == [(7, 3), (12, 6)]
    assert [(iteration.carried, iteration.oldest, iteration.stale_tokens) for iteration in (first, second)] == [
        (0, 0, 0)
    ] * 2


def test_a_sample_carried_over_three_times_is_three_iterations_old() -> None:
    ages = [iteration.oldest for iteration in rollouts([9, 1, 1], [1, 1, 5], [2, 1, 1], [8, 8, 8], keep=True)]
    assert ages == [0, 0, 0, 3]  # the 9 has 2 tokens after one iteration, then 4, then 7


def test_a_sample_of_which_one_token_was_made_is_an_iteration_old() -> None:
    ages = [iteration.oldest for iteration in rollouts([2, 3, 2], [9, 9, 9], keep=True)]
    assert ages == [0, 1]  # the last one took the place of the first for a step


def test_what_had_begun_goes_on_before_what_had_not() -> None:
    # 20 runs alone on the second of two workers; 4 and 5 follow on the first, begun in the second iteration only
    fresh = [SampleBatch(np.ones(5, np.int64), np.array(output)).trajectories for output in ([1, 20, 1, 4, 5], [1] * 5)]
    single = RolloutWorker(DecodeCurve(1.0, 0.0, 0.0, 1e15, 1, 1000))
    first, second = successive((single, single), fresh, 2, keep=True)
    assert (first.generation_s, second.generation_s) == pytest.approx((2.0, 4.0 + 5.0))
    assert (second.tokens, second.stale_tokens, second.oldest, second.carried) == (4 + 5, 0, 0, 3)


def test_an_iteration_ends_when_its_samples_are_scored_and_those_that_wait_are_the_first_of_the_next() -> None:
    # One server takes 2 s for each sample. 2 and 5 are scored at 4 and 7; 4 is generated at 6 and scored at 9, which is
    # waited for. The next iteration begins with it, needs one more, and stops at 5, when 3 is scored and 9 has 5
    # tokens; the rest of it is scored at 6, the 6 at 8, and 2, which is generated at 6 as well, at 10.
    fresh = [
        SampleBatch(np.ones(3, np.int64), np.array(output)).trajectories for output in ([2, 5, 4], [3, 9, 7], [6, 2, 1])
    ]
    judge = Service("reward", "", 0, 1, 1, 2.0, 0.0)
    first, second, third = successive((WORKER,), fresh, 2, keep=True, services=(judge,))
    assert [iteration.generation_s for iteration in (first, second, third)] == pytest.approx([9.0, 5.0, 10.0])
    assert [iteration.tokens for iteration in (first, second, third)] == [2 + 5, 4 + 3, 9 + 6]
    assert [iteration.stale_tokens for iteration in (first, second, third)] == [0, 4, 5]
    assert [(iteration.oldest, iteration.carried) for iteration in (first, second, third)] == [(0, 1), (1, 1), (1, 1)]
    assert second.done_s_D == pytest.approx([0.0, 5.0])
    assert third.done_s_D == pytest.approx([6.0, 8.0])
    assert second.context_D.tolist() == [1 + 4, 1 + 3]
    again = second.retimed(second.generated_s_N + np.array([1.0, 0.0]), (judge,))
    assert again.generation_s == pytest.approx(6.0)
    assert again.done_s_D == pytest.approx([0.0, 6.0])
    training = rollout_of_iterations((first, second, third), 2, (judge, replace(judge, part="reference", whole=True)))
    assert training.handed_s_B == pytest.approx([4.0, 4.0, 4.0])
    assert training.ready_s_BK == pytest.approx(np.array([[9.0, 9.0], [5.0, 5.0], [10.0, 10.0]]))


def simulated_s(generation_s: list[int], train_s: list[int], delay_s: int, staleness: int) -> float:
    """The mean iteration of many, by the definition of running ahead."""
    generated, trained, batches = 0, [0] * (staleness + 1), len(generation_s)
    ends = []
    for iteration in range(2 * 840 * batches):
        begins = max(generated, trained[-1 - staleness] + delay_s)
        generated = begins + generation_s[iteration % batches]
        trained.append(max(generated, trained[-1]) + train_s[iteration % batches])
        ends.append(trained[-1])
    return (ends[-1] - ends[840 * batches - 1]) / (840 * batches)


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_running_ahead_is_as_quick_as_its_simulation(staleness: int) -> None:
    for generation_s, train_s, delay_s in product(([4], [1, 5]), ([3], [6], [4, 2]), (0, 2, 9)):
        if len(train_s) not in (1, len(generation_s)):
            continue
        trains = train_s * (len(generation_s) // len(train_s))
        mean_s = ahead_s(np.array(generation_s), np.array([trains]), np.array([delay_s]), staleness, np.zeros(1))
        assert mean_s == pytest.approx(simulated_s(generation_s, trains, delay_s, staleness))


def test_one_step_ahead_waits_for_the_next_generation_or_training() -> None:
    rollout = Rollout(np.array([1.0, 5.0]), np.zeros((2, 1)), np.zeros((2, 1)))
    work, mode = np.array([[[3.0], [4.0]]]), RlMode("disaggregated", "one_step_async", 1)
    assert iteration_s(mode, rollout, work, np.array([0.5])) == pytest.approx((5.5 + 4.5) / 2)
    assert iteration_s(mode, rollout, work, np.array([0.5]), overlapped=True) == pytest.approx((5.0 + 4.5) / 2)


def test_minibatches_are_trained_as_they_are_complete() -> None:
    done_s, tokens = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([10, 20, 30, 40, 50])
    all_tokens, all_ready_s = minibatches_of(done_s, tokens, 2)
    assert (all_tokens.tolist(), all_ready_s.tolist()) == ([50, 100], [2.0, 5.0])
    four_tokens, four_ready_s = minibatches_of(done_s, tokens, 2, 4)
    assert (four_tokens.tolist(), four_ready_s.tolist()) == ([50, 60], [2.0, 4.0])
    ready_s, work_s = np.array([[2.0, 5.0], [2.0, 9.0]]), np.array([[[4.0, 1.0], [4.0, 1.0]]])
    assert streamed_s(ready_s, work_s).tolist() == [[7.0, 10.0]]


@pytest.mark.parametrize(
    ("dispatch", "fraction", "main", "tail"),
    [
        ("fifo", 0.5, [0, 2], [1, 3]),
        ("predicted_longest_first", 0.5, [0, 2], [3, 1]),
        ("fifo", 0.3, [0, 1, 2], [3]),
        ("predicted_longest_first", 0.3, [1, 0, 2], [3]),
    ],
)
def test_the_longest_predicted_samples_are_the_tail(
    dispatch: Dispatch, fraction: float, main: list[int], tail: list[int]
) -> None:
    queues = group_queues(SampleBatch(np.ones(4, np.int64), np.array([3, 7, 1, 9])), dispatch, fraction)
    assert [queue.tolist() for queue in queues] == [main, tail]
