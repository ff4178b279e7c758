"""What a context refuses and cuts of length distributions, against enumeration and draws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.problem.lengths import LengthFacts, served_lengths
from planner.problem.schema import MomentLengths, TraceLengths, UniformLengths


def facts(values: "list[int] | np.ndarray[tuple[int], np.dtype[np.float64]]", *, traced: bool = False) -> LengthFacts:
    mean = float(np.mean(values))
    rows = tuple(int(value) for value in values) if traced else ()
    return LengthFacts(mean, float(np.std(values)) / mean, traced=rows)


def by_definition(pairs: list[tuple[int, int]], limit: int, prefill: int) -> tuple[float, ...]:
    """Shares refused and cut, and the means and mean squares of what is served, request by request."""
    served = [(x, min(y, limit - x)) for x, y in pairs if x < min(limit, prefill)]
    cut = sum(x < min(limit, prefill) and x + y > limit for x, y in pairs)
    sums = [sum(pair[side] ** power for pair in served) / len(served) for side in (0, 1) for power in (1, 2)]
    return (1.0 - len(served) / len(pairs), cut / len(pairs), *sums)


def answered(got: object) -> tuple[float, ...]:
    sides = [(side.mean_tokens, side.mean_tokens**2 * (1 + side.cv**2)) for side in (got.input, got.output)]  # type: ignore[attr-defined]  # ServedLengths
    return (got.refused_share, got.cut_share, *sides[0], *sides[1])  # type: ignore[attr-defined]  # ServedLengths


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_even_and_listed_lengths_are_served_as_they_are_enumerated(data: st.DataObject) -> None:
    number = st.integers(1, 30)
    low, width = data.draw(number), data.draw(st.integers(0, 20))
    listed = data.draw(st.lists(number, min_size=1, max_size=8))
    limit = data.draw(st.integers(min(low, min(listed)) + 1, 60))
    prefill = data.draw(st.integers(low + 1, 60))
    if limit <= low:
        return
    even, trace = list(range(low, low + width + 1)), TraceLengths(trace="t.csv")
    spec = UniformLengths(low=low, high=low + width)
    for prompts, answers, inputs, outputs in ((spec, trace, even, listed), (trace, spec, listed, even)):
        if min(inputs) >= min(limit, prefill):
            continue
        got = served_lengths(
            prompts, answers, facts(inputs, traced=prompts is trace), facts(outputs, traced=answers is trace),
            limit, prefill,
        )  # fmt: skip
        wanted = by_definition([(x, y) for x in inputs for y in outputs], limit, prefill)
        assert answered(got) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_prompt_and_answer_of_a_row_stay_together() -> None:
    rows, trace = [(10, 90), (90, 10), (60, 60), (120, 5)], TraceLengths(trace="t.csv")
    inputs, outputs = (facts([row[side] for row in rows], traced=True) for side in (0, 1))
    assert answered(served_lengths(trace, trace, inputs, outputs, 100)) == pytest.approx(by_definition(rows, 100, 100))


@pytest.mark.parametrize(("cv_in", "cv_out"), [(0.5, 1.0), (2.0, 0.3), (1.0, 0.0)])
def test_log_normal_lengths_are_served_as_they_are_drawn(cv_in: float, cv_out: float) -> None:
    rng, count, limit = np.random.default_rng(0), 400_000, 2500
    sides = []
    for mean, cv in ((1000.0, cv_in), (400.0, cv_out)):
        sigma = math.sqrt(math.log1p(cv**2))
        sides.append(np.rint(mean * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2)))
    prompt, answer = sides
    taken = prompt < limit
    served = np.minimum(answer, limit - prompt)[taken]
    got = served_lengths(
        MomentLengths(mean=1000, cv=cv_in), MomentLengths(mean=400, cv=cv_out),
        LengthFacts(1000.0, cv_in), LengthFacts(400.0, cv_out), limit,
    )  # fmt: skip
    cut = taken & (prompt + answer > limit)
    assert got.refused_share == pytest.approx(1.0 - taken.mean(), abs=4 * math.sqrt((~taken).mean() / count))
    assert got.cut_share == pytest.approx(cut.mean(), abs=4 * math.sqrt(cut.mean() / count) + 1e-5)
    for side, values in ((got.input, prompt[taken]), (got.output, served)):
        assert side.mean_tokens == pytest.approx(values.mean(), rel=6e-3)
        assert side.mean_tokens**2 * (1 + side.cv**2) == pytest.approx((values**2).mean(), rel=1.2e-2)


def test_lengths_that_all_fit_keep_their_moments_to_the_bit() -> None:
    inputs, outputs = LengthFacts(1000.0, 0.3), LengthFacts(50.0, 0.1)
    got = served_lengths(UniformLengths(low=500, high=1500), 50, inputs, outputs, 1551)
    assert (got.input, got.output, got.refused_share, got.cut_share) == (inputs, outputs, 0.0, 0.0)
