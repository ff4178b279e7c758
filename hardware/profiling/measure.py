"""Measures families of kernel shapes on one device inside a time budget, and writes a profile folder."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from planner.errors import PlannerError
from planner.hardware.profiling.adaptive import Point, Refinement, refine
from planner.hardware.profiling.collectives import measure_collectives
from planner.hardware.profiling.device import DeviceFacts, Gauge, describe, open_device, supports_fp8
from planner.hardware.profiling.journal import DeviceRates, ProfileJournal
from planner.hardware.profiling.kernel import UnsupportedShapeError
from planner.hardware.profiling.kernel_shape import KernelShape
from planner.hardware.profiling.shapes import CopyShape, Family, GemmShape, LaunchShape
from planner.hardware.profiling.timing import KernelTiming, one_thread, time_shape
from planner.hardware.profiling.writer import write_profile

if TYPE_CHECKING:
    import torch

_CEILING_GEMM = {"cuda": 4096, "cpu": 384}  # m = n = k
_CEILING_COPY_BYTES = {"cuda": 2**30, "cpu": 2**25}
_SENTINEL_GEMM = {"cuda": 2048, "cpu": 192}
_SENTINEL_EVERY_S = 5.0
_MEMORY_SHARE = 0.5  # of the device, for the inputs of one shape and their copies
_COLLECTIVES_SHARE = 0.25  # of the budget
_LONGEST_SHARE = 1 / 40  # of the budget, for all runs of one shape
_RUNS_OF_A_SHAPE = 20
_THROTTLED_TRIES = 3
_COOLING_S = 2.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile as it lies in its folder."""

    folder: Path
    points: int  # measured, those of earlier runs too
    new_points: int
    families: int
    left_out: dict[str, str]  # name of a family -> why it has no cells
    throttled: int  # points dropped since the device slowed itself down
    drift: float  # 90th percentile of the deviation of the sentinel kernel from its median, relative
    took_s: float


