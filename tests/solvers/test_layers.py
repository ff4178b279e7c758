"""Layers over unequal nodes: the flow against a linear program, bounds against every placement; bad input."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from planner.errors import PlannerError
from planner.solvers.compiled.layer_stages import most_flow
from planner.solvers.placement.layers.aligned import best_stages
from planner.solvers.placement.layers.bound import flow_bound
from planner.solvers.placement.layers.flow import max_flow
from planner.solvers.placement.layers.place import place_layers
from planner.solvers.placement.layers.problem import Held, LayerProblem, Node
from planner.solvers.placement.layers.stage_counts import fewest
from planner.solvers.result import Status


def random_problem(seed: int, *, nodes: int = 3, layers: int = 4) -> LayerProblem:
    draws = np.random.default_rng(seed)
    kinds = [tuple(float(draws.uniform(50, 120)) / k for k in range(1, int(draws.integers(2, 5)))) for _ in range(2)]
    chosen = tuple(
        Node("", kinds[int(draws.integers(2))], 0.0, str(draws.integers(2)) if seed % 2 else "") for _ in range(nodes)
    )
    links = draws.choice([0.0, 10.0, 40.0, 1_000.0], (nodes, nodes), p=[0.1, 0.2, 0.2, 0.5])
    return LayerProblem(layers, chosen, links, np.full(nodes, 1_000.0), np.full(nodes, 1_000.0))


def flow_by_program(problem: LayerProblem, held: Held) -> float:
    """The most tokens a second, by scipy over one variable for each link that joins layers."""
    n, arcs = len(problem.nodes), []
    for i, j in itertools.product(range(-1, n), range(n + 1)):
        before, after = None if i < 0 else held[i], None if j == n else held[j]
        if i == j or (i < 0 and j == n) or (i >= 0 and before is None) or (j < n and after is None):
            continue
        if (0 if before is None else before[1]) != (problem.layers if after is None else after[0]):
            continue
        rates = problem.source_tokens_per_s if i < 0 else problem.sink_tokens_per_s
        arcs.append((i, j, float(rates[j if i < 0 else i] if i < 0 or j == n else problem.link_tokens_per_s[i, j])))
    if not arcs:
        return 0.0
    balance, most, right = [], [], []
    for node, span in enumerate(held):
        into = np.array([float(j == node) for _, j, _ in arcs])
        balance.append(into - np.array([float(i == node) for i, _, _ in arcs]))
        most.append(into)
        rates_of = problem.nodes[node].tokens_per_s
        number = 0 if span is None else span[1] - span[0]
        right.append(rates_of[number - 1] if 0 < number <= len(rates_of) else 0.0)
    cost = [-float(i < 0) for i, _, _ in arcs]
    outcome = linprog(cost, np.array(most), right, np.array(balance), np.zeros(n), [(0.0, c) for _, _, c in arcs])
    return -float(outcome.fun or 0.0)


def all_held(problem: LayerProblem) -> list[Held]:
    spans = [
        [None, *((s, s + k) for k in range(1, len(node.tokens_per_s) + 1) for s in range(problem.layers - k + 1))]
        for node in problem.nodes
    ]
    return list(itertools.product(*spans))


def chain(held: Held) -> int:
    """Spans that follow one another from layer 0 on, at most."""
    reached = {0: 0}
    for start, end in sorted({span for span in held if span is not None}):
        if start in reached:
            reached[end] = max(reached.get(end, 0), reached[start] + 1)
    return max(reached.values())


@pytest.mark.parametrize(
    ("seed", "most", "beaten"),
    [
        (1, math.inf, True),  # aligned stages, by moves
        (29, math.inf, True),
        (12, math.inf, True),  # by the program alone
        (14, 2.0, True),
        (1, 2.0, False),  # the longest path costs tokens
        (33, 1.0, False),
        (17, math.inf, False),  # proven by the program alone
        (0, 1.0, False),  # no path is short enough
    ],
)
def test_few_spans_are_the_best_of_all_and_proven(seed: int, most: float, beaten: bool) -> None:
    """The oracle tries every span of every node whose chains are short enough; some beat aligned stages."""
    drawn = random_problem(seed, nodes=3 if seed % 16 == 1 else 2, layers=3)
    problem = replace(drawn, longest_path=most)
    kept = (held for held in all_held(problem) if chain(held) <= most)
    best = max(max_flow(problem, held)[0] for held in kept)
    result = place_layers(problem)
    assert flow_bound(problem) >= best * (1.0 - 1e-9)
    if not best:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.solution is not None
    assert result.objective == pytest.approx(best, rel=1e-5)
    assert result.bound == pytest.approx(best, rel=1e-5)
    assert result.objective == pytest.approx(flow_by_program(problem, result.solution.held))
    assert chain(result.solution.held) <= most
    stages = best_stages(problem)
    assert (stages is None or stages[0] < best * 0.99) is beaten


@pytest.mark.parametrize("seed", range(20))
def test_the_flow_is_that_of_a_linear_program(seed: int) -> None:
    draws = np.random.default_rng(seed)
    try:
        problem = random_problem(seed, nodes=4)
    except PlannerError:
        return
    held: Held = tuple(
        None if draws.random() < 0.1 else spans
        for spans in (((0, 2), (2, 4)) * 2 if draws.random() < 0.5 else ((0, 2), (0, 2), (2, 4), (2, 4)))
        if spans is not None
    )
    rate, flow = max_flow(problem, held)
    assert rate == pytest.approx(flow_by_program(problem, held), abs=1e-6)
    assert sum(tokens for (i, _), tokens in flow.items() if i == -1) == pytest.approx(rate)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_equal_nodes_without_thin_links_reach_their_bound_where_stages_divide_the_layers(seed: int) -> None:
    draws = np.random.default_rng(seed)
    stages, width, length = int(draws.integers(1, 4)), int(draws.integers(1, 3)), int(draws.integers(1, 4))
    node = Node("", tuple(60.0 / k for k in range(1, length + 1)))
    n = stages * width
    problem = LayerProblem(stages * length, (node,) * n, np.full((n, n), 1e6), np.full(n, 1e6), np.full(n, 1e6))
    result = place_layers(problem)
    assert result.objective == pytest.approx(width * 60.0 / length)
    assert result.status is Status.OPTIMAL


def test_thin_links_keep_pipelines_in_their_regions() -> None:
    nodes = tuple(Node("", (100.0, 50.0), 0.0, region) for region in ("east", "west") for _ in range(2))
    region = np.array([node.region for node in nodes])
    links = np.where(region[:, None] == region[None, :], 1e4, 1.0)
    result = place_layers(LayerProblem(2, nodes, links, np.full(4, 1e4), np.full(4, 1e4)))
    assert result.objective == pytest.approx(200.0)
    assert result.bound is not None
    assert result.bound <= 208.5


def test_bad_figures_are_named() -> None:
    node, link = Node("L4", (10.0, 5.0)), np.ones((1, 1))
    with pytest.raises(PlannerError, match="all nodes together hold 2 of 4 layers"):
        LayerProblem(4, (node,), link, np.ones(1), np.ones(1))
    with pytest.raises(PlannerError, match="source or sink is cut off"):
        LayerProblem(2, (node,), link, np.zeros(1), np.ones(1))
    with pytest.raises(PlannerError, match="links of -1 tokens/s"):
        LayerProblem(2, (node,), -link, np.ones(1), np.ones(1))
    with pytest.raises(PlannerError, match="links of shapes"):
        LayerProblem(2, (node, node), link, np.ones(2), np.ones(2))


def test_regions_one_behind_the_other_carry_what_thin_links_between_all_stages_would_not() -> None:
    """Two regions, neither of which holds all layers well: 953 tokens/s side by side, 1,157 of 1,190 in a row."""
    work = {"T4": (1500.0, 8, 6), "L4": (2600.0, 11, 9), "V100": (5500.0, 9, 7)}
    counts = {"r0": {"T4": 5, "L4": 4, "V100": 3}, "r1": {"T4": 9, "L4": 5, "V100": 2}}
    nodes = tuple(
        Node(kind, tuple(rate / k * (0.5 if k > full else 1.0) for k in range(1, most + 1)), region=region)
        for region, kinds in counts.items()
        for kind, count in kinds.items()
        for rate, most, full in [work[kind]]
        for _ in range(count)
    )
    region = np.array([node.region for node in nodes])
    links = np.where(region[:, None] == region[None, :], 75_000.0, 200.0)
    result = place_layers(LayerProblem(60, nodes, links, np.full(len(nodes), 5e8), np.full(len(nodes), 5e8)))
    assert result.solution is not None
    assert result.gap is not None
    assert result.gap <= 0.05
    assert result.objective == pytest.approx(
        max_flow(
            LayerProblem(60, nodes, links, np.full(len(nodes), 5e8), np.full(len(nodes), 5e8)), result.solution.held
        )[0]
    )


@pytest.mark.parametrize("seed", range(100))
def test_the_counts_of_a_stage_are_all_that_give_the_flow_and_of_which_none_can_be_less(seed: int) -> None:
    draws = np.random.default_rng(seed)
    types = int(draws.integers(1, 4))
    rate_T = draws.choice([0.0, 1.0, 2.0, 2.5, 0.7], types)
    count_T, flow = draws.integers(1, 5, types), float(draws.choice([1.0, 3.0, 4.5, 6.0, 2.3]))

    def gives(used: tuple[int, ...]) -> bool:
        return bool(np.dot(used, rate_T) >= flow * (1.0 - 1e-9))

    wanted = [
        used
        for used in itertools.product(*(range(count + 1) for count in count_T))
        if gives(used) and not any(gives((*used[:t], used[t] - 1, *used[t + 1 :])) for t in range(types) if used[t])
    ]
    assert [tuple(used) for used in fewest(rate_T, count_T, flow).tolist()] == wanted


@pytest.mark.parametrize("seed", range(20))
def test_the_flow_that_a_search_compares_is_that_of_scipy(seed: int) -> None:
    draws = np.random.default_rng(seed)
    capacity = np.where(draws.random((9, 9)) < 0.5, draws.integers(0, 20, (9, 9)), 0)
    np.fill_diagonal(capacity, 0)
    wanted = maximum_flow(csr_array(capacity.astype(np.int32)), 0, 8).flow_value
    assert most_flow(capacity.copy(), 0, 8) == wanted
