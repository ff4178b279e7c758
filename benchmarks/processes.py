"""CPU time of whole `planner` processes, as a user's shell starts them."""

import os
import resource
import subprocess
import sys

AS_USERS = {"PLANNER_NO_PROGRESS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # sources are compiled once and kept


def user_cpu_s(*arguments: object, **environment: str) -> float:
    """User CPU seconds of one `planner ARGUMENTS`, interpreter start included; raises where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", "planner", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **AS_USERS, **environment})
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def compiled_user_cpu_s(*arguments: object) -> float:
    """The least of two: what the first one compiles, sources and loops, the second one finds."""
    return min(user_cpu_s(*arguments) for _ in range(2))
