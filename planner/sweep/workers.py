"""Solves points in this process, in worker processes, or on Ray."""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from planner.errors import PlannerError
from planner.sweep.journal import PointRecord
from planner.sweep.point import SolveTask, solve_task

RESUME = "run the same command again: what is solved is kept"

Solved = Generator[tuple[str, PointRecord], None, None]


class WorkerPool(Protocol):
    """Solves jobs, in any order; what it started stays up between calls, until it is closed."""

    def run(self, jobs: Iterator[SolveTask]) -> Solved:
        """The key and record of every job, as each ends; jobs are taken only as there is room."""

    def close(self) -> None:
        """Ends everything that was started."""


class InProcess:
    """This process, one job after the other.

    A solver may take Ctrl-C for itself during a job; what it then answers is not kept.
    """

    def run(self, jobs: Iterator[SolveTask]) -> Solved:
        for job in jobs:
            yield job.key, solve_task(job)

    def close(self) -> None:
        """Nothing was started."""


class ProcessPool:
    """Worker processes that import once and hold one job each, so that memory does not grow with the sweep.

    A worker that finds this process gone ends by itself.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._idle: list[tuple[Connection, BaseProcess]] = []
        self._hired: list[BaseProcess] = []

    def run(self, jobs: Iterator[SolveTask]) -> Solved:
        """As `Engine.run`. Raises PlannerError when a worker was killed."""
        busy: dict[Connection, tuple[BaseProcess, str]] = {}
        while True:
            while len(busy) < self._workers and (job := next(jobs, None)) is not None:
                connection, process = self._idle.pop() if self._idle else self._hire()
                _hand(connection, process, job)
                busy[connection] = (process, job.key)
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                process, key = busy.pop(ready)
                record = _receive(ready, process)
                self._idle.append((ready, process))
                yield key, record

    def close(self) -> None:
        """Ends the workers, whatever they are at."""
        for process in self._hired:
            process.terminate()
        for process in self._hired:
            process.join()
        self._idle.clear()
        self._hired.clear()

    def _hire(self) -> tuple[Connection, BaseProcess]:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._hired.append(process)
        return ours, process


def _hand(connection: Connection, process: BaseProcess, job: SolveTask) -> None:
    try:
        connection.send(job)
    except (BrokenPipeError, ConnectionResetError):
        raise _lost(process) from None


def _receive(connection: Connection, process: BaseProcess) -> PointRecord:
    try:
        record: PointRecord = connection.recv()
    except (EOFError, ConnectionResetError):
        raise _lost(process) from None
    return record


def _lost(process: BaseProcess) -> Exception:
    process.join(5)
    code = process.exitcode
    if code is not None and code > 0:
        return RuntimeError(f"a worker process failed with exit code {code}")
    name = signal.Signals(-code).name if code else "without a word"
    return PlannerError(f"a worker process was ended ({name})", hint=f"use fewer `--workers`; {RESUME}")


def _work(connection: Connection) -> None:
    """Solves jobs until the other side is gone.

    Ctrl-C is the parent's business, and must not reach this process: a solver would take it for its own, and hand over
    what it had so far as its answer.
    """
    os.setsid()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(solve_task(connection.recv()))
