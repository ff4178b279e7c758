"""Atomic file writes, and canonical JSON text for digests."""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from planner.errors import PlannerError


def write_text_atomic(path: str | Path, text: str) -> None:
    """Writes UTF-8 `text` to `path` as `write_bytes_atomic` does."""
    write_bytes_atomic(path, text.encode())


def write_bytes_atomic(path: str | Path, content: bytes) -> None:
    """Writes `content` to a temporary file beside `path`, flushes it to disk and renames it; `-` is standard output.

    A link is followed, an existing file keeps its permissions, a device or pipe is written directly. Raises
    PlannerError when the file cannot be written; what was there before is then untouched.
    """
    if str(path) == "-":
        _write_stdout(content)
        return
    with _errors_named(path):
        target = os.path.realpath(path)
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as stream:
                stream.write(content)
        else:
            _replace(target, content, mode)


def _replace(target: str, content: bytes, mode: int | None) -> None:
    temporary = os.path.join(os.path.dirname(target), f".planner-{os.urandom(8).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, stat.S_IMODE(mode))
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _mode(target: str) -> int | None:
    try:
        return os.stat(target).st_mode
    except FileNotFoundError:
        return None


def _write_stdout(content: bytes) -> None:
    """Writes to standard output; a closed pipe stays BrokenPipeError, which ends a program quietly."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise PlannerError(
            f"cannot be written: {problem.strerror}", where="<stdout>", hint="check where standard output goes"
        ) from None


@contextmanager
def _errors_named(path: str | Path) -> Iterator[None]:
    hint = "check its permissions and the free space, or name another file"
    try:
        yield
    except FileNotFoundError as problem:
        folder = Path(path).parent
        if folder.is_dir():  # one of the system, in which nobody makes files
            raise PlannerError(f"cannot be written: {problem.strerror}", where=str(path), hint=hint) from None
        raise PlannerError(
            f"cannot be written: there is no directory `{folder}`", where=str(path), hint=f"create `{folder}` first"
        ) from None
    except IsADirectoryError:
        raise PlannerError("cannot be written: it is a directory", where=str(path), hint="name a file") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise PlannerError(f"cannot be written: {reason}", where=str(path), hint=hint) from None


def read_text(path: str | Path, *, hint: str = "check the path") -> str:
    """The text of a file in UTF-8, of standard input for `-`; raises PlannerError with `hint` when there is none."""
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
        return content.decode()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise PlannerError(f"cannot be read: {reason}", where=str(path), hint=hint) from None


def sha256_text(text: str) -> str:
    """The SHA-256 of `text` in UTF-8, as `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: object) -> str:
    """One text for equal JSON values: keys sorted, no spaces, ASCII, floats by their shortest exact decimal form.

    Raises ValueError for NaN and infinity, and TypeError for keys that are not text, since JSON would merge 1 and "1".
    """
    _require_text_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _require_text_keys(value: object) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of canonical JSON must be text, found {key!r}")
            _require_text_keys(below)
    elif isinstance(value, list | tuple):
        for below in value:
            _require_text_keys(below)


def digest(value: object) -> str:
    """The digest of a JSON value: `sha256_text` of its canonical form."""
    return sha256_text(canonical_json(value))
