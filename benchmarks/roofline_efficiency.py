"""What kernels reach of their accelerator's peaks, per operator family, and alpha-beta fits of collectives in a node.

Prints, from measured tables: the fraction of peak FLOP/s of compute-bound shapes, the fraction of memory bandwidth of
memory-bound shapes, the time of the smallest kernels, and for each collective and number of GPUs alpha (s) and beta
(message bytes / s). These are the constants of the roofline cost source.
Run: python benchmarks/roofline_efficiency.py --profiles PATH [--engine vllm --engine sglang --engine trtllm]
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_rooflines import DATA_SHEETS, WORK, DataSheet, Key, Work, traffic_factor

from planner.arrays import Floats
from planner.hardware.profiles.grid import Grid
from planner.hardware.profiles.store import KernelTable, ProfileStore

# A shape is compute-bound (memory-bound) when its ideal computing (moving) time is this many times the other one.
CLEARLY = 3.0
LARGE_S = 200e-6  # and takes at least this long at the data sheet's rate, so that launch and ramp do not matter
SMALL_S = 0.3e-6  # a kernel with less ideal time than this shows the floor
FIT_CELLS = 4000  # drawn for a fit
DTYPE_KEY = {"gemm": "gemm_dtype", "moe": "moe_dtype"}


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of peak at the clearly bound shapes of a family, and latencies of its smallest ones."""

    compute: Floats
    memory: Floats
    medium: Floats  # fraction of bandwidth where moving ideally takes 10 to 50 us: the weights of one decode step
    floor_s: Floats
    compute_s: Floats  # ideal computing time, ideal moving time and latency of every measured cell
    memory_s: Floats
    latency_s: Floats


def shares(grid: Grid, work: Work, sheet: DataSheet) -> Shares:
    """Sorts the measured cells of one grid into compute-bound, memory-bound and tiny ones."""
    compute_s, memory_s = work.flop / sheet.peak(work.dtype), work.size_bytes / sheet.bandwidth_bytes_per_s
    measured = np.isfinite(grid.latency_s)
    compute_bound = measured & (compute_s > CLEARLY * memory_s) & (compute_s > LARGE_S)
    memory_bound = measured & (memory_s > CLEARLY * compute_s)
    large, medium = memory_bound & (memory_s > LARGE_S), memory_bound & (memory_s > 10e-6) & (memory_s < 50e-6)
    tiny = measured & (np.maximum(compute_s, memory_s) < SMALL_S)
    return Shares(
        (compute_s / grid.latency_s)[compute_bound],
        (memory_s / grid.latency_s)[large],
        (memory_s / grid.latency_s)[medium],
        grid.latency_s[tiny],
        compute_s[measured],
        memory_s[measured],
        grid.latency_s[measured],
    )


def roofline_fit(share: Shares) -> str:
    """Fit of latency = floor + max(computing / c, moving / b): floor in us, c, b and the median error in per cent.

    Robust least squares (soft L1) of the logarithm over cells drawn at random; every cell counts the same.
    """
    from scipy.optimize import least_squares

    drawn = np.random.default_rng(0).permutation(len(share.latency_s))[:FIT_CELLS]
    compute_s, memory_s, log_latency = share.compute_s[drawn], share.memory_s[drawn], np.log(share.latency_s[drawn])

    def error(parameters: Floats) -> Floats:
        floor_s, slow_compute, slow_memory = np.exp(parameters)
        model_s = floor_s + np.maximum(compute_s * slow_compute, memory_s * slow_memory)
        difference: Floats = np.log(model_s) - log_latency
        return difference

    solved = least_squares(error, np.log([8e-6, 1.6, 1.3]), loss="soft_l1", f_scale=0.2)
    floor_s, slow_compute, slow_memory = np.exp(solved.x)
    median = 100 * np.median(np.abs(np.expm1(error(solved.x))))
    return f"{floor_s * 1e6:7.1f}{1 / slow_compute:7.2f}{1 / slow_memory:7.2f}{median:6.0f}"


def family_shares(table: KernelTable, sheet: DataSheet) -> dict[str, Shares]:
    """Shares by dtype (attention: by KV dtype, without window), joined over the other keys."""
    family = table.identity.table
    collected: dict[str, list[Shares]] = {}
    keys = table.keys()
    for values in keys:
        key: Key = dict(zip(table.key_names, values, strict=True))
        if key.get("window_size", 0) != 0 or key.get("distribution", "balanced") != "balanced":
            continue
        grid = table.grid(**key)
        assert grid is not None
        label = str(key.get(DTYPE_KEY.get(family, "kv_cache_dtype")))
        label = f"{key['attn_dtype']}/{label}" if family == "context_attention" else label
        collected.setdefault(label, []).append(shares(grid, WORK[family](grid, key), sheet))
    return {
        label: Shares(*(np.concatenate([getattr(part, name) for part in parts]) for name in Shares.__slots__))
        for label, parts in sorted(collected.items())
    }


