"""Launches the ranks of one job as processes, watches them, and kills what is left of them.

Local ranks are processes of this one; across nodes torchrun starts them and this watches torchrun and the records of
the ranks on this node. A rank that fails, or makes no progress, ends the whole job: the others get a moment to say what
they saw, then they are killed.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError
from planner.execute.shards.faults import (
    BUILD,
    DONE,
    START,
    FaultKind,
    Mark,
    RankFault,
    fault_at,
    fault_of_exit,
    read_fault,
    read_mark,
)

POLL_S = 0.05
PATIENCE = 4.0  # how much longer than expected a step may take without a mark
RANK_MODULE = "planner.execute.ranks.rank"

_TORCHRUN_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")  # torch.distributed.elastic


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long a job may take in all, and how long a rank may stand still."""

    total_s: float = 600.0
    stall_s: float = 20.0  # within a step; longer within one that is expected to take long
    quiet_s: float = 180.0  # while a rank starts, and while it builds its shard
    grace_s: float = 1.5  # between the first fault and the end of the other ranks


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The nodes of a job, and where its ranks meet: the arguments of torchrun."""

    num_nodes: int = 1
    ranks_per_node: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def local_ranks(self) -> range:
        first = self.node_rank * self.ranks_per_node
        return range(first, first + self.ranks_per_node)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What the ranks of a job left: results by rank, whole or partial, and the faults as they were seen."""

    results: Mapping[int, dict[str, Any]]
    faults: tuple[RankFault, ...]
    wall_s: float


def progress_path(folder: Path, rank: int) -> Path:
    """The record of what a rank is doing."""
    return folder / f"rank{rank}.progress"


def fault_path(folder: Path, rank: int) -> Path:
    """Where a rank writes the exception that ended it."""
    return folder / f"rank{rank}.fault.json"


def result_path(folder: Path, rank: int) -> Path:
    """Where a rank writes its results, again after every step."""
    return folder / f"rank{rank}.result.json"


def log_path(folder: Path, rank: int) -> Path:
    """What a rank printed."""
    return folder / f"rank{rank}.log"


def run_local(
    job: Mapping[str, Any],
    num_ranks: int,
    folder: Path,
    limits: TimeLimits,
    environment: Mapping[str, str] | None = None,
) -> JobOutcome:
    """Runs `job` on `num_ranks` processes of this machine until all are done or one has failed."""
    job_path = _write_job(job, folder)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(num_ranks)}
    with contextlib.ExitStack() as stack:
        processes = [
            _start(
                [sys.executable, "-m", RANK_MODULE, str(job_path)],
                log_path(folder, rank),
                {**meeting, **(environment or {}), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stack,
            )
            for rank in range(num_ranks)
        ]
        return _watch(dict(enumerate(processes)), processes, folder, limits)


def run_torchrun(
    job: Mapping[str, Any],
    meeting: Rendezvous,
    folder: Path,
    limits: TimeLimits,
    environment: Mapping[str, str] | None = None,
) -> JobOutcome:
    """Runs `job` under torchrun, this node's part of it; results and faults are those of the ranks on this node."""
    job_path = _write_job(job, folder)
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_arguments(meeting)]
    with contextlib.ExitStack() as stack:
        log = folder / f"torchrun{meeting.node_rank}.log"
        process = _start([*command, "-m", RANK_MODULE, str(job_path)], log, environment or {}, stack)
        return _watch(dict.fromkeys(meeting.local_ranks), [process], folder, limits)


def torchrun_arguments(meeting: Rendezvous) -> list[str]:
    """The rendezvous as torchrun takes it; failed ranks are not started again."""
    return [
        f"--nnodes={meeting.num_nodes}",
        f"--nproc-per-node={meeting.ranks_per_node}",
        f"--node-rank={meeting.node_rank}",
        f"--master-addr={meeting.master_addr}",
        f"--master-port={meeting.master_port}",
        "--max-restarts=0",
    ]


def _write_job(job: Mapping[str, Any], folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlannerError(f"cannot be made: {error.strerror}", where=str(folder), hint="name another folder") from None
    path = folder / "job.json"
    write_text_atomic(path, json.dumps({**job, "folder": str(folder.resolve())}, indent=1))
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], stack: contextlib.ExitStack
) -> "subprocess.Popen[bytes]":
    """A process in a session of its own; it is killed with its children when the stack unwinds."""
    output = stack.enter_context(log.open("wb"))
    inherited = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **os.environ}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**inherited, **environment},
        start_new_session=True,
    )
    stack.callback(_kill, process)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and all of its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


Ranks = Mapping[int, "subprocess.Popen[bytes] | None"]


