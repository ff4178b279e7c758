"""Dominance between shapes of an instance-mix problem: those dropped without losing any optimum, vectorised.

Shape a dominates shape c of the same role and pool, with the same slots aside, when k whole instances of a replace one
of c: they carry at least its load of every demand and its traffic, on no more devices in groups that divide c's, at no
higher price, and where clients wait they keep a request no longer (for DEVICES and PRICE, where clients must find room:
no shorter).

Array suffixes: N shapes, K kept shapes, W demands and the port, V what a dominator may have no more of: the stays of
demands whose clients wait, and fullness.
"""

from collections.abc import Sequence

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.solvers.mix import MixObjective, MixProblem, MixRole, MixShape, Slots, port_bytes_per_s

BLOCK = 256  # shapes compared with the kept ones at a time; bounds the memory of one comparison


def dominators(problem: MixProblem, fullness: Sequence[float] = ()) -> dict[int, int]:
    """For each shape that can be dropped, one kept shape that replaces it; equal shapes leave the canonically first.

    Stages of one channel do not stand in for those of another. Shapes with a limit of their own dominate nothing, and
    where a role is limited in number, or shapes have slots aside, only one-for-one replacement counts. Prices count
    where the objective or a limit reads them (for DEVICES as the second criterion), ports where something is moved.
    With `fullness`, the share of its memory that each shape fills, none stands in for one that leaves more room.
    O(N x K) comparisons of W figures for K kept shapes.
    """
    limited = {role for role, _ in problem.limits.max_instances}
    groups: dict[tuple[MixRole, int, int, tuple[Slots, ...]], list[int]] = {}
    for c in canonical_order(problem):
        shape = problem.shapes[c]
        groups.setdefault((shape.role, shape.pool, shape.channel, shape.aside), []).append(c)
    priced = problem.limits.price_per_hour is not None or problem.objective in (
        MixObjective.DEVICES,
        MixObjective.PRICE,
    )
    moving = any(demand.transfer_bytes > 0.0 for demand in problem.demands)
    winner_of: dict[int, int] = {}
    for (role, _, _, aside), members in groups.items():
        shapes = [problem.shapes[c] for c in members]
        least_NV = _stays(problem, shapes)
        if fullness:
            least_NV = np.column_stack([least_NV, [fullness[c] for c in members]])
        one_for_one = role in limited or bool(aside)
        for loser, winner in _within(shapes, least_NV, one_for_one=one_for_one, priced=priced, moving=moving).items():
            winner_of[members[loser]] = members[winner]
    return winner_of


def _stays(problem: MixProblem, shapes: list[MixShape]) -> Floats:
    """[N, demands with clients] how long each shape keeps a request, so that less is better."""
    sign = 1.0 if problem.maximising else -1.0
    waiting = [w for w, demand in enumerate(problem.demands) if demand.clients is not None]
    return np.array([[sign * shape.held_s[w] for w in waiting] for shape in shapes]).reshape(len(shapes), len(waiting))


def canonical_order(problem: MixProblem) -> list[int]:
    """The shapes in an order that depends on what they are and not on where they stand; names break ties."""

    sign = 1.0 if problem.maximising else -1.0

    def key(c: int) -> tuple[object, ...]:
        shape = problem.shapes[c]
        port = port_bytes_per_s(shape)
        return (
            *(shape.role, shape.pool, shape.channel, shape.devices, shape.group_devices, shape.price_per_hour),
            *(tuple(-rate for rate in shape.rate_per_s), -(np.inf if port is None else port)),
            tuple(sign * stay for stay in shape.held_s),
            *(np.inf if shape.max_instances is None else shape.max_instances, shape.aside, shape.name),
        )

    return sorted(range(len(problem.shapes)), key=key)


def _within(
    shapes: list[MixShape], least_NV: Floats, *, one_for_one: bool, priced: bool, moving: bool
) -> dict[int, int]:
    """`dominators` among shapes of one role and pool given in canonical order."""
    devices_N = np.array([shape.devices for shape in shapes], dtype=float)
    group_N = np.array([shape.group_devices for shape in shapes], dtype=float)
    price_N = np.array([shape.price_per_hour if priced else 0.0 for shape in shapes])
    ports = [port_bytes_per_s(shape) if moving else None for shape in shapes]
    port_N = np.array([np.inf if port is None else port for port in ports])
    load_NW = np.column_stack([np.array([shape.rate_per_s for shape in shapes]), port_N])
    free_N = np.array([shape.max_instances is None for shape in shapes])
    # A dominator carries at least as much per device; sorted so, it precedes what it dominates (ties: canonical order,
    # which puts fewer devices, lower prices and higher rates first).
    order_N = np.argsort(-load_NW[:, :-1].sum(axis=1) / devices_N, kind="stable")
    winner_of: dict[int, int] = {}
    kept: list[int] = []
    for start in range(0, len(shapes), BLOCK):
        block = order_N[start : start + BLOCK]
        rivals = np.concatenate([np.array(kept, dtype=int), block])
        wins = _replaces(rivals, block, devices_N, group_N, price_N, load_NW, one_for_one=one_for_one)
        wins &= free_N[rivals][:, None]
        for least_N in least_NV.T:
            wins &= least_N[rivals][:, None] <= least_N[block][None, :]
        for column, c in enumerate(block.tolist()):
            # Rows of the block itself count only up to this shape, and only while they are kept.
            earlier = len(rivals) - len(block) + column
            winners = np.flatnonzero(wins[:earlier, column])
            if len(winners):
                winner_of[c] = int(rivals[winners[0]])
                wins[earlier, :] = False
            else:
                kept.append(c)
    return winner_of


def _replaces(
    rivals: Indices,
    block: Indices,
    devices_N: Floats,
    group_N: Floats,
    price_N: Floats,
    load_NW: Floats,
    *,
    one_for_one: bool,
) -> Bools:
    """[rival, block] whether whole copies of a rival replace one shape of the block."""
    copies = np.ones((len(rivals), len(block)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for w in range(load_NW.shape[1]):
            have, need = load_NW[rivals, w][:, None], load_NW[block, w][None, :]
            ratio = np.where((need == 0.0) | np.isinf(have), 0.0, need / have)
            copies = np.maximum(copies, np.ceil(ratio))
        fits = copies * devices_N[rivals][:, None] <= devices_N[block][None, :]
        cheap = copies * price_N[rivals][:, None] <= price_N[block][None, :]
    small = group_N[block][None, :] % group_N[rivals][:, None] == 0.0
    possible = fits & cheap & small & np.isfinite(copies)
    return np.asarray(possible & (copies == 1.0) if one_for_one else possible)
