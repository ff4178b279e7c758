"""Solves points with Ray, on a running cluster or on one started here."""

import logging
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from planner.errors import PlannerError, extra_hint
from planner.sweep.journal import PointRecord
from planner.sweep.point import SolveTask, solve_task
from planner.sweep.workers import RESUME, Solved

_REACH_S = 5.0  # how long a cluster may take to answer at its port
_JOBS_PER_CORE = 2  # handed out at a time, so that no core waits for the next one


class RayPool:
    """A Ray cluster: the one at `address`, else `workers` cores of this machine."""

    def __init__(self, workers: int, address: str | None) -> None:
        require_ray()
        if address is not None:
            _require_reachable(address)
        self._workers = workers
        self._address = address
        self._ray: Any = None

    def run(self, jobs: Iterator[SolveTask]) -> Solved:
        """As `Engine.run`. Raises PlannerError when the cluster cannot be reached, or is lost."""
        ray = self._started()
        task = ray.remote(num_cpus=1, max_retries=2)(solve_task)
        room = _JOBS_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", self._workers)))
        running: dict[Any, str] = {}
        while True:
            while len(running) < room and (job := next(jobs, None)) is not None:
                running[task.remote(job)] = job.key
            if not running:
                return
            ended, _ = ray.wait(list(running), num_returns=1)
            for reference in ended:
                yield running.pop(reference), _fetched(ray, reference)

    def close(self) -> None:
        """Lets go of the cluster; one started here ends."""
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None

    def _started(self) -> Any:  # noqa: ANN401 - ray is imported only where it is asked for
        if self._ray is not None:
            return self._ray
        import ray

        place: dict[str, Any] = {"address": self._address}
        if self._address is None:
            place = {"address": "local", "num_cpus": self._workers, "include_dashboard": False}
        try:
            ray.init(**place, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _unreachable(self._address or "local", _line(error)) from None
        self._ray = ray
        return ray


def _fetched(ray: Any, reference: Any) -> PointRecord:  # noqa: ANN401 - ray is imported only where it is asked for
    try:
        record: PointRecord = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(f"a task failed on Ray: {error.cause!r}") from None
    except ray.exceptions.RayError as error:
        raise PlannerError(f"Ray lost a task: {_line(error)}", where="--engine ray", hint=RESUME) from None
    return record


def require_ray() -> None:
    """Raises PlannerError when the package is not there."""
    if find_spec("ray") is None:
        raise PlannerError(
            "Ray is not installed",
            where="--engine ray",
            hint=f"{extra_hint('ray')}, or use `--engine local`",
        )


def _require_reachable(address: str) -> None:
    """Refuse an address at which nothing listens, at once: Ray itself would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise PlannerError(
            f"`{address}` is no address of a Ray cluster",
            where="--ray-address",
            hint="write for example `--ray-address 10.0.0.1:6379` or `ray://10.0.0.1:10001`",
        )
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error) or "no answer") from None


def _unreachable(address: str, reason: str) -> PlannerError:
    return PlannerError(
        f"no Ray cluster can be reached at `{address}`: {reason}",
        where="--ray-address",
        hint=f"check that `ray status --address {address}` answers, or use `--engine local`; {RESUME}",
    )


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
