"""Progress of long work as one line on stderr, rewritten in place on a terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from planner.cli.output import say

_QUIET_S = 1.0  # most solves end sooner and need no line


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A listener for `planner.progress.Limits.tell`; the line is wiped at the end."""
    if not sys.stderr.isatty() or os.environ.get("PLANNER_NO_PROGRESS"):
        yield lambda message: None
        return
    started, width = time.monotonic(), 0

    def tell(message: str) -> None:
        nonlocal width
        elapsed = time.monotonic() - started
        if elapsed < _QUIET_S:
            return
        line = f"{elapsed:.0f} s  {message}"[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
        sys.stderr.write(f"\r{line.ljust(width)}")
        sys.stderr.flush()
        width = len(line)

    try:
        yield tell
    finally:
        if width:
            sys.stderr.write(f"\r{' ' * width}\r")
            sys.stderr.flush()


def announce_compilation(*, elastic: bool = False) -> None:
    """Says why the first run of a machine takes longer."""
    from planner.simulate.run.engine import is_compiled

    if not is_compiled(elastic=elastic):
        say(f"compiling the simulator, once for this machine; some {10 if elastic else 20} s")
