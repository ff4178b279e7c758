"""What benchmarks read from ../shared/data, and what stands in for it where that folder is absent.

Requests of a trace are drawn from the built-in length shape of the same kind of service, at a Poisson rate. For tables
of measured runs and for instances stand small generated samples (`benchmarks/samples/`), which show that a benchmark
runs: its targets are not judged on them, and nothing is written into the project from them. Nothing stands in for
scorers, nor for what is sealed: what needs those says so, with exit code 2 where that is all it does.
"""

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import samples

from planner.documents.files import write_text_atomic
from planner.problem.shapes import SHARES, find_shape

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
SAMPLES = ROOT / "build" / "samples"
ABSENT = 2  # exit code
GENERATED: set[str] = set()  # names below ../shared/data for which generated samples were read
REQUESTS, RATE_PER_S, SEED = 20_000, 5.5, 0


def required(path: str | Path) -> Path:
    """The path, where something is there, else a generated sample of it; ends the benchmark where none can be made."""
    path = Path(path)
    if path.exists():
        return path
    if (sample := _sample(path)) is None:
        absent(path)
        raise SystemExit(ABSENT)
    return sample


def absent(path: Path) -> bool:
    """Whether nothing is at the path; says so, and that nothing stands in for it."""
    if missing := not path.exists():
        print(f"needs {shown(path)}, which is not here; nothing stands in for it: not run", file=sys.stderr)
    return missing


def first_path() -> Path:
    """The path that the benchmark is told; ends it where there is none, or nothing is there."""
    if len(sys.argv) < 2:
        print(f"needs a path: the Makefile shows which for {Path(sys.argv[0]).name}", file=sys.stderr)
        raise SystemExit(ABSENT)
    return required(sys.argv[1])


def exit_code(missed: int) -> int:
    """The code of a benchmark that misses targets or not; 0 where a generated sample was read, which judges none."""
    if GENERATED:
        print(f"targets are of measured data and not judged on generated samples: {', '.join(sorted(GENERATED))}")
        return 0
    return missed


def _sample(path: Path) -> Path | None:
    """A generated sample of what would be at a path below ../shared/data; None where there is none.

    None too for what writes (`--write`, which argparse takes shortened): calibrations are made of measured data alone.
    Said on stdout, so that figures kept in a file have it too.
    """
    whole, root = Path(os.path.abspath(path)), Path(os.path.abspath(SHARED))
    name = whole.relative_to(root).as_posix() if whole.is_relative_to(root) else ""
    if any(word.startswith("--w") for word in sys.argv) or not samples.known(name):
        return None
    if name not in GENERATED:
        GENERATED.add(name)
        print(f"needs {shown(path)}: runs on a generated sample, which says nothing about accuracy")
        samples.write(name, SAMPLES)
    return SAMPLES / name


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
