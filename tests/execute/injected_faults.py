"""Ranks that fail in a planned way: entries of jobs, run by `planner.execute.ranks.rank`."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planner.execute.ranks.launch import progress_path, result_path
from planner.execute.shards.faults import RankProgress, read_mark

LONG_S = 600.0  # nobody waits for the end of it


def _save(job: Mapping[str, Any], steps: list[str]) -> None:
    rank = int(os.environ["RANK"])
    result_path(Path(job["folder"]), rank).write_text(json.dumps({"steps": steps, "pid": os.getpid()}))


def run(job: Mapping[str, Any], progress: RankProgress) -> None:
    """One good step, then the fault of the job on its rank while the other rank waits.

    However busy the machine is, the one rank starts its steps when the other waits, which moves on until it has come.
    """
    rank, doomed = int(os.environ["RANK"]), job["rank"]
    if rank == doomed and job["fault"] != "none":
        _wait_for(job, 1 - rank, "ffn_all_reduce")
    progress.mark("prefill", "qkv")
    _save(job, ["prefill"])
    progress.mark("decode", "ffn_up")
    if rank == doomed:
        FAULTS[job["fault"]](progress)
    elif job["fault"] != "none":
        progress.mark("decode", "ffn_all_reduce")
        _wait_for(job, doomed, "ffn_up", meanwhile=lambda: progress.enter("ffn_all_reduce"))
        time.sleep(0.5)
        progress.enter("ffn_all_reduce")  # it stands still later than the rank that hangs
        time.sleep(LONG_S)
    _save(job, ["prefill", "decode"])


def _wait_for(job: Mapping[str, Any], rank: int, operator: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Waits until another rank is in that operator of the step `decode`."""
    while read_mark(progress_path(Path(job["folder"]), rank)).operator != operator:
        meanwhile()
        time.sleep(0.01)


def _raise(_progress: RankProgress) -> None:
    raise ValueError("a shape that does not fit")


def _kill(_progress: RankProgress) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(_progress: RankProgress) -> None:
    time.sleep(LONG_S)


def _busy(progress: RankProgress) -> None:
    while True:
        progress.enter("ffn_up")
        time.sleep(0.01)


def _leave(_progress: RankProgress) -> None:
    os._exit(0)


def _out_of_memory(_progress: RankProgress) -> None:
    raise MemoryError("array of 640 GB")


def _out_of_device_memory(_progress: RankProgress) -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 640.00 GiB.")


FAULTS = {
    "none": lambda _progress: None,
    "raise": _raise,
    "kill": _kill,
    "hang": _hang,
    "busy": _busy,
    "leave": _leave,
    "memory": _out_of_memory,
    "device_memory": _out_of_device_memory,
}


def reduce_with_a_dead_rank(job: Mapping[str, Any], progress: RankProgress) -> None:
    """Rank 1 is killed while rank 0 waits for it in an all-reduce over gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    progress.mark("decode", "ffn_all_reduce")
    dist.all_reduce(torch.ones(4))
    if int(os.environ["RANK"]) == job["rank"]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


class _Doomed(RankProgress):
    """A record whose writer is killed when it comes to the KV transfer."""

    def mark(self, step: str, operator: str = "") -> None:
        super().mark(step, operator)
        if step == "kv_transfer":
            os.kill(os.getpid(), signal.SIGKILL)


def run_rank_that_dies_in_its_second_step(job: Mapping[str, Any], progress: RankProgress) -> None:
    """A rank of a decode role at its real work, until it is killed."""
    from planner.execute.ranks.runner import run_rank

    del progress
    run_rank(job, _Doomed(progress_path(Path(job["folder"]), int(os.environ["RANK"]))))


def compute_for_long(job: Mapping[str, Any], progress: RankProgress) -> None:
    """A step without marks for longer than ranks may stand still, which said before how long it may take."""
    progress.mark("decode", "ffn_up")
    progress.expect(job["expected_s"])
    time.sleep(job["spent_s"])
    _save(job, ["decode"])
