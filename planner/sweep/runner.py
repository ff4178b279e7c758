"""Runs a sweep: takes cached points from the journal, and solves and stores those that are missing."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from planner.documents.files import digest
from planner.errors import PlannerError
from planner.progress import Limits, silent
from planner.sweep.axes import SweepAxis, SweepPoint, list_points, make_axes
from planner.sweep.base_problem import BaseProblem, open_base
from planner.sweep.identity import point_digest, software
from planner.sweep.journal import WITHOUT_PLAN, Journal, PointRecord, journal_path
from planner.sweep.point import SolveTask, failed
from planner.sweep.ray_workers import RayPool
from planner.sweep.schema import SweepFile
from planner.sweep.workers import InProcess, ProcessPool, WorkerPool

_BAR = 20  # characters


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How to run a sweep; none of it changes a byte of the results."""

    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))  # 0: in this process
    engine: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    cache: str | None = None  # folder; the user's own when None
    keep: bool = True  # False: a journal of this run alone
    tell: Callable[[str], None] = silent  # progress, often
    note: Callable[[str], None] = silent  # lines worth keeping


class SweepRunner:
    """Solves points of one base problem, each at most once."""

    def __init__(self, base: BaseProblem, limits: Limits, options: SweepOptions) -> None:
        self.base = base
        self.limits = limits
        self._options = options
        self._used: set[str] = set()
        self._engine = _open_engine(options)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not options.keep:
            self._folder = tempfile.TemporaryDirectory(prefix="planner-sweep-")
        path = journal_path(base.sweep.name, self._folder.name if self._folder else options.cache)
        self.journal = Journal(path, digest(dict(software())))
        self.journal.load()
        self._loaded = frozenset(self.journal.keys())
        self.solved = 0

    def solve(self, points: Sequence[SweepPoint], doing: str = "points") -> list[str]:
        """The key of every point, in order, once all of them are in the journal."""
        keys = [self._key(point) for point in points]
        self._used.update(keys)
        missing = {key: point for key, point in zip(keys, points, strict=True) if key not in self.journal}
        if missing:
            progress = _Progress(len(keys), len(keys) - len(missing), doing, self._options.tell)
            with closing(self._engine.run(self._jobs(missing))) as solved:
                for key, record in solved:
                    self.journal.append(key, record)
                    self.solved += 1
                    progress.step(planned=record["status"] not in WITHOUT_PLAN)
        return keys

    def record(self, key: str) -> PointRecord:
        """What is known of a point by its key."""
        return self.journal.read(key)

    def tell_kept(self) -> None:
        """Says how much of the journal was of use, and what was not."""
        journal, note = self.journal, self._options.note
        kept = len(self._used & self._loaded)
        if kept:
            note(f"{kept:,} of {len(self._used):,} points were kept from before")
        if journal.damaged:
            note(f"ignored {journal.damaged:,} damaged lines of {journal.path}")
        if journal.stale:
            note(f"ignored {journal.stale:,} kept points of other software in {journal.path}")
        unused = len(self._loaded) - kept
        if unused:
            note(f"left out {unused:,} kept points of other inputs")

    def close(self) -> None:
        """Ends the workers and lets go of the journal; one of this run alone is removed."""
        self._engine.close()
        self.journal.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _key(self, point: SweepPoint) -> str:
        try:
            return point_digest(self.base.resolve(point), self.limits)
        except PlannerError as error:
            record = failed(error)
            key = digest(record)
            if key not in self.journal:
                self.journal.append(key, record)
            return key

    def _jobs(self, missing: Mapping[str, SweepPoint]) -> Iterator[SolveTask]:
        return (SolveTask(key, self.base.resolve(point), self.limits) for key, point in missing.items())


def _open_engine(options: SweepOptions) -> WorkerPool:
    if options.engine == "ray":
        return RayPool(max(1, options.workers), options.ray_address)
    return InProcess() if options.workers == 0 else ProcessPool(options.workers)


class _Progress:
    """A bar with the time left, told after every point."""

    def __init__(self, total: int, done: int, doing: str, tell: Callable[[str], None]) -> None:
        self._total, self._done, self._before = total, done, done
        self._unplanned = 0
        self._doing, self._tell = doing, tell
        self._started = time.monotonic()

    def step(self, *, planned: bool) -> None:
        self._done += 1
        self._unplanned += not planned
        elapsed = time.monotonic() - self._started
        left_s = elapsed / (self._done - self._before) * (self._total - self._done)
        filled = _BAR * self._done // self._total
        bar = "#" * filled + "-" * (_BAR - filled)
        none = f", {self._unplanned:,} without a plan" if self._unplanned else ""
        self._tell(f"[{bar}] {self._done:,} of {self._total:,} {self._doing}{none}, {_duration(left_s)} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True, slots=True)
class FinishedSweep:
    """A finished sweep: its axes, its points and the key of each, in order."""

    sweep: SweepFile
    axes: tuple[SweepAxis, ...]
    points: list[SweepPoint]
    keys: list[str]
    runner: SweepRunner

    @property
    def scenarios(self) -> tuple[str, ...]:
        return self.sweep.scenarios

    def records(self) -> Iterator[PointRecord]:
        """The record of every point, in order, one at a time from disk."""
        return (self.runner.record(key) for key in self.keys)


def start_sweep(
    sweep: SweepFile,
    options: SweepOptions,
    *,
    limits: Limits | None = None,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    base: BaseProblem | None = None,
) -> tuple[SweepRunner, tuple[SweepAxis, ...], list[SweepPoint]]:
    """What a sweep is about to solve, of the problem that it names or of `base`.

    Raises PlannerError for a sweep, base problem or axis that is wrong.
    """
    axes = make_axes(sweep.spec, sweep.where)
    points = list_points(sweep.spec, axes, sweep.where)
    base = base or open_base(sweep, overrides, profiles)
    base.check(axes)
    return SweepRunner(base, limits if limits is not None else Limits(), options), axes, points


def finish_sweep(runner: SweepRunner, axes: tuple[SweepAxis, ...], points: list[SweepPoint]) -> FinishedSweep:
    """Solves what is missing. Whatever ends it, what was solved is kept."""
    return FinishedSweep(runner.base.sweep, axes, points, runner.solve(points), runner)
