"""Ranks as forks of one process that has imported torch, instead of interpreters that import it one by one.

As a program it is that process: each line of its input is a request in JSON, each line of its output the answer. A fork
leaves the loop and does what `python -m planner.execute.ranks.rank JOB` does.
"""

import atexit
import contextlib
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.execute.ranks import launch


class RankForks:
    """The process that is forked, started with the first rank."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> Any:  # noqa: ANN401 - JSON
        """The answer to a request."""
        if self._process is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], stack: contextlib.ExitStack
    ) -> "ForkedRank":
        """Stands for `launch._start`, for the command of a rank."""
        assert list(command[1:3]) == ["-m", launch.RANK_MODULE]
        inherited = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
        pid = self.ask(job=command[3], log=str(log), environment=inherited, folder=str(Path.cwd()))
        process = ForkedRank(self, pid)
        stack.callback(launch._kill, process)  # type: ignore[arg-type]  # as far as it looks at a Popen
        return process

    def stop(self) -> None:
        if self._process is not None:
            with self._process:  # closes its pipes, and waits
                self._process.kill()


FORKS = RankForks()  # of this run of the tests
atexit.register(FORKS.stop)


class ForkedRank:
    """What the watch of ranks looks at in a process."""

    def __init__(self, forks: RankForks, pid: int) -> None:
        self.pid, self.returncode, self._forks = pid, None, forks

    def poll(self) -> int | None:
        """The exit status; negative for a signal, None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask(poll=self.pid)
        return self.returncode

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(0.01)


def serve() -> str:
    """Answers requests; in a fork the path of its job. Ends with the process that asks."""
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            os.setpgid(answer, answer)  # in both processes, whichever comes first
            if answer == 0:
                become_rank(request)
                return str(request["job"])
        print(json.dumps(answer), flush=True)
    sys.exit(0)


def become_rank(request: Mapping[str, Any]) -> None:
    """Input, output, environment and folder of a rank."""
    with open(os.devnull, "rb") as empty, open(request["log"], "wb") as log:
        for descriptor, file in ((0, empty), (1, log), (2, log)):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


if __name__ == "__main__":
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes  # which the first backward pass imports

    import planner.execute.ranks.runner
    import planner.execute.ranks.training  # noqa: F401
    from planner.execute.ranks.rank import main

    torch.set_num_threads(1)
    gc.freeze()  # else the first collection of every fork copies all that is imported here
    sys.exit(main([serve()]))
