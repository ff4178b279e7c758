"""Mutated problem, plan and sweep files through the command: no traceback, no half-written file, right exit codes.

`python benchmarks/fuzz.py` runs 10,000 cases in two processes and prints each failure with the number that repeats it:
`python benchmarks/fuzz.py --first 1234 --cases 1 --keep FOLDER`.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CASES, PROCESSES = 10_000, 2
SLOWEST_S = 60
SOLVE_LIMIT = "1s"
KINDS_OF_FILE = ("problem", "plan", "sweep")
RIGHT_CODES = {0, 1, 2, 3}

SMALL = """\
schema: planner.problem/1
kind: serve
models: {m: {name: facebook/opt-1.3b}}
cluster: {pools: [{gpu: h100, gpus: 2, price: 2USD/h}]}
workloads:
  - {name: w, input_tokens: 300, output_tokens: {mean: 40, cv: 0.5}, slo: {ttft: 500ms, tpot: {mean: 50ms}}}
objective: {maximize: goodput_per_gpu}
options: {tp: [1, 2], pp: [1], max_batch: [8, 32], chunk_tokens: [2048]}
"""
SWEEP = """\
schema: planner.sweep/1
base: base.yaml
axes:
  - {field: slo.ttft, values: [500ms, 1s]}
  - {name: where, cases: {one: {cluster.pools.0.gpus: 1}, two: {cluster.pools.0.gpus: 2}}}
scenarios:
  - {name: today}
  - {name: dearer, set: {cluster.pools.0.price: 3USD/h}}
metrics: [goodput_per_gpu]
"""
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**7, -(10**7), 10**400, 0.5, -0.5, 1e300, 1e-300,
    float("nan"), float("inf"),
    "", " ", "a", "0", "-", "null", "200ms", "1e999s", "3USD/h", "\x00", "\x1b[31m", "\ud800", "../../etc/passwd",
    "$(touch pwned)", "x" * 5000, "é漢🙂", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, {"": None}, {"name": "x"},
    "2026-01-01", "planner.plan/2", "planner.problem/99", "planner.sweep/7", "serve", "train", "rl",
)  # fmt: skip
BYTES = (b"\x00", b"\xff\xfe", b"\t", b"{", b"}", b"[", b"]", b":", b"- ", b"&a ", b"*a",
         b"!!python/object:os.system ", b"<<: *a\n", b"\n", b"'",
         b'"', b"#", b"|", b">", b"%", b"@", b"`", b"\r", b"...\n", b"---\n", b",")  # fmt: skip


class Hang(BaseException):
    """A case that took too long; no Exception, so that the command does not turn it into its exit code."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Texts to mutate, by kind of file."""

    texts: dict[str, tuple[str, ...]]


@dataclass(slots=True)
class Tally:
    """Exit codes by verb, and what failed."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.codes += other.codes
        self.failures += other.failures


def make_seeds() -> Seeds:
    """Hand-written plans, a solved one, the examples, the documents that `init` writes, and small ones of our own."""
    from planner.load.starters import starter, starter_names

    examples = [path.read_text() for path in sorted((ROOT / "examples").glob("serve-*.yaml"))]
    starters = {name: starter(name) for name in starter_names()}
    plans = [path.read_text() for path in sorted((ROOT / "tests" / "plans").glob("*.json"))]
    with tempfile.TemporaryDirectory() as folder:
        problem, plan = Path(folder, "p.yaml"), Path(folder, "plan.json")
        problem.write_text(SMALL)
        _call(["solve", str(problem), "--level", "static", "-o", str(plan)])
        plans.append(plan.read_text())
    problems = (SMALL, *examples, *(text for name, text in starters.items() if name != "sweep"))
    return Seeds({"problem": problems, "plan": tuple(plans), "sweep": (SWEEP, starters.get("sweep", SWEEP))})


def _call(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command inside this process."""
    from planner.cli.main import main

    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
        out.flush()
    return code, out.buffer.getvalue().decode("utf-8", "replace"), err.getvalue()


LARGEST = 1e290  # numbers beyond are not multiplied: a product would be no float


