"""How long something takes on a device: warm-up, cold caches, many runs, and what lies between.

CUDA: device events around each run, the L2 cache overwritten before it. Runs under 100 us, whose launches would cost
more than their work, and steps that engines replay as CUDA graphs are captured and replayed. CPU: one thread and the
wall clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from planner.errors import PlannerError

if TYPE_CHECKING:
    import torch

SHORT_S = 100e-6
_LEAST_REPEATS, _MOST_REPEATS = 5, 30
_WARM_UPS = 2
_DEFAULT_L2_BYTES = 64 << 20  # where the driver does not say
_GRAPH_S = 300e-6  # of work in one captured graph of short runs

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run: the median of `repeats`, and the deciles around it."""

    median_s: float
    p10_s: float
    p90_s: float
    repeats: int
    graph: bool = False  # replayed from a CUDA graph


class Clock(Protocol):
    """Times runs on one device."""

    def time(self, run: Run, *, graph: bool = False) -> Timing:
        """The time of `run`; with `graph` as a replayed CUDA graph where the device has them."""


def summarise(seconds: list[float], *, graph: bool = False) -> Timing:
    """Median and deciles of measured runs."""
    p10, median, p90 = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return Timing(median, p10, p90, len(seconds), graph)


def make_clock(device: str, *, budget_s: float, together: bool) -> Clock:
    """The clock of `cpu` or `cuda`; ranks that run `together` all repeat equally often, so that collectives meet."""
    if device == "cpu":
        return CpuClock(budget_s, together)
    if device.startswith("cuda"):
        return CudaClock(budget_s, together)
    raise PlannerError(f"unknown device `{device}`", where="--device", hint="use `cpu` or `cuda`")


@dataclass(frozen=True, slots=True)
class CpuClock:
    """Wall time of the process; `budget_s` bounds the repeats of one run."""

    budget_s: float = 2.0
    together: bool = False

    def time(self, run: Run, *, graph: bool = False) -> Timing:
        seconds: list[float] = []
        for _ in range(_WARM_UPS):
            run()
        while not _enough(seconds, self.budget_s, self.together):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return summarise(seconds)


def _enough(seconds: list[float], budget_s: float, together: bool) -> bool:
    if together:
        return len(seconds) >= 2 * _LEAST_REPEATS
    return len(seconds) >= _MOST_REPEATS or (len(seconds) >= _LEAST_REPEATS and sum(seconds) > budget_s)


def cuda_event() -> "torch.cuda.Event":
    """An event that keeps the time of the device."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch itself


class CudaClock:
    """Time between device events; nothing else may run on the device."""

    def __init__(self, budget_s: float = 2.0, together: bool = False) -> None:
        import torch

        self._budget_s, self._together = budget_s, together
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        l2_bytes = getattr(properties, "L2_cache_size", 0) or _DEFAULT_L2_BYTES
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device="cuda")

    def time(self, run: Run, *, graph: bool = False) -> Timing:
        import torch

        self._warm_up(run)
        first = self._once(run)
        if not graph and (first > SHORT_S or self._together):
            return summarise(self._repeat(run, 1))
        inner = 1 if graph else max(1, round(_GRAPH_S / max(first, 1e-6)))
        captured = self._capture(run, inner)
        if captured is None:
            return summarise(self._repeat(run, 1))
        replayed = summarise(self._repeat(captured.replay, inner), graph=True)
        del captured
        torch.cuda.synchronize()
        return replayed

    def _warm_up(self, run: Run) -> None:
        """On a side stream, as capturing needs it."""
        import torch

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch itself
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def _capture(self, run: Run, inner: int) -> "torch.cuda.CUDAGraph | None":
        """`inner` runs as one graph; None where something in them cannot be captured."""
        import torch

        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(inner):
                    run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        graph.replay()
        torch.cuda.synchronize()
        return graph

    def _once(self, run: Run) -> float:
        begin, end = cuda_event(), cuda_event()
        self._flush.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def _repeat(self, run: Run, inner: int) -> list[float]:
        seconds: list[float] = []
        while not _enough(seconds, self._budget_s, self._together):
            seconds.append(self._once(run))
        return [value / inner for value in seconds]
