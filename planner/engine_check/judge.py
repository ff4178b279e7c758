"""Compares a measured run with its plan: findings on the load sent, the SLO limits and the predictions."""

import math
from collections.abc import Iterator

from planner.benchmark_reports.records import MeasuredRun
from planner.documents.units import format_si
from planner.plan.findings import Finding
from planner.plan.schema import Prediction
from planner.problem.slo import SloSpec

MAX_FAILED_SHARE = 0.01
LEAST_REQUESTS = 10  # completed; fewer say nothing of a percentile
LOAD_TOLERANCE = 0.10
LOAD_SIGMAS = 3.0  # a Poisson stream of n requests strays by about sqrt(n)

METRICS = ("ttft_s", "tpot_s", "itl_s", "latency_s")


def judge(
    measured: MeasuredRun,
    rate_per_s: float | None,
    workload: str,
    slo: SloSpec,
    predictions: tuple[Prediction, ...],
    tolerance: float,
) -> list[Finding]:
    """All findings on one workload, driven at `rate_per_s` or (None) in a closed loop.

    Limits and predictions are judged only where enough requests completed.
    """
    findings = [_requests(measured)]
    if measured.completed < LEAST_REQUESTS:
        return findings
    findings += _load(measured, rate_per_s, workload)
    findings += _limits(measured, slo, workload)
    findings += _predictions(measured, predictions, workload, tolerance)
    return findings


def _requests(measured: MeasuredRun) -> Finding:
    """A report of few or failed requests is a verdict on the engine, whatever its times say."""
    ended = measured.completed + measured.failed
    what = f"{measured.failed} of {ended} requests failed ({measured.generator})"
    right = measured.failed_share <= MAX_FAILED_SHARE and measured.completed >= LEAST_REQUESTS
    if measured.completed < LEAST_REQUESTS:
        what += f", {measured.completed} completed of at least {LEAST_REQUESTS}"
    return Finding("engine.requests", right, what, "engine", "read the engine's log, or measure for longer")


def _load(measured: MeasuredRun, rate_per_s: float | None, workload: str) -> Iterator[Finding]:
    """Whether the run had the load that the plan is for; a closed loop always has."""
    if rate_per_s is None or measured.requests_per_s is None:
        return
    completed, wanted = measured.requests_per_s, rate_per_s
    what = f"completed {completed:.3g} requests/s of {wanted:.3g}"
    stray = LOAD_TOLERANCE + LOAD_SIGMAS / math.sqrt(measured.completed)
    hint = "the engine or the load generator did not keep up" if completed < wanted else "measure for longer"
    where = f"workloads.{workload}.load"
    yield Finding("engine.load", abs(completed / wanted - 1.0) <= stray, what, where, hint)


def _limits(measured: MeasuredRun, slo: SloSpec, workload: str) -> Iterator[Finding]:
    for name, statistic, allowed_s in slo.limits():
        where = f"workloads.{workload}.slo.{name}.{statistic}"
        measured_s = measured.times_s.get(f"{name}_s", {}).get(statistic)
        if measured_s is None:
            what = f"not judged: the report gives no {statistic} {name}"
            yield Finding(f"engine.slo.{name}", True, what, where, skipped=True)
            continue
        what = f"measured {statistic} {name} {format_si(measured_s, 's')}, at most {format_si(allowed_s, 's')}"
        hint = "calibrate with this result and solve again, or relax the limit"
        yield Finding(f"engine.slo.{name}", measured_s <= allowed_s, what, where, hint)


def _predictions(
    measured: MeasuredRun, predictions: tuple[Prediction, ...], workload: str, tolerance: float
) -> Iterator[Finding]:
    for prediction in predictions:
        if prediction.of != workload or prediction.metric not in METRICS or prediction.value <= 0:
            continue
        measured_s = measured.times_s.get(prediction.metric, {}).get(prediction.statistic)
        if measured_s is None:
            continue
        name = prediction.metric.removesuffix("_s")
        error = measured_s / prediction.value - 1.0
        inside = prediction.interval is not None and prediction.interval[0] <= measured_s <= prediction.interval[1]
        what = (
            f"{prediction.statistic} {name} predicted {format_si(prediction.value, 's')}, measured "
            f"{format_si(measured_s, 's')} ({error:+.0%}, tolerance {tolerance:.0%})"
        )
        where = f"predictions.{prediction.metric}.{workload}.{prediction.statistic}"
        yield Finding(f"engine.prediction.{name}", inside or abs(error) <= tolerance, what, where, "calibrate with it")
