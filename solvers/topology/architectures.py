"""Groups of m nodes that an architecture of links forms on its healthy nodes, as many as there can be.

Source      InfiniteHBD, SIGCOMM 2025, arXiv:2502.03885: k-hop rings of nodes beside switches, fixed rings and cubes
Sets        n in 0 .. N - 1, nodes in the order of their links; H of them are healthy
Ring        n reaches n +- 1 .. K around the ring. A group is a path of m healthy nodes. Healthy nodes whose gaps are
            at most K form segments that no path leaves, so a segment of L gives floor(L / m) groups: no more have
            room, and neighbours in ring order are paths.
Switch      units of u nodes, any two of a unit reach each other: floor(healthy / m) of each whole unit
Fixed ring  nodes m g .. m g + m - 1 are group g, lost with any of them
Cubes       units of u nodes (a torus of 4 x 4 x 4 chips): aligned blocks of m in a cube, lost with any node; a group
            larger than a cube takes ceil(m / u) cubes without a fault

Shapes: S states of the cluster, N nodes, G groups, m nodes of a group.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import Ints
from planner.errors import PlannerError

WHERE = "architecture"

Health = NDArray[np.bool_]


class Architecture(ABC):
    """How nodes are joined; `healthy` arrays are of nodes in the order of the links."""

    __slots__ = ()

    @abstractmethod
    def groups(self, healthy_N: Health, m: int) -> Ints:
        """The nodes of as many disjoint groups as there can be, [G, m], each in the order of its links."""

    @abstractmethod
    def count(self, healthy_SN: Health, m: int) -> Ints:
        """How many groups there can be in every state, [S]."""

    def largest_group(self, nodes: int) -> int:
        """Nodes of the largest group that `nodes` healthy nodes form."""
        return nodes

    def sizes(self, most: int) -> range:
        """Numbers of nodes that a cluster of at most `most` can have."""
        return range(1, most + 1)


@dataclass(frozen=True, slots=True)
class KHopRing(Architecture):
    """Every node reaches `hops` nodes on either side of it around the ring."""

    hops: int

    def __post_init__(self) -> None:
        _require_positive(self.hops, "hops of a ring")

    def segments(self, healthy_N: Health) -> list[Ints]:
        """Healthy nodes in ring order, cut where more than `hops - 1` nodes in a row are out."""
        up = np.flatnonzero(healthy_N)
        if not len(up):
            return []
        after = np.append(up[1:], up[0] + len(healthy_N))
        cuts = np.flatnonzero(after - up > self.hops)
        if not len(cuts):
            return [up]
        turned = np.roll(up, -(cuts[0] + 1))  # begins behind a cut, so no segment runs over the end
        return np.split(turned, np.cumsum(np.diff(np.append(cuts, cuts[0] + len(up))))[:-1])

    def groups(self, healthy_N: Health, m: int) -> Ints:
        whole = [segment[: len(segment) // m * m].reshape(-1, m) for segment in self.segments(healthy_N)]
        return np.concatenate([np.empty((0, m), np.int64), *whole])

    def count(self, healthy_SN: Health, m: int) -> Ints:
        return np.array([sum(len(s) // m for s in self.segments(state)) for state in healthy_SN], np.int64)


@dataclass(frozen=True, slots=True)
class Switch(Architecture):
    """Units of `unit` nodes behind switches of their own; one switch joins all where it is None."""

    unit: int | None = None

    def __post_init__(self) -> None:
        _require_positive(1 if self.unit is None else self.unit, "nodes of a unit")

    def groups(self, healthy_N: Health, m: int) -> Ints:
        blocks = [np.empty((0, m), np.int64)]
        for first in self._units(len(healthy_N)):
            up = first + np.flatnonzero(healthy_N[first : first + self._size(len(healthy_N))])
            blocks.append(up[: len(up) // m * m].reshape(-1, m))
        return np.concatenate(blocks)

    def count(self, healthy_SN: Health, m: int) -> Ints:
        return np.asarray((_in_units(healthy_SN, self._size(healthy_SN.shape[1])).sum(axis=2) // m).sum(axis=1))

    def largest_group(self, nodes: int) -> int:
        return nodes if self.unit is None else min(self.unit, nodes)

    def sizes(self, most: int) -> range:
        return range(self.unit or 1, most + 1, self.unit or 1)

    def _size(self, nodes: int) -> int:
        return self.unit or nodes

    def _units(self, nodes: int) -> range:
        size = self._size(nodes)
        return range(0, nodes - size + 1, size)


@dataclass(frozen=True, slots=True)
class FixedRings(Architecture):
    """Rings of m neighbours that cannot be re-formed."""

    def groups(self, healthy_N: Health, m: int) -> Ints:
        whole = _in_units(healthy_N[None], m)[0].all(axis=1)
        return np.flatnonzero(whole)[:, None] * m + np.arange(m)

    def count(self, healthy_SN: Health, m: int) -> Ints:
        return np.asarray(_in_units(healthy_SN, m).all(axis=2).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Cubes(Architecture):
    """A torus of cubes of `unit` nodes: blocks of a cube, or several whole cubes by their optical switches."""

    unit: int

    def __post_init__(self) -> None:
        _require_positive(self.unit, "nodes of a cube")

    def groups(self, healthy_N: Health, m: int) -> Ints:
        cubes = _in_units(healthy_N[None], self.unit)[0]
        if m <= self.unit:
            blocks = _in_units(cubes, m).all(axis=2)
            cube, block = np.nonzero(blocks)
            return (cube * self.unit + block * m)[:, None] + np.arange(m)
        whole, needed = np.flatnonzero(cubes.all(axis=1)), -(-m // self.unit)
        nodes = (whole[:, None] * self.unit + np.arange(self.unit)).ravel()
        return nodes[: len(whole) // needed * needed * self.unit].reshape(-1, needed * self.unit)[:, :m]

    def count(self, healthy_SN: Health, m: int) -> Ints:
        cubes = _in_units(healthy_SN, self.unit)
        if m <= self.unit:
            blocks = _in_units(cubes.reshape(-1, self.unit), m).all(axis=2)
            return np.asarray(blocks.reshape(len(healthy_SN), -1).sum(axis=1))
        return np.asarray(cubes.all(axis=2).sum(axis=1) // -(-m // self.unit))

    def sizes(self, most: int) -> range:
        return range(self.unit, most + 1, self.unit)


def groups_on(architecture: Architecture, healthy_N: Health, m: int) -> Ints:
    """The groups [G, m] on the healthy nodes, as many as there can be.

    Raises PlannerError for groups that no unit of the architecture has room for, even with every node healthy.
    """
    _require_positive(m, "nodes of a group")
    largest = architecture.largest_group(len(healthy_N))
    if m > largest:
        raise PlannerError(
            f"groups of {m} nodes, and no more than {largest} are joined",
            where=WHERE,
            hint=f"ask for at most {largest}",
        )
    return architecture.groups(healthy_N, m)


def waste(architecture: Architecture, healthy_SN: Health, m: int) -> NDArray[np.float64]:
    """Healthy nodes that stand in no group, as a share of all nodes, in every state [S]."""
    in_groups = architecture.count(healthy_SN, m) * m
    return np.asarray((healthy_SN.sum(axis=1) - in_groups) / healthy_SN.shape[1])


def _in_units(state_SN: Health, unit: int) -> Health:
    """The whole units of every state, [S, units, unit]."""
    units = state_SN.shape[1] // unit
    return np.asarray(state_SN[:, : units * unit].reshape(len(state_SN), units, unit))


def _require_positive(value: int, name: str) -> None:
    if value < 1:
        raise PlannerError(f"{name}: {value}", where=WHERE, hint="give 1 or more")
