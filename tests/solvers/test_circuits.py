"""Circuits of phases against every map that the ports allow in every phase; bad input."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.result import Status
from planner.solvers.topology.circuits import Circuits, circuits


def problem_of(seed: int, *, ports: int | None = None, pods: int = 3, phases: int | None = None) -> Circuits:
    draws = np.random.default_rng(seed)
    demands = []
    for _ in range(int(draws.integers(1, 5)) if phases is None else phases):
        pairs = itertools.combinations(range(pods), 2)
        demands.append({pair: float(draws.integers(0, 30)) for pair in pairs if draws.random() < 0.8})
    return Circuits(pods, ports or int(draws.integers(1, 6)), 2.0, float(draws.choice([0.0, 0.5, 2.0])), tuple(demands))


def maps(problem: Circuits) -> list[dict[tuple[int, int], int]]:
    """Every choice of links that leaves no pod with more than its ports."""
    pairs = list(itertools.combinations(range(problem.pods), 2))
    choices = []
    for counts in itertools.product(range(problem.ports + 1), repeat=len(pairs)):
        links = dict(zip(pairs, counts, strict=True))
        if all(sum(n for pair, n in links.items() if pod in pair) <= problem.ports for pod in range(problem.pods)):
            choices.append(links)
    return choices


def shortest_by_hand(problem: Circuits) -> float:
    """The shortest round: dynamic programming over the map of every phase, from each map of the first."""
    choices = maps(problem)
    times = np.full((len(problem.phases), len(choices)), 0.0)
    for phase, demand in enumerate(problem.phases):
        for place, links in enumerate(choices):
            needed = [(size, links[pair]) for pair, size in demand.items() if size > 0]
            times[phase, place] = max((size / (n * 2.0) if n else math.inf for size, n in needed), default=0.0)
    change = problem.switching_s * (1.0 - np.eye(len(choices)))
    if len(problem.phases) == 1:
        return float(times[0].min())
    reached = np.full((len(choices), len(choices)), math.inf)  # [map of the first phase, map now]
    np.fill_diagonal(reached, times[0])
    for phase in range(1, len(problem.phases)):
        reached = (reached[:, :, None] + change[None]).min(axis=1) + times[phase]
    return float((reached + change.T).min())


@pytest.mark.parametrize("seed", range(100))
def test_no_circuits_make_a_shorter_round(seed: int) -> None:
    problem = problem_of(seed)
    shortest = shortest_by_hand(problem)
    result = circuits(problem)
    if math.isinf(shortest):
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == pytest.approx(shortest)
    assert result.bound == result.objective
    assert problem.seconds(result.solution.links) == pytest.approx(shortest)
    for links in result.solution.links:
        for pod in range(problem.pods):
            assert sum(count for pair, count in links.items() if pod in pair) <= problem.ports


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(3, 6), st.integers(3, 6))
def test_one_more_port_never_makes_a_round_longer(seed: int, ports: int, pods: int) -> None:
    few, more = (circuits(problem_of(seed, ports=n, pods=pods, phases=3)).objective for n in (ports, ports + 1))
    if few is not None:
        assert more is not None
        assert more <= few * (1.0 + 1e-9)


def test_too_few_choices_leave_an_answer_and_a_bound_below_it() -> None:
    problem = problem_of(11, ports=9, pods=6, phases=4)
    exact, cut = circuits(problem), circuits(problem, node_limit=3)
    assert cut.status is Status.FEASIBLE
    assert cut.objective is not None
    assert cut.bound is not None
    assert exact.objective is not None
    assert cut.bound <= exact.objective <= cut.objective


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ((2, 1, 0.0, 0.0, ({},)), "a link carries 0 bytes/s"),
        ((2, 1, 1.0, -1.0, ({},)), "-1 s to switch"),
        ((2, 1, 1.0, 0.0, ()), "0 phases"),
        ((2, 1, 1.0, 0.0, ({(0, 2): 1.0},)), "between pods 0 and 2"),
        ((2, 1, 1.0, 0.0, ({(0, 1): math.nan},)), "nan bytes"),
    ],
)
def test_figures_that_cannot_be_are_refused(figures: tuple[object, ...], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        Circuits(*figures)  # type: ignore[arg-type]  # rows of mixed types
