"""A branch-and-bound certificate: proves a mixed-integer bound by LP duals, which plain arithmetic re-derives.

The tree splits the box of the variables at integer values; each leaf carries multipliers y of the rows. For a
maximisation, any y bounds the objective over a leaf's box by weak duality:

    c x = (c - yA) x + y (A x) <= sum_j max over [l_j, u_j] of (c - yA)_j x_j + sum_i max(y_i L_i, y_i U_i)

so a wrong or tampered y weakens the bound and never makes it false; the same inequality with c = 0 and a negative
right side proves a leaf empty (Farkas). The bound of the tree is that of its worst leaf. Rounding errors of the
floats are added to every leaf's bound. Source: Land and Doig, Econometrica 28 (1960); Cheung, Gleixner and Steffy,
"Verifying Integer Programming Results", IPCO 2017.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import gt

from planner.errors import PlannerError
from planner.solvers.backends.model import Expr, JsonValue, LinearModel, Relation, total

EPSILON = 2.0**-52
FRACTIONAL = 1e-7  # further from an integer than this is none
SIGNIFICANT_DIGITS = 12  # of stored multipliers: any y is valid, so rounding them costs tightness alone


@dataclass(frozen=True, slots=True)
class DualSplit:
    """An inner node: integer column x <= `floor` in node `below`, x >= `floor` + 1 in node `above`."""

    column: int
    floor: int
    below: int
    above: int


@dataclass(frozen=True, slots=True)
class DualLeaf:
    """Multipliers (row, y) of a box: of the objective's bound, or of its emptiness when `empty`."""

    multipliers: tuple[tuple[int, float], ...]
    empty: bool = False


