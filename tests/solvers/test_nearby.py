"""Weight carried where it comes from: counted by a flow, never worse than the start, within goal and bound."""

from itertools import combinations

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.layouts.nearby import even_sources, far_bound, far_share, solve_nearby
from planner.solvers.layouts.spread import SpreadProblem, bin_times, equal_shares, solve_spread

GROUP_R = np.array([0, 0, 1, 1])


def _far(problem: SpreadProblem, row: npt.NDArray[np.int64]) -> float:
    weight, shares = problem.weight_E, equal_shares(row, len(problem.weight_E))
    return far_share(weight, GROUP_R[problem.bin_P], row, shares, even_sources(weight, GROUP_R))


def _problem(seed: int, items: int = 8, slots: int = 3) -> SpreadProblem:
    weight = np.random.default_rng(seed).integers(1, 50, items)
    return SpreadProblem(weight.astype(float), np.full(4, slots), np.ones(4))


def _far_by_flow(seed: int) -> tuple[float, float]:
    """What must leave its group, item by item, as a maximum flow of weight to copies in its own group."""
    problem = _problem(seed)
    solution = solve_spread(problem).solution
    assert solution is not None
    near = 0.0
    for item, weight in enumerate(problem.weight_E):
        graph: nx.DiGraph[str] = nx.DiGraph()
        for group in range(2):
            graph.add_edge("from", f"source {group}", capacity=weight / 2)
            carried = sum(
                weight * share
                for slot, share in enumerate(solution.share_P)
                if solution.item_P[slot] == item and GROUP_R[problem.bin_P[slot]] == group
            )
            graph.add_edge(f"source {group}", f"copies {group}")
            graph.add_edge(f"copies {group}", "to", capacity=carried)
        near += nx.maximum_flow_value(graph, "from", "to")
    return 1.0 - near / problem.weight_E.sum(), _far(problem, solution.item_P)


@pytest.mark.parametrize("seed", range(3))
def test_what_leaves_its_group_is_the_rest_of_a_maximum_flow(seed: int) -> None:
    by_flow, counted = _far_by_flow(seed)
    assert counted == pytest.approx(by_flow)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 0.5))
def test_more_is_carried_nearby_within_the_goal_and_never_below_the_bound(seed: int, slack: float) -> None:
    problem = _problem(seed)
    start = solve_spread(problem).solution
    assert start is not None
    goal = float(bin_times(problem, start.item_P).max()) * (1.0 + slack)
    result = solve_nearby(problem, GROUP_R, start.item_P, goal)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    assert result.objective <= _far(problem, start.item_P) + 1e-9
    assert float(bin_times(problem, result.solution.item_P).max()) <= goal * (1 + 1e-9)
    assert np.bincount(result.solution.item_P, minlength=8).min() >= 1
    assert all(len(set(row)) == 3 for row in result.solution.item_P.reshape(4, 3).tolist())
    assert result.objective == pytest.approx(_far(problem, result.solution.item_P))
    assert far_bound(problem, GROUP_R) - 1e-9 <= result.bound <= result.objective


def test_with_time_to_spare_the_best_of_all_layouts_is_found() -> None:
    """5 items on 4 bins of 2 slots: every layout of them, whatever its time."""
    for seed in range(4):
        problem = _problem(seed, items=5, slots=2)
        start = solve_spread(problem).solution
        assert start is not None
        best = 1.0
        pairs = list(combinations(range(5), 2))
        for a in pairs:
            for b in pairs:
                for c in pairs:
                    for d in pairs:
                        row = np.array([*a, *b, *c, *d])
                        if len(set(row.tolist())) == 5:
                            best = min(best, _far(problem, row))
        result = solve_nearby(problem, GROUP_R, start.item_P, float("inf"))
        assert result.objective is not None
        assert best - 1e-9 <= result.objective <= best + 0.02
        assert far_bound(problem, GROUP_R) <= best + 1e-9


def test_copies_of_the_heaviest_item_go_to_every_group() -> None:
    problem = SpreadProblem(np.array([90.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]), np.full(4, 2), np.ones(4))
    start = np.array([0, 1, 0, 2, 3, 4, 5, 6])
    solution = solve_nearby(problem, GROUP_R, start, 100.0).solution
    assert solution is not None
    replicas = solution.item_P.reshape(2, 4)
    assert 0 in replicas[0]
    assert 0 in replicas[1]


def test_groups_that_do_not_fit_are_refused() -> None:
    problem = _problem(0)
    start = solve_spread(problem).solution
    assert start is not None
    with pytest.raises(PlannerError, match="groups for"):
        solve_nearby(problem, np.array([0, 1]), start.item_P, 100.0)


def test_nothing_is_left_to_gain_where_the_search_ends() -> None:
    for seed in range(12):
        problem = _problem(seed)
        start = solve_spread(problem).solution
        assert start is not None
        goal = float(bin_times(problem, start.item_P).max()) * 1.2
        ended = solve_nearby(problem, GROUP_R, start.item_P, goal)
        assert ended.solution is not None
        again = solve_nearby(problem, GROUP_R, ended.solution.item_P, goal)
        assert again.objective == ended.objective


def test_loads_are_those_of_the_layout_as_a_slot_changes_its_item() -> None:
    from planner.solvers.compiled.nearby import _apply_recount

    weight_E = np.array([6.0, 10.0, 3.0])
    placed_ER = np.array([[True, True, True, False], [True, False, False, True], [False, True, False, True]])

    def load_R() -> npt.NDArray[np.float64]:
        copies_E = placed_ER.sum(axis=1)
        return np.asarray((weight_E / copies_E) @ placed_ER, dtype=np.float64)

    copies_E, kept_R = placed_ER.sum(axis=1), load_R()
    _apply_recount(0, 1, 2, weight_E, copies_E, placed_ER, kept_R)  # the third bin takes item 1 instead of item 0
    assert placed_ER[:, 2].tolist() == [False, True, False]
    assert copies_E.tolist() == [2, 3, 2]
    assert kept_R == pytest.approx(load_R())
