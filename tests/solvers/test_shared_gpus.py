"""Replicas that share GPUs against every way to put them on GPUs."""

import numpy as np
import pytest

from planner.solvers.workflow.shared_gpus import gpus_of, spread

SIZES = (0.15, 0.25, 0.3, 0.35, 0.45, 0.5, 0.6, 0.7)


def fewest(shares: list[float]) -> int:
    """By putting one replica after the other on every GPU that has room, and on a new one."""
    best = len(shares)

    def place(left: list[float], rooms: tuple[float, ...]) -> None:
        nonlocal best
        if len(rooms) >= best and left:
            return
        if not left:
            best = min(best, len(rooms))
            return
        for gpu in {room: index for index, room in enumerate(rooms) if room >= left[0] - 1e-9}.values():
            place(left[1:], (*rooms[:gpu], rooms[gpu] - left[0], *rooms[gpu + 1 :]))
        place(left[1:], (*rooms, 1.0 - left[0]))

    place(sorted(shares, reverse=True), ())
    return best


@pytest.mark.parametrize("seed", range(100))
def test_no_fewer_gpus_hold_the_replicas(seed: int) -> None:
    draws = np.random.default_rng(seed)
    replicas = [(float(draws.choice(SIZES)), int(draws.integers(0, 4))) for _ in range(int(draws.integers(1, 4)))]
    least = fewest([share for share, count in replicas for _ in range(count)])
    for rows in (gpus_of(replicas), spread(replicas)):
        assert len(rows) == least
        assert [sum(column) for column in zip(*rows, strict=True)] == [count for _, count in replicas] or not rows
        assert all(sum(n * share for n, (share, _) in zip(row, replicas, strict=True)) <= 1 + 1e-9 for row in rows)
