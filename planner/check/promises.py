"""Checks that the predictions of a plan keep the limits (SLOs, memory, budget) of its problem."""

from collections.abc import Iterator, Mapping

from planner.check.figures import REL_TOL
from planner.documents.units import format_si
from planner.plan import placement
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope, Prediction
from planner.problem.schema import Problem, WorkloadSpec

_HINT = "solve again with this limit, or relax it"


def cap_findings(decision: Decision, problem: Problem) -> Iterator[Finding]:
    """Whether the devices in use, and their price, stay under the problem's caps; the placement must be legal."""
    used = placement.devices_used(decision.placement)
    limits = problem.limits
    if limits.gpus is not None:
        total = sum(used.values())
        what = f"uses {total} GPUs, at most {limits.gpus} allowed"
        yield Finding("limits.gpus", total <= limits.gpus, what, "inputs.limits.gpus", _HINT)
    if limits.usd_per_hour is not None:
        prices = {pool.label: pool.usd_per_gpu_hour for pool in problem.cluster.pools}
        unpriced = sorted(pool for pool in used if prices.get(pool) is None)
        cost = sum(count * (prices.get(pool) or 0.0) for pool, count in used.items())
        what = f"costs {cost:.2f} USD/h, at most {limits.usd_per_hour:.2f} allowed"
        if unpriced:
            what = f"pool `{unpriced[0]}` has no price"
        right = not unpriced and cost <= limits.usd_per_hour * (1 + REL_TOL)
        yield Finding("limits.price", right, what, "inputs.limits.usd_per_hour", _HINT)


def slo_findings(envelope: Envelope, problem: Problem) -> Iterator[Finding]:
    """One finding for every stated limit of every workload."""
    for workload in problem.workloads:
        predictions = {(p.metric, p.statistic): p for p in envelope.predictions if p.of == workload.name}
        yield from _load(workload, predictions, needed=problem.serves_loads)
        judged = [_limit(name, of, bound_s, predictions, workload.name) for name, of, bound_s in workload.slo.limits()]
        yield from judged
        if workload.slo.attainment is not None:
            yield _attainment(workload.slo.attainment, predictions, judged, workload.name)


Predictions = Mapping[tuple[str, str], Prediction]


def _limit(name: str, statistic: str, allowed_s: float, predictions: Predictions, workload: str) -> Finding:
    metric, where = f"{name}_s", f"workloads.{workload}.slo.{name}.{statistic}"
    prediction = predictions.get((metric, statistic)) or predictions.get((metric, "mean"))
    if prediction is None:
        what = f"`{metric}` of workload `{workload}` is not predicted"
        return Finding(f"slo.{name}", False, what, where, "add the prediction")
    from_mean = prediction.statistic != statistic
    what = f"{statistic} {name} {format_si(prediction.value, 's')}, at most {format_si(allowed_s, 's')}"
    what += " (judged by the mean)" if from_mean else ""
    right = prediction.value <= allowed_s * (1 + REL_TOL)
    return Finding(f"slo.{name}", right, what, where, _HINT, approximate=from_mean or prediction.approximate)


def _attainment(wanted: float, predictions: Predictions, judged: list[Finding], workload: str) -> Finding:
    where = f"workloads.{workload}.slo.attainment"
    prediction = predictions.get(("attainment", "mean"))
    if prediction is None:
        what = f"attainment of {wanted:.4g} is not predicted; judged by the limits one by one"
        return Finding("slo.attainment", all(finding.ok for finding in judged), what, where, _HINT, approximate=True)
    what = f"attainment {prediction.value:.4g}, at least {wanted:.4g}"
    right = prediction.value >= wanted * (1 - REL_TOL)
    return Finding("slo.attainment", right, what, where, _HINT, approximate=prediction.approximate)


def _load(workload: WorkloadSpec, predictions: Predictions, *, needed: bool) -> Iterator[Finding]:
    """Whether the plan serves the rate that the workload brings; one for the most throughput serves what it can."""
    prediction = predictions.get(("requests_per_s", "mean"))
    if workload.load is None or workload.load.rate_per_s is None or prediction is None:
        return
    rate = workload.load.rate_per_s
    what = f"serves {prediction.value:.4g} requests/s of {rate:.4g}"
    where = f"workloads.{workload.name}.load"
    yield Finding("slo.rate", not needed or prediction.value >= rate * (1 - REL_TOL), what, where, _HINT)
