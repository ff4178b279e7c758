"""Where points are solved: in this process, in worker processes of this machine, or on Ray."""

import signal
import socket
from collections.abc import Generator, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.sweep.journal import Record
from planner.sweep.point import Job, solve_job

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

_REACH_S = 5.0  # how long a Ray cluster may take to answer at its port
_RESUME = "run the same command again: what is solved is kept"


def solve_here(jobs: Iterator[Job]) -> Generator[tuple[str, Record], None, None]:
    """Each job solved in turn, in this process."""
    for job in jobs:
        yield job.key, solve_job(job)


def solve_in_processes(jobs: Iterator[Job], workers: int) -> Generator[tuple[str, Record], None, None]:
    """Jobs solved by `workers` processes, in the order they end; each holds one job, so memory does not grow.

    A worker that finds this process gone ends by itself. Raises PlannerError when a worker was killed.
    """
    context = get_context("spawn")
    crew: dict[Connection, tuple[BaseProcess, str]] = {}
    idle = [_hire(context) for _ in range(workers)]
    hired = [process for _, process in idle]
    try:
        while True:
            while idle and (job := next(jobs, None)) is not None:
                connection, process = idle.pop(0)
                _hand(connection, process, job)
                crew[connection] = (process, job.key)
            if not crew:
                return
            for ready in wait(list(crew)):
                assert isinstance(ready, Connection)
                process, key = crew.pop(ready)
                yield key, _receive(ready, process)
                idle.append((ready, process))
    finally:
        for process in hired:
            process.terminate()
        for process in hired:
            process.join()


def _hire(context: "SpawnContext") -> tuple[Connection, BaseProcess]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _hand(connection: Connection, process: BaseProcess, job: Job) -> None:
    try:
        connection.send(job)
    except (BrokenPipeError, ConnectionResetError):
        raise _lost(process) from None


def _receive(connection: Connection, process: BaseProcess) -> Record:
    try:
        record: Record = connection.recv()
    except (EOFError, ConnectionResetError):
        raise _lost(process) from None
    return record


def _lost(process: BaseProcess) -> Exception:
    process.join(5)
    code = process.exitcode
    if code is not None and code > 0:
        return RuntimeError(f"a worker process failed with exit code {code}")
    name = signal.Signals(-code).name if code else "without a word"
    return PlannerError(f"a worker process was ended ({name})", hint=f"use fewer `--workers`; {_RESUME}")


def _work(connection: Connection) -> None:
    """Solves jobs until the other side is gone; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            connection.send(solve_job(connection.recv()))


def solve_on_ray(jobs: Iterator[Job], workers: int, address: str | None) -> Generator[tuple[str, Record], None, None]:
    """Jobs solved by Ray: on the cluster at `address`, else on one of `workers` cores started here for the while.

    At most two jobs a core are handed out at a time. Raises PlannerError when Ray is not installed or not reachable.
    """
    ray = _start_ray(workers, address)
    try:
        task = ray.remote(num_cpus=1, max_retries=2)(solve_job)
        room = 2 * max(1, int(ray.cluster_resources().get("CPU", workers)))
        running: dict[Any, str] = {}
        while True:
            while len(running) < room and (job := next(jobs, None)) is not None:
                running[task.remote(job)] = job.key
            if not running:
                return
            ended, _ = ray.wait(list(running), num_returns=1)
            for reference in ended:
                yield running.pop(reference), _fetched(ray, reference)
    finally:
        ray.shutdown()


def _fetched(ray: Any, reference: Any) -> Record:  # noqa: ANN401 - ray is imported only where it is asked for
    try:
        record: Record = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(f"a task failed on Ray: {error.cause!r}") from None
    except ray.exceptions.RayError as error:
        raise PlannerError(f"Ray lost a task: {_line(error)}", where="--engine ray", hint=_RESUME) from None
    return record


def _start_ray(workers: int, address: str | None) -> Any:  # noqa: ANN401 - ray is imported only where it is asked for
    require_ray()
    import logging

    import ray

    if address is not None:
        _require_reachable(address)
    place: dict[str, Any] = {"address": address} if address is not None else {"address": "local", "num_cpus": workers}
    if address is None:
        place["include_dashboard"] = False
    try:
        ray.init(**place, logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise _unreachable(address or "local", _line(error)) from None
    return ray


def require_ray() -> None:
    """Raises PlannerError when the package is not there."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        hint = "install it with `pip install 'planner[ray]'`, or use `--engine local`"
        raise PlannerError("Ray is not installed", where="--engine ray", hint=hint)


def _require_reachable(address: str) -> None:
    """Refuse an address at which nothing listens, at once: Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal() or int(port) > 65535:
        hint = "write for example `--ray-address 10.0.0.1:6379` or `ray://10.0.0.1:10001`"
        raise PlannerError(f"`{address}` is no address of a Ray cluster", where="--ray-address", hint=hint)
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error) or "no answer") from None


def _unreachable(address: str, reason: str) -> PlannerError:
    hint = f"check that `ray status --address {address}` answers, or use `--engine local`; {_RESUME}"
    return PlannerError(f"no Ray cluster can be reached at `{address}`: {reason}", where="--ray-address", hint=hint)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
