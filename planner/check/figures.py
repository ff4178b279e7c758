"""Checks the arithmetic of a plan: shares, memory, intervals, and figures that are stated twice."""

import math
from collections.abc import Iterator, Mapping

from planner.documents.units import format_si
from planner.hardware.cluster import Pool
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope, Route

REL_TOL = 1e-9
"""Of figures that follow from others in the plan: well above the rounding of sums of doubles."""


SHARE_TOL = 1e-6
"""Of shares of traffic, which leave out routes with next to none of it."""


def agree(figure: float, wanted: float) -> bool:
    """Whether two figures of a plan are the same but for rounding."""
    return math.isclose(figure, wanted, rel_tol=REL_TOL, abs_tol=REL_TOL)


def figure_findings(envelope: Envelope, decision: Decision) -> list[Finding]:
    """Rules about numbers that need neither problem nor catalogs."""
    return [*_shares(decision), *_evidence(envelope), *_predictions(envelope)]


def memory_findings(decision: Decision, pools: Mapping[str, Pool]) -> Iterator[Finding]:
    """Whether the parts of every role's memory fit what the plan may use, and that fits the device."""
    for role in decision.roles:
        memory = role.memory
        if memory is None:
            continue
        where = f"roles.{role.name}.memory"
        used, capacity = memory.used_bytes, memory.capacity_bytes
        what = f"needs {format_si(used, 'B')} a device, may use {format_si(capacity, 'B')}"
        hint = "lower the batch or the context of the role, or spread it over more devices"
        yield Finding("memory.parts", used <= capacity * (1 + REL_TOL), what, where, hint)
        if role.pool not in pools:
            what = f"not judged: the memory of pool `{role.pool}` is not known"
            yield Finding("memory.capacity", True, what, where, skipped=True)
            continue
        device = pools[role.pool].node.accelerator.memory_bytes
        what = f"may use {format_si(capacity, 'B')} of a device with {format_si(device, 'B')}"
        yield Finding("memory.capacity", capacity <= device * (1 + REL_TOL), what, where, "lower `capacity_bytes`")


def _shares(decision: Decision) -> Iterator[Finding]:
    """All traffic of a workload enters by the front door, and what enters a role that passes traffic on leaves it."""
    for workload in sorted({route.workload for route in decision.routing}):
        routes = [route for route in decision.routing if route.workload == workload]
        yield _share("the front door", 1.0, [route for route in routes if route.source is None], workload)
        for source in sorted({route.source for route in routes if route.source is not None}):
            entering = sum(route.share for route in routes if route.to == source)
            yield _share(f"role `{source}`", entering, [route for route in routes if route.source == source], workload)


def _share(stage: str, entering: float, leaving: list[Route], workload: str) -> Finding:
    total = sum(route.share for route in leaving)
    what = f"{entering:.6g} of workload `{workload}` comes to {stage} and {total:.6g} goes on"
    hint = "make the shares out of it add up to what comes to it"
    return Finding("arithmetic.shares", abs(total - entering) <= SHARE_TOL, what, f"routing.{workload}", hint)


def _evidence(envelope: Envelope) -> Iterator[Finding]:
    if envelope.evidence.basis:
        total = sum(envelope.evidence.basis.values())
        what = f"the shares of predicted time by basis add up to {total:.6g}"
        yield Finding("arithmetic.evidence", agree(total, 1.0), what, "evidence.basis", "make them add up to 1")


def _predictions(envelope: Envelope) -> Iterator[Finding]:
    objective = envelope.certificate.objective
    for prediction in envelope.predictions:
        where = f"predictions.{prediction.metric}{f'.{prediction.of}' if prediction.of else ''}.{prediction.statistic}"
        if prediction.interval is not None:
            low, high = prediction.interval
            what = f"{prediction.value:.6g} in [{low:.6g}, {high:.6g}]"
            inside = low <= prediction.value <= high
            yield Finding("arithmetic.interval", inside, what, where, "give an interval that holds the value")
        same = prediction.metric == objective.metric and not prediction.of and prediction.statistic == "mean"
        if same and objective.value is not None:
            what = f"predicted {prediction.value:.6g}, objective {objective.value:.6g}"
            hint = "the objective is a prediction of the whole plan: make the two equal"
            yield Finding("arithmetic.objective", agree(prediction.value, objective.value), what, where, hint)
