"""Times a kernel: CUDA events or CUDA-graph replay on a GPU, the thread clock on a CPU.

Inputs are rotated among several sets that together exceed the cache, so that a kernel finds none of them there. What
takes under a millisecond is replayed from a graph: a pass of a dozen kernels costs the host 100 µs and more to launch,
however little the device has to do.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.hardware.profiling.device import DeviceFacts, supports_fp8
from planner.hardware.profiling.kernel import PreparedKernel, device_event
from planner.hardware.profiling.kernel_shape import KernelShape
from planner.hardware.profiling.kernels import prepare
from planner.hardware.profiling.shapes import MemoryPassShape

if TYPE_CHECKING:
    import torch

GRAPH_BELOW_S = 1e-3
_CPU_SAMPLE_S = 100e-6  # the least that the clock of a processor is read over
_WARM_UPS = 3
_WAKING_S = 4e-3  # of work before the first sample: clocks of an idle device rise within it
_GRAPH_S = 1e-3  # a graph holds as many runs as take about this long
_MOST_IN_GRAPH = 512
_SAMPLES = (9, 101)  # at least, at most
_SAMPLING_S = 10e-3
_MOST_SETS = 64
_ROTATED_CACHES = 3.0  # sets of inputs exceed the cache this many times
_CPU_CACHE_BYTES = 2 * 2**20  # of one core; the shared last level is not rotated through


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """The spread of one kernel's time, and how it was taken."""

    median_s: float
    p10_s: float
    p90_s: float
    samples: int
    method: str  # graph, events, clock
    source: str  # the kernel


@contextlib.contextmanager
def one_thread(device: "torch.device") -> Iterator[None]:
    """Keeps PyTorch to one thread while a processor is measured."""
    import torch

    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_shape(shape: KernelShape, device: "torch.device", facts: DeviceFacts) -> KernelTiming:
    """Times one shape over rotated inputs; raises UnsupportedShapeError, and RuntimeError when the device does."""
    fp8 = supports_fp8(facts)
    first = prepare(shape, device, fp8=fp8)
    kernels = [first]
    for _ in range(_num_sets(shape, facts) - 1):
        kernels.append(prepare(shape, device, fp8=fp8, variant=first.variant))
    return time_on_cpu(kernels) if device.type == "cpu" else time_on_cuda(kernels)


def _num_sets(shape: KernelShape, facts: DeviceFacts) -> int:
    if isinstance(shape, MemoryPassShape) and shape.pass_kind == "embedding":
        return 1  # rows are drawn from a table that is larger than a cache
    cache_bytes = facts.l2_bytes or _CPU_CACHE_BYTES
    return int(np.clip(np.ceil(_ROTATED_CACHES * cache_bytes / max(shape.size_bytes, 1.0)), 1, _MOST_SETS))


def time_on_cpu(kernels: Sequence[PreparedKernel]) -> KernelTiming:
    """By the clock of this process, one run a sample; very short kernels several."""
    for kernel in kernels[:_WARM_UPS]:
        kernel.run()
    started = time.perf_counter()
    kernels[0].run()
    once_s = max(time.perf_counter() - started, 1e-7)
    inner = int(np.clip(_CPU_SAMPLE_S / once_s, 1, 1000))
    samples = []
    for sample in range(_num_samples(once_s * inner)):
        started = time.perf_counter()
        for run in range(inner):
            kernels[(sample * inner + run) % len(kernels)].run()
        samples.append((time.perf_counter() - started) / inner)
    return _timing(samples, "clock", kernels[0].source)


def time_on_cuda(kernels: Sequence[PreparedKernel]) -> KernelTiming:
    """By device events around single runs, or around replays of a graph of many."""
    import torch

    _wake(kernels)
    once_s = float(np.median(_event_samples(kernels, 5)))
    if once_s < GRAPH_BELOW_S and kernels[0].capturable:
        try:
            return _time_in_graph(kernels, once_s)
        except RuntimeError:  # a kernel that waits for the host cannot be captured
            torch.cuda.synchronize()
    return _timing(_event_samples(kernels, _num_samples(once_s)), "events", kernels[0].source)


def _wake(kernels: Sequence[PreparedKernel]) -> None:
    """Runs every kernel, and goes on until the device has worked for a while."""
    import torch

    started, runs = time.perf_counter(), 0
    while runs < max(_WARM_UPS, len(kernels)) or time.perf_counter() - started < _WAKING_S:
        kernels[runs % len(kernels)].run()
        runs += 1
        if runs % len(kernels) == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()


def _event_samples(kernels: Sequence[PreparedKernel], samples: int) -> list[float]:
    """Seconds of single runs."""
    import torch

    pairs = []
    for sample in range(samples):
        start, end = device_event(), device_event()
        start.record()
        kernels[sample % len(kernels)].run()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


def _time_in_graph(kernels: Sequence[PreparedKernel], once_s: float) -> KernelTiming:
    """Seconds of a run inside a replayed graph that goes round all sets of inputs."""
    import torch

    rounds = max(1, min(int(_GRAPH_S / once_s), _MOST_IN_GRAPH) // len(kernels))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for kernel in kernels:
                kernel.run()
    runs = rounds * len(kernels)
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(_num_samples(once_s * runs)):
        start, end = device_event(), device_event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3 / runs)
    graph.reset()
    return _timing(samples, "graph", kernels[0].source)


def _num_samples(once_s: float) -> int:
    return int(np.clip(_SAMPLING_S / once_s, *_SAMPLES))


def _timing(samples: Sequence[float], method: str, source: str) -> KernelTiming:
    p10, median, p90 = np.percentile(samples, [10, 50, 90])
    return KernelTiming(float(median), float(p10), float(p90), len(samples), method, source)