def mutated(text: str, draw: random.Random) -> bytes:
    """The text with one to four mutations of its structure, its bytes, or both."""
    data: Any = None
    if draw.random() < 0.85:
        with contextlib.suppress(yaml.YAMLError):
            data = yaml.safe_load(text) if not text.startswith("{") else json.loads(text)
    if isinstance(data, dict):
        data = copy.deepcopy(data)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            _mutate(data, draw)
        with contextlib.suppress(yaml.YAMLError, UnicodeError, ValueError):
            text = (
                json.dumps(data) if draw.random() < 0.6 else yaml.safe_dump(data, allow_unicode=True, sort_keys=False)
            )
        if draw.random() < 0.95:
            return text.encode("utf-8", "surrogatepass")
    return _scrambled(text.encode("utf-8", "surrogatepass"), draw)


def _mutate(data: Any, draw: random.Random) -> None:  # noqa: ANN401 - parsed YAML
    """One value, key or entry somewhere in `data` deleted, replaced, renamed, doubled or moved."""
    holders = list(_holders(data))
    if not holders:
        return
    numbers = [place for place in holders if isinstance(place[0][place[1]], (int, float))]
    gentle = bool(numbers) and draw.random() < 0.5  # most files with another number in them are still valid
    holder, key = draw.choice(numbers if gentle else holders)
    deed = 4 if gentle else draw.randrange(6)
    if deed == 0:
        del holder[key]
    elif deed == 1 and isinstance(holder, dict):
        holder[draw.choice((f"{key}x", str(key)[:-1], str(key).upper(), "name", ""))] = holder.pop(key)
    elif deed == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif deed == 3:
        other, place = draw.choice(holders)
        with contextlib.suppress(KeyError, IndexError):
            holder[key] = copy.deepcopy(other[place])
    elif deed == 4 and isinstance(holder[key], (int, float)) and abs(holder[key]) < LARGEST:
        holder[key] = holder[key] * draw.choice((-1, 0, 2, 3, 0.5, 0.9, 1.1, 30, 1e12, 1e-6))
    else:
        holder[key] = copy.deepcopy(draw.choice(HOSTILE))


