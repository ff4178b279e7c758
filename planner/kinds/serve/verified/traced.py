"""The rows of a trace whose prompts share beginnings, as the streams that memory for prefixes is simulated on."""

from planner.problem.resolve import Resolved
from planner.simulate.plans.trace_streams import TraceRows
from planner.simulate.requests.traces import read_trace


def trace_rows(resolved: Resolved) -> TraceRows | None:
    """Rows of the only workload beside chosen memory, with what they share where there is any; None without."""
    spec, cached = resolved.problem.cache, resolved.cached
    if spec is None or cached is None:
        return None
    path = resolved.workloads[0].trace
    assert path is not None
    return TraceRows.of(read_trace(path), spec.block_tokens, shared=any(cached.units))
