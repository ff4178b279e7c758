"""A small linear-model class: formulations build it, backends read it, and solutions are checked with it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from planner.errors import PlannerError

INFINITY = math.inf
JsonValue: TypeAlias = Any  # what json.loads returns


class Expr:
    """A linear expression `constant + sum coefficient * variable`; a variable is the expression 1 * itself."""

    __hash__ = None  # type: ignore[assignment]  # `==` builds a constraint, so expressions must not be dict keys
    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[int, float], constant: float = 0.0) -> None:
        self.terms = terms
        self.constant = constant

    @property
    def column(self) -> int:
        """The column of an expression that is one variable."""
        (column,) = self.terms
        return column

    def __add__(self, other: "Expr | float") -> "Expr":
        return total((self, other))

    __radd__ = __add__

    def __sub__(self, other: "Expr | float") -> "Expr":
        return total((self, -1.0 * other))

    def __rsub__(self, other: float) -> "Expr":
        return total((other, -1.0 * self))

    def __mul__(self, factor: float) -> "Expr":
        return Expr({column: factor * value for column, value in self.terms.items()}, factor * self.constant)

    __rmul__ = __mul__

    def __le__(self, other: "Expr | float") -> "Relation":
        return Relation(self - other, -INFINITY, 0.0)

    def __ge__(self, other: "Expr | float") -> "Relation":
        return Relation(self - other, 0.0, INFINITY)

    def __eq__(self, other: "Expr | float") -> "Relation":  # type: ignore[override]  # builds a constraint
        return Relation(self - other, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Relation:
    """`lower <= expression <= upper`, before it has a name."""

    expression: Expr
    lower: float
    upper: float


def total(parts: "Iterable[Expr | float]") -> Expr:
    """The sum of `parts` in time linear in their terms (the built-in `sum` copies at every step)."""
    terms: dict[int, float] = {}
    constant = 0.0
    for part in parts:
        if isinstance(part, Expr):
            constant += part.constant
            for column, value in part.terms.items():
                terms[column] = terms.get(column, 0.0) + value
        else:
            constant += part
    return Expr(terms, constant)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One constraint `lower <= sum_j coefficients[j] x[columns[j]] <= upper`; a missing side is infinite."""

    name: str
    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    lower: float
    upper: float

    def activity(self, values: Sequence[float]) -> float:
        """The value of the linear form at `values`, summed without rounding error."""
        return math.fsum(a * values[j] for j, a in zip(self.columns, self.coefficients, strict=True))


