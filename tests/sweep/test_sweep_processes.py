"""The same bytes from one process, from several, from Ray, and after kills."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Sweep = Callable[..., Any]
BACKSTOP_S = 600.0

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")

AXES = """
axes:
  - {field: rate, from: 1/s, to: 40/s, steps: 2, log: true}
  - {field: ttft, values: [300ms, 1s]}
"""


@contextmanager
def started(*flags: str) -> "Iterator[subprocess.Popen[bytes]]":
    """The sweep of this folder as a process of its own."""
    command = [sys.executable, "-m", "planner", "sweep", "sweep.yaml", *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*flags: str) -> int:
    """The exit code of such a process."""
    with started(*flags) as process:
        process.communicate(timeout=BACKSTOP_S)
        return process.returncode


def test_results_do_not_depend_on_processes_or_kills(sweep: Sweep, folder: Path) -> None:
    assert sweep(AXES, "-o", "one.parquet").code == 0
    expected = (folder / "one.parquet").read_bytes()
    assert finished("--workers", "2", "--cache", "two", "-o", "two.parquet") == 0
    assert (folder / "two.parquet").read_bytes() == expected
    journal = folder / "killed" / "sweeps" / "sweep.jsonl"
    for workers, kept in (("2", 1), ("0", 2)):  # killed with points of the first run kept, and with half of them
        kill_after(kept, journal, "--workers", workers, "--cache", "killed", "-o", "killed.parquet")
        if (folder / "killed.parquet").exists():
            assert (folder / "killed.parquet").read_bytes() == expected
    assert sweep(AXES, "--cache", "killed", "-o", "killed.parquet").code == 0
    assert (folder / "killed.parquet").read_bytes() == expected


def kill_after(kept: int, journal: Path, *flags: str) -> None:
    """Kills such a process once it has kept so many points, unless it ends before."""
    with started(*flags) as process:
        until(lambda: num_lines(journal) >= kept or process.poll() is not None)


def num_lines(journal: Path) -> int:
    """Points that a sweep has kept so far."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def until(there: Callable[[], bool]) -> None:
    """Waits for something to be there; for long, since a busy machine is slow."""
    deadline = time.monotonic() + BACKSTOP_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def journal(folder: Path) -> Path:
    """The journal, once it is there, of a sweep that takes long, kept in `long`."""
    text = AXES.replace("steps: 2", "steps: 200")
    (folder / "sweep.yaml").write_text(f"schema: planner.sweep/1\nbase: problem.yaml\n{text}\n")
    return folder / "long" / "sweeps" / "sweep.jsonl"


def test_ctrl_c_keeps_what_is_done_and_says_so(journal: Path) -> None:
    with started("--workers", "1", "--cache", "long") as process:
        until(journal.exists)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=BACKSTOP_S)
    assert process.returncode == 130
    assert b"run the same command again" in told
    assert journal.read_bytes().endswith(b"\n")


def children_of(pid: int) -> list[int]:
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == pid:
                children.append(int(entry.name))
    return children


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_proc
def test_workers_end_when_the_sweep_is_killed(journal: Path) -> None:
    with started("--workers", "2", "--cache", "long") as process:
        until(journal.exists)
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
    assert len(workers) >= 2
    until(lambda: not any(is_alive(worker) for worker in workers))


@needs_proc
def test_a_worker_that_is_killed_is_named_and_nothing_is_lost(journal: Path) -> None:
    with started("--workers", "2", "--cache", "long") as process:
        until(journal.exists)
        for child in children_of(process.pid):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)
        _, told = process.communicate(timeout=BACKSTOP_S)
    assert process.returncode == 2
    assert b"a worker process was ended (SIGKILL)" in told
    assert journal.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_ray_gives_the_same_bytes(sweep: Sweep, folder: Path) -> None:
    assert sweep(AXES, "-o", "one.parquet").code == 0
    assert finished("--engine", "ray", "--workers", "2", "--cache", "ray", "-o", "ray.parquet") == 0
    assert (folder / "ray.parquet").read_bytes() == (folder / "one.parquet").read_bytes()
