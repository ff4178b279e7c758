"""Chains of choices with changes between them and a budget, against every chain."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.chain import Chain, ChainProblem, chain_size, chain_time, solve_chain
from planner.solvers.result import Status


@st.composite
def _problems(draw: st.DrawFn) -> ChainProblem:
    items, states, options = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))

    def drawn(high: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        size = int(np.prod(shape))
        values = draw(st.lists(st.integers(0, high), min_size=size, max_size=size))
        return np.array(values, dtype=np.float64).reshape(shape)

    time_LGO = drawn(9, items, states, options)
    missing = drawn(3, items, states, options) == 0.0
    missing[:, 0, 0] = False
    return ChainProblem(
        np.where(missing, np.inf, time_LGO),
        drawn(9, items, states, options),
        drawn(4, items, states, states),
        float(draw(st.integers(0, 30))),
    )


def _best(problem: ChainProblem) -> float | None:
    """The fastest of all chains within the budget."""
    items, states, options = problem.time_LGO.shape
    result = [
        chain_time(problem, chain)
        for chosen in product(product(range(states), range(options)), repeat=items)
        if chain_size(problem, chain := Chain(tuple(s for s, _ in chosen), tuple(o for _, o in chosen)))
        <= problem.budget
    ]
    return min((seconds for seconds in result if np.isfinite(seconds)), default=None)


@settings(max_examples=150, deadline=None)
@given(_problems())
def test_the_chain_is_the_fastest_of_all_chains_within_the_budget(problem: ChainProblem) -> None:
    result, wanted = solve_chain(problem), _best(problem)
    assert result.objective == (None if wanted is None else pytest.approx(wanted))
    assert (result.status is Status.OPTIMAL) == (wanted is not None)
    if result.solution is not None:
        assert chain_size(problem, result.solution) <= problem.budget * (1 + 1e-9)
        assert chain_time(problem, result.solution) == pytest.approx(result.objective)


@settings(max_examples=40, deadline=None)
@given(_problems(), st.integers(1, 10))
def test_a_larger_budget_never_slows_the_chain(problem: ChainProblem, more: int) -> None:
    larger = ChainProblem(problem.time_LGO, problem.size_LGO, problem.change_LGG, problem.budget + more)
    before, after = solve_chain(problem), solve_chain(larger)
    if before.objective is not None:
        assert after.objective is not None
        assert after.objective <= before.objective + 1e-9


def test_a_chain_stays_in_its_state_where_changing_costs_more_than_it_gains() -> None:
    time_LGO = np.array([[[1.0], [2.0]], [[2.0], [1.0]], [[1.0], [2.0]]])
    change = np.full((3, 2, 2), 3.0) * (1 - np.eye(2))
    problem = ChainProblem(time_LGO, np.zeros_like(time_LGO), change, 0.0)
    assert solve_chain(problem).solution == Chain((0, 0, 0), (0, 0, 0))
    free = ChainProblem(time_LGO, np.zeros_like(time_LGO), 0.0 * change, 0.0)
    assert solve_chain(free).solution == Chain((0, 1, 0), (0, 0, 0))


def test_figures_that_do_not_fit_together_are_refused() -> None:
    unit = np.ones((2, 2, 1))
    with pytest.raises(PlannerError, match="differ in number"):
        ChainProblem(unit, unit, np.ones((2, 2, 3)), 1.0)
    with pytest.raises(PlannerError, match="at least 0"):
        ChainProblem(-unit, unit, np.ones((2, 2, 2)), 1.0)
    with pytest.raises(PlannerError, match="no option"):
        ChainProblem(np.inf * unit, unit, np.ones((2, 2, 2)), 1.0)


@settings(max_examples=100, deadline=None)
@given(_problems(), st.integers(1, 40))
def test_a_cutoff_hides_exactly_the_chains_that_do_not_beat_it(problem: ChainProblem, cutoff: int) -> None:
    whole, cut = solve_chain(problem), solve_chain(problem, float(cutoff))
    if whole.objective is None or whole.objective < cutoff:
        assert (cut.status, cut.objective) == (whole.status, whole.objective)
    else:
        assert (cut.status, cut.stop_reason) == (Status.UNKNOWN, "cutoff")
        assert cut.bound is not None
        assert cutoff <= cut.bound <= whole.objective * (1 + 1e-9)
