"""Atomic publishing of folders: a reader sees all files of one or none."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_ATTEMPTS = 100  # of publishing against other processes that publish the same folder


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A fresh hidden folder in `parent` (created when missing), removed at the end with whatever is left in it."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder (created when missing) and waits until the disk has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        with open(folder / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def publish(staged: Path, target: Path) -> None:
    """Renames `staged` to `target`; a folder already there is moved aside first and removed.

    Of several processes publishing the same target one wins; all leave a whole folder there. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            try:
                os.rename(staged, target)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        aside = Path(tempfile.mkdtemp(prefix=".replaced-", dir=target.parent))
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, aside / "old")
        shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"cannot put {target} in place")
