"""Ctrl-C at any moment ends a command with exit code 130 and one line: also while libraries load."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "planner", "models", "list"]
SWALLOWED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))
except BaseException as error:
    {instead}
"""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Jobs in the background of a shell ignore interrupts, and so would the commands that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("library", "instead"), [("typer", "pass"), ("rich", "pass"), ("rich", "raise ImportError('no such symbol')")]
)
def test_an_interrupt_while_a_library_loads_is_neither_lost_nor_turned(
    tmp_path: Path, library: str, instead: str
) -> None:
    (tmp_path / f"{library}.py").write_text(SWALLOWED.format(instead=instead))
    done = run(tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_an_interrupt_at_work_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, threading, time\n"
        "def press():\n"
        "    while 'planner.models.library' not in __import__('sys').modules: time.sleep(0.001)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=press, daemon=True).start()\n"
    )
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert "Traceback" not in done.stdout
