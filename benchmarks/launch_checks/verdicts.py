"""What an engine says to a command; for both engines, each in the Python of its own environment."""

import os
from collections.abc import Callable


def verdict(check: Callable[[], str]) -> str:
    """`ok: ...`, or what the engine raised; it is raised on where the setting `TRACE` is there."""
    try:
        return f"ok: {check()}"
    except (Exception, SystemExit) as error:
        if os.environ.get("TRACE"):
            raise
        return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
