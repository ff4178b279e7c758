"""The device under measurement: name, memory, capabilities, clocks and load at the moment."""

import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from planner.errors import PlannerError, extra_hint

if TYPE_CHECKING:
    import torch

_FP8_FROM = (8, 9)  # compute capability: Ada
_SECONDS_BETWEEN_READINGS = 3.0
# Bits of NVML's nvmlClocksEventReasons: hardware slowdown, software and hardware thermal, hardware power brake.
_THROTTLED_BITS = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the measuring ran on, for the card."""

    kind: str  # cuda, cpu
    name: str
    memory_bytes: int
    l2_bytes: int
    compute_capability: str
    driver: str
    torch: str
    cuda: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def require_torch() -> None:
    """Raises PlannerError where PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise PlannerError("profiling needs PyTorch, which is not installed", hint=extra_hint("gpu")) from None


def open_device(kind: str) -> "torch.device":
    """The device `cuda` or `cpu`; raises PlannerError where there is none."""
    require_torch()
    import torch

    if kind not in ("cuda", "cpu"):
        raise PlannerError(f"device must be cuda or cpu, found `{kind}`", hint="write `--device cuda`")
    if kind == "cuda" and not torch.cuda.is_available():
        raise PlannerError(
            "PyTorch sees no CUDA device on this machine", hint="give `--device cpu` to profile the processor"
        )
    return torch.device(kind)


def describe(device: "torch.device") -> DeviceFacts:
    """Name, sizes and versions of a device."""

    import torch

    if device.type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        name = platform.processor() or platform.machine()
        return DeviceFacts("cpu", name, memory, 0, "", "", str(torch.__version__), "")
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        kind="cuda",
        name=properties.name,
        memory_bytes=properties.total_memory,
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)),
        compute_capability=f"{properties.major}.{properties.minor}",
        driver=_query("driver_version"),
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
    )


def supports_fp8(facts: DeviceFacts) -> bool:
    """Whether `torch._scaled_mm` runs here."""
    if facts.kind != "cuda":
        return False
    major, _, minor = facts.compute_capability.partition(".")
    return (int(major), int(minor)) >= _FP8_FROM


def _query(field_name: str) -> str:
    """One value of nvidia-smi for the first device; empty where it cannot be had."""
    command = ["nvidia-smi", f"--query-gpu={field_name}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0].strip() if done.stdout.strip() else ""


@dataclass(frozen=True, slots=True)
class Reading:
    """Clock, temperature and whether the device slows itself down."""

    sm_mhz: float
    temperature_c: float
    throttled: bool


@dataclass(slots=True)
class Gauge:
    """Reads the state of a CUDA device every few seconds; knows nothing on a CPU or without nvidia-smi."""

    active: bool
    readings: list[Reading] = field(default_factory=list)
    _read_at_s: float = 0.0

    def throttled(self) -> bool:
        """Whether the newest reading, taken again when it is old, says that the device slows down."""
        if not self.active:
            return False
        now_s = time.monotonic()
        if not self.readings or now_s - self._read_at_s > _SECONDS_BETWEEN_READINGS:
            reading = read_state()
            self._read_at_s = now_s
            if reading is None:
                self.active = False
                return False
            self.readings.append(reading)
        return self.readings[-1].throttled

    def forget(self) -> None:
        """Makes the next question a new reading."""
        self._read_at_s = float("-inf")

    def summary(self) -> dict[str, object]:
        """Least and largest clock and temperature seen, for the card; empty without readings."""
        if not self.readings:
            return {}
        clocks = [reading.sm_mhz for reading in self.readings]
        degrees = [reading.temperature_c for reading in self.readings]
        return {
            "sm_mhz": [min(clocks), max(clocks)],
            "temperature_c": [min(degrees), max(degrees)],
            "readings": len(self.readings),
            "throttled": sum(reading.throttled for reading in self.readings),
        }


def read_state() -> Reading | None:
    """The state by nvidia-smi; None where it is missing or does not tell."""
    line = _query("clocks.sm,temperature.gpu,clocks_event_reasons.active")
    if line.count(",") != 2:  # drivers before 535 name the column otherwise
        line = _query("clocks.sm,temperature.gpu,clocks_throttle_reasons.active")
    try:
        clock, degrees, reasons = (part.strip() for part in line.split(","))
        return Reading(float(clock), float(degrees), bool(int(reasons, 16) & _THROTTLED_BITS))
    except ValueError:
        return None
