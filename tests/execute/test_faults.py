"""Ranks that fail, die or hang: what is said about them, and that none of them stays."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from injected_faults import LONG_S
from rank_environment import ENVIRONMENT, HAS_TORCH, free_port

from planner.execute.ranks.launch import JobOutcome, Rendezvous, TimeLimits, progress_path, run_local, run_torchrun
from planner.execute.shards.faults import FaultKind, RankFault, RankProgress, classify, first_cause, read_mark

PATIENT = TimeLimits(total_s=200.0, stall_s=100.0, quiet_s=100.0, grace_s=0.3)
FAST = replace(PATIENT, stall_s=1.0)
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


def _run(fault: str, folder: Path, limits: TimeLimits = PATIENT, num_ranks: int = 2) -> JobOutcome:
    job = {"entry": "injected_faults:run", "fault": fault, "rank": 1}
    return run_local(job, num_ranks, folder, limits, ENVIRONMENT)


def _cause(outcome: JobOutcome) -> RankFault:
    cause = first_cause(outcome.faults)
    assert cause is not None
    return cause


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _require_gone(folder: Path, ranks: int = 2, *, all_began: bool = True) -> None:
    pids = [read_mark(progress_path(folder, rank)).pid for rank in range(ranks)]
    assert all(pids) or not all_began
    pids = [pid for pid in pids if pid]
    deadline = time.monotonic() + 100
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("raise", FaultKind.RAISED, "ValueError: a shape that does not fit"),
        ("kill", FaultKind.KILLED, "killed by SIGKILL"),
        ("hang", FaultKind.HANG, "made no progress"),
        ("leave", FaultKind.EXITED, "exit code 0 and no result"),
        ("memory", FaultKind.OUT_OF_MEMORY, "array of 640 GB"),
        pytest.param("device_memory", FaultKind.OUT_OF_MEMORY, "CUDA out of memory", marks=needs_torch),
    ],
)
def test_a_failing_rank_is_named_with_its_operator_and_ends_the_job(
    fault: str, kind: FaultKind, words: str, tmp_path: Path
) -> None:
    outcome = _run(fault, tmp_path, replace(PATIENT, stall_s=3.0) if fault == "hang" else PATIENT)
    cause = _cause(outcome)
    assert (cause.kind, cause.rank, cause.step, cause.operator) == (kind, 1, "decode", "ffn_up")
    assert words in cause.what
    assert outcome.wall_s < PATIENT.total_s
    assert outcome.results[0]["steps"] == ["prefill"]
    _require_gone(tmp_path)


def test_a_rank_that_is_busy_for_ever_meets_the_time_limit(tmp_path: Path) -> None:
    outcome = _run("busy", tmp_path, replace(PATIENT, total_s=3.0))
    assert _cause(outcome).kind == FaultKind.TIME_LIMIT
    assert outcome.wall_s >= 3.0
    _require_gone(tmp_path, all_began=False)


@pytest.mark.parametrize(("spent_s", "ends"), [(2.5, True), (LONG_S, False)])
def test_a_step_that_is_expected_to_take_long_is_no_hang_until_it_takes_far_longer(
    spent_s: float, ends: bool, tmp_path: Path
) -> None:
    job = {"entry": "injected_faults:compute_for_long", "expected_s": 30.0 if ends else 1.0, "spent_s": spent_s}
    outcome = run_local(job, 1, tmp_path, FAST, ENVIRONMENT)
    assert [fault.kind for fault in outcome.faults] == ([] if ends else [FaultKind.HANG])
    assert ends or outcome.wall_s >= 4.0
    _require_gone(tmp_path, 1)


def test_what_one_step_may_take_says_nothing_of_the_next(tmp_path: Path) -> None:
    progress = RankProgress(tmp_path / "one")
    progress.mark("train")
    progress.expect(100.0)
    progress.enter("qkv")
    assert read_mark(tmp_path / "one").expected_s == 100.0
    progress.mark("optimizer")
    assert read_mark(tmp_path / "one").expected_s == 0.0


def test_ranks_that_do_well_leave_results_and_no_fault(tmp_path: Path) -> None:
    outcome = _run("none", tmp_path)
    assert not outcome.faults
    assert [outcome.results[rank]["steps"] for rank in (0, 1)] == [["prefill", "decode"]] * 2


def test_no_rank_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from planner.execute.ranks.launch import *;"
        f"run_local({{'entry': 'injected_faults:run', 'fault': 'busy', 'rank': 1}}, 2, Path({str(tmp_path)!r}),"
        f" TimeLimits(), {ENVIRONMENT!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            if all(read_mark(progress_path(tmp_path, rank)).step == "decode" for rank in range(2)):
                break
            time.sleep(0.05)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _require_gone(tmp_path)


@needs_torch
def test_a_rank_that_dies_explains_the_broken_collective_of_the_other(forked_ranks: None, tmp_path: Path) -> None:
    job = {"entry": "injected_faults:reduce_with_a_dead_rank", "rank": 1}
    outcome = run_local(job, 2, tmp_path, PATIENT, ENVIRONMENT)
    cause = _cause(outcome)
    assert (cause.kind, cause.rank, cause.operator) == (FaultKind.KILLED, 1, "ffn_all_reduce")
    others = {fault.rank: fault.kind for fault in outcome.faults if fault.rank != 1}
    assert others in ({}, {0: FaultKind.COLLECTIVE})
    _require_gone(tmp_path)


@needs_torch
def test_torchrun_says_which_rank_was_killed(tmp_path: Path) -> None:
    job = {"entry": "injected_faults:run", "fault": "kill", "rank": 1}
    meeting = Rendezvous(ranks_per_node=2, master_port=free_port())
    limits = PATIENT
    outcome = run_torchrun(job, meeting, tmp_path, limits, ENVIRONMENT)
    cause = _cause(outcome)
    assert (cause.kind, cause.rank, cause.operator) == (FaultKind.KILLED, 1, "ffn_up")
    _require_gone(tmp_path)


def test_the_record_of_a_rank_is_read_while_it_runs(tmp_path: Path) -> None:
    progress = RankProgress(tmp_path / "one")
    first = read_mark(tmp_path / "one")
    progress.mark("decode", "x" * 500)
    second = read_mark(tmp_path / "one")
    assert (first.step, first.pid) == ("start", os.getpid())
    assert second.count > first.count
    assert (second.step, second.operator) == ("decode", "x" * 96)


def test_a_rank_that_never_began_has_an_empty_record(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(b"abc")
    assert read_mark(tmp_path / "none") == read_mark(tmp_path / "cut")
    assert read_mark(tmp_path / "none").count == 0


@pytest.mark.parametrize(
    ("names", "message", "kind"),
    [
        (("OutOfMemoryError", "RuntimeError"), "CUDA out of memory", FaultKind.OUT_OF_MEMORY),
        (("RuntimeError",), "DefaultCPUAllocator: can't allocate memory", FaultKind.OUT_OF_MEMORY),
        (("DistBackendError", "DistError", "RuntimeError"), "NCCL error in: x.cpp", FaultKind.COLLECTIVE),
        (("RuntimeError",), "[gloo/transport/tcp/pair.cc:534] Connection closed by peer", FaultKind.COLLECTIVE),
        (("RuntimeError",), "shape mismatch", FaultKind.RAISED),
        (("ValueError",), "no gloo here", FaultKind.RAISED),
    ],
)
def test_exceptions_are_told_apart_by_class_and_text(names: tuple[str, ...], message: str, kind: FaultKind) -> None:
    assert classify(names, message) == kind


def test_every_kind_of_fault_says_what_to_do() -> None:
    hints: dict[Any, str] = {kind: RankFault(kind, 0, "decode", "", "").hint for kind in FaultKind}
    assert all(hints.values())
    assert first_cause([]) is None
