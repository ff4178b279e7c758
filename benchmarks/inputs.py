"""What benchmarks read from ../shared/data, and what stands in for it where that folder is absent.

Requests of a trace are drawn from the built-in length shape of the same kind of service, at a Poisson rate. Nothing
stands in for measured runs, published instances and their scorers: what needs them says so and exits with code 2.
"""

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

from planner.documents.files import write_text_atomic
from planner.problem.shapes import SHARES, find_shape

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
SAMPLES = ROOT / "build" / "samples"
ABSENT = 2  # exit code
REQUESTS, RATE_PER_S, SEED = 20_000, 5.5, 0


def required(path: str | Path) -> Path:
    """The path, where something is there; ends the benchmark otherwise."""
    path = Path(path)
    if not path.exists():
        print(f"needs {shown(path)}, which is not here; nothing stands in for it: not run", file=sys.stderr)
        raise SystemExit(ABSENT)
    return path


def first_path() -> Path:
    """The path that the benchmark is told; ends it where there is none, or nothing is there."""
    if len(sys.argv) < 2:
        print(f"needs a path: the Makefile shows which for {Path(sys.argv[0]).name}", file=sys.stderr)
        raise SystemExit(ABSENT)
    return required(sys.argv[1])


@cache
def trace_file(name: str, shape: str) -> Path:
    """The trace `name` of ../shared/data/traces, or one of `REQUESTS` requests generated from a built-in shape."""
    path = SHARED / "traces" / name
    if path.exists():
        return path
    sample = SAMPLES / f"{shape}.csv"
    print(f"needs {shown(path)}: runs on {REQUESTS:,} requests generated from `{shape}` instead", file=sys.stderr)
    if not sample.exists():
        sample.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(sample, generated(shape))
    return sample


def generated(shape: str) -> str:
    """A trace as CSV: prompts and answers drawn apart from the quantiles of a shape, arrivals of a Poisson process."""
    rng, quantiles = np.random.default_rng(SEED), find_shape(shape)
    sides = (quantiles.input_tokens, quantiles.output_tokens)
    tokens = [np.rint(np.exp(np.interp(rng.random(REQUESTS), SHARES, np.log(side)))).astype(int) for side in sides]
    arrival_s = np.cumsum(rng.exponential(1.0 / RATE_PER_S, REQUESTS))
    rows = zip(arrival_s.tolist(), *(side.tolist() for side in tokens), strict=True)
    return "arrival_s,input_tokens,output_tokens\n" + "".join(f"{at:.6f},{fed},{told}\n" for at, fed, told in rows)


def shown(path: Path) -> str:
    """A path from the root of the project."""
    return os.path.relpath(path, ROOT)
