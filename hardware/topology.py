"""How devices are joined: the wiring of a pool's nodes, and the nested domains that costs see of it.

Shapes: G groups, R ranks of a group, T levels of the topology.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class CircuitSwitch:
    """Optical circuits between racks: links that a rack has room for, what one carries, how long a change takes."""

    ports: int
    link_bytes_per_s: float  # one direction
    switching_s: float


@dataclass(frozen=True, slots=True)
class Wiring:
    """What joins the nodes of a pool beyond their node type; what is empty is as the type has it.

    Costs, placement, checks and emitted files read racks, domains and uplinks here, through `Pool`.
    """

    racks: tuple[int, ...] = ()  # nodes of each, in order; they need not be equal
    uplink_bytes_per_s: float | None = None  # of every rack and direction; None: adapters alone limit
    groups: tuple[tuple[int, ...], ...] = ()  # nodes in service that share a scale-up domain, as their links go
    circuits: CircuitSwitch | None = None  # between racks


UNWIRED = Wiring()


@dataclass(frozen=True, slots=True)
class Level:
    """One ring of the topology: `size` devices reach each other at this bandwidth or better."""

    name: str  # "nvlink", "rack", "fabric"
    size: int  # devices in one domain of this level; each a multiple of the level inside it
    bandwidth_bytes_per_s: float  # per device, one direction, oversubscription already divided out
    latency_s: float  # one hop
    mesh: bool = False  # every two devices have a link of their own, and no switch joins them

    def rate_bytes_per_s(self, ranks: ArrayLike) -> Floats:
        """What one of `ranks` devices can send to the others: in a mesh only the links between them carry it."""
        count = np.asarray(ranks, dtype=np.float64)
        if not self.mesh or self.size < 2:
            return np.full_like(count, self.bandwidth_bytes_per_s)
        return np.asarray(self.bandwidth_bytes_per_s * np.maximum(count - 1.0, 1.0) / (self.size - 1.0))


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels from the innermost out; the last one holds every device."""

    levels: tuple[Level, ...]

    def members_per_domain(self, group_size: Ints, stride: Ints) -> list[Ints]:
        """For each level, how many ranks of a group (devices first, first+stride, ...) share one domain of it.

        `group_size` and `stride` broadcast; groups are aligned, as launchers place them: the count is exact when
        the stride and the span `group_size * stride` each divide the level's size or are multiples of it. The outermost
        level holds all ranks whatever their stride is.
        """
        size = np.asarray(group_size, dtype=np.int64)
        step = np.maximum(np.asarray(stride, dtype=np.int64), 1)
        inner = [np.clip(level.size // step, 1, size) for level in self.levels[:-1]]
        return [*inner, np.broadcast_to(size, np.broadcast_shapes(size.shape, step.shape))]

    def domains(self, devices_GR: ArrayLike) -> Ints:
        """The domain of every device at every level, as an array [T, G, R]; any leading shape may stand for G.

        Raises IndexError for a device outside the topology.
        """
        devices = np.asarray(devices_GR, dtype=np.int64)
        if devices.size and not (devices.min() >= 0 and devices.max() < self.levels[-1].size):
            raise IndexError(f"device outside 0..{self.levels[-1].size - 1}")
        return np.stack([devices // level.size for level in self.levels])

    def spanning_level(self, devices_GR: ArrayLike) -> Ints:
        """For each group, the index [G] of the innermost level that has all its devices in one domain."""
        domain_TGR = self.domains(devices_GR)
        together_TG = (domain_TGR == domain_TGR[..., :1]).all(axis=-1)
        return np.asarray(together_TG.argmax(axis=0), dtype=np.int64)