@dataclass(slots=True)
class LinearModel:
    """A mixed-integer linear model in columns and rows; names are unique, bounds and coefficients finite or missing."""

    names: list[str] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[ModelRow] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)
    offset: float = 0.0
    maximising: bool = False
    _taken: set[str] = field(default_factory=set, repr=False, compare=False)

    def variable(self, name: str, lower: float = 0.0, upper: float = INFINITY, *, integer: bool = False) -> Expr:
        """Add a variable and return it; raises PlannerError on a used name or an empty domain."""
        self._claim(name)
        if not lower <= upper or lower == INFINITY:
            raise PlannerError(f"variable has an empty domain [{lower}, {upper}]", where=name)
        self.names.append(name)
        self.lower.append(float(lower))
        self.upper.append(float(upper))
        self.integer.append(integer)
        return Expr({len(self.names) - 1: 1.0})

    def integer_variable(self, name: str, lower: float = 0.0, upper: float = INFINITY) -> Expr:
        """Add an integer variable and return it."""
        return self.variable(name, lower, upper, integer=True)

    def binary(self, name: str) -> Expr:
        """Add a 0-1 variable and return it."""
        return self.variable(name, 0.0, 1.0, integer=True)

    def continuous(self, name: str, lower: float = 0.0, upper: float = INFINITY) -> Expr:
        """Add a continuous variable and return it."""
        return self.variable(name, lower, upper)

    def add(self, relation: Relation, name: str) -> None:
        """Add a named constraint; the constant of its expression moves to the sides."""
        self._claim(name)
        kept = sorted((column, value) for column, value in relation.expression.terms.items() if value != 0.0)
        constant = relation.expression.constant
        if not all(math.isfinite(value) for _, value in kept) or not math.isfinite(constant):
            raise PlannerError("constraint has a coefficient that is not finite", where=name)
        self.rows.append(
            ModelRow(
                name,
                tuple(column for column, _ in kept),
                tuple(value for _, value in kept),
                relation.lower - constant,
                relation.upper - constant,
            )
        )

    def minimise(self, expression: Expr) -> None:
        """Set the objective to the smallest value of `expression`."""
        self.optimise(expression, maximising=False)

    def maximise(self, expression: Expr) -> None:
        """Set the objective to the largest value of `expression`."""
        self.optimise(expression, maximising=True)

    def objective_at(self, values: Sequence[float]) -> float:
        """The objective recomputed at `values`, summed without rounding error."""
        return self.offset + math.fsum(value * values[column] for column, value in self.objective.items())

    def restricted(self, lower: Mapping[int, float], upper: Mapping[int, float]) -> "LinearModel":
        """A copy in which the bounds of some columns are replaced; rows are shared."""
        return LinearModel(
            list(self.names),
            [lower.get(j, bound) for j, bound in enumerate(self.lower)],
            [upper.get(j, bound) for j, bound in enumerate(self.upper)],
            list(self.integer),
            list(self.rows),
            dict(self.objective),
            self.offset,
            self.maximising,
            set(self._taken),
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """The model as JSON-serialisable data; a missing side is null."""
        return {
            "names": list(self.names),
            "lower": [_to_json(bound) for bound in self.lower],
            "upper": [_to_json(bound) for bound in self.upper],
            "integer": list(self.integer),
            "rows": [
                [row.name, list(row.columns), list(row.coefficients), _to_json(row.lower), _to_json(row.upper)]
                for row in self.rows
            ],
            "objective": [[column, value] for column, value in self.objective.items()],
            "offset": self.offset,
            "maximising": self.maximising,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> "LinearModel":
        """The model that `to_dict` wrote; raises PlannerError when the data are malformed."""
        try:
            return _read(data)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PlannerError(f"malformed linear model: {error}", where="certificate.model") from None

    def _claim(self, name: str) -> None:
        if name in self._taken:
            raise PlannerError(f"name `{name}` is used twice in one model", where=name)
        self._taken.add(name)

    def optimise(self, expression: Expr, *, maximising: bool) -> None:
        """Set the objective and its sense; raises PlannerError for a coefficient that is not finite."""
        if not all(map(math.isfinite, (*expression.terms.values(), expression.constant))):
            raise PlannerError("objective has a coefficient that is not finite")
        self.objective = {column: value for column, value in sorted(expression.terms.items()) if value != 0.0}
        self.offset = expression.constant
        self.maximising = maximising


def _to_json(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _finite(value: JsonValue) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number


def _read(data: Mapping[str, JsonValue]) -> LinearModel:
    model = LinearModel(offset=_finite(data["offset"]), maximising=bool(data["maximising"]))
    columns = [
        model.variable(
            str(name),
            -INFINITY if low is None else _finite(low),
            INFINITY if high is None else _finite(high),
            integer=bool(integer),
        ).column
        for name, low, high, integer in zip(data["names"], data["lower"], data["upper"], data["integer"], strict=True)
    ]
    for name, indices, coefficients, low, high in data["rows"]:
        terms = {columns[j]: _finite(a) for j, a in zip(indices, coefficients, strict=True)}
        lower = -INFINITY if low is None else _finite(low)
        model.add(Relation(Expr(terms), lower, INFINITY if high is None else _finite(high)), str(name))
    model.objective = {columns[j]: _finite(a) for j, a in data["objective"]}
    return model


class Solution(Mapping[str, float]):
    """A value for every variable of a model, by name; `values` is in column order."""

    __slots__ = ("_columns", "values_by_column")

    def __init__(self, names: Sequence[str], values: Sequence[float]) -> None:
        self._columns = {name: column for column, name in enumerate(names)}
        self.values_by_column = tuple(values)

    def __getitem__(self, name: str) -> float:
        return self.values_by_column[self._columns[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self.values_by_column)

    def value(self, expression: Expr) -> float:
        """The value of a linear expression at this solution."""
        values = self.values_by_column
        return expression.constant + math.fsum(a * values[column] for column, a in expression.terms.items())


@dataclass(frozen=True, slots=True)
class Violation:
    """A bound, integrality or constraint that a solution breaks, and by how much."""

    name: str
    amount: float


def check_feasible(model: LinearModel, values: Sequence[float], tolerance: float = 1e-6) -> list[Violation]:
    """What `values` violates by more than `tolerance` relative to the largest term of each row; uses no solver."""
    violations = [
        Violation(name, INFINITY) for name, value in zip(model.names, values, strict=True) if not math.isfinite(value)
    ]
    if violations:
        return violations
    for name, value, low, high, integer in zip(
        model.names, values, model.lower, model.upper, model.integer, strict=True
    ):
        off = max(low - value, value - high, abs(value - round(value)) if integer else 0.0)
        if not off <= tolerance * max(1.0, abs(value)):
            violations.append(Violation(name, off))
    for row in model.rows:
        activity = row.activity(values)
        scale = max((abs(a * values[j]) for j, a in zip(row.columns, row.coefficients, strict=True)), default=0.0)
        off = max(row.lower - activity, activity - row.upper)
        if not off <= tolerance * max(1.0, scale):
            violations.append(Violation(row.name, off))
    return violations