@dataclass(frozen=True, slots=True)
class DualTree:
    """Nodes of a branch-and-bound tree, root first; a child's index is larger than its parent's."""

    nodes: tuple[DualSplit | DualLeaf, ...]

    def to_dict(self) -> dict[str, JsonValue]:
        """The tree as JSON-serialisable data."""
        return {"nodes": [_node_to_json(node) for node in self.nodes]}

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> "DualTree":
        """The tree that `to_dict` wrote; raises PlannerError when the data are malformed."""
        try:
            return cls(tuple(_node_from_json(node) for node in data["nodes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PlannerError(f"malformed dual tree: {error}", where="certificate.tree") from None


@dataclass(frozen=True, slots=True)
class _Box:
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def split(self, split: DualSplit) -> tuple["_Box", "_Box"]:
        """The halves below and above a split."""
        column, floor = split.column, float(split.floor)
        upper = (*self.upper[:column], min(self.upper[column], floor), *self.upper[column + 1 :])
        lower = (*self.lower[:column], max(self.lower[column], floor + 1.0), *self.lower[column + 1 :])
        return _Box(self.lower, upper), _Box(lower, self.upper)

    @property
    def empty(self) -> bool:
        return any(map(gt, self.lower, self.upper))


def verify(tree: DualTree, model: LinearModel) -> float | None:
    """The bound on the objective that the tree proves (None: it proves that nothing is feasible); O(leaves x nonzeros).

    An upper bound when maximising, a lower bound when minimising. Raises PlannerError when the tree is not one, or
    splits a continuous column, or leaves a variable with an infinite bound in play.
    """
    worst = max((_leaf_bound(model, box, leaf) for leaf, box in _leaves(tree, model)), default=-math.inf)
    if worst == math.inf:
        raise PlannerError("the tree proves no bound: a variable without a finite bound remains", where="certificate")
    return None if worst == -math.inf else _sign(model) * worst


def _leaves(tree: DualTree, model: LinearModel) -> Iterator[tuple[DualLeaf, _Box]]:
    """Every leaf with its box; the boxes cover all integer points of the root box."""
    if not tree.nodes:
        raise PlannerError("the tree has no nodes", where="certificate.tree")
    visited = [False] * len(tree.nodes)
    stack = [(0, _Box(tuple(model.lower), tuple(model.upper)))]
    while stack:
        index, box = stack.pop()
        if visited[index]:
            raise PlannerError("a node has two parents", where=f"certificate.tree.nodes[{index}]")
        visited[index] = True
        node = tree.nodes[index]
        if isinstance(node, DualLeaf):
            yield node, box
            continue
        if not index < min(node.below, node.above) or max(node.below, node.above) >= len(tree.nodes):
            raise PlannerError("a child does not follow its parent", where=f"certificate.tree.nodes[{index}]")
        if not 0 <= node.column < len(model.names) or not model.integer[node.column]:
            raise PlannerError("a split must be on an integer column", where=f"certificate.tree.nodes[{index}]")
        stack.extend(zip((node.below, node.above), box.split(node), strict=True))


def _leaf_bound(model: LinearModel, box: _Box, leaf: DualLeaf) -> float:
    """An upper bound on sign x objective over the feasible points in the box; -inf when there are none."""
    if box.empty:
        return -math.inf
    if not leaf.empty:
        return _rounded_down(model, _weak_duality(model, box, leaf.multipliers, with_objective=True))
    if _weak_duality(model, box, leaf.multipliers, with_objective=False) < 0.0:
        return -math.inf
    return _rounded_down(model, _weak_duality(model, box, (), with_objective=True))


def _weak_duality(
    model: LinearModel, box: _Box, multipliers: Sequence[tuple[int, float]], *, with_objective: bool
) -> float:
    """The right side of the module's inequality, enlarged by its rounding error; c = 0 without the objective."""
    sign = _sign(model)
    reduced = [0.0] * len(model.names)
    terms = [sign * model.offset] if with_objective else []
    if with_objective:
        for column, value in model.objective.items():
            reduced[column] = sign * value
    size = [abs(value) for value in reduced]
    count = [1] * len(reduced)
    for index, y in multipliers:
        if not 0 <= index < len(model.rows) or not math.isfinite(y):
            raise PlannerError("a multiplier names no row or is not finite", where=f"certificate.tree, row {index}")
        row = model.rows[index]
        side = row.upper if y > 0.0 else row.lower
        if math.isinf(side):
            continue  # y has the wrong sign for this row: 0 is the valid multiplier nearest to it
        terms.append(y * side)
        for column, a in zip(row.columns, row.coefficients, strict=True):
            term = y * a
            reduced[column] -= term
            size[column] += term if term > 0.0 else -term
            count[column] += 2
    for r, magnitude, operations, low, high in zip(reduced, size, count, box.lower, box.upper, strict=True):
        if magnitude > 0.0:
            error = operations * EPSILON * magnitude
            at_low, at_high = r * low, r * high  # compared without calls: most of the time of a proof is spent here
            widest = high if high >= -low else -low
            terms.append((at_high if at_high > at_low else at_low) + error * widest)
    bound = (
        math.fsum(terms) + 4.0 * EPSILON * math.fsum(map(abs, terms)) if all(map(math.isfinite, terms)) else math.inf
    )
    return bound if math.isfinite(bound) else math.inf


def _rounded_down(model: LinearModel, bound: float) -> float:
    """The largest value that the objective can take at or below `bound`, when only integers enter it."""
    values = model.objective
    if not math.isfinite(bound) or not values or not all(model.integer[column] for column in values):
        return bound
    if not all(value.is_integer() for value in values.values()):
        return bound
    step = math.gcd(*(int(value) for value in values.values()))
    offset = _sign(model) * model.offset
    # The offset is subtracted and added in floats; a relative 1e-12 covers their rounding on the safe side.
    steps = math.floor((bound - offset) / step + 1e-12 * max(1.0, abs(bound / step)))
    return steps * step + offset


def _sign(model: LinearModel) -> float:
    return 1.0 if model.maximising else -1.0


def build_certificate(
    model: LinearModel, incumbent: float | None, *, gap_tolerance: float = 1e-9, node_limit: int = 1000
) -> DualTree:
    """A tree that proves no solution beats `incumbent` by more than the relative tolerance, or as near as it came.

    Best-bound branch and bound on GLOP relaxations, splitting the most fractional integer, ties at the lowest column;
    `incumbent` None asks for a proof that nothing is feasible. At `node_limit` the open leaves keep their own bounds,
    so that the tree proves less but never something false. Raises PlannerError when a variable has an infinite bound.
    """
    for name, low, high in zip(model.names, model.lower, model.upper, strict=True):
        if math.isinf(low) or math.isinf(high):
            raise PlannerError("a certificate needs finite bounds", where=name, hint="bound every variable")
    return _TreeBuilder(model).run(incumbent, gap_tolerance, node_limit)


class _TreeBuilder:
    """Branch and bound whose leaves keep their multipliers; bounds are those that `verify` will find."""

    def __init__(self, model: LinearModel) -> None:
        from planner.solvers.backends.mathopt import Relaxation

        self._model = model
        self._relaxation = Relaxation(model)
        self._phase_one: Relaxation | None = None
        self._nodes: list[DualSplit | DualLeaf] = []

    def run(self, incumbent: float | None, gap_tolerance: float, node_limit: int) -> DualTree:
        model = self._model
        cutoff = -math.inf
        if incumbent is not None:
            cutoff = _sign(model) * incumbent + gap_tolerance * max(1.0, abs(incumbent))
        heap: list[tuple[float, int, _Box, int, int]] = []
        self._open(heap, _Box(tuple(model.lower), tuple(model.upper)))
        while heap and len(self._nodes) + 2 <= node_limit:
            bound, index, box, column, floor = heapq.heappop(heap)
            if -bound <= cutoff:
                break
            split = DualSplit(column, floor, len(self._nodes), len(self._nodes) + 1)
            self._nodes[index] = split
            for half in box.split(split):
                self._open(heap, half)
        return DualTree(tuple(self._nodes))

    def _open(self, heap: list[tuple[float, int, _Box, int, int]], box: _Box) -> None:
        """Append the leaf of a box, and queue it when it has an integer to split on."""
        leaf, values = self._leaf(box)
        self._nodes.append(leaf)
        chosen = None if values is None else _most_fractional(self._model, values)
        if chosen is not None:
            heapq.heappush(heap, (-_leaf_bound(self._model, box, leaf), len(self._nodes) - 1, box, *chosen))

    def _leaf(self, box: _Box) -> tuple[DualLeaf, tuple[float, ...] | None]:
        answer = self._relaxation.solve(box.lower, box.upper)
        if answer.duals is not None:
            return DualLeaf(self._multipliers(answer.duals)), answer.values
        duals = self._farkas(box)
        return DualLeaf(() if duals is None else self._multipliers(duals), empty=duals is not None), None

    def _multipliers(self, duals: Sequence[float]) -> tuple[tuple[int, float], ...]:
        """Duals of the model's own sense turned to those of a maximisation, short and without zeros."""
        sign = _sign(self._model)
        short = ((row, float(f"{sign * y:.{SIGNIFICANT_DIGITS}g}")) for row, y in enumerate(duals) if y)
        return tuple((row, y) for row, y in short if abs(y) > 1e-14)

    def _farkas(self, box: _Box) -> tuple[float, ...] | None:
        """The duals of the least total violation of the rows over the box: a proof when that is positive."""
        from planner.solvers.backends.mathopt import Relaxation

        slack = [math.inf] * (2 * len(self._model.rows))
        if self._phase_one is None:
            self._phase_one = Relaxation(_elastic(self._model))
        answer = self._phase_one.solve((*box.lower, *([0.0] * len(slack))), (*box.upper, *slack))
        return answer.duals


def _elastic(model: LinearModel) -> LinearModel:
    """The model with a shortfall and an excess on every row and their sum as its objective, in the model's sense."""
    elastic = LinearModel(list(model.names), list(model.lower), list(model.upper), list(model.integer))
    violations: list[Expr] = []
    for index, row in enumerate(model.rows):
        shortfall, excess = elastic.continuous(f"shortfall[{index}]"), elastic.continuous(f"excess[{index}]")
        form = Expr(dict(zip(row.columns, row.coefficients, strict=True)))
        elastic.add(Relation(form + shortfall - excess, row.lower, row.upper), f"row[{index}]")
        violations.extend((shortfall, excess))
    elastic.optimise(-_sign(model) * total(violations), maximising=model.maximising)
    return elastic


def _most_fractional(model: LinearModel, values: Sequence[float]) -> tuple[int, int] | None:
    """The integer column furthest from an integer, one of 0 and 1 before all others, with its floor; None when all are
    integral."""
    split, floor, first = None, 0, (False, FRACTIONAL)
    for column, value in enumerate(values):
        if model.integer[column]:
            distance = abs(value - round(value))
            rank = model.upper[column] - model.lower[column] <= 1.0 and distance > FRACTIONAL, distance
            if rank > first:
                split, floor, first = column, math.floor(value), rank
    return None if split is None else (split, floor)


def _node_to_json(node: DualSplit | DualLeaf) -> dict[str, JsonValue]:
    if isinstance(node, DualSplit):
        return {"split": [node.column, node.floor], "children": [node.below, node.above]}
    return {"empty" if node.empty else "duals": [[row, y] for row, y in node.multipliers]}


def _node_from_json(node: Mapping[str, JsonValue]) -> DualSplit | DualLeaf:
    if "split" in node:
        column, floor = node["split"]
        below, above = node["children"]
        if not all(isinstance(value, int) for value in (column, floor, below, above)):
            raise ValueError("a split holds whole numbers")
        return DualSplit(column, floor, below, above)
    empty = "empty" in node
    return DualLeaf(tuple((int(row), float(y)) for row, y in node["empty" if empty else "duals"]), empty)
