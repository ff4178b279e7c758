"""One accelerator by its data sheet: peak FLOP/s by number format, memory size and bandwidth, links."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BLACKWELL = 10  # compute capability
REACHED = {"bf16": 720.0 / 989.5, "fp8": 1280.0 / 1979.0}
"""Share of the data sheet that large products reach on H100 and H200, by precision.

SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1: Training", December 2024: the vendors' own libraries.
"""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU model; peak rates are dense (no structured sparsity), memory is what the driver reports as usable total."""

    name: str  # catalog key, such as h200_sxm
    display_name: str
    vendor: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float] = field(hash=False)  # by precision: fp32, tf32, bf16, fp8, ...; absent = none
    launch_latency_s: float  # host to device, one kernel inside a CUDA graph
    power_w: float
    compute_capability: str  # "9.0"
    num_multiprocessors: int = 0  # compute units of AMD's; 0 where unknown
    aliases: tuple[str, ...] = ()
    reached_flop_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)  # by large products, where known

    def usable_bytes(self, utilisation: float) -> float:
        """Memory that an engine or a job may use at this share of it (vLLM's `--gpu-memory-utilization`)."""
        return self.memory_bytes * utilisation

    @property
    def is_blackwell(self) -> bool:
        """NVIDIA's Blackwell or what follows it."""
        major = self.compute_capability.partition(".")[0]
        return major.isdigit() and int(major) >= BLACKWELL

    @property
    def is_hopper(self) -> bool:
        """NVIDIA's Hopper, whose tensor cores know 8-bit formats and no 4-bit floats."""
        return self.compute_capability == "9.0"

    @property
    def overlaps_starts(self) -> bool:
        """Whether engines start kernels while those before them end: on Blackwell.

        Programmatic dependent launch exists from compute capability 9.0 on (CUDA C++ Programming Guide); kernels for
        Blackwell use it throughout, those of engines for Hopper hardly, and runs tell the difference
        (`earlier_starts` of a calibration).
        """
        return self.is_blackwell

    def supports(self, precision: str) -> bool:
        """Whether tensor cores take this precision directly; fp8_block runs where fp8 does."""
        return _tensor_core_precision(precision) in self.peak_flop_per_s

    def peak(self, precision: str) -> float:
        """Dense FLOP/s for a GEMM whose inputs are `precision`; weight-only formats compute in bf16."""
        key = _tensor_core_precision(precision)
        return self.peak_flop_per_s.get(key, self.peak_flop_per_s["bf16"])

    def comparable_peak(self, precision: str) -> float:
        """The peak of which kernels reach the share that they reach on H100, from which shares of costs are told.

        That of the data sheet, unless it is known what large products reach (`reached_flop_per_s`): chips that hold
        less of their clock under load, or have a library behind NVIDIA's, stay further below it.
        """
        wanted = _tensor_core_precision(precision)
        key = wanted if wanted in self.peak_flop_per_s else "bf16"
        return self.reached_flop_per_s[key] / REACHED[key] if key in self.reached_flop_per_s else self.peak(precision)


def _tensor_core_precision(precision: str) -> str:
    return {"fp8_block": "fp8", "fp16": "bf16", "int4": "bf16"}.get(precision, precision)
