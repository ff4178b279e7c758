"""Heuristic searches lead where they always led: their seeds are fixed, so that a change of a step shows at once."""

from functools import cache

import numpy as np
import pytest

from planner.arrays import Ints
from planner.solvers.flow_shop import read_off
from planner.solvers.layouts.affinity import AffinityProblem, solve_affinity
from planner.solvers.layouts.exports import ExportProblem, solve_export
from planner.solvers.layouts.nearby import solve_nearby
from planner.solvers.layouts.respread import Uncertainty, hedge, respread
from planner.solvers.layouts.shares import solve_free
from planner.solvers.layouts.spread import SpreadProblem, construct, solve_spread
from planner.solvers.schedules.fused_pipelines import FusedProblem, Pipeline, solve_fused

RNG = np.random.default_rng(5)
WEIGHTS = RNG.lognormal(0, 1, 24)
NOISE = RNG.lognormal(0, 0.5, 24)
FACTORS = RNG.random((2, 24)) * np.array([[0.2], [0.1]]) * WEIGHTS
SPEEDS = np.array([1.0, 1.0, 0.7, 1.3])
SLOTS = np.array([8, 7, 8, 9])
SETS = np.array([RNG.choice(16, 3, replace=False, p=np.arange(16, 0, -1) / 136.0) for _ in range(200)])


def stamp(item_P: Ints | None) -> int:
    """A number that hardly two layouts share."""
    assert item_P is not None
    return int((item_P.ravel() * np.arange(1, item_P.size + 1)).sum())


@cache
def problem(noise: bool = False) -> SpreadProblem:
    return SpreadProblem(WEIGHTS * NOISE if noise else WEIGHTS, SLOTS, SPEEDS)


@cache
def start() -> Ints:
    solution = solve_spread(problem(), tolerance=0.0, steps=60).solution
    assert solution is not None
    return solution.item_P


def test_copies_are_first_placed_as_ever() -> None:
    assert stamp(construct(problem())) == 5945


@pytest.mark.parametrize(("seed", "objective", "layout"), [(0, 7.501621312004, 6029), (1, 7.501621312004, 5686)])
def test_local_search_over_copies(seed: int, objective: float, layout: int) -> None:
    result = solve_spread(problem(), tolerance=0.0, steps=60, seed=seed)
    assert result.solution is not None
    assert result.objective == pytest.approx(objective, rel=1e-9)
    assert stamp(result.solution.item_P) == layout


def test_confined_copies() -> None:
    allowed_ER = np.ones((24, 4), np.bool_)
    allowed_ER[:10, 3] = allowed_ER[3, :2] = False
    result = solve_spread(SpreadProblem(WEIGHTS, SLOTS, SPEEDS, allowed_ER), tolerance=0.0, steps=60)
    assert result.solution is not None
    assert result.objective == pytest.approx(7.512053085205, rel=1e-9)
    assert stamp(result.solution.item_P) == 6329


def test_free_shares() -> None:
    result = solve_free(problem(), tolerance=0.0, steps=40)
    assert result.solution is not None
    assert result.objective == pytest.approx(7.491739206792, rel=1e-9)
    assert stamp(result.solution.item_P) == 5686
    assert (result.solution.share_P * np.arange(32)).sum() == pytest.approx(394.5951861065, rel=1e-9)


@pytest.mark.parametrize(
    ("hedged", "objective", "layout"), [(False, 6.063046815924, 5972), (True, 6.885446285996, 6432)]
)
def test_few_moves(hedged: bool, objective: float, layout: int) -> None:
    uncertainty = Uncertainty(WEIGHTS * 0.3, FACTORS, 1.5) if hedged else None
    result = respread(problem(noise=True), start(), 0.0, uncertainty=uncertainty, steps=8)
    assert result.solution is not None
    assert result.objective == pytest.approx(objective, rel=1e-9)
    assert stamp(result.solution.item_P) == layout


def test_layouts_made_for_uncertain_weights() -> None:
    assert stamp(hedge(problem(), Uncertainty(WEIGHTS * 0.3, FACTORS, 1.5), steps=10)) == 6168


def test_copies_near_their_sources() -> None:
    result = solve_nearby(problem(), np.array([0, 0, 1, 1]), start(), 9.0)
    assert result.solution is not None
    assert result.objective == pytest.approx(0.190125226895, rel=1e-9)
    assert stamp(result.solution.item_P) == 5611


@pytest.mark.parametrize(("homes", "free", "objective", "layout", "handed_over"), [
    ((6, 5, 6, 7), (2, 1, 0, 2), 7.491739206792, 143, 4.801527256224),
    ((9, 3, 3, 9), (1, 1, 1, 1), 7.744747723459, 31, 4.929356628184),
])  # fmt: skip
def test_exports(
    homes: tuple[int, ...], free: tuple[int, ...], objective: float, layout: int, handed_over: float
) -> None:
    result = solve_export(ExportProblem(WEIGHTS, np.array(homes), np.array(free), SPEEDS), tolerance=0.0)
    assert result.solution is not None
    assert result.objective == pytest.approx(objective, rel=1e-9)
    assert stamp(result.solution.item_RJ) == layout
    assert result.solution.amount_RJ.sum() == pytest.approx(handed_over, rel=1e-9)


def test_items_drawn_together() -> None:
    result = solve_affinity(AffinityProblem(SETS, 16, np.full(4, 5), np.array([0, 0, 1, 1])), steps=2000)
    assert result.solution is not None
    assert result.objective == pytest.approx(23.282470633011, rel=1e-9)
    assert stamp(result.solution.item_P) == 1676


@pytest.mark.parametrize(("capacity", "seed", "makespan", "order"), [
    (None, 0, 121.8, 5364), (None, 1, 121.8, 5205), ((2.0, 2.0), 0, 125.0, 5196), ((2.0, 2.0), 1, 128.1, 5168),
])  # fmt: skip
def test_fused_pipelines(capacity: tuple[float, ...] | None, seed: int, makespan: float, order: int) -> None:
    """Annealed from dispatched and opened orders, without the exact method, which no time is left for."""
    large = Pipeline((0, 1), 6, (5.0, 5.0), (9.0, 9.0), 1.0)
    small = Pipeline((1, 0), 7, (2.3, 2.3), (3.1, 3.1), 0.4)
    shop = FusedProblem((large, small), capacity)
    result = solve_fused(shop, time_limit_s=0.0, seed=seed, restarts=1, replayed=60_000.0)
    assert result.solution is not None
    assert result.solution == read_off(shop.shop, result.solution.order)
    types = np.array([task_type for types in result.solution.order for task_type in types])
    assert result.objective == pytest.approx(makespan, rel=1e-9)
    assert stamp(types) == order
