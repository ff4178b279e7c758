"""Inner loops compiled by numba; imported inside functions, since numba takes a while to load.

Compiled code is kept beside these files, else in the user's cache folder; where neither can be written (read-only
containers), in a folder of this process alone, since numba refuses to load without one.
"""

import os
import tempfile
from pathlib import Path


def _writable(folder: Path) -> bool:
    """Whether `folder`, or the nearest folder above it that exists, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def keep_compiled(here: Path, home: Path) -> None:
    """Names a folder for compiled code where numba would find none; the environment's own choice stands."""
    if "NUMBA_CACHE_DIR" not in os.environ and not _writable(here) and not _writable(home / ".cache"):
        os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="planner-compiled-")


keep_compiled(Path(__file__).parent / "__pycache__", Path(os.path.expanduser("~")))
