"""Times each operator inside a step, and records which one a rank is in (for hangs and crashes).

A pass over the step is timed operator by operator, and the median over passes is taken. Time belongs to the innermost
operator that is running, so that what the backward pass computes again is not counted twice. On a CUDA device a step
that is replayed as a graph is captured once more with its events in it; of any other the first thing in the queue keeps
the device busy until the host has queued the rest. Either way events do not measure the host.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import Node

from planner.execute.judge.predict import BACKWARD
from planner.execute.ranks.timing import OWN_THREAD
from planner.execute.shards.faults import RankProgress
from planner.hardware.profiling.kernel import device_event

PASSES = 7
_HEAD_START_CYCLES = 20_000_000  # about 10 ms at 2 GHz


class EnteredOperators:
    """A recorder that only says where the rank is, and which operators it has entered."""

    def __init__(self, progress: RankProgress) -> None:
        self.progress = progress
        self.entered: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.progress.enter(name)
        self.entered[name] = self.entered.get(name, 0) + 1
        try:
            yield
        finally:
            self.progress.enter("")

    def watch(self, out: Tensor) -> None:
        """Says which operator the backward pass from `out` is in."""
        for node in _nodes(out):
            name = getattr(node, "operator", None)
            if name is not None:
                node.register_prehook(_before_gradients(self.progress.enter, name))


def _before_gradients(enter: Callable[[str], None], name: str) -> Callable[[object], None]:
    """A hook that enters the backward pass of the operator `name`."""
    return lambda _gradients: enter(name + BACKWARD)


class Moments:
    """Points in time by the wall clock."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def begin(self) -> None:
        """Makes the device ready to be timed."""

    def now(self) -> None:
        """Notes this moment."""
        self._moments.append(time.perf_counter())

    def between_s(self) -> list[float]:
        """Seconds from each moment noted to the next."""
        return [last - first for first, last in pairwise(self._moments)]


class CudaMoments(Moments):
    """Events in the queue of the device."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def begin(self) -> None:
        """Gives the host a head start."""
        torch.cuda.synchronize()
        torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]  # of torch itself

    def now(self) -> None:
        event = device_event()
        event.record()
        self._events.append(event)

    def between_s(self) -> list[float]:
        torch.cuda.synchronize()
        return [float(first.elapsed_time(last)) * 1e-3 for first, last in pairwise(self._events)]


class GraphMoments(CudaMoments):
    """Events inside a captured graph, which every replay records anew."""

    def begin(self) -> None:
        """Nothing to do: a replay needs no host."""

    def now(self) -> None:
        event = device_event(external=True)
        event.record()
        self._events.append(event)


class OperatorTimer:
    """Seconds by operator of one pass; gradients are those of the operator whose forward pass made their node."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._running = [""]
        self._labels: list[str] = []  # what runs from each moment on
        self._made: list[tuple[int, int, str]] = []  # first and last sequence number of nodes, and their operator

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        first = _sequence_number()
        self._enter(name)
        try:
            yield
        finally:
            self._leave()
            self._made.append((first, _sequence_number(), name))

    def watch(self, out: Tensor) -> None:
        """Times the backward pass from `out`, of the graph made since the last call."""
        label_of = {number: name for first, last, name in self._made for number in range(first, last)}
        self._made.clear()
        for node in _nodes(out):
            name = getattr(node, "operator", None) or label_of.get(node._sequence_nr())
            if name is not None:
                node.register_prehook(_before_gradients(self._enter, name))
                node.register_hook(self._leaving)

    def begin(self) -> None:
        """Starts a pass."""
        self._moments.begin()

    def collect(self) -> dict[str, float]:
        """Seconds of what ran on its own."""
        seconds: dict[str, float] = {}
        for label, spent_s in zip(self._labels, self._moments.between_s(), strict=False):
            if label:
                seconds[label] = seconds.get(label, 0.0) + spent_s
        return seconds

    def _leaving(self, _inputs: object, _outputs: object) -> None:
        self._leave()

    def _enter(self, name: str) -> None:
        self._running.append(name)
        self._note()

    def _leave(self) -> None:
        self._running.pop()
        self._note()

    def _note(self) -> None:
        self._labels.append(self._running[-1])
        self._moments.now()


Recorder = EnteredOperators | OperatorTimer


Attach = Callable[[OperatorTimer], None]


def operator_seconds(
    run: Callable[[], object], attach: Attach, device: str, *, graph: bool = False
) -> dict[str, float]:
    """Median seconds of each operator over passes of `run`; `attach` hands the recorder of a pass to the shard.

    graph: `run` can be captured, and its passes are replays.
    """
    passes = _replayed_passes(run, attach) if graph else []
    for _ in range(PASSES if not passes else 0):
        timer = OperatorTimer(Moments() if device == "cpu" else CudaMoments())
        attach(timer)
        timer.begin()
        run()
        passes.append(timer.collect())
    return {name: float(np.median([seconds.get(name, 0.0) for seconds in passes])) for name in passes[0]}


def _replayed_passes(run: Callable[[], object], attach: Attach) -> list[dict[str, float]]:
    """Seconds of each operator in replays of one graph; none where events cannot be captured."""
    timer, graph = OperatorTimer(GraphMoments()), torch.cuda.CUDAGraph()
    attach(timer)
    passes: list[dict[str, float]] = []
    try:
        with torch.cuda.graph(graph, capture_error_mode=OWN_THREAD):
            run()
        for _ in range(PASSES + 1):  # the first warms up
            graph.replay()
            passes.append(timer.collect())
    except RuntimeError:
        torch.cuda.synchronize()
        return []
    return passes[1:]


def _sequence_number() -> int:
    """The number of the next node that autograd makes in this thread."""
    number: int = torch._C._autograd._get_sequence_nr()  # type: ignore[attr-defined]  # no public name
    return number


def _nodes(out: Tensor) -> Iterator[Node]:
    """Every node of the graph behind `out`."""
    waiting = [out.grad_fn]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [before for before, _ in node.next_functions]
