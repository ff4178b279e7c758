"""Data to stdout or to a file, everything else to stderr."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError


def write_data(text: str, path: str | None = None) -> None:
    """`text`, ending in one newline, to stdout or whole to the file `path`; a written file is named on stderr."""
    write_text_atomic(path or "-", text if text.endswith("\n") else f"{text}\n")
    if path not in (None, "-"):
        say(f"wrote {path}")


def write_json(document: object, path: str | None = None) -> None:
    """One JSON document, indented, with its keys in their own order."""
    write_data(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), path)


def say(message: str) -> None:
    """One line for the person at the terminal."""
    from planner.cli.errors import plain

    print(plain(message), file=sys.stderr, flush=True)


def write_folder(files: Mapping[str, str], folder: str) -> None:
    """All `files` (flat names) into `folder`, made when missing; scripts become executable.

    Everything is written beside the folder first, so that a full disk leaves `folder` as it was. Raises PlannerError.
    """
    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".planner-", dir=target.parent))
        try:
            for name, text in files.items():
                write_text_atomic(staged / name, text)
                (staged / name).chmod(_mode(executable=text.startswith("#!")))
            target.mkdir(exist_ok=True)
            for name in files:
                os.replace(staged / name, target / name)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        hint = "check its permissions and the free space, or name another folder"
        raise PlannerError(f"cannot be written: {error.strerror}", where=folder, hint=hint) from None
    say(f"wrote {len(files)} files to {folder}")


def _mode(*, executable: bool) -> int:
    """Permissions of a new file under the umask of this process."""
    umask = os.umask(0)
    os.umask(umask)
    return (0o777 if executable else 0o666) & ~umask
