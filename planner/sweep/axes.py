"""Axes of a sweep: values, the problem fields that each sets, its cell in the results; points as their product."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from pydantic import JsonValue

from planner.documents.units import BYTES, BYTES_PER_S, FRACTION, PER_S, POWER_W, TIME_S, USD_PER_HOUR, parse_quantity
from planner.errors import PlannerError
from planner.schema.base import Where
from planner.sweep.columns import axis_column
from planner.sweep.schema import MAX_POINTS, AxisSpec, End, SweepSpec

AxisCell = int | float | str
Fields = tuple[tuple[str, JsonValue], ...]

_SUFFIXES: tuple[tuple[str, dict[str, float]], ...] = (
    ("_s", TIME_S), ("_per_s", PER_S), ("_usd_per_hour", USD_PER_HOUR), ("_bytes", BYTES),
    ("_bytes_per_s", BYTES_PER_S), ("_w", POWER_W), ("", FRACTION),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AxisValue:
    """One value of an axis: as the results show it (quantities in SI), and what it sets."""

    cell: AxisCell
    sets: Fields


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """An axis with its values; `low` and `high` are the ends of a range, in the unit it was written in."""

    index: int
    column: str
    field: str | None
    values: tuple[AxisValue, ...]
    kind: Literal["integer", "number", "text"]
    unit: str = ""
    log: bool = False
    choice: bool = False
    ends: tuple[float, float] | None = None

    @property
    def numeric(self) -> bool:
        return self.kind != "text"

    def at(self, amount: float) -> AxisValue:
        """The value whose cell is `amount`; a whole number where the axis takes only those."""
        factor = _table(self.unit)[1][self.unit] if self.unit else 1.0
        return self._written(amount / factor)

    def sampled(self, fraction: float) -> AxisValue:
        """The value `fraction` in [0, 1) of the way along the axis."""
        if self.ends is None:
            return self.values[int(fraction * len(self.values))]
        return self._written(_between(*self.ends, fraction, log=self.log))

    def _written(self, amount: float) -> AxisValue:
        assert self.field is not None
        return _value(self.field, amount, self.unit, whole=self.kind == "integer")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: its scenario, its value on every axis."""

    scenario: int
    values: tuple[AxisValue, ...]


def make_axes(spec: SweepSpec, where: Where) -> tuple[SweepAxis, ...]:
    """All axes of a sweep; raises PlannerError for a range that is none."""
    axes = tuple(_make(axis, index, where) for index, axis in enumerate(spec.axes))
    columns = [axis.column for axis in axes]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise PlannerError(f"two axes give the column `{twice}`", where=where(("axes",)), hint="name one of them")
    return axes


def _make(spec: AxisSpec, index: int, where: Where) -> SweepAxis:
    if spec.cases is not None:
        values = tuple(AxisValue(name, tuple(fields.items())) for name, fields in spec.cases.items())
        return SweepAxis(index, _column(spec, ""), None, values, "text", choice=spec.choice)
    assert spec.field is not None
    if spec.values is not None:
        return _listed(spec, spec.field, spec.values, index)
    return _ranged(spec, spec.field, index, where)


