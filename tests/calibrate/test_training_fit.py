"""Rates fitted to training runs, factors of measured shapes, and intervals."""

from dataclasses import replace

import numpy as np
import pytest
from training_fit import fit_rates, fit_shapes, prior, refit, sensitivity
from training_nested import STRUCTURES, chosen
from training_replay import replay
from training_runs import spread_of_errors

from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.config import RecomputeConfig, TrainingConfig, machine_of
from planner.costs.training.physics.bounds import bound_of
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.shapes import LayerShape, main_shape, nearness, read, written
from planner.costs.training.step import step_time
from planner.hardware.library import find_node
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, Layer, Precisions


def configuration(hidden: int = 4096, micro_batch: int = 1, tp: int = 1) -> TrainingConfig:
    layer = Layer(GroupedQueryAttention(hidden // 128, 8, 128, 128), DenseFfn(4 * hidden))
    arch = Architecture("test", hidden, 64000, (layer,) * 8, False, 0, Precisions())
    return TrainingConfig(arch, machine_of(find_node("hgx_h100")), 4096, 64, micro_batch, tp=tp, dp=8)


def shapes() -> list[LayerShape]:
    return [main_shape(configuration(tp=tp, micro_batch=size)) for tp in (1, 2, 8) for size in (1, 4)]


def test_a_fit_finds_the_rate_that_runs_were_made_with() -> None:
    runs = replay([configuration(hidden, size) for hidden in (2048, 4096, 8192) for size in (1, 2, 4)])
    truth = dict(zip(prior().names, np.exp(prior().start), strict=True)) | dict(prior().fixed)
    truth["flop.gemm.hopper"] = 0.55
    measured = runs.step_s(Rates(truth))
    everything = np.ones(len(measured), dtype=np.bool_)
    fit = fit_rates(runs, measured, 100.0 * np.ones(len(measured)), everything)
    assert fit.rates.values["flop.gemm.hopper"] == pytest.approx(0.55, rel=0.05)
    assert runs.step_s(fit.rates) == pytest.approx(measured, rel=0.01)


def test_a_fit_stays_within_physics() -> None:
    """Runs on hosts that take 200 us an operation are not explained by such hosts."""
    runs = replay([configuration(hidden, size) for hidden in (512, 1024) for size in (1, 2)])
    truth = dict(prior().free) | dict(prior().fixed) | {"host_launch_s.eager": 2e-4}
    measured = runs.step_s(Rates(truth))
    fit = fit_rates(runs, measured, 100.0 * np.ones(len(measured)), np.ones(len(measured), dtype=np.bool_))
    assert fit.rates.values["host_launch_s.eager"] == pytest.approx(bound_of("host_launch_s.eager").upper, rel=1e-3)
    assert all(
        bound_of(name).lower * 0.999 <= value <= bound_of(name).upper * 1.001
        for name, value in fit.rates.values.items()
    )


def test_start_values_are_inside_their_limits() -> None:
    assert all(bound_of(name).holds(value) for name, value in (*prior().free.items(), *prior().fixed.items()))


def test_every_rate_of_the_prior_is_in_the_calibration() -> None:
    known = default_rates()
    assert set(prior().free) | set(prior().fixed) == set(known.values)
    assert set(known.errors) == set(prior().free)


def test_formulas_of_the_fit_compute_again_what_the_policy_by_operator_does() -> None:
    plain = configuration()
    again = replace(plain, recompute=RecomputeConfig("selective", (BY_OPERATOR,)))
    rates = prior().rates(prior().start)
    seconds = replay([plain, again]).step_s(rates)
    simulated = [step_time(config, rates).step_s for config in (plain, again)]
    assert seconds[1] - seconds[0] == pytest.approx(simulated[1] - simulated[0], rel=0.1)


def test_the_structure_of_a_label_is_chosen_without_its_errors() -> None:
    draw = np.random.default_rng(0)
    errors = [draw.uniform(size=(4, 4)) for _ in STRUCTURES]
    picks = chosen(errors)
    for label in range(4):
        changed = [table.copy() for table in errors]
        for structure, table in enumerate(changed):
            table[label] = structure  # whatever this label's own errors are
        assert chosen(changed)[label] == picks[label]
    assert picks[0] == min(range(len(errors)), key=lambda index: errors[index][1:, 0].sum())


def test_a_measured_shape_is_met_and_its_factor_fades() -> None:
    measured = shapes()
    fitted = fit_shapes(measured, np.array([0.2, 0.0, 0.0, 0.0, 0.0, -0.1]))
    assert fitted.factor(measured[0]) == pytest.approx(np.exp(0.2), rel=0.03)
    assert fitted.factor(measured[5]) == pytest.approx(np.exp(-0.1), rel=0.03)
    far = main_shape(configuration(hidden=16384))
    assert fitted.factor(far) == pytest.approx(1.0)
    assert fitted.knows(measured[0])
    assert not fitted.knows(far)


def test_other_codes_and_formats_learn_nothing() -> None:
    measured = shapes()
    fitted = fit_shapes(measured, np.full(len(measured), 0.2))
    other = replace(configuration(), precision="fp8")
    assert fitted.factor(main_shape(other)) == 1.0


def test_repeats_of_a_shape_count_once_by_their_median() -> None:
    shape = shapes()[:1]
    fitted = fit_shapes(shape * 3, np.array([0.1, 0.1, 0.5]))
    assert fitted.factor(shape[0]) == pytest.approx(np.exp(0.1), rel=0.02)


def test_shapes_survive_being_written() -> None:
    measured = shapes()
    fitted = fit_shapes(measured, np.linspace(-0.2, 0.2, len(measured)))
    again = read(list(written(fitted)))
    assert [again.factor(shape) for shape in measured] == pytest.approx([fitted.factor(shape) for shape in measured])


def test_nearness_is_symmetric_and_one_at_itself() -> None:
    matrix = nearness(shapes(), shapes())
    assert np.allclose(matrix, matrix.T)
    assert np.allclose(np.diag(matrix), 1.0)


def test_a_fit_without_a_group_is_that_of_the_others_alone() -> None:
    runs = replay([configuration(hidden, size) for hidden in (2048, 4096, 8192) for size in (1, 2, 4)])
    measured = runs.step_s(prior().rates(prior().start)) * np.linspace(0.9, 1.2, 9)
    weights, everything = 100.0 * np.ones(9), np.ones(9, dtype=np.bool_)
    used = np.arange(9) < 6
    near = sensitivity(runs, fit_rates(runs, measured, weights, everything))
    alone = fit_rates(runs, measured, weights, used)
    without = refit(runs, measured, weights, used, near, steps=30)
    assert runs.step_s(without.rates) == pytest.approx(runs.step_s(alone.rates), rel=0.01)
    assert abs(runs.step_s(without.rates) / runs.step_s(near.fit.rates) - 1.0).max() > 0.01


def test_intervals_hold_what_they_were_fitted_to_and_widen_with_distance() -> None:
    generator = np.random.default_rng(0)
    away = np.tile([0.0, 3.0], 200)
    errors = generator.normal(0.0, 0.1, 400) * (1.0 + 0.5 * away)
    classes = np.repeat(["a", "b"], 200)
    groups = np.array([str(n) for n in range(400)])
    spread = spread_of_errors(errors, classes, groups, away)
    low, high = np.array([spread.ends(*run) for run in zip(classes.tolist(), away.tolist(), strict=True)]).T
    inside = (errors >= low) & (errors <= high)
    assert 0.78 < np.mean(inside) < 0.9
    assert 0.3 <= spread.by_distance <= 0.75
    assert abs(np.mean(inside[away == 0.0]) - np.mean(inside[away == 3.0])) < 0.1
