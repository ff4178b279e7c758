"""1,000 serving points: wall time and memory on two cores, and the same bytes at any parallelism and after kills.

`python benchmarks/sweep.py [--kills 20]`. The limit is ours: 90 s of wall time for 1,000 points on 2 cores.
"""

import argparse
import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 90.0
BASE = Path(__file__).parent.parent / "examples" / "serve-cost-one-pool.yaml"
AXES = """
  - {field: gpu, values: [h200, h100]}
  - {field: rate, from: 1/s, to: 16/s, steps: 10, log: true}
  - {field: tpot, from: 15ms, to: 60ms, steps: 10}
  - {field: ttft, from: 500ms, to: 2500ms, steps: 5}
"""
ENVIRONMENT = {**os.environ, "PLANNER_NO_PROGRESS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def command(sweep: Path, cache: Path, output: Path, *flags: str) -> list[str]:
    """The command line of one sweep with its own cache."""
    return [sys.executable, "-m", "planner", "sweep", str(sweep), "--cache", str(cache), "-o", str(output), *flags]


def timed(arguments: list[str]) -> float:
    """Wall seconds of a whole process."""
    started = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    return time.perf_counter() - started


def killed(arguments: list[str], after_s: float) -> bool:
    """Whether a sweep was still at work when it was killed without warning."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def lines_of(cache: Path) -> int:
    """How many whole lines the journal holds."""
    return sum(text.read_bytes().count(b"\n") for text in cache.glob("sweeps/*.jsonl"))


def kill_often(sweep: Path, folder: Path, kills: int, whole_s: float) -> Path:
    """The output after `kills` kills at random moments of a sweep that takes `whole_s`."""
    cache, output = folder / "killed", folder / "killed.parquet"
    moments = random.Random(0)
    hits = 0
    for _ in range(kills):
        hits += killed(command(sweep, cache, output), 1.0 + moments.random() * whole_s / kills * 2)
    print(f"kill -9 {hits} times at work, {lines_of(cache)} points kept", flush=True)
    timed(command(sweep, cache, output))
    return output


def main() -> int:
    """Print what was measured; 1 when it is too slow or two outputs differ."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=20)
    kills = arguments.parse_args().kills
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweep = folder / "bench.yaml"
        sweep.write_text(f"schema: planner.sweep/1\nbase: {BASE}\naxes:{AXES}")
        first = folder / "two.parquet"
        wall_s = timed(command(sweep, folder / "two", first, "--workers", "2"))
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"1,000 points, 2 workers: {wall_s:.1f} s (limit {LIMIT_S:.0f} s)")
        print(f"peak memory of one process: {peak_mib:.0f} MiB", flush=True)
        others = {"2 workers, from the journal": folder / "again.parquet", "1 worker": folder / "one.parquet"}
        timed(command(sweep, folder / "two", others["2 workers, from the journal"]))
        timed(command(sweep, folder / "one", others["1 worker"], "--workers", "1"))
        if importlib.util.find_spec("ray") is not None:
            others["ray, local"] = folder / "ray.parquet"
            ray_s = timed(command(sweep, folder / "ray", others["ray, local"], "--workers", "2", "--engine", "ray"))
            print(f"1,000 points, ray: {ray_s:.1f} s", flush=True)
        others[f"after {kills} kills"] = kill_often(sweep, folder, kills, wall_s)
        same = {told: path.read_bytes() == first.read_bytes() for told, path in others.items()}
    for told, equal in same.items():
        print(f"{'same bytes' if equal else 'OTHER BYTES'}: {told}")
    return 0 if wall_s <= LIMIT_S and all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
