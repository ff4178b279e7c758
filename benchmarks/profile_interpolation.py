"""Error of interpolating kernel tables, each grid line left out in turn, beside a roofline with one constant.

For every interior line of every axis the cells on it are predicted from the two neighbouring lines, by the logarithm of
latency / roofline (the planner's way), by the logarithm of latency alone, and by the roofline times the table's best
constant. Run: python benchmarks/profile_interpolation.py --profiles PATH [--accelerator h200_sxm] [--engine vllm]
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from kernel_rooflines import DATA_SHEETS, WORK, Key

from planner.arrays import Floats
from planner.hardware.profiles.grid import Grid, coordinates, corners
from planner.hardware.profiles.store import KernelTable, ProfileStore

QUERIES = 20_000


def left_out(grid: Grid, axis: int, log_value: Floats) -> Floats:
    """Prediction of `log_value` on each interior line of `axis` from its neighbours; NaN on the outer lines."""
    place = np.moveaxis(log_value, axis, 0)
    position = coordinates(grid.axes[axis], grid.axes[axis])
    predicted = np.full(place.shape, np.nan)
    share = (position[1:-1] - position[:-2]) / (position[2:] - position[:-2])
    share = share.reshape(-1, *([1] * (place.ndim - 1)))
    predicted[1:-1] = place[:-2] * (1 - share) + place[2:] * share
    return np.moveaxis(predicted, 0, axis)


def errors_of(grid: Grid, roofline_s: Floats) -> Iterator[tuple[str, Floats, Floats, Floats]]:
    """Axis name and relative errors of its left-out cells: by ratio, by latency, by roofline times one constant."""
    log_latency, log_roofline = np.log(grid.latency_s), np.log(roofline_s)
    ratio = log_latency - log_roofline
    constant = np.nanmedian(ratio)
    for axis, name in enumerate(grid.axis_names):
        by_ratio = left_out(grid, axis, ratio) - ratio
        by_latency = left_out(grid, axis, log_latency) - log_latency
        known = np.isfinite(by_ratio)
        trivial = (constant - ratio)[known]
        if known.any():
            yield name, np.expm1(by_ratio[known]), np.expm1(by_latency[known]), np.expm1(trivial)


def table_errors(table: KernelTable, accelerator: str) -> dict[str, list[Floats]]:
    """Relative errors by axis, joined over the keys of a table: three arrays each."""
    collected: dict[str, list[list[Floats]]] = {}
    keys = table.keys()
    for values in keys:
        key: Key = dict(zip(table.key_names, values, strict=True))
        grid = table.grid(**key)
        assert grid is not None
        roofline_s = WORK[table.identity.table](grid, key).roofline_s(DATA_SHEETS[accelerator])
        for name, *errors in errors_of(grid, roofline_s):
            collected.setdefault(name, []).append(errors)
    return {name: [np.concatenate(parts) for parts in zip(*rows, strict=True)] for name, rows in collected.items()}


def quartet(error: Floats) -> str:
    """Median, 90th percentile and signed mean of a relative error, in per cent."""
    size = np.abs(error) * 100
    return f"{np.median(size):7.2f} {np.percentile(size, 90):7.1f} {error.mean() * 100:+7.1f}"


def milliseconds(action: Callable[[], object], repeats: int = 20) -> float:
    """The fastest of a few runs."""
    best = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return float(best * 1e3)


def print_speed(table: KernelTable) -> None:
    """Times of finding corners, of the ratio table and of the interpolation for 20,000 points."""
    grid = table.grid(**dict(zip(table.key_names, table.keys()[0], strict=True)))
    assert grid is not None
    rng = np.random.default_rng(0)
    points = tuple(np.exp2(rng.uniform(np.log2(a[0]), np.log2(a[-1]), QUERIES)) for a in grid.axes)
    reference_s = np.ones(grid.latency_s.shape)
    place, ratio = corners(grid, points), grid.filled(reference_s)
    print(f"{QUERIES} points on a grid {grid.latency_s.shape}: ", end="")
    print(f"corners {milliseconds(lambda: corners(grid, points)):.2f} ms, ", end="")
    print(f"ratio table {milliseconds(lambda: grid.filled(reference_s)):.2f} ms, ", end="")
    print(f"interpolate {milliseconds(lambda: place.interpolate(ratio)):.2f} ms")


def main() -> None:
    """Prints the table of errors of one accelerator and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=Path, required=True, help="imported store, raw directory or wheel")
    parser.add_argument("--accelerator", default="h200_sxm", choices=sorted(DATA_SHEETS))
    parser.add_argument("--engine", default="vllm")
    arguments = parser.parse_args()
    store = ProfileStore.open([arguments.profiles])
    print(f"{arguments.accelerator} {arguments.engine}: |error| median %, p90 %, and mean error %, line left out")
    columns = "".join(f"{title:>24}" for title in ("latency/roofline", "latency", "roofline x constant"))
    print(f"{'table':22}{'axis':22}{'cells':>8}{columns}")
    for name in WORK:
        chosen = store.select(accelerator=arguments.accelerator, table=name, engine=arguments.engine, version=None)
        if chosen is None:
            print(f"{name:22}not measured")
            continue
        for axis, errors in table_errors(chosen, arguments.accelerator).items():
            print(f"{name:22}{axis:22}{len(errors[0]):8}" + "".join(f" {quartet(e)}" for e in errors))
        if name == "gemm":
            print_gemm_by_dtype(chosen, arguments.accelerator)
            print_speed(chosen)


def print_gemm_by_dtype(table: KernelTable, accelerator: str) -> None:
    """The same errors of a GEMM table for each dtype alone, all axes joined."""
    keys = table.keys()
    for (dtype,) in keys:
        grid = table.grid(gemm_dtype=dtype)
        assert grid is not None
        roofline_s = WORK["gemm"](grid, {"gemm_dtype": dtype}).roofline_s(DATA_SHEETS[accelerator])
        rows = [errors for _, *errors in errors_of(grid, roofline_s)]
        joined = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        print(f"{'gemm ' + str(dtype):22}{'all':22}{len(joined[0]):8}" + "".join(f" {quartet(e)}" for e in joined))


if __name__ == "__main__":
    main()