def _holders(data: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - parsed YAML
    """Every mapping and list below `data` with each of its keys; large arrays by their first entries."""
    entries = data.items() if isinstance(data, dict) else enumerate(data[:6])
    for key, below in list(entries):
        yield data, key
        if isinstance(below, (dict, list)) and below:
            yield from _holders(below)


def _scrambled(content: bytes, draw: random.Random) -> bytes:
    """The bytes cut, flipped, doubled or sprinkled."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        index = draw.randrange(len(content) + 1)
        deed = draw.randrange(5)
        if deed == 0:
            content = content[:index]
        elif deed == 1:
            content = content[:index] + draw.choice(BYTES) + content[index:]
        elif deed == 2:
            content = content[:index] + bytes([draw.randrange(256)]) + content[index + 1 :]
        elif deed == 3:
            end = min(len(content), index + draw.randrange(1, 200))
            content = content[:index] + content[end:]
        else:
            lines = content.splitlines(keepends=True) or [b""]
            line = draw.randrange(len(lines))
            content = b"".join([*lines[:line], b" " * draw.randrange(4) + lines[line], *lines[line:]])
    return content


def commands(kind: str, path: str, other: str, draw: random.Random) -> list[str]:
    """One command that reads the file; those of plans in turn, problems solved or merged."""
    if kind == "problem":
        solve = ["solve", path, "-o", "out.json", "--time-limit", SOLVE_LIMIT]
        static = [*solve, "--level", "static"]
        shown = (["solve", path, "--show-config"], ["solve", path, "--json", "--show-config"])
        return draw.choice((solve, static, static, static, *shown, *shown))
    if kind == "sweep":
        return ["sweep", path, "-o", "out.json", "--workers", "0", "--no-cache", "--time-limit", SOLVE_LIMIT]
    return draw.choice(
        (
            ["check", path],
            ["check", path, "--json"],
            ["show", path],
            ["show", path, "--json", "-o", "out.json"],
            ["diff", path, other],
            ["diff", other, path, "--json"],
            ["explain", path, "--json"],
            ["explain", path, draw.choice(("objective", "decode.replicas", "ttft", "job.tp", "mode"))],
            ["emit", path, "--target", draw.choice(("vllm", "sglang")), "--json"],
        )
    )


def run_case(number: int, seeds: Seeds, seed: int, keep: Path | None = None) -> tuple[str, str]:
    """(verb and exit code, what is wrong or nothing) of one case, in a folder of its own."""
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choices(KINDS_OF_FILE, (0.4, 0.5, 0.1))[0]
    with tempfile.TemporaryDirectory(prefix="planner-fuzz-") as folder:
        path, other = Path(folder, f"{kind}.yaml" if kind != "plan" else "plan.json"), Path(folder, "other.json")
        for base in ("base.yaml", "problem.yaml"):  # of sweeps
            Path(folder, base).write_text(SMALL)
        path.write_bytes(mutated(draw.choice(seeds.texts[kind]), draw))
        other.write_text(draw.choice(seeds.texts["plan"]))
        arguments = commands(kind, path.name, other.name, draw)
        before = set(os.listdir(folder))
        with _inside(Path(folder)), _limited():
            try:
                code, out, err = _call(arguments)
            except Hang:
                code, out, err = -1, "", "took too long"
            except BaseException as error:  # noqa: BLE001 - whatever leaves the command is what is looked for
                code, out, err = -2, "", repr(error)
        wrong = _wrong(arguments, code, out, err, Path(folder), before)
        if wrong and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{number}-{path.name}").write_bytes(path.read_bytes())
    return f"{arguments[0]} {code}", f"case {number}: {' '.join(arguments)}: {wrong}" if wrong else ""


def _wrong(arguments: Sequence[str], code: int, out: str, err: str, folder: Path, before: set[str]) -> str:
    """What this outcome breaks, nothing when it is right."""
    if code not in RIGHT_CODES:
        return f"exit code {code}: {err.strip()[:300]}"
    if "Traceback" in out + err:
        return f"a traceback: {err.strip()[-300:]}"
    if code == 2 and arguments[0] != "sweep" and (out or not err.startswith("error: ")):
        return f"exit code 2 without an error alone: {out[:100]!r} {err[:200]!r}"
    left = {name for name in os.listdir(folder) if name not in before}
    stray = left - {"out.json", "plan.checks.json", "sweep.checks.json"}
    if stray:
        return f"files left behind: {sorted(stray)}"
    for name in left:
        try:
            json.loads((folder / name).read_text())
        except ValueError as error:
            return f"{name} is half-written: {error}"
    if code == 2 and "out.json" in left and arguments[0] != "sweep":
        return "refused, and wrote its output"
    return ""


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises Hang in the command when it takes too long; processor time, since a busy machine is no hang."""

    def stop(number: int, frame: object) -> None:
        raise Hang

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SLOWEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def run_cases(numbers: Sequence[int], seed: int, keep: Path | None = None) -> Tally:
    """All these cases, one after another."""
    seeds, tally = make_seeds(), Tally()
    for number in numbers:
        outcome, wrong = run_case(number, seeds, seed, keep)
        tally.codes[outcome] += 1
        if wrong:
            print(wrong, file=sys.stderr, flush=True)
            tally.failures.append(wrong)
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, print exit codes by verb and every failure; 1 when there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    given = parser.parse_args(argv)
    started, tally = time.perf_counter(), Tally()
    last = given.first + given.cases
    parts = [range(given.first + part, last, given.processes) for part in range(given.processes)]
    work: Callable[[Sequence[int]], Tally] = partial(run_cases, seed=given.seed, keep=given.keep)
    with ProcessPoolExecutor(given.processes) as pool:
        for done in pool.map(work, parts):
            tally.add(done)
    print(*(f"{outcome:12} {count}" for outcome, count in sorted(tally.codes.items())), sep="\n")
    seconds = time.perf_counter() - started
    print(f"{given.cases} cases, {len(tally.failures)} failures, {seconds:.0f} s")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
