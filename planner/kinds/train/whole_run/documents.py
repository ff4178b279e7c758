"""The documents of one step: how many there are of each length, and the sequences that they are packed into."""

import math

from planner.errors import PlannerError
from planner.kinds.train.options import TrainOptions

Packed = tuple[int, ...]
"""Tokens of the documents of a sequence, longest first."""


def apportioned(shares: list[float], total: int) -> list[int]:
    """Whole numbers in these shares that sum up to `total`, largest remainders first."""
    exact = [total * share / sum(shares) for share in shares]
    counts = [math.floor(value) for value in exact]
    for kind in sorted(range(len(shares)), key=lambda kind: counts[kind] - exact[kind])[: total - sum(counts)]:
        counts[kind] += 1
    return counts


def documents_of(options: TrainOptions) -> tuple[list[int], list[int]]:
    """Lengths, longest first, and how many of each a step has: as many tokens as its packed sequences, rounded."""
    rows = sorted(options.documents, key=lambda row: -row.tokens)
    shares = [row.share for row in rows]
    mean = sum(row.tokens * row.share for row in rows) / sum(shares)
    total = max(round(options.global_batch * options.sequence_tokens / mean), 1)
    return [row.tokens for row in rows], apportioned(shares, total)


def packed_sequences(options: TrainOptions) -> list[Packed]:
    """The sequences of a step, most operations first: each document in the fullest sequence that has room for it.

    Documents that none has room for are those of a later step. Raises PlannerError where a sequence stays empty.
    """
    lengths, counts = documents_of(options)
    left = [options.sequence_tokens] * options.global_batch
    rows: list[list[int]] = [[] for _ in left]
    for tokens, number in zip(lengths, counts, strict=True):
        for _ in range(number):
            fitting = [n for n, room in enumerate(left) if room >= tokens]
            if fitting:
                n = min(fitting, key=lambda n: left[n])
                rows[n].append(tokens)
                left[n] -= tokens
    if not all(rows):
        raise PlannerError(
            f"documents fill {sum(map(bool, rows))} of {len(rows)} sequences of a step",
            where="options.documents",
            hint=f"write `global_batch: {sum(map(bool, rows))}`, or shorter sequences",
        )
    return sorted(map(tuple, rows), key=lambda row: (-sum(tokens * tokens for tokens in row), row))


def micro_batches_of(sequences: list[Packed], replicas: int) -> list[tuple[Packed, ...]]:
    """Micro-batches of one sequence a replica, those alike together."""
    return [tuple(sequences[first : first + replicas]) for first in range(0, len(sequences), replicas)]
