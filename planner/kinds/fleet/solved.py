"""Plans of the jobs of days in the user's cache folder, so that each problem is solved once for all processes.

Entries are named by the problem, the release, the code (how many files it has, and when the last of them changed), and
the files that the problem names (size and time of change). What cannot be read is solved again, and a folder that
cannot be written costs a solve a process, nothing else.
"""

import contextlib
import os
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from planner import __version__
from planner.documents.files import digest, write_text_atomic
from planner.errors import PlannerError
from planner.hardware.profiles.cache import default_cache_dir
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.problem.resolve import Resolved

CODE = Path(__file__).parents[2]
FOLDERS = (CODE, CODE / "hardware", CODE / "models", CODE / "solvers")  # links are not followed below a folder
SUFFIXES = (".py", ".yaml", ".json")


def entry(resolved: Resolved) -> Path:
    """The file of a problem's plan."""
    problem = resolved.problem
    named = [*problem.costs.profiles, problem.costs.calibration]
    named += [str(workload.trace) for workload in resolved.workloads if workload.trace is not None]
    parts = [
        problem.model_dump(mode="json", by_alias=True),
        __version__,
        _code(),
        [_state(Path(name)) for name in named],
    ]
    return default_cache_dir() / "fleet-plans" / f"{digest(parts).removeprefix('sha256:')}.json"


def recalled(path: Path) -> Envelope | None:
    """The plan of an entry, None where there is none that can be read."""
    try:
        return Envelope.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None


def keep(path: Path, plan: Envelope) -> None:
    """Writes an entry where that can be done."""
    with contextlib.suppress(OSError, PlannerError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(str(path), plan_json(plan))


def _state(path: Path) -> list[int]:
    """Size and time of change of a file; nothing of what is none."""
    try:
        state = path.stat()
    except OSError:
        return []
    return [state.st_size, state.st_mtime_ns]


@cache
def _code() -> list[int]:
    """How many files of code and data there are, and when the last one changed."""
    times = [
        os.stat(os.path.join(folder, name)).st_mtime_ns
        for root in FOLDERS
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(SUFFIXES)
    ]
    return [len(times), max(times)]
