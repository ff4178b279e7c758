"""Throttling, drift and failures of a GPU, simulated by a device that does as it is told."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.hardware.profiling import device, measure, timing
from planner.hardware.profiling.device import Gauge, Reading
from planner.hardware.profiling.journal import ProfileJournal
from planner.hardware.profiling.kernel import PreparedKernel
from planner.hardware.profiling.kernel_shape import KernelShape
from planner.hardware.profiling.measure import measure as measure_families
from planner.hardware.profiling.shapes import Family, GemmShape
from planner.hardware.profiling.timing import KernelTiming

torch = pytest.importorskip("torch", reason="profiling needs PyTorch")

COOL, HOT = Reading(1980.0, 40.0, throttled=False), Reading(1200.0, 88.0, throttled=True)
PRODUCT = Family("gemm", (("n", 64), ("k", 64)), (("m", (1, 16)),))
OTHER = Family("gemm", (("n", 32), ("k", 64)), (("m", (1, 16)),))


class Machine:
    """Readings one after the other (the last one stays), and a time for every shape."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, readings: list[Reading | None]) -> None:
        self.readings, self.slept_s, self.timed = readings, 0.0, 0
        self.sentinels_s: Iterator[float] = iter(())
        self.refused: KernelShape | None = None
        monkeypatch.setattr(device, "read_state", self.read)
        monkeypatch.setattr(device, "_SECONDS_BETWEEN_READINGS", -1.0)
        monkeypatch.setattr(measure, "_SENTINEL_EVERY_S", 0.0)
        monkeypatch.setattr(measure, "Gauge", lambda _: Gauge(active=True))
        monkeypatch.setattr(measure, "time_shape", self.time)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def read(self) -> Reading | None:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def time(self, shape: KernelShape, _device: object, _facts: object) -> KernelTiming:
        self.timed += 1
        if shape == self.refused:
            raise RuntimeError
        seconds = 1e-4
        if shape == GemmShape(192, 192, 192):
            seconds = next(self.sentinels_s, 1e-4)
        return KernelTiming(seconds, seconds, seconds, 9, "events", "simulated")

    def profile(self, folder: Path, families: list[Family]) -> measure.MeasuredProfile:
        return measure_families(
            families, folder, accelerator="h200_sxm", device="cpu", budget_s=30.0, version="2026.1.1"
        )


def test_a_point_taken_while_throttled_is_dropped_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, [COOL, HOT, HOT, COOL])
    report = machine.profile(tmp_path, [PRODUCT])
    assert report.throttled == 2
    assert machine.slept_s > 0
    assert not report.left_out
    assert len(ProfileJournal.open(tmp_path, resume=True).timings) == 2


def test_a_device_that_stays_throttled_leaves_the_family_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, [COOL, COOL, HOT])
    report = machine.profile(tmp_path, [PRODUCT, OTHER])
    assert report.left_out == {OTHER.name: "the device was throttled"}
    assert report.families == 1


def test_a_machine_that_does_not_tell_its_state_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, [None, HOT])
    report = machine.profile(tmp_path, [PRODUCT])
    assert report.throttled == 0
    assert machine.readings == [HOT]


@pytest.mark.parametrize(("sentinels_s", "drift"), [((1e-4, 1e-4), 0.0), ((1e-4, 1.5e-4), 0.2)])
def test_the_sentinel_tells_how_far_the_device_drifted(
    sentinels_s: tuple[float, ...], drift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, [COOL])
    machine.sentinels_s = iter(sentinels_s)
    assert machine.profile(tmp_path, [PRODUCT]).drift == pytest.approx(drift, abs=1e-9)


def test_a_kernel_that_the_device_refuses_leaves_its_family_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, [COOL])
    machine.refused = GemmShape(16, 32, 64)
    report = machine.profile(tmp_path, [PRODUCT, OTHER])
    assert report.left_out == {OTHER.name: "at (16,): RuntimeError"}


@pytest.mark.parametrize(
    ("answers", "reading"),
    [
        (["1980, 41, 0x0000000000000000"], Reading(1980.0, 41.0, throttled=False)),
        (["1980, 41, 0x0000000000000004"], Reading(1980.0, 41.0, throttled=False)),  # at its power limit, as it serves
        (["1200, 88, 0x0000000000000040"], Reading(1200.0, 88.0, throttled=True)),  # hardware thermal slowdown
        (["", "1980, 41, 0x0000000000000020"], Reading(1980.0, 41.0, throttled=True)),  # an older driver's column
        (["", ""], None),
        (["[N/A], 41, 0x0", ""], None),
    ],
)
def test_readings_of_the_driver_are_understood(
    answers: list[str], reading: Reading | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_query", lambda _: answers.pop(0))
    assert device.read_state() == reading


class Event:
    """An event of a device whose clock `Clock` moves."""

    def __init__(self, clock: "Clock") -> None:
        self.clock, self.at_ms = clock, 0.0

    def record(self) -> None:
        self.at_ms = self.clock.now_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return end.at_ms - self.at_ms


class Graph:
    """Keeps what runs while it captures, and runs it again."""

    def __init__(self, clock: "Clock") -> None:
        self.clock, self.replay_ms = clock, 0.0

    def replay(self) -> None:
        self.clock.now_ms += self.replay_ms

    def reset(self) -> None:
        pass


class Capture:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.began_ms = graph, 0.0

    def __enter__(self) -> None:
        self.began_ms = self.graph.clock.now_ms

    def __exit__(self, *_: object) -> None:
        self.graph.replay_ms = (
            self.graph.clock.now_ms - self.began_ms - self.graph.clock.host_ms * self.graph.clock.runs
        )


class Clock:
    """Device time; each launch by the host costs `host_ms` more than the kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel_ms: float, host_ms: float) -> None:
        self.now_ms, self.kernel_ms, self.host_ms, self.runs = 0.0, kernel_ms, host_ms, 0
        monkeypatch.setattr(timing, "device_event", lambda: Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", self.graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)

    def graph(self) -> Graph:
        self.runs = 0
        return Graph(self)

    def run(self) -> None:
        self.runs += 1
        self.now_ms += self.kernel_ms + self.host_ms


@pytest.mark.parametrize(
    ("kernel_ms", "capturable", "method", "seconds"),
    [
        (0.02, True, "graph", 20e-6),
        (0.02, False, "events", 30e-6),
        (0.5, True, "graph", 500e-6),
        (1.5, True, "events", 1510e-6),
    ],
)
def test_kernels_under_a_millisecond_are_replayed_from_a_graph_without_the_hosts_share(
    kernel_ms: float, capturable: bool, method: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, kernel_ms, host_ms=0.01)
    kernels = [PreparedKernel(clock.run, "simulated", capturable) for _ in range(3)]
    timed = timing.time_on_cuda(kernels)
    assert timed.method == method
    assert timed.median_s == pytest.approx(seconds, rel=1e-9)
    assert 9 <= timed.samples <= 101


def test_a_kernel_that_cannot_be_captured_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.02, host_ms=0.01)

    def refuse(_graph: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    assert timing.time_on_cuda([PreparedKernel(clock.run, "simulated")]).method == "events"


def test_input_sets_together_exceed_the_cache_three_times() -> None:
    facts = device.DeviceFacts("cuda", "simulated", 2**37, 60 * 2**20, "9.0", "", "", "")
    shape = GemmShape(1, 4096, 4096)
    assert timing._num_sets(shape, facts) * shape.size_bytes > 3 * facts.l2_bytes
    assert timing._num_sets(GemmShape(8192, 8192, 8192), facts) == 1
