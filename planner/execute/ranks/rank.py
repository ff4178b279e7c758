"""Entry point of one rank's process: `python -m planner.execute.ranks.rank JOB.json`, its rank from the environment.

The job names the function to run, `module:name`; it is called with the job and a record of progress and returns
nothing: what it measures it writes to its result file after every step.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from planner.errors import PlannerError
from planner.execute.ranks.launch import fault_path, progress_path
from planner.execute.shards.faults import DONE, RankProgress, report_uncaught

_PR_SET_PDEATHSIG = 1  # prctl(2)


def main(argv: Sequence[str]) -> int:
    """Runs the job in the file `argv[0]`; an exception is written down as a fault and ends the process."""
    job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, folder = int(os.environ.get("RANK", "0")), Path(job["folder"])
    _die_with_parent()
    progress = RankProgress(progress_path(folder, rank))
    report_uncaught(fault_path(folder, rank), rank, progress_path(folder, rank))
    module, _, name = str(job["entry"]).partition(":")
    entry = getattr(importlib.import_module(module), name, None)
    if entry is None:
        raise PlannerError(f"no function `{name}` in `{module}`", where=argv[0], hint="fix `entry` of the job")
    entry(job, progress)
    progress.mark(DONE)
    return 0


def _die_with_parent() -> None:
    """Linux ends this process when the one that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
