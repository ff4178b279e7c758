"""A context-parallel degree for each document of a training plan, and the threshold that Megatron-LM takes them by.

Sources: Megatron-LM's hybrid context parallelism (megatron/core/pipeline_parallel/hybrid_cp_schedule.py of core 0.16: a
document of s tokens takes the least power of two of ranks that keeps s / degree within `--max-seqlen-per-dp-cp-rank`);
ByteScale (arXiv:2502.21231). A step's documents come in the shares of the problem. Each is priced at each degree by the
layers of the plan, nothing else changed; a rank holds at most the tokens that it has of a packed sequence. Thresholds
are its halves; documents under one are placed longest first on the least loaded block of their degree, where
Megatron-LM forms groups one after the other. Beside it stand free degrees (`solvers.contexts.degrees`) and their bound:
what no degrees on these ranks are below. Degrees are decided on the plan that is best for packed sequences.
"""

from dataclasses import replace
from itertools import count, takewhile

import numpy as np

from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.space.tables import CostTable
from planner.kinds.train.unlike import DocumentDegree, SequenceDegrees
from planner.kinds.train.whole_run.documents import documents_of
from planner.plan.schema import Envelope, Prediction
from planner.solvers.contexts.degrees import Choice, DegreeProblem, best_degrees, bound_s, fullest_s

BY_LENGTH = (
    "documents come in their shares in every step, each on the degree that the threshold gives its length, longest"
    " first on the least loaded block"
)
TIME_LIMIT_S, STARTS, LEAST_TOKENS = 2.0, 1, 256
GOOD = 5e-3  # above the bound: free degrees are not searched


def with_degrees(envelope: Envelope, best: Evaluation, given: SequenceDegrees | None = None) -> Envelope:
    """The plan with the degrees of its documents, where the problem asks for them.

    given: what a plan says of free degrees is taken over between bound and rule; the rest is derived again.
    """
    if not best.choice.table.job.options.degrees_by_document:
        return envelope
    made = decided(best, given)
    step = Prediction(metric="degrees_step_time_s", value=best.with_span_s(made.span_s))
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "sequence_degrees": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, BY_LENGTH),
        }
    )


def decided(best: Evaluation, given: SequenceDegrees | None) -> SequenceDegrees:
    """The best threshold, and what free degrees come to."""
    lengths, counts = documents_of(best.choice.table.job.options)
    problem = degree_problem(best, lengths, counts)
    rows = [(_rule(problem, lengths, counts, most), most) for most in thresholds(best, problem)]
    (span_s, most), least_s = min((fullest_s(problem, choices), most) for choices, most in rows), bound_s(problem)
    free_s = span_s
    if given is not None:
        free_s = min(max(given.free_s, least_s), span_s)
    elif span_s > least_s * (1.0 + GOOD):
        result = best_degrees(problem, time_limit_s=TIME_LIMIT_S, starts=STARTS)
        assert result.objective is not None
        free_s = min(result.objective, span_s)
    degrees = [least_degree(tokens, most) for tokens in lengths]
    return SequenceDegrees(
        max_tokens_per_rank=most,
        documents=tuple(
            DocumentDegree(tokens=tokens, documents=number, degree=degree)
            for tokens, number, degree in zip(lengths, counts, degrees, strict=True)
        ),
        span_s=span_s,
        packed_s=best.pipeline_s,
        free_s=free_s,
        bound_s=least_s,
    )


def degree_problem(best: Evaluation, lengths: list[int], counts: list[int]) -> DegreeProblem:
    """Seconds of every document at every power of two of ranks that holds it.

    Raises PlannerError for a document that none holds.
    """
    choice = best.choice
    ranks, most = choice.dp * choice.table.shape.cp, tokens_of_rank(best)
    degrees = tuple(takewhile(lambda degree: ranks % degree == 0, (1 << bit for bit in count())))
    degrees = tuple(degree for degree in degrees if degree <= ranks)
    if least_degree(lengths[0], most) > degrees[-1]:
        raise PlannerError(
            f"a document of {lengths[0]} tokens does not fit {degrees[-1]} ranks of {most} tokens",
            where=choice.table.job.resolved.where(("options", "degrees_by_document")),
            hint=f"cut documents at {degrees[-1] * most} tokens, or leave `degrees_by_document` out",
        )
    row_LC = np.array(
        [[_seconds(best, tokens, c) if tokens <= c * most else np.inf for c in degrees] for tokens in lengths]
    )
    return DegreeProblem(degrees, np.repeat(row_LC, counts, axis=0), ranks)


def tokens_of_rank(best: Evaluation) -> int:
    """That a rank holds of a packed sequence, for which the plan has memory."""
    return best.choice.table.job.options.sequence_tokens // best.choice.table.shape.cp


def _seconds(best: Evaluation, tokens: int, degree: int) -> float:
    """One document through the model on so many ranks, forward and backward, with what the plan computes again."""
    choice = best.choice
    pieces = (2 * degree if degree > 1 else 1) * choice.table.shape.tp
    whole = -(-tokens // pieces) * pieces
    options = choice.table.job.options.model_copy(update={"sequence_tokens": whole, "documents": ()})
    table = CostTable(replace(choice.table.job, options=options), replace(choice.table.shape, cp=degree, micro_batch=1))
    again = table.mode(choice.mode.recompute).extra_s
    extra_s = float(np.array(table.job.count_of_kind) @ np.array(again))
    if choice.full_layers:
        extra_s = choice.full_layers * float(table.pass_K3[:, 0].max())
    return float(table.layers_3.sum()) + sum(table.first.pass_s) + sum(table.last.pass_s) + extra_s


def thresholds(best: Evaluation, problem: DegreeProblem) -> list[int]:
    """Tokens of a rank, halved while the longest document still fits all ranks."""
    options, most = best.choice.table.job.options, tokens_of_rank(best)
    longest, widest = max(row.tokens for row in options.documents), problem.degrees[-1]
    halved = (most >> bit for bit in range(most.bit_length()))
    return [own for own in halved if own == most or (own >= LEAST_TOKENS and least_degree(longest, own) <= widest)]


def least_degree(tokens: int, most: int) -> int:
    """The least power of two of ranks on which a document takes `most` tokens of each."""
    return 1 << max((-(-tokens // most) - 1).bit_length(), 0)


def _rule(problem: DegreeProblem, lengths: list[int], counts: list[int], most: int) -> tuple[Choice, ...]:
    """Every document on its least degree, widest and longest first on the least loaded block."""
    load_R = np.zeros(problem.ranks)
    order = [
        (least_degree(tokens, most), tokens)
        for tokens, number in zip(lengths, counts, strict=True)
        for _ in range(number)
    ]
    choices: list[Choice] = [(0, 0)] * len(order)
    for n in sorted(range(len(order)), key=lambda n: (-order[n][0], -order[n][1])):
        degree = order[n][0]
        block = int(load_R.reshape(-1, degree).max(axis=1).argmin())
        load_R[block * degree : (block + 1) * degree] += problem.seconds_NC[n, problem.degrees.index(degree)]
        choices[n] = degree, block
    return tuple(choices)
