"""Certificates against brute force, and against tampering."""

import copy
import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, LinearModel, check_feasible, total
from planner.solvers.backends.solve import solve
from planner.solvers.dualtree import DualLeaf, DualSplit, DualTree, build_certificate, verify


def random_model(seed: int) -> LinearModel:
    """Four integers in small boxes, three rows of either sense or ranged, minimised or maximised."""
    draw = random.Random(seed)
    model = LinearModel()
    x = [model.integer_variable(f"x{j}", draw.randint(-2, 0), draw.randint(1, 3)) for j in range(4)]
    for i in range(3):
        form = total(draw.uniform(-4.0, 5.0) * item for item in x)
        side = draw.uniform(-2.0, 8.0)
        model.add(form <= side if draw.random() < 0.6 else form >= -side, f"row{i}")
    objective = total([*(draw.choice([draw.uniform(-5.0, 5.0), draw.randint(-5, 5)]) * item for item in x), 1.25])
    if draw.random() < 0.5:
        model.maximise(objective)
    else:
        model.minimise(objective)
    return model


def optimum(model: LinearModel) -> float | None:
    """The best objective over all integer points, by enumeration."""
    boxes = [range(int(low), int(high) + 1) for low, high in zip(model.lower, model.upper, strict=True)]
    points = (point for point in itertools.product(*boxes) if not check_feasible(model, point, 1e-12))
    values = [model.objective_at(point) for point in points]
    return (max(values) if model.maximising else min(values)) if values else None


def excluded(model: LinearModel, bound: float | None, best: float | None) -> bool:
    """Whether a bound denies a solution that exists."""
    if best is None:
        return False
    if bound is None:
        return True
    return bound < best - 1e-9 if model.maximising else bound > best + 1e-9


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_a_closed_tree_proves_the_optimum(seed: int) -> None:
    model = random_model(seed)
    best = optimum(model)
    bound = verify(build_certificate(model, best), model)
    assert not excluded(model, bound, best)
    if best is None:
        assert bound is None
    else:
        assert bound == pytest.approx(best, rel=1e-6, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_a_tree_cut_short_proves_less_and_nothing_false(seed: int, node_limit: int) -> None:
    model = random_model(seed)
    best = optimum(model)
    tree = build_certificate(model, best, node_limit=node_limit)
    assert len(tree.nodes) <= max(1, node_limit)
    assert not excluded(model, verify(tree, model), best)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_a_tampered_tree_is_rejected_or_still_true(seed: int, draw: random.Random) -> None:
    model = random_model(seed % 50)
    best = optimum(model)
    data = build_certificate(model, best).to_dict()
    for _ in range(draw.randint(1, 4)):
        tamper(data["nodes"], draw)
    try:
        bound = verify(DualTree.from_dict(json.loads(json.dumps(data))), model)
    except PlannerError:
        return
    assert not excluded(model, bound, best)


def tamper(nodes: list[dict[str, list[object]]], draw: random.Random) -> None:
    """Change a multiplier, a leaf's kind, a split or a child, or drop or copy a node."""
    index = draw.randrange(len(nodes))
    node = nodes[index]
    kind = draw.randrange(4)
    if kind == 0 and "split" in node:
        node[draw.choice(["split", "children"])][draw.randrange(2)] = draw.randint(-3, len(nodes) + 1)
    elif kind == 1 and len(nodes) > 1:
        nodes.pop(index)
    elif kind == 2:
        nodes[index] = copy.deepcopy(draw.choice(nodes))
    elif "split" not in node:
        multipliers = next(iter(node.values()))
        multipliers.append([draw.randint(0, 3), draw.choice([-1e3, -1.0, 0.5, 1e12, 1e308])])
        nodes[index] = {draw.choice(["duals", "empty"]): multipliers}


def two_item_model() -> LinearModel:
    model = LinearModel(maximising=True)
    x, y = model.integer_variable("x", 0, 9), model.integer_variable("y", 0, 9)
    model.add(2 * x + 3 * y <= 7, "row")
    model.maximise(2 * x + 3.5 * y)
    return model


def test_any_multiplier_bounds_and_the_right_one_is_tight() -> None:
    model = two_item_model()
    bounds = [verify(DualTree((DualLeaf(((0, y),)),)), model) for y in (0.0, 0.5, 1.0, 7 / 6, -5.0)]
    assert bounds == pytest.approx([49.5, 30.5, 11.5, 49 / 6, 49.5])


def test_a_bound_is_rounded_to_what_integers_can_reach() -> None:
    model = two_item_model()
    model.maximise(Expr({0: 2.0, 1: 4.0}, 0.5))
    assert verify(DualTree((DualLeaf(((0, 4 / 3),)),)), model) == 8.5


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "no nodes"),
        ((DualSplit(0, 1, 0, 1), DualLeaf(())), "does not follow"),
        ((DualSplit(0, 1, 1, 5), DualLeaf(())), "does not follow"),
        ((DualSplit(0, 1, 1, 1), DualLeaf(())), "two parents"),
        ((DualSplit(7, 1, 1, 2), DualLeaf(()), DualLeaf(())), "integer column"),
        ((DualLeaf(((3, 1.0),)),), "names no row"),
        ((DualLeaf(((0, math.nan),)),), "not finite"),
    ],
)
def test_a_malformed_tree_is_rejected(nodes: tuple[DualSplit | DualLeaf, ...], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        verify(DualTree(nodes), two_item_model())


def test_a_split_on_a_continuous_column_is_rejected() -> None:
    model = two_item_model()
    model.integer[0] = False
    with pytest.raises(PlannerError, match="integer column"):
        verify(DualTree((DualSplit(0, 1, 1, 2), DualLeaf(()), DualLeaf(()))), model)


def test_an_unbounded_variable_cannot_be_certified() -> None:
    model = LinearModel()
    model.maximise(model.integer_variable("x", 0))
    with pytest.raises(PlannerError, match="finite bounds"):
        build_certificate(model, 1.0)
    with pytest.raises(PlannerError, match="no bound"):
        verify(DualTree((DualLeaf(()),)), model)


@pytest.mark.parametrize("data", [{}, {"nodes": [{}]}, {"nodes": [{"split": [1]}]}, {"nodes": [{"duals": [["a", 1]]}]}])
def test_a_truncated_tree_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(PlannerError, match="malformed"):
        DualTree.from_dict(data)


def test_mixed_models_are_certified_too() -> None:
    model = two_item_model()
    z = model.continuous("z", 0.0, 1.3)
    model.add(z + Expr({0: 1.0}) <= 2.2, "mixed")
    result = solve(model)
    bound = verify(build_certificate(model, result.objective), model)
    assert bound == pytest.approx(result.objective, rel=1e-9)
