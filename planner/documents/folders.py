"""Folders of small files, written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError


def write_folder(files: Mapping[str, str], folder: str | Path) -> None:
    """All `files` into `folder`, made when missing, as those are that names have; scripts become executable.

    Everything is written beside the folder first, so that a full disk leaves `folder` as it was. Raises PlannerError.
    """
    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".planner-", dir=target.parent))
        try:
            for name, text in files.items():
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                write_text_atomic(staged / name, text)
                (staged / name).chmod(_mode(executable=text.startswith("#!")))
            target.mkdir(exist_ok=True)
            for name in files:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged / name, target / name)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except FileExistsError:
        raise PlannerError("cannot be written: it is a file", where=str(folder), hint="name a folder") from None
    except OSError as error:
        raise PlannerError(
            f"cannot be written: {error.strerror}",
            where=str(folder),
            hint="check its permissions and the free space, or name another folder",
        ) from None


def _mode(*, executable: bool) -> int:
    """Permissions of a new file under the umask of this process."""
    umask = os.umask(0)
    os.umask(umask)
    return (0o777 if executable else 0o666) & ~umask
