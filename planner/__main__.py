"""Entry point of the command `planner` and of `python -m planner`: Ctrl-C ends it with one line, whatever it does.

An interrupt that came while a library is being imported waits until that import is over: libraries swallow exceptions
there, or turn them into errors of their own.
"""

import gc
import os
import signal
import sys

TYPE_CHECKING = (
    False  # type checkers take it for true; importing `typing` would leave an interrupt more time to come early
)
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

EXIT_INTERRUPTED = 130
OBJECTS_BETWEEN_COLLECTIONS = 100_000  # of the youngest; a short solve makes few cycles, and libraries many objects
_IMPORTING = "<frozen importlib._bootstrap"  # how files of the import system start


def main() -> int:
    """Run one command and return its exit code."""
    interrupts = Interrupts()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 50, 50)
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell told us to ignore it
            signal.signal(signal.SIGINT, interrupts.on_signal)
        from planner.cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        return _say_interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt but the interpreter's own end
    return _say_interrupted() if interrupts.came and code == 0 else code


class Interrupts:
    """Turns SIGINT into KeyboardInterrupt, after the import during which it came; a second one ends the process."""

    def __init__(self) -> None:
        self.came = False

    def on_signal(self, number: int, frame: "FrameType | None") -> None:
        """The handler of SIGINT."""
        importer = _importer(frame)
        if importer is None:
            self.came = True
            raise KeyboardInterrupt
        if self.came:
            os._exit(_say_interrupted())
        self.came = True
        importer.f_trace = _interrupt
        sys.settrace(lambda *event: None)  # without it no frame is traced


def _importer(frame: "FrameType | None") -> "FrameType | None":
    """The frame whose import statement is under way, the outermost of nested ones; None outside imports."""
    importer = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            importer = frame.f_back
        frame = frame.f_back
    return importer


def _interrupt(frame: "FrameType", event: str, argument: object) -> "NoReturn":
    """Ends the import statement of `frame`, at the first thing that it does then."""
    sys.settrace(None)
    frame.f_trace = None
    raise KeyboardInterrupt


def _say_interrupted() -> int:
    if sys.stderr is not None:
        try:
            print("interrupted", file=sys.stderr, flush=True)
        except OSError:  # stderr is closed: the exit code still tells
            return EXIT_INTERRUPTED
    return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
