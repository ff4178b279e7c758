"""Where the ranks of a group sit: nested domains of devices, from the NVLink island outwards."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """One ring of the topology: `size` devices reach each other at this bandwidth or better."""

    name: str  # "nvlink", "rack", "fabric"
    size: int  # devices in one domain of this level; each a multiple of the level inside it
    bandwidth_bytes_per_s: float  # per device, one direction, oversubscription already divided out
    latency_s: float  # one hop


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels from the innermost out; the last one holds every device."""

    levels: tuple[Level, ...]

    def members_per_domain(self, group_size: IntArray, stride: IntArray) -> list[IntArray]:
        """For each level, how many ranks of a group (devices first, first+stride, ...) share one domain of it.

        `group_size` and `stride` broadcast; groups are aligned, as launchers place them.
        """
        size = np.asarray(group_size, dtype=np.int64)
        step = np.maximum(np.asarray(stride, dtype=np.int64), 1)
        return [np.clip(level.size // step, 1, size) for level in self.levels]
