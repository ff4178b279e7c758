"""What a plan states over time, as spans for a trace: a training step's pipeline, an RL iteration with its samples."""

from collections.abc import Iterator

from planner.documents.trace_events import Span
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope


def plan_spans(envelope: Envelope, decision: Decision) -> Iterator[Span]:
    """The spans of a step or an iteration.

    Raises PlannerError for plans that state nothing over time: those of serving are simulated.
    """
    own = find_kind(envelope.kind).timeline()
    if own is not None:
        spans: Iterator[Span] = own.spans(envelope, decision)
        return spans
    verb = "`planner simulate PLAN --perfetto FILE` simulates it" if envelope.kind == "serve" else "leave it out"
    raise PlannerError(f"plans of kind `{envelope.kind}` state nothing over time", where="--perfetto", hint=verb)
