"""Micro-batches of a tower's parts and language parts as passes on the ranks of a pipeline, and 1F1B's order of them.

Source: DIP (arXiv:2504.14145): a segment a modality, in sub-micro-batches; every rank holds layers of both. A forward
pass waits for that of the rank before it, the first of language for all parts of the tower; a backward pass waits for
that of the rank behind it, and the first of a tower's part for those of all language parts on the first rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.solvers.modalities.passes import Orders, Pass, PassProblem, span_s


@dataclass(frozen=True, slots=True)
class PartTimes:
    """A part of a segment on every rank: seconds of both passes, and bytes held from the first to the second."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    held_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Parts of a tower's inputs, none where there are none, and of language."""

    tower: tuple[PartTimes, ...]
    language: tuple[PartTimes, ...]

    @property
    def segments(self) -> tuple[tuple[PartTimes, ...], tuple[PartTimes, ...]]:
        """Tower, language."""
        return self.tower, self.language


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A pass: micro-batch, segment (0 tower, 1 language), part, rank, and whether it is a backward pass."""

    micro_batch: int
    segment: int
    part: int
    rank: int
    backward: int


def pass_problem(batches: Sequence[MicroBatch], capacity_bytes: tuple[float, ...]) -> tuple[PassProblem, list[Key]]:
    """The passes and the key of each, to begin with in the best of 1F1B's orders that fit.

    Raises PlannerError where even one micro-batch after the other does not fit.
    """
    ranks = range(len(capacity_bytes))
    parts = [(b, g, u) for b, batch in enumerate(batches) for g in (0, 1) for u in range(len(batch.segments[g]))]
    keys = [Key(b, g, u, r, d) for b, g, u in parts for d in (0, 1) for r in ranks]
    index = {key: at for at, key in enumerate(keys)}
    group_of = {part: at for at, part in enumerate(parts)}
    passes = []
    for key in keys:
        times = batches[key.micro_batch].segments[key.segment][key.part]
        seconds = (times.backward_s if key.backward else times.forward_s)[key.rank]
        before = tuple(index[each] for each in _before(key, batches[key.micro_batch], len(ranks)))
        partner = None if key.backward else index[Key(key.micro_batch, key.segment, key.part, key.rank, 1)]
        held = 0.0 if key.backward else times.held_bytes[key.rank]
        group = 2 * group_of[key.micro_batch, key.segment, key.part] + key.backward
        passes.append(Pass(key.rank, seconds, before, partner, held, group))
    orders = [
        tuple(tuple(index[key] for key in _rank_order(batches, r, len(ranks) - 1 - r + more, apart)) for r in ranks)
        for more in range(-len(ranks), len(ranks) + 1)
        for apart in range(len(ranks) + 1)
    ]
    return PassProblem(tuple(passes), capacity_bytes, _first_fit(passes, capacity_bytes, orders)), keys


def _before(key: Key, batch: MicroBatch, ranks: int) -> list[Key]:
    """What a pass waits for."""
    b, g, u, r, d = key.micro_batch, key.segment, key.part, key.rank, key.backward
    if not d and r > 0:
        return [Key(b, g, u, r - 1, 0)]
    if not d:
        return [] if g == 0 else [Key(b, 0, v, ranks - 1, 0) for v in range(len(batch.tower))]
    own = [Key(b, g, u, r, 0)]
    if r < ranks - 1:
        return [Key(b, g, u, r + 1, 1), *own]
    return own if g == 1 else [*(Key(b, 1, v, 0, 1) for v in range(len(batch.language))), *own]


def _rank_order(batches: Sequence[MicroBatch], rank: int, ahead: int, apart: int) -> Iterator[Key]:
    """1F1B on whole micro-batches: so many forward ones ahead, then one of each in turn.

    apart: micro-batches by which the tower is in front of language forward, and behind it backward.
    """
    ahead = max(ahead, 0)
    turns = ((0, 0, 0), (1, 0, apart), (1, 1, apart + ahead), (0, 1, 2 * apart + ahead))
    for turn in range(len(batches) + 2 * apart + ahead):
        for segment, backward, late in turns:
            if 0 <= turn - late < len(batches):
                parts = range(len(batches[turn - late].segments[segment]))
                yield from (Key(turn - late, segment, part, rank, backward) for part in parts)


def _first_fit(passes: Sequence[Pass], capacity_bytes: tuple[float, ...], orders: Sequence[Orders]) -> Orders:
    """The orders with the shortest schedule of those that fit."""
    timed = [(span_s(passes, capacity_bytes, own), at) for at, own in enumerate(orders)]
    fitting = [(seconds, at) for seconds, at in timed if seconds is not None]
    if fitting:
        return orders[min(fitting)[1]]
    most = [
        max((each.held_bytes for each in passes if each.rank == r), default=0.0) for r in range(len(capacity_bytes))
    ]
    raise PlannerError(
        "a micro-batch holds more than a rank has room for",
        where="passes",
        hint=f"parts hold up to {max(most):.4g} bytes of {min(capacity_bytes):.4g}: recompute more, or cut finer",
    )
