"""What is written of a run: a table of requests (Parquet, CSV), and spans of instances for a trace.

A decoding request in the trace says in which of the batches of its pipeline it was.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from planner.documents.files import write_bytes_atomic, write_text_atomic
from planner.documents.trace_events import Span
from planner.errors import PlannerError
from planner.simulate.run.result import SimulationResult

LANES = 64  # of one instance in the viewer, so that requests at one time lie below each other


def request_table(result: SimulationResult) -> dict[str, Any]:
    """One column a figure, one row a request, in their order; NaN where a request did not get that far."""
    status = np.where(result.complete, "complete", np.where(result.rejected, "rejected", "unfinished"))
    return {
        "request": np.arange(len(status)),
        "status": status,
        "input_tokens": result.requests.input_tokens,
        "output_tokens": result.requests.output_tokens,
        "cut": result.cut,
        "arrival_s": result.arrival_s,
        "started_s": result.started_s,
        "prefilled_s": result.prefilled_s,
        "first_token_s": result.first_token_s,
        "finished_s": result.finished_s,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "latency_s": result.e2e_s,
        "prefill_instance": result.entry,
        "last_instance": result.home,
        "preempted": result.preempted,
        "cached_tokens": result.cached_tokens,
        "prefill_degree": result.degree,
    }


def write_requests(result: SimulationResult, path: str) -> None:
    """Writes the table of requests, as Parquet or CSV by the name of the file; raises PlannerError for other names."""
    columns = request_table(result)
    if path.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        content = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), content)
        write_bytes_atomic(path, content.getvalue())
    elif path.endswith(".csv") or path == "-":
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        lines = [",".join(columns), *(",".join("" if value != value else str(value) for value in row) for row in rows)]
        write_text_atomic(path, "\n".join(lines) + "\n")
    else:
        raise PlannerError(
            "requests are written as Parquet or CSV", where=path, hint="end its name in .parquet or .csv"
        )


def request_spans(result: SimulationResult, roles: Sequence[str]) -> Iterator[Span]:
    """What every request did on every instance; requests at one time lie in lanes below each other."""
    stages = (
        ("waiting", result.arrival_s, result.started_s, result.entry),
        ("prefill", result.started_s, result.prefilled_s, result.entry),
        ("hand over", result.prefilled_s, result.first_token_s, result.home),
        ("decode", result.first_token_s, result.finished_s, result.home),
    )
    spans = [
        (int(instance[request]), request, name, float(start[request]), float(end[request]))
        for name, start, end, instance in stages
        for request in np.flatnonzero(end > start).tolist()
    ]
    for instance_, request, name, begin_s, end_s in sorted(spans, key=lambda row: row[0]):
        figures = {"request": request, **_batch_of(result, request, instance_, name)}
        process = f"{roles[instance_]} {instance_}"
        yield Span(process, request % LANES, name, begin_s, end_s - begin_s, category="request", figures=figures)


def _batch_of(result: SimulationResult, request: int, instance: int, stage: str) -> dict[str, int]:
    """Which batch of its pipeline a request decodes in; nothing of others."""
    staged = stage == "decode" and int(result.stages[instance]) > 1
    return {"batch": int(result.batch[request])} if staged else {}
