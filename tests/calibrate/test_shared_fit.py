"""One fit to many groups: what all share and where each lies are found again, and rows left out move nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="benchmarks are simulated by a loop that numba compiles")

from planner.arrays import Indices
from planner.calibrate.deployments import MeasuredTimes, ServingParameters, predict
from planner.calibrate.shared import BETWEEN, fit_shared
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.estimate.case import Case
from planner.estimate.measured import case_of_row

PRIOR = load_calibration(str(Path(__file__).parents[2] / "planner" / "calibrate" / "prior.yaml"))
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B")
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm")
LOG_BIAS = 0.2


def case(model: str, system: str, tp: int, clients: int) -> Case:
    row = {
        "id": f"{model}-{system}-{tp}-{clients}", "aic_model": model, "weights": "fp8", "system": system,
        "backend": "vllm", "mode": "agg", "isl": "1000", "osl": "200", "concurrency": str(clients), "gpus": str(tp),
        "tp": str(tp), "pp": "1", "dp": "1", "moe_tp": str(tp), "moe_ep": "1",
    }  # fmt: skip
    return case_of_row(row)


@pytest.fixture(scope="module")
def terms() -> DeploymentTerms:
    return DeploymentTerms.of([case(m, s, tp, c) for m in MODELS for s in SYSTEMS for tp in (1, 4) for c in (1, 8, 32)])


@pytest.fixture(scope="module")
def group() -> Indices:
    return np.repeat(np.arange(len(MODELS) * len(SYSTEMS)), 6)


def start() -> ServingParameters:
    return ServingParameters.of(PRIOR, ["vllm"])


def seen(terms: DeploymentTerms, group: Indices, bias: float) -> MeasuredTimes:
    """Times of kernels that start twice as late before Blackwell, longer by `bias` in the first group."""
    known = start()
    truth = replace(known, efficiencies=replace(known.efficiencies, earlier_starts=2.0))
    times = predict(terms, truth)
    return MeasuredTimes(times.ttft_s, times.tpot_s * np.exp(bias * (group == 0)), np.zeros(len(group), dtype=bool))


def test_late_starts_before_blackwell_and_a_slow_group_are_found_again(terms: DeploymentTerms, group: Indices) -> None:
    fitted = fit_shared(terms, seen(terms, group, LOG_BIAS), start(), group, np.ones(len(group), dtype=bool))
    assert fitted.parameters.efficiencies.earlier_starts == pytest.approx(2.0, rel=0.15)
    biases = np.array([fitted.groups[number].mean for number in sorted(fitted.groups)])
    assert 0.5 * LOG_BIAS < biases[0] < LOG_BIAS  # shrunk towards the others, which lie at 0
    assert np.all(np.abs(biases[1:]) < 0.25 * biases[0])
    assert 0.02 < fitted.between < LOG_BIAS
    assert all(fitted.groups[number].deviation < fitted.between for number in fitted.groups)


def test_rows_left_out_move_no_shared_parameter(terms: DeploymentTerms, group: Indices) -> None:
    chosen = group > 0
    first, second = (fit_shared(terms, seen(terms, group, bias), start(), group, chosen) for bias in (0.0, 3.0))
    assert first == second
    assert 0 not in first.groups


def test_starts_before_blackwell_are_longer_under_an_engine_alone() -> None:
    late = replace(PRIOR, efficiencies=replace(PRIOR.efficiencies, earlier_starts=2.0))
    for system, multiple in (("h100_sxm", 2.0), ("b200_sxm", 1.0)):
        own = case(MODELS[0], system, 1, 1)
        given = {"engine": "vllm", "version": None, "store": None}
        price, before, bare = (
            make_pricer(own.pool, own.arch, calibration=known, bare=alone, **given)  # type: ignore[arg-type]  # texts by name
            for known, alone in ((late, False), (PRIOR, False), (late, True))
        )
        starts = [pricer.efficiencies.gemm_start_s for pricer in (price, before, bare)]  # type: ignore[attr-defined]  # of serving pricers alone
        assert starts[0] == pytest.approx(multiple * starts[1])
        assert starts[2] == PRIOR.efficiencies.gemm_start_s


def test_shipped_costs_know_where_the_groups_lie_that_they_were_fitted_to() -> None:
    shipped = load_calibration()
    assert shipped.efficiencies.earlier_starts > 1.0
    assert set(shipped.runs) == shipped.groups
    far = 2.0 * BETWEEN  # of groups beyond, columns do not tell what ran
    assert all(0.0 < bias.deviation < BETWEEN and abs(bias.mean) < far for bias in shipped.runs.values())
    known = next(iter(sorted(shipped.groups)))
    assert shipped.slowdown(known) == pytest.approx(np.exp(shipped.runs[known].mean))
