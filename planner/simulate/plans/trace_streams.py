"""Streams of a plan whose lengths are those of a trace: its rows in their order, from one of them on and over again.

Arrivals are those of the workload. Where rows say what prompts share, blocks are new in every round of the trace.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.plan.schema import Decision
from planner.problem.recorded import AtHand
from planner.problem.schema import Problem, TraceLengths
from planner.simulate.prefixes.trace_blocks import block_requests
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.traces import Trace, read_trace
from planner.solvers.caches.block_requests import BlockRequests


@dataclass(frozen=True, slots=True, eq=False)
class TraceRows:
    """Rows of a trace, and what their prompts share where that is asked for."""

    trace: Trace
    blocks: BlockRequests | None
    block_tokens: int

    @classmethod
    def of(cls, trace: Trace, block_tokens: int | None, *, shared: bool) -> "TraceRows":
        """Raises PlannerError for traces that say nothing of what prompts share where they must."""
        size = trace.block_tokens if trace.blocks else block_tokens or trace.block_tokens
        return cls(trace, block_requests(trace, block_tokens) if shared else None, size)

    def requests(self, times_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", seed: int) -> Requests:
        """As many as there are times."""
        rows = len(self.trace)
        number_R = int(np.random.default_rng(seed).integers(rows)) + np.arange(len(times_s))
        row_R, round_R = number_R % rows, number_R // rows
        inputs = self.trace.input_tokens[row_R]
        stream = Requests.open_stream(times_s, inputs, self.trace.output_tokens[row_R])
        return stream if self.blocks is None else self._with_prefixes(stream, self.blocks, row_R, round_R)

    def _with_prefixes(self, stream: Requests, blocks: BlockRequests, row_R: Ints, round_R: Ints) -> Requests:
        counts = np.diff(blocks.first_R)[row_R]
        ends = np.concatenate([[0], np.cumsum(counts)])
        within_H = np.arange(ends[-1]) - np.repeat(ends[:-1], counts)
        block_H = blocks.block_A[np.repeat(blocks.first_R[row_R], counts) + within_H]
        named_H = block_H + np.repeat(round_R, counts) * blocks.num_blocks
        left_H = np.repeat(stream.input_tokens, counts) - within_H * self.block_tokens
        if (left_H <= 0).any():
            raise PlannerError(
                "a prompt has more blocks than its tokens fill",
                where=self.trace.name,
                hint=f"give blocks of {self.block_tokens} tokens",
            )
        _, first, prefix = np.unique(named_H, return_index=True, return_inverse=True)
        sizes = np.minimum(left_H[first], self.block_tokens)
        return replace(stream, prefix_of=ends, prefix=prefix.astype(np.int64), prefix_tokens=sizes)


def rows_of_plan(problem: Problem | None, decision: Decision, hand: AtHand) -> TraceRows | None:
    """The rows of the trace that the only workload of a plan names; None where it names none.

    Raises NotAtHand where the file is not.
    """
    if problem is None or len(problem.workloads) != 1:
        return None
    sides = [getattr(problem.workloads[0], side) for side in ("input_tokens", "output_tokens")]
    if not all(isinstance(side, TraceLengths) for side in sides) or sides[0].trace != sides[1].trace:
        return None
    path = hand.file(sides[0].trace, "inputs.workloads.0.input_tokens")
    return TraceRows.of(
        read_trace(path),
        None if problem.cache is None else problem.cache.block_tokens,
        shared=buys_memory(decision),
    )


def buys_memory(decision: Decision) -> bool:
    """Whether a plan buys memory for prefixes."""
    return decision.cache is not None and decision.cache.size_bytes > 0.0
