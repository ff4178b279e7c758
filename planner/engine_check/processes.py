"""Starts, watches and stops child processes, with everything that they started in turn."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from planner.errors import PlannerError

STOP_S = 20.0  # engines free their memory on SIGTERM; what is left after this is killed
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Program:
    """A program in a process group of its own, its output in a file."""

    title: str
    process: subprocess.Popen[bytes]
    log: Path

    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def last_words(self, count: int = 3) -> str:
        """The last lines that it printed, as one line."""
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return " | ".join([line.strip() for line in lines if line.strip()][-count:])[-500:]
        return ""

    def fate(self) -> str:
        """How it ended, in words."""
        code = self.exit_code()
        ended = (
            "still runs" if code is None else f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"
        )
        words = self.last_words()
        return f"{self.title} {ended}{f': {words}' if words else ''}"


@contextmanager
def running(title: str, command: Sequence[str], log: Path, settings: Mapping[str, str]) -> Iterator[Program]:
    """The program while the block runs; its whole process group is gone afterwards, however the block ends."""
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                start_new_session=True,
            )
        except OSError as error:
            raise PlannerError(
                f"cannot be started: {error.strerror}",
                where=command[0],
                hint="check that it is installed and can be run",
            ) from None
    try:
        yield Program(title, process, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, SIGKILL to what is left of it; reaps the program itself."""
    group = process.pid
    _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while time.monotonic() < deadline and _alive(process, group):
        time.sleep(POLL_S)
    _signal(group, signal.SIGKILL)
    process.wait()


def _alive(process: subprocess.Popen[bytes], group: int) -> bool:
    """Whether anything of the group runs; reaps the program, which else would count."""
    process.poll()
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what it started is stopped; only in the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, which alone sets handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
