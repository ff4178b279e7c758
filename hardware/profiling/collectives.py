"""Benchmarks collectives (all-reduce, all-gather, all-to-all ...) among this machine's devices, NCCL or gloo.

The message is as docs/profiles.md defines it: of an all-gather the gathered whole, of a reduce-scatter the whole before
scattering, of an all-to-all what one device holds, of a point-to-point transfer what is sent.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from planner.hardware.profiling.journal import ProfileJournal
from planner.hardware.profiling.shapes import CollectiveShape, Family
from planner.hardware.profiling.timing import KernelTiming

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "p2p")
_SIZES = tuple(4**exponent for exponent in range(5, 15))  # 1 KiB to 256 MiB
_INNER, _SAMPLES, _WARM_UPS = 10, 9, 3
_VALUE_BYTES = 2


def num_devices(kind: str) -> int:
    """GPUs of this machine; none on a processor, whose processes share one memory."""
    import torch

    return torch.cuda.device_count() if kind == "cuda" else 0


def collective_families(devices: int, sizes: tuple[int, ...] = _SIZES) -> list[Family]:
    """Every operation for groups of 2, 4, 8, ... of `devices`; none for a single device."""
    groups = [2**exponent for exponent in range(1, max(devices, 1).bit_length()) if 2**exponent <= devices]
    return [
        Family("collective", (("group", group), ("operation", operation)), (("message_bytes", sizes),))
        for group in groups
        for operation in OPERATIONS
        if operation != "p2p" or group == 2
    ]


def measure_collectives(families: Sequence[Family], journal: ProfileJournal, *, device: str, budget_s: float) -> str:
    """Measures every size of every family that the journal lacks; returns why not, empty when all went well.

    Processes that hang or die are ended after `budget_s`; what they had measured is kept.
    """
    from torch.multiprocessing.spawn import start_processes

    work = [
        (family.name, point, dict(family.fixed) | {"message_bytes": point[0]})
        for family in families
        for point in ((size,) for size in family.sweep[0][1])
        if (family.name, point) not in journal.timings
    ]
    if not work:
        return ""
    world = max(int(sizes["group"]) for _, _, sizes in work)
    with tempfile.TemporaryDirectory(prefix="planner-collectives-") as folder:
        results = Path(folder) / "timings.jsonl"
        arguments = (world, device, _free_port(), [sizes for _, _, sizes in work], str(results))
        start: Any = start_processes  # untyped
        context = start(_rank, args=arguments, nprocs=world, join=False, start_method="spawn")
        reason = _wait(context, time.monotonic() + budget_s)
        lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    for (name, point, _), line in zip(work, lines, strict=False):
        journal.add((name, point), KernelTiming(**json.loads(line)))
    return reason


def _wait(context: Any, deadline_s: float) -> str:  # noqa: ANN401 - the context of PyTorch's processes
    """Waits for all processes; ends them when one fails or time is up, and says why."""
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    try:
        while not context.join(timeout=1.0):
            if time.monotonic() > deadline_s:
                return "collectives took longer than their share of the budget"
    except (ProcessRaisedException, ProcessExitedException) as error:
        return f"collectives failed: {str(error).strip().splitlines()[-1][:160]}"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
                process.join()
    return ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _rank(rank: int, world: int, device: str, port: int, work: list[dict[str, Any]], path: str) -> None:
    """One process: takes part in all of `work`, and as the first rank writes a line for each."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world)
    degrees = sorted({int(sizes["group"]) for sizes in work})
    groups = {degree: dist.new_group(list(range(degree))) for degree in degrees}
    for sizes in work:
        shape = CollectiveShape(**sizes)
        if rank < shape.group:
            timing = _time(_operation(shape, rank, groups[shape.group], device), device)
            if rank == 0:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(timing)) + "\n")
        dist.barrier()
    dist.destroy_process_group()


def _operation(shape: CollectiveShape, rank: int, group: Any, device: str) -> Callable[[], object]:  # noqa: ANN401
    import torch
    import torch.distributed as dist

    values = max(shape.group, shape.message_bytes // _VALUE_BYTES // shape.group * shape.group)
    whole = torch.randn(values, device=device).to(torch.bfloat16)
    part = torch.randn(values // shape.group, device=device).to(torch.bfloat16)
    if shape.operation == "all_reduce":
        return lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group=group)  # sums of sums would overflow
    if shape.operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if shape.operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if shape.operation == "alltoall":
        received = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(received, whole, group=group)
    return lambda: dist.send(whole, 1, group=group) if rank == 0 else dist.recv(whole, 0, group=group)


def _time(run: Callable[[], object], device: str) -> KernelTiming:
    """The median over several bursts of one collective behind another."""
    for _ in range(_WARM_UPS):
        run()
    samples = list(_bursts(run, device))
    p10, median, p90 = np.percentile(samples, [10, 50, 90])
    source = "torch nccl" if device == "cuda" else "torch gloo"
    return KernelTiming(float(median), float(p10), float(p90), len(samples), "bursts", source)


def _bursts(run: Callable[[], object], device: str) -> Iterator[float]:
    import torch

    for _ in range(_SAMPLES):
        if device == "cuda":
            torch.cuda.synchronize()
        started_s = time.perf_counter()
        for _ in range(_INNER):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
        yield (time.perf_counter() - started_s) / _INNER
