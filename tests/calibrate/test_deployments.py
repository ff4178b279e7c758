"""Fits to measured deployments: what made the measurements is found again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("numba", reason="benchmarks are simulated by a loop that numba compiles")

from serving_fit import COVERED, FEW, coverage, features, fit_between, fit_spread, thinned, winkler

from planner.arrays import Floats
from planner.calibrate.deployments import (
    Fitted,
    MeasuredTimes,
    ServingParameters,
    document_of,
    fit_first_tokens,
    predict,
)
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import open_store
from planner.costs.rates.spread import ErrorSpread
from planner.estimate.case import Case
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import case_of_row

MODELS = (("meta-llama/Llama-3.1-8B-Instruct", "fp8"), ("Qwen/Qwen3-30B-A3B", "fp8_block"))
PRIOR = load_calibration(str(Path(__file__).parents[2] / "planner" / "calibrate" / "prior.yaml"))


def case(
    model: str, weights: str, tp: int, clients: int, isl: int, system: str = "h100_sxm", apart: bool = False
) -> Case:
    degrees = {"tp": str(tp), "pp": "1", "dp": "1", "moe_tp": str(tp), "moe_ep": "1"}
    row = {
        "id": f"{model}-{tp}-{clients}-{isl}", "aic_model": model, "weights": weights, "system": system,
        "backend": "vllm", "mode": "disagg" if apart else "agg", "isl": str(isl), "osl": "200",
        "concurrency": str(clients), "gpus": str(2 * tp if apart else tp),
    }  # fmt: skip
    if apart:
        for side in ("prefill_", "decode_"):
            row |= {f"{side}{name}": value for name, value in degrees.items()} | {f"{side}workers": "1"}
    return case_of_row(row | degrees)


def test_products_of_four_bits_count_by_the_trust_in_products() -> None:
    kinds = {
        weights: {piece.kind for piece in DeploymentTerms.of([case(MODELS[0][0], weights, 1, 4, 500, gpu)]).pieces}
        for weights, gpu in (("fp8", "h100_sxm"), ("nvfp4", "b200_sxm"))
    }
    assert kinds["nvfp4"] == kinds["fp8"] >= {"gemm", "attention"}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [
        case(model, weights, tp, clients, isl)
        for model, weights in MODELS
        for tp in (1, 2, 4)
        for clients in (2, 16, 64)
        for isl in (500, 3000)
    ] + [case(*MODELS[0], 2, clients, 2000, apart=True) for clients in (4, 32)]


@pytest.fixture(scope="module")
def terms(cases: list[Case]) -> DeploymentTerms:
    return DeploymentTerms.of(cases)


def parameters(**changes: float) -> ServingParameters:
    start = ServingParameters.of(PRIOR, ["vllm"])
    return replace(start, efficiencies=replace(start.efficiencies, **changes))


def measured(terms: DeploymentTerms, truth: ServingParameters) -> MeasuredTimes:
    simulated = predict(terms, truth)
    return MeasuredTimes(simulated.ttft_s, simulated.tpot_s, np.zeros(len(simulated.ttft_s), dtype=bool))


def everything(values: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(len(values), dtype=bool)


def test_terms_price_deployments_as_estimates_do(cases: list[Case], terms: DeploymentTerms) -> None:
    """Two ways to one number: flat arrays of all operators, and the cost model batch by batch."""
    shipped = load_calibration()
    simulated = predict(terms, ServingParameters.of(shipped, ["vllm"]))
    for estimate, ttft_s, tpot_s in zip(evaluate(cases, None), simulated.ttft_s, simulated.tpot_s, strict=True):
        assert isinstance(estimate, Estimate)
        assert (estimate.ttft_s, estimate.tpot_s) == pytest.approx((ttft_s, tpot_s), rel=1e-9)


def test_terms_weigh_tables_as_estimates_do(cases: list[Case]) -> None:
    """Tables enter terms at their full weight, so that their trust counts once."""
    tables = Path(__file__).parents[3] / "shared" / "data" / "kernel-profiles" / "h100_sxm"
    if not tables.exists():
        pytest.skip("needs the kernel tables of ../shared")
    store = open_store((str(tables),))
    shipped = load_calibration()
    simulated = predict(DeploymentTerms.of(cases, store), ServingParameters.of(shipped, ["vllm"]), tables=True)
    alone = predict(DeploymentTerms.of(cases, store), ServingParameters.of(shipped, ["vllm"]))
    estimates = evaluate(cases, store)
    assert [estimate.tpot_s for estimate in estimates if isinstance(estimate, Estimate)] == pytest.approx(
        simulated.tpot_s, rel=1e-9
    )
    assert np.max(np.abs(simulated.tpot_s / alone.tpot_s - 1.0)) > 0.01


def test_rows_left_out_do_not_move_first_tokens(terms: DeploymentTerms) -> None:
    truth = parameters(gemm_bandwidth=0.6)
    seen = measured(terms, truth)
    chosen = np.arange(len(seen.tpot_s)) % 2 == 0
    wrong = replace(seen, tpot_s=np.where(chosen, seen.tpot_s, 100.0), ttft_s=np.where(chosen, seen.ttft_s, 100.0))
    assert fit_first_tokens(terms, seen, truth, chosen) == fit_first_tokens(terms, wrong, truth, chosen)


def test_what_an_engine_adds_before_the_first_token_is_found_nearly_again(terms: DeploymentTerms) -> None:
    start = parameters()
    slow = replace(start.engine("vllm"), frontend_s=0.016, output_steps=6.0)
    truth = replace(start, engines={**start.engines, "vllm": slow})
    seen = measured(terms, truth)
    fitted = fit_first_tokens(terms, seen, start, everything(seen.ttft_s))
    before, after = (np.abs(predict(terms, constants).ttft_s / seen.ttft_s - 1.0) for constants in (start, fitted))
    assert np.median(after) < 0.4 * np.median(before)


def test_at_most_a_few_rows_of_a_group_are_kept() -> None:
    group = np.repeat([0, 1, 2], [3, 50, 200])
    chosen = np.arange(253) % 2 == 0
    kept = thinned(group, chosen)
    assert not np.any(kept & ~chosen)
    assert np.bincount(group[kept]).tolist() == [2, FEW, FEW]


def test_intervals_hold_the_share_that_they_are_fitted_to() -> None:
    random = np.random.default_rng(0)
    queue = random.uniform(0.0, 2.0, 2000)
    features_NF = np.stack([np.ones(2000), queue, queue**2], axis=1)
    predicted = random.uniform(0.01, 1.0, 2000)
    seen = predicted * np.exp(random.normal(0.0, 0.05 + 0.2 * queue))
    spread = fit_spread(seen, predicted, features_NF)
    bounds = spread.bounds(predicted, features_NF)
    assert coverage(seen, *bounds) == pytest.approx(COVERED, abs=0.02)
    width = np.exp(np.quantile(np.abs(np.log(seen / predicted)), 0.8))
    assert winkler(seen, *bounds).mean() < 0.9 * winkler(seen, predicted / width, predicted * width).mean()


def test_what_lies_between_groups_has_the_best_score_of_a_grid() -> None:
    random = np.random.default_rng(3)
    group = np.repeat(np.arange(40), 20)
    error = random.normal(0.1, 0.25, 40)[group] + random.normal(0.0, 0.05, 800)
    low, high = np.full(800, -0.06), np.full(800, 0.06)
    weight = np.where(group < 10, 3.0, 1.0)

    def score(below: float, above: float) -> float:
        ends = -np.hypot(low, below), np.hypot(high, above)
        beyond = np.maximum(ends[0] - error, 0.0) + np.maximum(error - ends[1], 0.0)
        return float(np.sum(weight * (ends[1] - ends[0] + 10.0 * beyond)))

    best = score(*fit_between(error, low, high, weight))
    assert best <= 1.001 * min(score(x, y) for x in np.arange(0.0, 0.8, 0.04) for y in np.arange(0.0, 0.8, 0.04))


def test_a_fit_is_a_calibration_file(tmp_path: Path, terms: DeploymentTerms) -> None:
    fitted = Fitted(parameters(gemm_bandwidth=0.6), {"gemm_bandwidth": 0.1})
    spreads = {
        "ttft": ErrorSpread((-0.5, 0.0, 0.0), (0.5, 0.1, 0.0)),
        "tpot": ErrorSpread((-0.2, 0.0, 0.0), (0.2, 0.0, 0.0), (0.0, 0.3)),
    }
    path = tmp_path / "calibration.yaml"
    path.write_text(yaml.safe_dump(document_of(fitted, spreads, ["b", "a"], rows=3, data="sha256:0")))
    loaded = load_calibration(str(path))
    assert loaded.efficiencies == fitted.parameters.efficiencies
    assert loaded.engine("vllm") == fitted.parameters.engine("vllm")
    assert loaded.spreads == loaded.spreads_of(["b", "a"]) == spreads
    assert loaded.spreads_of(["a", "c"]) == {name: spread.elsewhere() for name, spread in spreads.items()}
    simulated = predict(terms, fitted.parameters)
    assert features(terms, fitted.parameters, simulated).shape == (len(simulated.ttft_s), 3)