def spread(values: Floats, scale: float = 1.0) -> str:
    """Median and the 10th to 90th percentiles with the count, or a dash."""
    if len(values) < 5:
        return f"{'-':>26}"
    low, middle, high = np.percentile(values * scale, [10, 50, 90])
    return f"{middle:7.2f} ({low:5.2f}-{high:5.2f}) {len(values):5}"


def alpha_beta(size_bytes: Floats, latency_s: Floats) -> tuple[float, float, float]:
    """alpha [s], beta [bytes/s] of latency = alpha + size / beta by least squares of the relative error; its median.

    The relative error of every size counts the same, so neither small nor large messages rule the fit.
    """
    design = np.stack([1.0 / latency_s, size_bytes / latency_s], axis=1)
    alpha_s, inverse = np.linalg.lstsq(design, np.ones(len(latency_s)), rcond=None)[0]
    error = np.abs((alpha_s + size_bytes * inverse) / latency_s - 1.0)
    return float(alpha_s), float(1.0 / inverse), float(np.median(error))


def print_collectives(grid: Grid | None, label: str, operation: str, sheet: DataSheet) -> None:
    """One line a number of GPUs: the fit, the rate of the largest message per link, the time of the smallest."""
    if grid is None:
        return
    for row, num_gpus in enumerate(grid.axes[0]):
        known = np.isfinite(grid.latency_s[row])
        size, latency = grid.axes[1][known], grid.latency_s[row][known]
        if len(size) < 4:
            continue
        alpha, beta, error = alpha_beta(size, latency)
        traffic = traffic_factor(operation, num_gpus)
        largest = traffic * size[-1] / latency[-1]
        print(
            f"{label:44}{num_gpus:4.0f}{alpha * 1e6:10.2f}{beta / 1e9:12.1f}{traffic * beta / 1e9:12.1f}"
            f"{largest / 1e9:12.1f}{largest / sheet.link_bytes_per_s:8.2f}{latency.min() * 1e6:10.2f}{error * 100:8.0f}"
        )


def print_families(store: ProfileStore, accelerator: str, engines: list[str]) -> None:
    """Fractions of peak of every operator family, from the version that measured most of it."""
    print(f"\n{accelerator}: fraction of peak, median (10th-90th percentile) count; smallest kernels in us")
    titles = ("compute-bound FLOP/s", "memory-bound bytes/s", "bytes/s, 10-50 us", "floor us")
    fit = "".join(f"{title:>{width}}" for title, width in (("floor us", 9), ("c", 7), ("b", 7), ("err%", 6)))
    print(f"{'engine':18}{'family':22}{'dtype':20}" + "".join(f"{title:>28}" for title in titles) + fit)
    for engine in engines:
        for family in WORK:
            versions = store.candidates(accelerator=accelerator, table=family, engine=engine, version=None)
            chosen = max(versions, key=lambda version: version.header.rows_kept, default=None)
            if chosen is None:
                continue
            for dtype, share in family_shares(chosen, DATA_SHEETS[accelerator]).items():
                columns = [spread(share.compute), spread(share.memory), spread(share.medium)]
                columns.append(spread(share.floor_s, 1e6))
                print(
                    f"{named(chosen):18}{family:22}{dtype:20}" + "".join(f"  {column}" for column in columns),
                    roofline_fit(share),
                )


def named(table: KernelTable) -> str:
    """Engine and version of a table."""
    return f"{table.identity.engine} {table.identity.version}"


def print_communication(store: ProfileStore, accelerator: str, engines: list[str]) -> None:
    """Alpha-beta fits of NCCL and of the engines' own all-reduce."""
    print(f"\n{accelerator}: alpha-beta inside a node; size is the message (all-gather: the gathered whole)")
    titles = ("alpha us", "beta GB/s", "bus GB/s", "max bus", "of link", "min us", "err %")
    widths = (10, 12, 12, 12, 8, 10, 8)
    print(f"{'collective':44}{'gpus':>4}" + "".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)))
    sheet = DATA_SHEETS[accelerator]
    nccl = store.select(accelerator=accelerator, table="nccl", engine="nccl", version=None)
    for operation in ("all_gather", "all_reduce", "alltoall", "reduce_scatter") if nccl else ():
        assert nccl is not None
        print_collectives(nccl.grid(op_name=operation), f"{named(nccl)} {operation}", operation, sheet)
    for engine in engines:
        own = store.select(accelerator=accelerator, table="custom_allreduce", engine=engine, version=None)
        if own is not None:
            print_collectives(own.grid(mode="graph"), f"{named(own)} all_reduce (graph)", "all_reduce", sheet)


def main() -> None:
    """Prints both tables for every accelerator that has a data sheet here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, required=True, help="imported store, raw directory or wheel")
    parser.add_argument("--engine", action="append", help="default: vllm, sglang and trtllm")
    arguments = parser.parse_args()
    engines = arguments.engine or ["vllm", "sglang", "trtllm"]
    store = ProfileStore.open([arguments.profiles])
    for accelerator in store.accelerators():
        if accelerator in DATA_SHEETS:
            print_families(store, accelerator, engines)
            print_communication(store, accelerator, engines)


if __name__ == "__main__":
    main()
