"""Assignment problem: what must move when some of many holders of cells or of shards are gone.

Cells: every replica is one cell of each of K kinds; a cell that changes its kind loads all it holds.

Sets        k in K kinds;  a_k cells left of each,  b blank cells (spares)
Parameter   n replicas that shall stand, with K n <= sum a_k + b
Minimise    moves = sum_k max(0, n - a_k): every kind needs n cells, and has a_k of them for nothing

Shards: a whole is cut into q equal pieces in place of p; whoever held [i/p, (i+1)/p) takes one of the new pieces. The
part that stays is a sum of overlaps over an assignment, and the best assignment is found exactly.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status


@dataclass(frozen=True, slots=True)
class Moves:
    """Replicas that stand, and each cell that changes: (kind before, kind after), -1 for a blank or a spare one."""

    replicas: int
    changes: tuple[tuple[int, int], ...]
    idle: tuple[int, ...]  # kinds of cells that are left over, -1 for blank ones

    @property
    def loads(self) -> int:
        """Cells that must load what they did not hold."""
        return len(self.changes)


def most_replicas(alive: Sequence[int], blank: int) -> int:
    """Whole replicas that the cells can form."""
    return (sum(alive) + blank) // len(alive)


def fewest_moves(alive: Sequence[int], blank: int = 0, replicas: int | None = None) -> SolveResult[Moves]:
    """The fewest cells that change so that `replicas` stand, as many as can where none is given; proven, O(cells).

    INFEASIBLE where there are too few cells.
    """
    started = time.perf_counter()
    if not alive or min(*alive, blank, 0) < 0:
        raise PlannerError("cells of each kind are counted, and none is below 0", where="cells")
    wanted = most_replicas(alive, blank) if replicas is None else replicas
    if wanted < 0 or wanted * len(alive) > sum(alive) + blank:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started)
    spare = [-1] * blank + [kind for kind, count in enumerate(alive) for _ in range(max(0, count - wanted))]
    needed = [kind for kind, count in enumerate(alive) for _ in range(max(0, wanted - count))]
    moves = Moves(wanted, tuple(zip(spare, needed, strict=False)), tuple(spare[len(needed) :]))
    bound = float(sum(max(0, wanted - count) for count in alive))
    return SolveResult(
        Status.OPTIMAL, "finished", moves, float(moves.loads), bound, time.perf_counter() - started, "counting"
    )


@dataclass(frozen=True, slots=True)
class Recut:
    """Shares of the whole: what new pieces over the holders that are left keep in place, move and lose."""

    kept: float  # stays where it is
    moved: float  # comes from another holder that is left
    lost: float  # was held only by those who are gone


def recut(pieces: int, gone: Sequence[int], after: int) -> SolveResult[Recut]:
    """Equal pieces cut anew after some holders are gone: the assignment that keeps most in place, proven.

    Source: Kuhn, Naval Research Logistics 2 (1955), the assignment problem; O(max(pieces, after)^3).
    """
    from scipy.optimize import linear_sum_assignment

    started = time.perf_counter()
    if pieces < 1 or after < 1 or any(not 0 <= index < pieces for index in gone):
        raise PlannerError(f"{pieces} pieces, {after} after, without {list(gone)}", where="pieces")
    left = [index for index in range(pieces) if index not in set(gone)]
    overlap = overlaps(pieces, after)
    kept_LQ = overlap[left]
    rows, columns = linear_sum_assignment(kept_LQ, maximize=True)
    kept = float(kept_LQ[rows, columns].sum())
    lost = len(set(gone)) / pieces
    value = Recut(kept, max(0.0, 1.0 - kept - lost), lost)
    return SolveResult(
        Status.OPTIMAL, "finished", value, value.moved, value.moved, time.perf_counter() - started, "assignment"
    )


def overlaps(before: int, after: int) -> Floats:
    """Share of the whole in old piece i and new piece j [before, after]."""
    low = np.maximum(np.arange(before)[:, None] / before, np.arange(after)[None, :] / after)
    high = np.minimum(np.arange(1, before + 1)[:, None] / before, np.arange(1, after + 1)[None, :] / after)
    return np.asarray(np.maximum(0.0, high - low), dtype=np.float64)
