"""Spans of time as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: JSON of complete events.

Every trace that planner writes comes from here. Format: "Trace Event Format" of the Chromium project; `X` is a complete
event with start and duration in microseconds, `M` names a process or a thread.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from planner.documents.files import write_text_atomic

MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Span:
    """What one lane of a process does from `start_s` on; lanes lie below each other in the order of their numbers."""

    process: str
    lane: int
    name: str
    start_s: float
    duration_s: float
    lane_name: str = ""
    category: str = ""
    figures: Mapping[str, int | float | str] = field(default_factory=dict)


def write_trace(path: str, spans: Iterable[Span]) -> None:
    """Writes spans, processes numbered in the order in which they come."""
    write_text_atomic(path, trace_text(spans))


def trace_text(spans: Iterable[Span]) -> str:
    """The document of spans."""
    numbers: dict[str, int] = {}
    lanes: dict[tuple[int, int], str] = {}
    events = [_event(span, numbers, lanes) for span in spans]
    return json.dumps({"traceEvents": [*_names(numbers, lanes), *events], "displayTimeUnit": "ms"})


def _event(span: Span, numbers: dict[str, int], lanes: dict[tuple[int, int], str]) -> dict[str, object]:
    process = numbers.setdefault(span.process, len(numbers))
    if span.lane_name:
        lanes[process, span.lane] = span.lane_name
    event: dict[str, object] = {
        "name": span.name,
        "ph": "X",
        "pid": process,
        "tid": span.lane,
        "ts": span.start_s * MICROSECONDS,
        "dur": span.duration_s * MICROSECONDS,
    }
    event |= {"cat": span.category} if span.category else {}
    return event | ({"args": dict(span.figures)} if span.figures else {})


def _names(numbers: Mapping[str, int], lanes: Mapping[tuple[int, int], str]) -> Iterator[dict[str, object]]:
    for name, process in numbers.items():
        yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": process, "args": {"sort_index": process}}
    for (process, lane), name in lanes.items():
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
