"""Executed shards beside what was predicted of them, operator by operator, as spans for a trace.

Operators of a step follow each other in the order of the prediction, each as long as all its runs in the step together:
neither the executor nor the model says when each run began.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.documents.trace_events import Span

if TYPE_CHECKING:
    from planner.execute.judge.verdict import Execution, StepVerdict

PREDICTED, MEASURED = range(2)


def execution_spans(execution: "Execution") -> Iterator[Span]:
    """A process for every rank of a role, its steps one after the other, predicted above measured."""
    starts: dict[str, float] = {}
    for step in execution.steps:
        process = f"{step.role}, rank {step.rank}"
        start_s = starts.get(process, 0.0)
        yield from _step(process, step, start_s)
        starts[process] = start_s + 1.1 * max(step.predicted_s, step.measured_s)


def _step(process: str, step: "StepVerdict", start_s: float) -> Iterator[Span]:
    figures: dict[str, int | float | str] = {
        "step": step.step,
        "batch": step.batch,
        "tokens": step.tokens,
        "context": step.context,
    }
    whole = ((PREDICTED, "predicted", step.predicted_s), (MEASURED, "measured", step.measured_s))
    for lane, name, seconds in whole:
        yield Span(process, 2 * lane, step.step, start_s, seconds, f"{name}, whole", "step", figures)
        at_s = start_s
        for operator, row in step.operators.items():
            part_s = row.predicted_s if lane == PREDICTED else row.measured_s
            if operator in step.absent or not part_s:
                continue
            of = {"runs": row.count, "predicted_s": row.predicted_s, "measured_s": row.measured_s or 0.0}
            yield Span(process, 2 * lane + 1, operator, at_s, part_s, f"{name}, by operator", "operator", of)
            at_s += part_s
