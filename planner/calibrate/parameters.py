"""Calibrated efficiencies as a vector for the fit: logarithms, bounds, and the kernel times that depend on each."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.records import ExecutedStep, RolePricing, operators_of
from planner.costs.operators.elementwise import Moved
from planner.costs.operators.kernels import Operator
from planner.costs.rates.calibration import Efficiencies, is_share
from planner.costs.rates.pricer import Pricer

SHARE_BOUNDS = (1e-4, 1.5)  # a device may run above its data sheet's clock, and a fall-back kernel far below
TIME_BOUNDS = (1e-8, 1e-2)  # seconds of a launch or of the start of a collective
SPREAD_BOUNDS = (0.1, 1e3)  # the experts' popularity, at the upper end as good as equal; columns of a narrow shard
_PROBES = (0.1, 10.0)  # a parameter matters to an operator whose price one of these factors changes
_CHANGE = 1e-6

NAMES = tuple(field.name for field in fields(Efficiencies))


def bounds(name: str) -> tuple[float, float]:
    """The least and the most that a parameter may be."""
    if is_share(name):
        return SHARE_BOUNDS
    return TIME_BOUNDS if name.endswith("_s") else SPREAD_BOUNDS


def to_vector(efficiencies: Efficiencies, names: Sequence[str]) -> Floats:
    """Logarithms of the named parameters, moved inside their bounds."""
    inside = [min(max(getattr(efficiencies, name), bounds(name)[0]), bounds(name)[1]) for name in names]
    return np.log(np.array(inside, dtype=np.float64))


def with_vector(base: Efficiencies, names: Sequence[str], vector: Floats) -> Efficiencies:
    """`base` with the named parameters replaced by the exponentials of `vector`."""
    return replace(base, **{name: math.exp(value) for name, value in zip(names, vector, strict=True)})


@dataclass(frozen=True, slots=True)
class ExecutedTerms:
    """Every executed operator [T] of some steps: its step, and which parameters its price hangs on."""

    steps: tuple[ExecutedStep, ...]
    step_T: Indices
    name_T: tuple[str, ...]
    depends_PT: Bools  # by parameter of NAMES
    alike: tuple["_Alike", ...]  # all of them

    @classmethod
    def of(cls, steps: Sequence[ExecutedStep], base: Efficiencies) -> "ExecutedTerms":
        """The terms, with dependencies found by pricing each with each parameter moved far."""
        operators = list(operators_of(steps))
        index = np.array([step for step, _ in operators], dtype=np.intp)
        names, nothing = tuple(op.name for _, op in operators), np.zeros((len(NAMES), len(operators)), np.bool_)
        bare = cls(tuple(steps), index, names, nothing, _alike(steps))
        logs = to_vector(base, NAMES)
        start = bare.seconds(with_vector(base, NAMES, logs))
        depends = bare.depends_PT.copy()
        for parameter in range(len(NAMES)):
            for factor in _PROBES:
                moved = logs.copy()
                moved[parameter] += math.log(factor)
                seconds = bare.seconds(with_vector(base, NAMES, moved))
                depends[parameter] |= np.abs(seconds - start) > _CHANGE * start
        return replace(bare, depends_PT=depends)

    def of_steps(self, steps: Sequence[int]) -> "ExecutedTerms":
        """The terms of some of the steps, by their places in order: what an operator hangs on is its own affair."""
        kept_T = np.isin(self.step_T, steps)
        kept = tuple(self.steps[step] for step in steps)
        return ExecutedTerms(
            kept,
            np.searchsorted(steps, self.step_T[kept_T]),
            tuple(name for name, stays in zip(self.name_T, kept_T, strict=True) if stays),
            self.depends_PT[:, kept_T],
            _alike(kept),
        )

    def seconds(self, efficiencies: Efficiencies, wanted_T: Bools | None = None) -> Floats:
        """Seconds [T] of all runs of each operator; zero where `wanted_T` is false."""
        pricers: dict[int, Pricer] = {}
        result = np.zeros(len(self.step_T))
        for alike in self.alike:
            if wanted_T is not None and not wanted_T[alike.terms].any():
                continue
            pricer = pricers.get(id(alike.pricing))
            if pricer is None:
                pricer = pricers[id(alike.pricing)] = alike.pricing.pricer(efficiencies)
            result[alike.terms] = pricer.price(alike.operator).seconds * alike.count_N
        return result if wanted_T is None else np.where(wanted_T, result, 0.0)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Operators of any steps that differ in their sizes alone, priced together [N]."""

    terms: Indices
    count_N: Floats
    pricing: RolePricing
    operator: Operator


def _alike(steps: Sequence[ExecutedStep]) -> tuple[_Alike, ...]:
    """All operators of the steps by what prices them and what is fixed of them."""
    groups: dict[Hashable, list[tuple[int, RolePricing, Operator]]] = {}
    for term, (step, operator) in enumerate(operators_of(steps)):
        pricing = steps[step].pricing
        groups.setdefault((id(pricing), _fixed(operator)), []).append((term, pricing, operator))
    return tuple(
        _Alike(
            np.array([term for term, _, _ in members], dtype=np.intp),
            np.concatenate([np.atleast_1d(np.asarray(operator.count, np.float64)) for _, _, operator in members]),
            members[0][1],
            _joined([operator for _, _, operator in members]),
        )
        for members in groups.values()
    )


def _fixed(value: Any) -> Hashable:  # noqa: ANN401 - an operator, or a field of one
    """All but arrays, and how often it runs."""
    if isinstance(value, np.ndarray):
        return "[N]"
    if is_dataclass(value):
        own = (_fixed(getattr(value, field.name)) for field in fields(value) if field.name != "count")
        return type(value), *own
    fixed: Hashable = tuple(map(_fixed, value)) if isinstance(value, Moved) else value
    return fixed


def _joined(values: Sequence[Any]) -> Any:  # noqa: ANN401 - likewise
    """One operator with the arrays of several, one after the other."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate([np.atleast_1d(value) for value in values])
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        return replace(first, **{name: _joined([getattr(value, name) for value in values]) for name in names})
    if isinstance(first, Moved):
        return Moved(*map(_joined, zip(*values, strict=True)))
    return first