@dataclass(slots=True)
class _Session:
    """One run of the profiler."""

    device: "torch.device"
    facts: DeviceFacts
    journal: ProfileJournal
    gauge: Gauge
    deadline_s: float  # of time.monotonic
    tell: Tell
    new_points: int = 0
    throttled: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    sentinel_at_s: float = 0.0

    def time_is_up(self) -> bool:
        return time.monotonic() >= self.deadline_s

    def seconds(self, family: Family, point: Point) -> float | None:
        """The median at a point, from the journal when it is there."""
        known = self.journal.timings.get((family.name, point))
        if known is not None:
            return known.median_s
        if self.time_is_up():
            self.failures.setdefault(family.name, "the time budget was spent")
            return None
        if family.kind == "collective":
            self.failures.setdefault(family.name, "its group was not measured")
            return None
        try:
            timing = self._unthrottled(family.shape(point))
        except UnsupportedShapeError as error:
            self.failures[family.name] = error.what
            return None
        except RuntimeError as error:  # out of memory, or a kernel that the device refuses
            said = (str(error).splitlines() or [type(error).__name__])[0]
            self.failures[family.name] = f"at {point}: {said[:160]}"
            self._free()
            return None
        if timing is None:
            self.failures[family.name] = "the device was throttled"
            return None
        self.journal.add((family.name, point), timing)
        self.new_points += 1
        self._watch()
        return timing.median_s

    def _unthrottled(self, shape: KernelShape) -> KernelTiming | None:
        """A timing taken while the device ran at its own pace; None when it slows down for longer."""
        for _ in range(_THROTTLED_TRIES):
            timing = time_shape(shape, self.device, self.facts)
            if not self.gauge.throttled():
                return timing
            self.throttled += 1
            time.sleep(_COOLING_S)
            self.gauge.forget()
        return None

    def _watch(self) -> None:
        """Runs the sentinel every few seconds."""
        if time.monotonic() - self.sentinel_at_s >= _SENTINEL_EVERY_S:
            self.journal.add_sentinel(time_shape(_sentinel(self.device.type), self.device, self.facts).median_s)
            self.sentinel_at_s = time.monotonic()
            self.tell(
                f"{len(self.journal.timings)} points, {max(0.0, self.deadline_s - self.sentinel_at_s):.0f} s left"
            )

    def _free(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()


def measure(
    families: Sequence[Family],
    folder: Path,
    *,
    accelerator: str,
    device: str,
    budget_s: float,
    version: str,
    resume: bool = False,
    tolerance: float = 0.02,
    tell: Tell = lambda _: None,
) -> MeasuredProfile:
    """Measures until the interpolation of every family is expected to be within `tolerance`, or `budget_s` is spent.

    Writes the journal, the tables of engine `planner` under `version`, and card.json into `folder`. Raises PlannerError
    for a device or a folder that will not do, and when not one family could be measured.
    """
    if budget_s <= 0:
        raise PlannerError(f"the budget must be positive, found {budget_s:g} s", hint="write `--budget 4m`")
    if not families:
        raise PlannerError("there is nothing to measure", hint="name models whose operators have shapes")
    started_s = time.monotonic()
    where = open_device(device)
    facts = describe(where)
    journal = ProfileJournal.open(folder, resume=resume)
    with one_thread(where):
        rates = journal.rates or _rates_reached(accelerator, where, facts)
        journal.begin(replace(rates, accelerator=accelerator, device=facts.to_json()))
        gauge = Gauge(where.type == "cuda")
        session = _Session(where, facts, journal, gauge, started_s + budget_s, tell)
        session.sentinel_at_s = 0.0
        _collectives(families, session, budget_s)
        refined = _refine(list(families), session, budget_s, tolerance)
    if not refined:
        reason = next(iter(session.failures.values()), "no shape fits the device and the budget")
        raise PlannerError(f"nothing could be measured: {reason}", hint="give a larger `--budget`")
    report = _report(folder, session, refined, started_s)
    write_profile(folder, refined, journal, version=version, facts=facts, gauge=gauge.summary(), report=_facts(report))
    return report


def _collectives(families: Sequence[Family], session: _Session, budget_s: float) -> None:
    """Measures all collectives in processes of their own; the choice of points then finds them in the journal."""
    collectives = [family for family in families if family.kind == "collective"]
    if collectives:
        kind, share_s = session.device.type, budget_s * _COLLECTIVES_SHARE
        before = len(session.journal.timings)
        reason = measure_collectives(collectives, session.journal, device=kind, budget_s=share_s)
        session.new_points += len(session.journal.timings) - before
        session.failures.update({family.name: reason for family in collectives if reason})


def _refine(families: list[Family], session: _Session, budget_s: float, tolerance: float) -> list[Refinement]:
    rates = session.journal.rates
    assert rates is not None
    longest_s = budget_s * _LONGEST_SHARE / _RUNS_OF_A_SHAPE
    limit_bytes = _MEMORY_SHARE * session.facts.memory_bytes
    fitting = []
    for family in families:
        cut = fit(family, rates, limit_bytes, longest_s)
        if cut is None:
            session.failures[family.name] = "its smallest shape exceeds the memory or the budget"
        else:
            fitting.append(cut)
    references = {family.name: reference_of(family, rates) for family in fitting}
    return refine(fitting, references, session.seconds, tolerance=tolerance, enough=session.time_is_up)


def fit(family: Family, rates: DeviceRates, limit_bytes: float, longest_s: float) -> Family | None:
    """The family with its largest sizes dropped until its largest shape fits the memory and is expected to take at
    most `longest_s`; None when not even the smallest does."""
    while True:
        largest = family.shape(tuple(values[-1] for _, values in family.sweep))
        if largest.memory_bytes <= limit_bytes and reference_s(largest, rates) <= longest_s:
            return family
        lengths = [len(values) for _, values in family.sweep]
        longest = max(range(len(lengths)), key=lambda axis: lengths[axis])
        if lengths[longest] == 1:
            return None
        sweep = tuple(
            (name, values[:-1] if axis == longest else values) for axis, (name, values) in enumerate(family.sweep)
        )
        family = replace(family, sweep=sweep)


def reference_s(shape: KernelShape, rates: DeviceRates) -> float:
    """The time of a shape at the rates that this device reached: what interpolation takes ratios to."""
    rate = rates.flop_per_s.get(getattr(shape, "precision", "bf16"), rates.flop_per_s["bf16"])
    return max(shape.flop / rate, shape.size_bytes / rates.bandwidth_bytes_per_s, rates.floor_s)


def reference_of(family: Family, rates: DeviceRates) -> Callable[[Point], float]:
    """`reference_s` by the sizes of a point of the family."""
    return lambda point: reference_s(family.shape(point), rates)


def _rates_reached(accelerator: str, device: "torch.device", facts: DeviceFacts) -> DeviceRates:
    """Rates of one large product a precision, one large copy and one small kernel."""
    size = _CEILING_GEMM[device.type]
    precisions = ("bf16", "fp32", *(("fp8",) if supports_fp8(facts) else ()))
    rates = {}
    for precision in precisions:
        gemm = GemmShape(size, size, size, precision)
        rates[precision] = gemm.flop / time_shape(gemm, device, facts).median_s
    copy = CopyShape(_CEILING_COPY_BYTES[device.type], "device_to_device")
    bandwidth = copy.size_bytes / time_shape(copy, device, facts).median_s
    floor_s = time_shape(LaunchShape(1, "graph"), device, facts).median_s
    return DeviceRates(accelerator, facts.to_json(), rates, bandwidth, floor_s)


def _sentinel(kind: str) -> GemmShape:
    size = _SENTINEL_GEMM[kind]
    return GemmShape(size, size, size)


def _report(folder: Path, session: _Session, refined: list[Refinement], started_s: float) -> MeasuredProfile:
    sentinels_s = session.journal.sentinels_s or [1.0]
    deviations = [abs(seconds / float(np.median(sentinels_s)) - 1.0) for seconds in sentinels_s]
    return MeasuredProfile(
        folder=folder,
        points=len(session.journal.timings),
        new_points=session.new_points,
        families=len(refined),
        left_out=session.failures,
        throttled=session.throttled,
        drift=float(np.percentile(deviations, 90)),
        took_s=time.monotonic() - started_s,
    )


def _facts(report: MeasuredProfile) -> dict[str, object]:
    return {
        "points": report.points,
        "families": report.families,
        "left_out": report.left_out,
        "throttled_points": report.throttled,
        "sentinel_drift": report.drift,
        "took_s": report.took_s,
    }
