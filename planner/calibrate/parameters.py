"""Calibrated efficiencies as a vector for the fit: logarithms, bounds, and the kernel times that depend on each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.records import ExecutedStep, operators_of
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

    @classmethod
    def of(cls, steps: Sequence[ExecutedStep], base: Efficiencies) -> "ExecutedTerms":
        """The terms, with dependencies found by pricing each with each parameter moved far."""
        operators = list(operators_of(steps))
        index = np.array([step for step, _ in operators], dtype=np.intp)
        names, nothing = tuple(op.name for _, op in operators), np.zeros((len(NAMES), len(operators)), np.bool_)
        bare = cls(tuple(steps), index, names, nothing)
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
        return ExecutedTerms(
            tuple(self.steps[step] for step in steps),
            np.searchsorted(steps, self.step_T[kept_T]),
            tuple(name for name, kept in zip(self.name_T, kept_T, strict=True) if kept),
            self.depends_PT[:, kept_T],
        )

    def seconds(self, efficiencies: Efficiencies, wanted_T: Bools | None = None) -> Floats:
        """Seconds [T] of all runs of each operator; zero where `wanted_T` is false."""
        pricers: dict[int, Pricer] = {}
        result = np.zeros(len(self.step_T))
        for term, (step, operator) in enumerate(operators_of(self.steps)):
            if wanted_T is not None and not wanted_T[term]:
                continue
            pricing = self.steps[step].pricing
            pricer = pricers.get(id(pricing))
            if pricer is None:
                pricer = pricers[id(pricing)] = pricing.pricer(efficiencies)
            result[term] = float((pricer.price(operator).seconds * operator.count)[0])
        return result
