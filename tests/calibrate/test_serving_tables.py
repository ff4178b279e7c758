"""The benchmark of kernel tables chooses weights on other groups, each group weighing the same."""

import importlib
from dataclasses import astuple
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from planner.costs.rates.calibration import TableTrust

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("serving_tables")


def test_weights_of_a_loss_without_interaction_are_the_best_of_all(tables: ModuleType) -> None:
    wanted = np.array([0.3, 0.0, 1.0, 0.6])

    def loss(weights: TableTrust) -> float:
        return float(np.sum((np.array(astuple(weights)) - wanted) ** 2))

    every = (TableTrust(*values) for values in product(tables.WEIGHTS, repeat=4))
    assert tables.least(loss) == min(every, key=lambda w: loss(w) + tables.STIFF * sum(astuple(w)))


def test_a_flat_loss_leaves_tables_out(tables: ModuleType) -> None:
    assert tables.least(lambda weights: 1.0) == tables.NONE


def test_losses_are_means_of_groups_and_none_of_small_ones(tables: ModuleType) -> None:
    group = np.array([0] * 10 + [1] * 30 + [2] * 3)
    measured = np.ones((2, 43))
    counted = np.ones((2, 43), dtype=np.bool_)
    counted[0, 10:40] = False  # all queued
    bench = tables.Benchmark([], [], None, [], group * 0, ["a", "b", "c"], group, measured, counted)
    told = np.ones((2, 43))
    told[1, :10], told[1, 10:25], told[0, :10] = np.exp(0.2), np.exp(-0.4), np.exp(5.0)
    losses = bench._losses(told)
    assert losses[0] == pytest.approx(0.2 + tables.TTFT_SHARE * tables.MOST)
    assert losses[1] == pytest.approx(0.2 + tables.TTFT_SHARE * tables.MOST)  # its TTFT: the mean of the others
    assert np.isnan(losses[2])
