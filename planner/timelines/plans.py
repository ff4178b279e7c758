"""What a plan states over time, as spans for a trace: a training step's pipeline, an RL iteration's phases."""

from collections.abc import Iterator

from planner.documents.trace_events import Span
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope
from planner.rl.timeline import rows


def plan_spans(envelope: Envelope, decision: Decision) -> Iterator[Span]:
    """The spans of a step or an iteration.

    Raises PlannerError for plans that state nothing over time: those of serving are simulated.
    """
    own = find_kind(envelope.kind).timeline()
    if own is not None:
        spans: Iterator[Span] = own.spans(envelope.name, decision)
        return spans
    if decision.phases:
        return _iteration(decision)
    verb = "`planner simulate PLAN --perfetto FILE` simulates it" if envelope.kind == "serve" else "leave it out"
    raise PlannerError(f"plans of kind `{envelope.kind}` state nothing over time", where="--perfetto", hint=verb)


def _iteration(decision: Decision) -> Iterator[Span]:
    """A process for the devices that roles share, a lane for every phase that may run beside others."""
    for row in rows(decision):
        for lane, phase in enumerate(row.phases):
            name = ", ".join(phase.roles) or "hand-over"
            figures = {"gpus": row.gpus}
            yield Span(row.label, lane, phase.name, phase.start_s, phase.duration_s or 0.0, name, "phase", figures)
