"""Load generators that are installed here and can drive an engine (guidellm, aiperf), and where their reports lie."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.emit.loads.generators import (
    AIPERF_REPORT,
    GUIDELLM_REPORT,
    GeneratorRun,
    aiperf_arguments,
    guidellm_arguments,
)
from planner.errors import PlannerError


@dataclass(frozen=True, slots=True)
class Generator:
    """A load generator: its executable, the arguments of a run, and its report in the run's folder."""

    name: str
    executable: str
    arguments: Callable[[GeneratorRun], list[str]]
    report: str

    def command(self, run: GeneratorRun) -> list[str]:
        """The command line of `run`."""
        return [self.executable, *self.arguments(run)]


def find_generator(asked: str | None) -> Generator:
    """The generator of that name or path; without one, the first that is installed.

    Raises PlannerError when it is none that is known, or not installed.
    """
    if asked is not None and Path(asked).name not in _KNOWN:
        known = ", ".join(f"`{name}`" for name in _KNOWN)
        raise PlannerError(f"unknown load generator `{asked}`", where="--generator", hint=f"known are {known}")
    for wanted in [asked] if asked is not None else list(_KNOWN):
        path = _executable(wanted)
        if path is not None:
            name = Path(wanted).name
            arguments, report = _KNOWN[name]
            return Generator(name, path, arguments, report)
    missing = f"`{asked}`" if asked is not None else " nor ".join(f"`{name}`" for name in _KNOWN)
    raise PlannerError(
        f"{missing} is not installed" if asked is not None else f"neither {missing} is installed",
        where="--generator",
        hint="install the extra `engine`, or give a report with `--report`",
    )


def _executable(name: str) -> str | None:
    """Where the program lies: on the search path, or beside the Python that runs this."""
    path = shutil.which(name)
    return path if path is not None else shutil.which(name, path=str(Path(sys.executable).parent))


_KNOWN: dict[str, tuple[Callable[[GeneratorRun], list[str]], str]] = {
    "guidellm": (guidellm_arguments, GUIDELLM_REPORT),
    "aiperf": (aiperf_arguments, AIPERF_REPORT),
}
