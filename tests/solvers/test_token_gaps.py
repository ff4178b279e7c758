"""Percentiles of gaps between tokens against gaps drawn one by one."""

import numpy as np
import pytest

from planner.solvers.stochastic.token_gaps import StepPrompts, TokenGaps

N = np.ones(1)
PACE_S, PROMPT_S = 0.01, 0.02


def drawn(prompts: float, cv2: float, first: float, joining: float, count: int) -> np.ndarray:
    """Gaps of steps that prompts come to by a Poisson process, each gamma distributed, and of requests that wait."""
    rng = np.random.default_rng(0)
    number = rng.poisson(prompts, count)
    steps_s = PACE_S + PROMPT_S * rng.gamma(np.maximum(number, 1e-9) / cv2, cv2)
    return np.where(rng.random(count) < first, (1.0 + joining) * (PACE_S + prompts * PROMPT_S), steps_s)


def gaps(prompts: float, cv2: float, first: float = 0.0, joining: float = 0.0) -> TokenGaps:
    step_s = (PACE_S + prompts * PROMPT_S) * N
    return TokenGaps.of_steps(PACE_S * N, step_s, StepPrompts(prompts * N, cv2 * N), first * N, joining)


@pytest.mark.parametrize(("prompts", "cv2"), [(0.02, 1.0), (0.3, 0.25), (0.3, 1.0), (2.0, 1.0)])
@pytest.mark.parametrize("joining", [0.0, 1.0])
def test_gaps_are_those_drawn_one_by_one(prompts: float, cv2: float, joining: float) -> None:
    first = 0.005 if joining else 0.0
    known, sample = gaps(prompts, cv2, first, joining), drawn(prompts, cv2, first, joining, 400_000)
    assert known.mean_s[0] == pytest.approx(sample.mean(), rel=5e-3)
    for limit_s in (0.0099, 0.0101, 0.03, 0.06, 0.12):
        assert known.share_within(limit_s)[0] == pytest.approx(np.mean(sample <= limit_s), abs=0.015)
    for quantile in (0.5, 0.9, 0.97, 0.999):
        assert known.quantile_s(quantile)[0] == pytest.approx(np.quantile(sample, quantile), rel=0.1)


@pytest.mark.parametrize("quantile", [0.1, 0.8, 0.99, 0.9999])
def test_a_quantile_is_the_least_gap_within_which_its_share_is(quantile: float) -> None:
    known = gaps(0.2, 0.9, 0.003, 1.0)
    (least_s,) = known.quantile_s(quantile)
    assert known.share_within(least_s)[0] >= quantile
    assert known.share_within(0.999 * least_s)[0] < quantile


def test_percentiles_of_gaps_are_not_those_of_averages() -> None:
    known = gaps(0.05, 0.01)
    assert known.quantile_s(0.5)[0] == pytest.approx(PACE_S)
    assert known.quantile_s(0.99)[0] > PACE_S + 0.9 * PROMPT_S
    assert known.mean_s[0] == pytest.approx(PACE_S + 0.05 * PROMPT_S)


def test_steps_without_prompts_have_one_length() -> None:
    plain = TokenGaps.of_steps(0.01 * N, 0.01 * N, StepPrompts.of_batch(8.0 * N, N, 0.0 * N, N, 1.0), 0.01 * N, 0.0)
    assert [plain.quantile_s(q)[0] for q in (0.01, 0.5, 0.999)] == pytest.approx([0.01] * 3)


def test_ranks_that_step_together_meet_the_prompts_of_any() -> None:
    each = StepPrompts.of_batch(8.0 * N, 200.0 * N, 2.0 * N, 4.0 * N, 1.0)
    assert each.mean[0] == pytest.approx(8.0 / 200.0 * 2.0 * 4.0)
    assert each.cv2[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("prompts", "cv2", "cap"), [(0.02, 1.0, 1.0), (0.1, 1.0, 1.0), (0.3, 0.25, 1.5), (0.6, 1.0, 1.2)]
)
def test_prompts_that_a_step_has_no_room_for_are_in_later_ones(prompts: float, cv2: float, cap: float) -> None:
    """Against a queue of work, of which each step takes as much as it has room for."""
    rng = np.random.default_rng(1)
    come = rng.gamma(np.maximum(rng.poisson(prompts, 150_000), 1e-9) / cv2, cv2)
    left, taken = 0.0, np.empty(len(come))
    for step, work in enumerate(come.tolist()):
        taken[step] = min(left + work, cap)
        left += work - taken[step]
    sample = PACE_S + PROMPT_S * taken
    step_s = (PACE_S + prompts * PROMPT_S) * N
    known = TokenGaps.of_steps(PACE_S * N, step_s, StepPrompts(prompts * N, cv2 * N), 0.0 * N, 0.0, cap * PROMPT_S * N)
    free = gaps(prompts, cv2)
    assert known.mean_s[0] == pytest.approx(sample.mean(), rel=0.01)
    assert known.share_within(PACE_S + cap * PROMPT_S)[0] == 1.0
    for quantile in (0.95, 0.99, 0.999):
        exact_s = float(np.quantile(sample, quantile))
        assert known.quantile_s(quantile)[0] == pytest.approx(exact_s, rel=0.12)
        assert abs(known.quantile_s(quantile)[0] - exact_s) <= abs(free.quantile_s(quantile)[0] - exact_s) + 1e-4
    mean = TokenGaps.of_steps(PACE_S * N, step_s, StepPrompts(prompts * N, cv2 * N), 0.0 * N, 0.0, 0.0 * N)
    assert mean.quantile_s(0.99)[0] == pytest.approx(step_s[0])
