"""Which structure of the training fit predicts sources, and groups, that it has not seen: nested leave-group-out.

    python benchmarks/training_nested.py ../shared/data/training

A structure is what a fit is told beside its runs: where rates start, from which error on runs count linearly, and how
the runs of a group weigh. For every label left out (a source, or a fold of the groups model x system x code) each
structure is judged by the other labels alone, every one of which is predicted by formulas fitted to all but the two;
the structure of the least mean error then predicts the label. The mean over labels is what a choice among these
structures can claim. Beside it: each structure by itself, first that of training.py, and a constant, 6 operations a
parameter and token at the median rate of the GPU's other groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from zlib import crc32

import numpy as np
from inputs import first_path
from numpy.typing import NDArray
from training import constants, read_tables
from training_fit import SCALE, Fit, Prior, fit_rates, prior, refit, sensitivity
from training_runs import GROUP_POWER, Runs, weights_of

from planner.arrays import Bools, Floats
from planner.costs.training.rates import default_rates

FOLDS = 10
EVALUATIONS = 10  # of a fit that starts from the shipped one
UNPUBLISHED = {
    "flop.attention.flash": 0.5,
    "flop.attention_backward.flash": 0.4,
    "flop.attention.cudnn": 0.6,
    "flop.attention_backward.cudnn": 0.5,
    "flop.attention.triton": 0.5,
    "flop.attention_backward.triton": 0.4,
}
"""Starts of kernels of the attention on every generation where what was published of them is not used."""


@dataclass(frozen=True, slots=True)
class Structure:
    """How a fit differs from that of training.py."""

    name: str
    published: bool = True  # kernels of the attention start at what was published of them
    scale: float = SCALE
    power: float = GROUP_POWER  # a run weighs 1 over this power of the number of runs of its group

    def prior(self) -> Prior:
        """The start values."""
        known = prior()
        if self.published:
            return known
        free = {name: UNPUBLISHED.get(name.rpartition(".")[0], value) for name, value in known.free.items()}
        return Prior(free, known.fixed)

    def weights(self, runs: Runs) -> Floats:
        """Of the runs [N]; their sum is that of training.py."""
        return weights_of(runs.runs, self.power)


STRUCTURES = (
    Structure("as training.py"),
    Structure("attention starts at unsourced values", published=False),
    Structure("linear from half the error on", scale=SCALE / 2.0),
    Structure("groups weigh as their runs", power=0.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Labels [N] of the runs to leave out together, "" for those that stay; units within a label weigh the same."""

    name: str
    labels: NDArray[np.str_]
    units: NDArray[np.str_]

    @property
    def names(self) -> list[str]:
        return sorted(set(self.labels.tolist()) - {""})

    def mean(self, values: Floats, label: str) -> float:
        """Of one label, its units alike."""
        member = self.labels == label
        return float(np.mean([values[member & (self.units == unit)].mean() for unit in set(self.units[member])]))


def main() -> int:
    """Print both splits."""
    runs, single = read_tables(first_path())
    runs = replace(runs, replay=runs.replay.corrected(prior().rates(shipped(prior()))))
    sources = np.array([run.row["source"] for run in runs.runs])
    folds = np.array([f"fold {crc32(group.encode()) % FOLDS}" for group in runs.groups])
    splits = (
        Split("whole sources", np.where(single, "", sources), sources),
        Split(f"{FOLDS} folds of groups", np.where(single, "", folds), runs.groups),
    )
    fits = [fit_of(runs, structure) for structure in STRUCTURES]
    constant = np.abs(constants(runs, ~single) / runs.measured - 1.0)
    for split in splits:
        errors = [errors_by_pair(runs, *pair, split) for pair in zip(STRUCTURES, fits, strict=True)]
        print(f"\n{split.name} left out, alike")
        for line in lines(errors, float(np.mean([split.mean(constant, name) for name in split.names]))):
            print(line)
    return 0


def shipped(known: Prior) -> Floats:
    """Logarithms of the shipped rates."""
    values = default_rates().values
    return np.asarray(np.log([values.get(name, start) for name, start in known.free.items()]))


def fit_of(runs: Runs, structure: Structure) -> Fit:
    """The fit to all runs, from which those without some start."""
    known, used = structure.prior(), np.ones(len(runs.runs), dtype=np.bool_)
    return fit_rates(
        runs.replay, runs.measured, structure.weights(runs), used,
        start=shipped(known), evaluations=EVALUATIONS, known=known, scale=structure.scale,
    )  # fmt: skip


def errors_by_pair(runs: Runs, structure: Structure, fit: Fit, split: Split) -> Floats:
    """Mean errors [L, L] of the label of each row, by formulas fitted to all but it and the label of the column."""
    known, weights, near = structure.prior(), structure.weights(runs), sensitivity(runs.replay, fit)
    names = split.names
    error_LL = np.empty((len(names), len(names)))
    for first, second in combinations_with_replacement(range(len(names)), 2):
        used: Bools = ~np.isin(split.labels, (names[first], names[second]))
        made = refit(runs.replay, runs.measured, weights, used, near, known=known, scale=structure.scale)
        error = np.abs(runs.replay.step_s(made.rates) / runs.measured - 1.0)
        error_LL[first, second] = split.mean(error, names[first])
        error_LL[second, first] = split.mean(error, names[second])
    return error_LL


def chosen(errors: Sequence[Floats]) -> list[int]:
    """The structure of each label [L]: the one of the least mean error on the others, each predicted without both."""
    count = len(errors[0])
    others_SL = [(table.sum(axis=0) - np.diag(table)) / (count - 1) for table in errors]
    return [int(index) for index in np.argmin(others_SL, axis=0)]


def lines(errors: Sequence[Floats], constant: float) -> Iterator[str]:
    """Each structure by itself, the nested choice, and the constant."""
    for structure, table in zip(STRUCTURES, errors, strict=True):
        yield f"  {structure.name:40s} {np.diag(table).mean():6.1%}"
    picks = chosen(errors)
    nested = np.mean([errors[pick][label, label] for label, pick in enumerate(picks)])
    taken = ", ".join(f"{STRUCTURES[pick].name} {picks.count(pick)}" for pick in sorted(set(picks)))
    yield f"  {'nested choice':40s} {nested:6.1%}  ({taken})"
    yield f"  {'a constant':40s} {constant:6.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
