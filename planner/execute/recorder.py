"""The time of each operator inside a step, and the record of which one a rank is in.

A pass over the step is timed operator by operator, and the median over passes is taken. On a CUDA device the first
thing in the queue keeps the device busy until the host has queued the rest, so that events do not measure the host.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from planner.execute.faults import Progress
from planner.execute.timing import cuda_event

if TYPE_CHECKING:
    import torch

PASSES = 7
_HEAD_START_CYCLES = 20_000_000  # about 10 ms at 2 GHz


class Names:
    """A recorder that only says where the rank is, and which operators it has entered."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.entered: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.progress.enter(name)
        self.entered[name] = self.entered.get(name, 0) + 1
        yield
        self.progress.enter("")


class CpuTimes:
    """Wall seconds by operator of one pass."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def begin(self) -> None:
        """Nothing to prepare."""

    def collect(self) -> dict[str, float]:
        return self.seconds


class CudaTimes:
    """Device seconds by operator of one pass."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin, end = cuda_event(), cuda_event()
        begin.record()
        yield
        end.record()
        self._spans.append((name, begin, end))

    def begin(self) -> None:
        """Gives the host a head start."""
        import torch

        torch.cuda.synchronize()
        torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]  # of torch itself

    def collect(self) -> dict[str, float]:
        import torch

        torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for name, begin, end in self._spans:
            seconds[name] = seconds.get(name, 0.0) + float(begin.elapsed_time(end)) * 1e-3
        return seconds


def operator_seconds(
    run: Callable[[], object], attach: Callable[[CpuTimes | CudaTimes], None], device: str
) -> dict[str, float]:
    """Median seconds of each operator over passes of `run`; `attach` hands the recorder of a pass to the shard."""
    passes: list[dict[str, float]] = []
    for _ in range(PASSES):
        times: CpuTimes | CudaTimes = CpuTimes() if device == "cpu" else CudaTimes()
        attach(times)
        times.begin()
        run()
        passes.append(times.collect())
    return {name: float(np.median([one[name] for one in passes])) for name in passes[0]}