def _listed(spec: AxisSpec, field: str, written: tuple[JsonValue, ...], index: int) -> SweepAxis:
    plain = [value for value in written if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(plain) == len(written):
        whole = all(isinstance(value, int) for value in plain)
        values = tuple(AxisValue(value if whole else float(value), ((field, value),)) for value in plain)
        return SweepAxis(index, _column(spec, ""), field, values, "integer" if whole else "number", log=spec.log)
    quantities = [_quantity(value) for value in written]
    suffixes = {quantity[0] for quantity in quantities if quantity is not None}
    if None not in quantities and len(suffixes) == 1:
        amounts = [quantity[1] for quantity in quantities if quantity is not None]
        values = tuple(AxisValue(amount, ((field, text),)) for amount, text in zip(amounts, written, strict=True))
        unit = _unit(str(written[0]))
        return SweepAxis(index, _column(spec, suffixes.pop()), field, values, "number", unit, log=spec.log)
    values = tuple(AxisValue(_shown(value), ((field, value),)) for value in written)
    return SweepAxis(index, _column(spec, ""), field, values, "text", choice=spec.choice)


def _ranged(spec: AxisSpec, field: str, index: int, where: Where) -> SweepAxis:
    place = ("axes", index)
    low, unit = _end(spec.from_, where((*place, "from")))
    high, other = _end(spec.to, where((*place, "to")))
    if _table(unit)[0] != _table(other)[0] or bool(unit) != bool(other):
        raise PlannerError(
            f"from `{spec.from_}` to `{spec.to}` are of different units",
            where=where(place),
            hint=f"write `to` in `{unit}`" if unit else "drop the unit",
        )
    if unit:
        high = parse_quantity(spec.to, _table(unit)[1]) / _table(unit)[1][unit]
    if spec.log and (low <= 0 or high <= 0):
        raise PlannerError(
            "a range of equal ratios must stay above 0", where=where(place), hint="start above 0, or drop `log`"
        )
    if low == high:
        raise PlannerError("a range from a value to itself", where=where(place), hint="write `values:` with one value")
    if spec.steps is None:
        raise PlannerError("a range needs `steps`", where=where(place), hint="add for example `steps: 10`")
    whole = isinstance(spec.from_, int) and isinstance(spec.to, int)
    amounts = [_between(low, high, step / (spec.steps - 1), log=spec.log) for step in range(spec.steps)]
    values = dict.fromkeys(_value(field, amount, unit, whole=whole) for amount in amounts)
    kind: Literal["integer", "number"] = "integer" if whole else "number"
    return SweepAxis(
        index, _column(spec, _table(unit)[0] if unit else ""), field, tuple(values), kind, unit, spec.log,
        ends=(low, high),
    )  # fmt: skip


def _column(spec: AxisSpec, suffix: str) -> str:
    """The axis' name with the SI unit of its cells."""
    return axis_column(spec.title if spec.title.endswith(suffix) else spec.title + suffix)


def _value(field: str, amount: float, unit: str, *, whole: bool) -> AxisValue:
    rounded = round(amount) if whole else float(f"{amount:.12g}")
    if not unit:
        return AxisValue(rounded, ((field, rounded),))
    text = f"{rounded!r}{unit}"
    return AxisValue(parse_quantity(text, _table(unit)[1]), ((field, text),))


def _between(low: float, high: float, fraction: float, *, log: bool) -> float:
    if log:
        return math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
    return low + fraction * (high - low)


def _end(written: End | None, where: str) -> tuple[float, str]:
    """The number and the unit of an end of a range."""
    if isinstance(written, int | float):
        return float(written), ""
    text = str(written)
    quantity = _quantity(text)
    if quantity is None:
        raise PlannerError(f"must be a number or a quantity, found `{text}`", where=where, hint="write `10` or `200ms`")
    unit = _unit(text)
    return quantity[1] / _table(unit)[1][unit], unit


def _quantity(value: JsonValue) -> tuple[str, float] | None:
    """The suffix of the SI unit and the SI amount of a text such as `200ms`; None for anything else."""
    unit = _unit(value) if isinstance(value, str) else ""
    if not unit:
        return None
    suffix, table = _table(unit)
    try:
        return suffix, parse_quantity(value, table)
    except PlannerError:
        return None


def _unit(text: str) -> str:
    """The longest known unit that ends `text` after a number, or nothing."""
    known = sorted((unit for _, table in _SUFFIXES for unit in table if unit), key=len, reverse=True)
    for unit in known:
        number = text.strip().removesuffix(unit).strip()
        if number != text.strip() and number and (number[-1].isdigit() or number[-1] == "."):
            return unit
    return ""


def _table(unit: str) -> tuple[str, dict[str, float]]:
    return next(((suffix, table) for suffix, table in _SUFFIXES if unit in table and unit), ("", {"": 1.0}))


def _shown(value: JsonValue) -> str:

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def list_points(spec: SweepSpec, axes: Sequence[SweepAxis], where: Where) -> list[SweepPoint]:
    """All points in order: scenarios outermost, then the axes as written, the last one fastest.

    Raises PlannerError for axes of different lengths in mode `zip`, and for more points than a sweep may have.
    """
    scenarios = range(max(1, len(spec.scenarios)))
    count = len(scenarios) * _count(spec, axes, where)
    if count > MAX_POINTS:
        raise PlannerError(
            f"{count:,} points are more than the {MAX_POINTS:,} a sweep may have",
            where=where(("axes",)),
            hint="use fewer steps, or `mode: sample`",
        )
    combinations = list(_combinations(spec, axes))
    return [SweepPoint(scenario, values) for scenario in scenarios for values in combinations]


def _count(spec: SweepSpec, axes: Sequence[SweepAxis], where: Where) -> int:
    lengths = [len(axis.values) for axis in axes]
    if spec.mode == "zip":
        if len(set(lengths)) > 1:
            raise PlannerError(
                f"axes of {' and '.join(str(length) for length in lengths)} values cannot be zipped",
                where=where(("axes",)),
                hint="give all axes equally many values, or `mode: grid`",
            )
        return lengths[0] if lengths else 1
    return spec.samples if spec.samples is not None else math.prod(lengths)


def _combinations(spec: SweepSpec, axes: Sequence[SweepAxis]) -> Iterator[tuple[AxisValue, ...]]:
    if not axes:
        yield ()
    elif spec.mode == "zip":
        yield from zip(*(axis.values for axis in axes), strict=True)
    elif spec.samples is not None:
        yield from zip(*(_latin(axis, spec.samples, spec.seed) for axis in axes), strict=True)
    else:
        yield from product(*(axis.values for axis in axes))


def _latin(axis: SweepAxis, count: int, seed: int) -> list[AxisValue]:
    """Latin hypercube sampling: one value from each of `count` equal strata of the axis, in random order.

    Source: McKay, Beckman, Conover, Technometrics 21(2), 1979.
    """
    draw = random.Random(f"{seed}/{axis.index}/{axis.column}")
    strata = list(range(count))
    draw.shuffle(strata)
    return [axis.sampled(min((stratum + draw.random()) / count, 1 - 1e-12)) for stratum in strata]
