"""Kernel times from sizes: GEMM, attention, memory-bound passes, and collectives between ranks.

Every function gives a `Kernel` in seconds at the data sheet's rates of one machine.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from planner.costs.operators.elementwise import Pass
from planner.costs.operators.exchanges import sweeps
from planner.costs.rates.overlap import TILE_SHAPES
from planner.costs.training.config import Machine
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD, Kernel

PEAK_OF = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "nvfp4"}
VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.0, "nvfp4": 0.5625}
_WAVE_SHARE = 0.5  # of the idle part of the last wave that is lost: split-K and stream-K schedules fill the rest


@lru_cache(maxsize=65536)
def product(
    machine: Machine, kind: str, part: int, module: str, m: float, n: float, k: float,
    precision: str = "bf16", groups: float = 1.0, runs: float = 1.0,
) -> Kernel:  # fmt: skip
    """`runs` runs of `groups` products [m, k] x [k, n] in one launch each."""
    flop_s = 2.0 * groups * m * n * k / machine.peak_flop_per_s[PEAK_OF[precision]]
    value = VALUE_BYTES[precision]
    moved = groups * (value * (m * k + k * n) + 2.0 * m * n)
    waste = tile_waste(m, n, groups, machine.num_multiprocessors)
    move_s = moved / machine.memory_bandwidth_bytes_per_s
    kernel = Kernel(f"{kind}.{precision}", part, module, runs * flop_s * waste, runs * move_s, launches=runs)
    return kernel._replace(m=m, n=n, k=k) if groups == 1.0 else kernel


def tile_waste(m: float, n: float, groups: float, multiprocessors: int) -> float:
    """How much longer a product takes for its ragged tiles and its last wave; the best of the usual tile shapes."""
    best = math.inf
    for rows, cols in TILE_SHAPES:
        down, across = math.ceil(m / rows), math.ceil(n / cols)
        padding = down * rows * across * cols / (m * n)
        waves = groups * down * across / multiprocessors
        last = math.ceil(waves) / waves
        best = min(best, padding * (1.0 + _WAVE_SHARE * (min(last, 8.0) - 1.0)))
    return best


def memory_pass(machine: Machine, kind: str, part: int, module: str, size_bytes: float, launches: float) -> Kernel:
    """Elementwise kernels that move `size_bytes` in `launches` launches."""
    move_s = size_bytes / machine.memory_bandwidth_bytes_per_s
    return Kernel(kind, part, module, move_s=move_s, launches=launches)


def pass_kernels(
    machine: Machine, passed: Pass, *, kind: str = "elementwise", gradient_of: int = BACKWARD_INPUT
) -> Iterator[Kernel]:
    """An elementwise operator and its gradient."""
    for part, (moved, kernels) in ((FORWARD, passed.forward), (gradient_of, passed.backward)):
        yield memory_pass(machine, kind, part, passed.module, float(moved), kernels)


def sweep(
    machine: Machine, kind: str, part: int, module: str, size_bytes: float, group: float, stride: float, runs: float
) -> Kernel:
    """`runs` all-gathers or reduce-scatters of a buffer of `size_bytes` over `group` ranks `stride` GPUs apart.

    An all-reduce is two runs. The part inside a domain moves (g1 - 1) / g1 of the buffer, the part between domains
    (g2 - 1) / g2 of what is left to each of the g1 ranks.
    """
    inside, outside = spread_ranks(machine, group, stride)
    within = runs * (inside - 1.0) / inside * size_bytes / machine.link_bytes_per_s
    beyond = runs * (outside - 1.0) / outside * size_bytes / inside / machine.fabric_bytes_per_s
    return Kernel(kind, part, module, inside_s=within, outside_s=beyond, launches=runs)


def collectives(
    machine: Machine, kind: str, part: int, module: str, size_bytes: float, group: float, stride: float,
    kinds: Iterable[str],
) -> Kernel:  # fmt: skip
    """Collectives of these kinds of a buffer of `size_bytes`, one after the other."""
    return sweep(machine, kind, part, module, size_bytes, group, stride, sweeps(kinds))


def scatter(
    machine: Machine, kind: str, part: int, module: str, size_bytes: float, group: float, stride: float, runs: float
) -> Kernel:
    """`runs` all-to-alls in which every rank of `group` sends `size_bytes` in all, spread evenly over the group."""
    inside, outside = spread_ranks(machine, group, stride)
    within = runs * (inside - 1.0) / group * size_bytes / machine.link_bytes_per_s
    beyond = runs * (1.0 - 1.0 / outside) * size_bytes / machine.fabric_bytes_per_s
    return Kernel(kind, part, module, inside_s=within, outside_s=beyond, launches=runs)


def spread_ranks(machine: Machine, group: float, stride: float) -> tuple[float, float]:
    """Ranks of a group inside one domain, and how many domains it spans."""
    inside = min(group, max(float(machine.domain_gpus // max(int(stride), 1)), 1.0))
    return inside, group / inside


def message_s(machine: Machine, size_bytes: float, stride: int) -> tuple[float, float]:
    """Seconds at full rate of one message to the rank `stride` GPUs on: inside the domain, and between domains."""
    if stride < machine.domain_gpus:
        return size_bytes / machine.link_bytes_per_s, 0.0
    return 0.0, size_bytes / machine.fabric_bytes_per_s
