"""Faults of a rank (out of memory, hang, broken collective, ...), how they are told apart, and a status record a rank.

A rank keeps one fixed record in a file that is mapped into memory: writing it costs about a microsecond, and it is
still there when the rank has been killed, hangs in a collective, or runs out of memory.
"""

import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.documents.files import write_text_atomic

_TEXT_BYTES = 96
_RECORD = struct.Struct(f"<QddI{_TEXT_BYTES}s{_TEXT_BYTES}s")
"""Marks so far, time of the last, how long the step may take, process, step, operator."""

START, BUILD, DONE = "start", "build", "done"  # steps that are no steps of the plan


class FaultKind(StrEnum):
    """Why a rank ended without its results."""

    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"  # by a signal from outside, such as that of the kernel when host memory ends
    RAISED = "raised"
    COLLECTIVE = "collective"  # gloo or NCCL: mostly because another rank has gone
    HANG = "hang"  # made no progress
    TIME_LIMIT = "time_limit"
    EXITED = "exited"  # ended without a result and without a word


_PRIMARY_ORDER = tuple(FaultKind)  # a rank that ran out of memory explains the broken collectives of its peers
_MEMORY = ("OutOfMemoryError", "MemoryError")
_COLLECTIVE = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
_COLLECTIVE_TEXT = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
_ALLOCATION_TEXT = ("not enough memory", "can't allocate memory", "out of memory")
_HINTS = {
    FaultKind.OUT_OF_MEMORY: "cut the step with `--cut batch=..,context=..,layers=..`, or give more devices",
    FaultKind.KILLED: "look at the kernel log for an out-of-memory kill; cut the step with `--cut`",
    FaultKind.RAISED: "see the traceback in the log of that rank",
    FaultKind.COLLECTIVE: "check the network between the ranks; NCCL_DEBUG=INFO says more",
    FaultKind.HANG: "check that every rank reaches the same collectives; `--time-limit` is not the cause",
    FaultKind.TIME_LIMIT: "raise `--time-limit` or cut the step with `--cut`",
    FaultKind.EXITED: "see the log of that rank",
}


@dataclass(frozen=True, slots=True)
class RankFault:
    """One rank that failed: where it stood, and why as far as can be told."""

    kind: FaultKind
    rank: int
    step: str  # of the plan, such as `decode`, or `start` and `build`
    operator: str  # the part of the model it was in; "" between parts
    what: str
    detail: str = ""  # the end of its traceback or log
    role: str = ""  # of the plan

    @property
    def hint(self) -> str:
        return _HINTS[self.kind]

    @property
    def place(self) -> str:
        """Rank, role, step and operator in words."""
        of_role = f" of `{self.role}`" if self.role else ""
        return f"rank {self.rank}{of_role}, {self.step}" + (f", operator `{self.operator}`" if self.operator else "")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": str(self.kind)}


@dataclass(frozen=True, slots=True)
class Mark:
    """What a rank last said about itself."""

    count: int = 0
    time_s: float = 0.0  # since the epoch
    expected_s: float = 0.0  # of one run of the step it is in
    pid: int = 0
    step: str = START
    operator: str = ""


class RankProgress:
    """The record of one rank, written by itself."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "wb") as file:
            file.write(bytes(_RECORD.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _RECORD.size)
        self._count = 0
        self.step, self.expected_s = START, 0.0
        self.mark(START)

    def mark(self, step: str, operator: str = "") -> None:
        """Says that the rank has come to this part of this step."""
        self.expected_s = self.expected_s if step == self.step else 0.0
        self.step = step
        self._count += 1
        texts = (text.encode()[:_TEXT_BYTES] for text in (step, operator))
        _RECORD.pack_into(self._map, 0, self._count, time.time(), self.expected_s, os.getpid(), *texts)

    def expect(self, seconds: float) -> None:
        """Says that one run of the step may take that long: a rank that computes does not stand still."""
        self.expected_s = seconds
        self.enter("")

    def enter(self, operator: str) -> None:
        """Says that the rank has come to this operator of the step it is in."""
        self.mark(self.step, operator)


def read_mark(path: str | Path) -> Mark:
    """The last mark in the record of a rank; an empty one where the rank has not begun."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return Mark()
    if len(data) != _RECORD.size:
        return Mark()
    count, time_s, expected_s, pid, step, operator = _RECORD.unpack(data)
    texts = (text.rstrip(b"\0").decode(errors="replace") for text in (step, operator))
    return Mark(count, time_s, expected_s, pid, *texts)


def classify(type_names: Sequence[str], message: str) -> FaultKind:
    """The kind of a fault from the names of an exception's classes, own class first, and its text."""
    text = message.lower()
    if any(name in _MEMORY for name in type_names) or any(part in text for part in _ALLOCATION_TEXT):
        return FaultKind.OUT_OF_MEMORY
    if any(name in _COLLECTIVE for name in type_names):
        return FaultKind.COLLECTIVE
    if "RuntimeError" in type_names and any(part in text for part in _COLLECTIVE_TEXT):
        return FaultKind.COLLECTIVE
    return FaultKind.RAISED


def report_uncaught(path: Path, rank: int, progress: Path) -> None:
    """From now on an exception that nothing catches is also written to `path`, as a fault of this rank."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        mark = read_mark(progress)
        names = [base.__name__ for base in kind.__mro__]
        lines = traceback.format_exception(kind, error, trace)
        first = " ".join(str(error).split())[:300]
        what = f"{kind.__name__}: {first}" if first else kind.__name__
        fault = fault_at(mark, classify(names, str(error)), rank, what, "".join(lines)[-4000:])
        write_text_atomic(path, json.dumps(fault.as_json()))
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook


def fault_at(mark: Mark, kind: FaultKind, rank: int, what: str, detail: str = "") -> RankFault:
    """The fault of a rank that stands where its last mark says."""
    return RankFault(kind, rank, mark.step, mark.operator, what, detail)


def read_fault(path: str | Path) -> RankFault | None:
    """The fault that a rank wrote about itself; None where it wrote none or was cut off."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = {field.name for field in fields(RankFault)}
    data = {key: value for key, value in data.items() if key in known}
    return RankFault(**{**data, "kind": FaultKind(data["kind"])})


def fault_of_exit(rank: int, returncode: int, mark: Mark, log_tail: str) -> RankFault:
    """The fault of a rank that ended with `returncode` (negative: a signal) and wrote nothing about it."""
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        return fault_at(mark, FaultKind.KILLED, rank, f"killed by {name}", log_tail)
    return fault_at(mark, FaultKind.EXITED, rank, f"ended with exit code {returncode} and no result", log_tail)


def first_cause(faults: Sequence[RankFault]) -> RankFault | None:
    """The fault that explains the others: of the firmest kind, then the one seen first."""
    return min(faults, key=lambda fault: _PRIMARY_ORDER.index(fault.kind), default=None)
