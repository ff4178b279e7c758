"""A pipeline as a graph of passes, its longest path found node by node: slow, plain, and apart from the solver."""

from collections.abc import Sequence
from functools import cache

FORWARD, BACKWARD, INPUT, WEIGHT, JOINED = range(5)
Row = tuple[int, int, int]


def group_rows(rows: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows that run at once: a joined forward pass with the row after it."""
    groups, index = [], 0
    while index < len(rows):
        size = 2 if rows[index][0] == JOINED else 1
        groups.append(tuple(rows[index : index + size]))
        index += size
    return groups


def rank_ends(
    rows_of_rank: Sequence[Sequence[Row]],
    forward: Sequence[float],
    inputs: Sequence[float],
    weights: Sequence[float],
    handover: Sequence[float],
    joined: Sequence[float],
) -> list[float]:
    """When each rank ends, by recursion over what every group of rows waits for."""
    order = [group_rows(rows) for rows in rows_of_rank]
    home = {}
    for rank, groups in enumerate(order):
        for index, group in enumerate(groups):
            for kind, stage, batch in group:
                if kind != WEIGHT:
                    home[stage, batch, kind in (BACKWARD, INPUT)] = (rank, index)
    last = len(forward) - 1

    @cache
    def end(rank: int, index: int) -> float:
        start = end(rank, index - 1) if index else 0.0
        took = 0.0
        for kind, stage, batch in order[rank][index]:
            if kind in (FORWARD, JOINED):
                took += forward[stage] - (joined[stage] if kind == JOINED else 0.0)
                if stage > 0:
                    start = max(start, end(*home[stage - 1, batch, False]) + handover[stage - 1])
            elif kind == WEIGHT:
                took += weights[stage]
            else:
                took += inputs[stage] + (weights[stage] if kind == BACKWARD else 0.0)
                before = home[stage, batch, False] if stage == last else home[stage + 1, batch, True]
                start = max(start, end(*before) + (handover[stage] if stage < last else 0.0))
        return start + took

    for rank, groups in enumerate(order):  # from the front, so that the recursion stays shallow
        for index in range(len(groups)):
            end(rank, index)
    return [end(rank, len(groups) - 1) for rank, groups in enumerate(order)]


def rank_peaks(rows_of_rank: Sequence[Sequence[Row]], resident: Sequence[float], kept: Sequence[float]) -> list[float]:
    """The most each rank holds, from the list of what is alive during each row."""
    peaks = []
    for rows in rows_of_rank:
        done: dict[tuple[int, int, int], int] = {}
        for row, (kind, stage, batch) in enumerate(rows):
            names = {FORWARD: (0,), JOINED: (0,), INPUT: (1,), WEIGHT: (2,), BACKWARD: (1, 2)}[kind]
            done |= {(name, stage, batch): row for name in names}
        passes = [(stage, batch) for name, stage, batch in done if name == 0]
        levels = []
        for row in range(len(rows)):
            alive = [(s, b) for s, b in passes if done[0, s, b] <= row]
            level = sum(resident[s] - kept[s] for s, b in alive if done[1, s, b] >= row)
            levels.append(level + sum(kept[s] for s, b in alive if done[2, s, b] >= row))
        peaks.append(max(levels))
    return peaks