def _watch(
    ranks: Ranks, processes: Sequence["subprocess.Popen[bytes]"], folder: Path, limits: TimeLimits
) -> JobOutcome:
    """Waits for the end of all ranks, or for a fault, and then for what the other ranks say about it."""
    start = time.monotonic()
    faults: dict[int, RankFault] = {}
    watch = _HangWatch(limits)
    while not faults and any(process.poll() is None for process in processes):
        time.sleep(POLL_S)
        faults = _failed(ranks, folder) or watch.stalled(ranks, folder, time.monotonic() - start)
    deadline = time.monotonic() + limits.grace_s
    while faults and time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(POLL_S)
        faults = faults | {rank: fault for rank, fault in _failed(ranks, folder).items() if rank not in faults}
    for process in processes:
        if process.poll() is None:
            _end_ranks(ranks, folder)
            _kill(process)
    faults = faults or _failed(ranks, folder) or _silent(ranks, processes, folder)
    return JobOutcome(_results(ranks, folder), tuple(faults.values()), time.monotonic() - start)


def _failed(ranks: Ranks, folder: Path) -> dict[int, RankFault]:
    """Faults of the ranks that have written one, or ended badly without a word."""
    faults: dict[int, RankFault] = {}
    for rank, process in ranks.items():
        fault = read_fault(fault_path(folder, rank))
        code = process.poll() if process is not None else None
        mark = read_mark(progress_path(folder, rank))
        if fault is None and code is not None and (code or mark.step != DONE):
            fault = fault_of_exit(rank, code, mark, _tail(log_path(folder, rank)))
        if fault is not None:
            faults[rank] = fault
    return faults


def _silent(ranks: Ranks, processes: Sequence["subprocess.Popen[bytes]"], folder: Path) -> dict[int, RankFault]:
    """Ranks that are gone although nobody saw them fail: torchrun failed itself, or killed them."""
    marks = {rank: read_mark(progress_path(folder, rank)) for rank in ranks}
    unfinished = [rank for rank, mark in marks.items() if mark.step != DONE]
    ranks_in_order = list(ranks)
    code = next((process.returncode for process in processes if process.returncode), 0)
    log = _tail(next(iter(sorted(folder.glob("torchrun*.log"))), folder / "none"))
    codes = {ranks_in_order[int(local)]: int(code) for code, local in _TORCHRUN_FAILURE.findall(log)}
    return {rank: fault_of_exit(rank, codes.get(rank, code), marks[rank], log) for rank in codes or unfinished}


def _end_ranks(ranks: Ranks, folder: Path) -> None:
    """Kills the ranks that torchrun started, each the leader of its own session."""
    for rank, process in ranks.items():
        pid = read_mark(progress_path(folder, rank)).pid if process is None else 0
        if pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _results(ranks: Ranks, folder: Path) -> dict[int, dict[str, Any]]:
    results = {}
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError):
            results[rank] = json.loads(result_path(folder, rank).read_text(encoding="utf-8"))
    return results


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-8000:].decode(errors="replace").strip()
    except OSError:
        return ""


class _HangWatch:
    """Sees which ranks have made no progress for too long."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._seen: dict[int, tuple[int, float]] = {}  # marks so far, and how long the job had run when that changed

    def stalled(self, ranks: Ranks, folder: Path, elapsed_s: float) -> dict[int, RankFault]:
        """The rank that the others wait for, where the job has run for too long or a rank has stood still."""
        marks = {rank: read_mark(progress_path(folder, rank)) for rank in ranks}
        # All ranks make the same marks: the one with the fewest is the one that the others wait for.
        last = min(marks, key=lambda rank: (marks[rank].step == DONE, marks[rank].count, rank))
        if elapsed_s > self._limits.total_s:
            return {last: fault_at(marks[last], FaultKind.TIME_LIMIT, last, f"was not done after {elapsed_s:.0f} s")}
        still = {rank: elapsed_s - self._since(rank, mark, elapsed_s) for rank, mark in marks.items()}
        over = [rank for rank, seconds in still.items() if seconds > self._allowed(marks[rank])]
        if not over:
            return {}
        rank = last if last in over else max(over, key=lambda rank: still[rank])
        return {rank: fault_at(marks[rank], FaultKind.HANG, rank, f"made no progress for {still[rank]:.0f} s")}

    def _since(self, rank: int, mark: Mark, elapsed_s: float) -> float:
        if self._seen.get(rank, (-1, 0.0))[0] != mark.count:
            self._seen[rank] = (mark.count, elapsed_s)
        return self._seen[rank][1]

    def _allowed(self, mark: Mark) -> float:
        if mark.step in (START, BUILD, DONE):
            return self._limits.quiet_s
        return max(self._limits.stall_s, PATIENCE * mark.expected_s)
