"""Times a function on a device: warm-up, cold caches, repeated runs; median and spread.

CUDA: device events around each run, the L2 cache overwritten before it. Runs under 100 us, whose launches would cost
more than their work, and steps are captured as CUDA graphs and replayed, so that the time is the device's and not that
of a host which launches kernel by kernel. CPU: one thread and the wall clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from planner.hardware.profiling.kernel import device_event

SHORT_S = 100e-6
_LEAST_REPEATS, _MOST_REPEATS = 5, 30
_WARM_UPS = 2
_DEFAULT_L2_BYTES = 64 << 20  # where the driver does not say
OWN_THREAD = "thread_local"  # other threads, such as the watchdog of NCCL, may use the device during a capture
_GRAPH_S = 300e-6  # of work in one captured graph of short runs

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Seconds of one run: the median of the repeats, and the deciles around it."""

    median_s: float
    p10_s: float
    p90_s: float
    graph: bool = False  # replayed from a CUDA graph


def summarise(seconds: list[float], *, graph: bool = False) -> MeasuredTime:
    """Median and deciles of measured runs."""
    p10, median, p90 = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return MeasuredTime(median, p10, p90, graph)


class Clock:
    """Wall time of the process; `budget_s` bounds the repeats of one run.

    Ranks that run `together` all repeat equally often, so that their collectives meet.
    """

    def __init__(self, budget_s: float, together: bool) -> None:
        self._budget_s, self._together = budget_s, together

    def time(self, run: Run, *, graph: bool = False) -> MeasuredTime:
        """The time of `run`; with `graph` as a replayed CUDA graph where the device has them."""
        del graph
        for _ in range(_WARM_UPS):
            run()
        return summarise(self._repeat(run))

    def _repeat(self, run: Run) -> list[float]:
        seconds: list[float] = []
        while not self._enough(seconds):
            seconds.append(self._once(run))
        return seconds

    def _enough(self, seconds: list[float]) -> bool:
        if self._together:
            return len(seconds) >= 2 * _LEAST_REPEATS
        return len(seconds) >= _MOST_REPEATS or (len(seconds) >= _LEAST_REPEATS and sum(seconds) > self._budget_s)

    def _once(self, run: Run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


class CudaClock(Clock):
    """Time between device events; nothing else may run on the device."""

    def __init__(self, budget_s: float, together: bool) -> None:
        super().__init__(budget_s, together)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        l2_bytes = getattr(properties, "L2_cache_size", 0) or _DEFAULT_L2_BYTES
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device="cuda")

    def time(self, run: Run, *, graph: bool = False) -> MeasuredTime:
        self._warm_up(run)
        first = self._once(run)
        if not graph and (first > SHORT_S or self._together):
            return summarise(self._repeat(run))
        inner = 1 if graph else max(1, round(_GRAPH_S / max(first, 1e-6)))
        captured = self._capture(run, inner)
        if captured is None:
            return summarise(self._repeat(run))
        replayed = summarise([seconds / inner for seconds in self._repeat(captured.replay)], graph=True)
        del captured
        torch.cuda.synchronize()
        return replayed

    def _warm_up(self, run: Run) -> None:
        """On a side stream, as capturing needs it."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch itself
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def _capture(self, run: Run, inner: int) -> torch.cuda.CUDAGraph | None:
        """`inner` runs as one graph; None where something in them cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode=OWN_THREAD):
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
        begin, end = device_event(), device_event()
        self._flush.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3
