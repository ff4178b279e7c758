"""Dominance between shapes of an instance-mix problem: those dropped without losing any optimum, vectorised.

Shape a dominates shape c of the same role and pool, with the same slots aside, when k whole instances of a replace one
of c: they carry at least its load of every demand and its traffic, on no more devices in groups that divide c's, at no
higher price, and where clients wait they keep a request no longer (for DEVICES and PRICE, where clients must find room:
no shorter); and those that replace the least of c that are in use are no fewer than the least of a.

Array suffixes: N shapes, K kept shapes, W demands and the port, V what a dominator may have no more of: the stays of
demands whose clients wait, and fullness.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.solvers.mix import MixObjective, MixProblem, MixRole, MixShape, Slots, port_bytes_per_s

_Group: TypeAlias = tuple[MixRole, int, tuple[Slots, ...], int]
"""Role, pool, slots aside and channel of shapes that are compared."""
BLOCK = 256  # shapes compared with the kept ones at a time; bounds the memory of one comparison


def dominators(problem: MixProblem, fullness: Sequence[float] = ()) -> dict[int, int]:
    """For each shape that can be dropped, one kept shape that replaces it; equal shapes leave the canonically first.

    Stages of one channel stand in for those of another only where the whole channel goes: each of its shapes that is
    left has a stand-in there. Shapes with a limit of their own dominate nothing, and
    where a role is limited in number, or shapes have slots aside, only one-for-one replacement counts. Prices count
    where the objective or a limit reads them (for DEVICES as the second criterion), ports where something is moved.
    With `fullness`, the share of its memory that each shape fills, none stands in for one that leaves more room.
    O(N x K) comparisons of W figures for K kept shapes.
    """
    limited = {role for role, _ in problem.limits.max_instances}
    groups: dict[_Group, list[int]] = {}
    for c in canonical_order(problem):
        shape = problem.shapes[c]
        groups.setdefault((shape.role, shape.pool, shape.aside, shape.channel), []).append(c)
    winner_of: dict[int, int] = {}
    for (role, _, aside, _), members in groups.items():
        rows = _Rows.of(problem, members, fullness, one_for_one=role in limited or bool(aside))
        winner_of |= {members[loser]: members[winner] for loser, winner in _within(rows).items()}
    return winner_of | _channels_dropped(problem, groups, winner_of, fullness, limited)


def _channels_dropped(
    problem: MixProblem,
    groups: "dict[_Group, list[int]]",
    winner_of: dict[int, int],
    fullness: Sequence[float],
    limited: set[MixRole],
) -> dict[int, int]:
    """The shapes of channels of which every shape has a stand-in in one other channel, with those."""
    dropped: dict[int, int] = {}
    channels = sorted({key[3] for key in groups if key[0] is not MixRole.WHOLE})
    kept = {key: [c for c in members if c not in winner_of] for key, members in groups.items()}
    for gone, stays in itertools.permutations(reversed(channels), 2):
        if any(kept[key][0] in dropped for key in kept if key[3] in (gone, stays) and key[0] is not MixRole.WHOLE):
            continue
        stand_ins: dict[int, int] = {}
        own = [key for key in kept if key[3] == gone and key[0] is not MixRole.WHOLE]
        for role, pool, aside, _ in own:
            losers, rivals = kept[role, pool, aside, gone], kept.get((role, pool, aside, stays), [])
            one_for_one = role in limited or bool(aside)
            rows = _Rows.of(problem, [*rivals, *losers], fullness, one_for_one=one_for_one)
            wins = rows.wins(np.arange(len(rivals)), np.arange(len(rivals), len(rivals) + len(losers)))
            stand_ins |= {c: rivals[int(np.argmax(wins[:, i]))] for i, c in enumerate(losers) if wins[:, i].any()}
        if len(stand_ins) == sum(len(kept[key]) for key in own):
            dropped |= stand_ins
    return dropped


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
            *(tuple(-rate for rate in shape.rate_per_s), shape.least, -(np.inf if port is None else port)),
            tuple(sign * stay for stay in shape.held_s),
            *(np.inf if shape.max_instances is None else shape.max_instances, shape.aside, shape.name),
        )

    return sorted(range(len(problem.shapes)), key=key)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Shapes of one role and pool, in canonical order, as what dominance compares."""

    devices_N: Floats
    group_N: Floats
    price_N: Floats
    load_NW: Floats
    together_N: Floats
    least_NV: Floats
    free_N: Bools
    one_for_one: bool

    @classmethod
    def of(
        cls, problem: MixProblem, members: Sequence[int], fullness: Sequence[float], *, one_for_one: bool
    ) -> "_Rows":
        """The rows of these shapes of a problem."""
        shapes = [problem.shapes[c] for c in members]
        priced = problem.limits.price_per_hour is not None or problem.objective in (
            MixObjective.DEVICES,
            MixObjective.PRICE,
        )
        moving = any(demand.transfer_bytes > 0.0 for demand in problem.demands)
        ports = [port_bytes_per_s(shape) if moving else None for shape in shapes]
        rates = np.array([shape.rate_per_s for shape in shapes]).reshape(len(shapes), len(problem.demands))
        least_NV = _stays(problem, shapes)
        if fullness:
            least_NV = np.column_stack([least_NV, [fullness[c] for c in members]])
        return cls(
            devices_N=np.array([shape.devices for shape in shapes], dtype=float),
            group_N=np.array([shape.group_devices for shape in shapes], dtype=float),
            price_N=np.array([shape.price_per_hour if priced else 0.0 for shape in shapes]),
            load_NW=np.column_stack([rates, [np.inf if port is None else port for port in ports]]),
            together_N=np.array([float(shape.least) for shape in shapes]),
            least_NV=least_NV,
            free_N=np.array([shape.max_instances is None for shape in shapes], dtype=bool),
            one_for_one=one_for_one,
        )

    def wins(self, rivals: Indices, block: Indices) -> Bools:
        """[rival, block] whether whole copies of a rival replace one shape of the block."""
        copies = np.ones((len(rivals), len(block)))
        with np.errstate(divide="ignore", invalid="ignore"):
            for load_N in self.load_NW.T:
                have, need = load_N[rivals][:, None], load_N[block][None, :]
                ratio = np.where((need == 0.0) | np.isinf(have), 0.0, need / have)
                copies = np.maximum(copies, np.ceil(ratio))
            possible = copies * self.devices_N[rivals][:, None] <= self.devices_N[block][None, :]
            possible &= copies * self.price_N[rivals][:, None] <= self.price_N[block][None, :]
            possible &= copies * self.together_N[block][None, :] >= self.together_N[rivals][:, None]
        possible &= self.group_N[block][None, :] % self.group_N[rivals][:, None] == 0.0
        possible &= np.isfinite(copies) & self.free_N[rivals][:, None]
        for least_N in self.least_NV.T:
            possible &= least_N[rivals][:, None] <= least_N[block][None, :]
        return np.asarray(possible & (copies == 1.0) if self.one_for_one else possible)


def _within(rows: _Rows) -> dict[int, int]:
    """`dominators` among shapes of one role, pool and channel given in canonical order."""
    # A dominator carries at least as much per device; sorted so, it precedes what it dominates (ties: canonical order,
    # which puts fewer devices, lower prices and higher rates first).
    order_N = np.argsort(-rows.load_NW[:, :-1].sum(axis=1) / rows.devices_N, kind="stable")
    winner_of: dict[int, int] = {}
    kept: list[int] = []
    for start in range(0, len(order_N), BLOCK):
        block = order_N[start : start + BLOCK]
        rivals = np.concatenate([np.array(kept, dtype=int), block])
        wins = rows.wins(rivals, block)
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
