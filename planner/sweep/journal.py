"""Append-only journal of solved points with a checksum a line, safe against a kill at any moment."""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.hardware.profiles.cache import default_cache_dir

PointRecord = dict[str, Any]
"""What a solve gave: `status`, figures, label and digests; JSON."""

WITHOUT_PLAN = ("infeasible", "none-found")
"""Statuses of points that no plan meets the limits of, by a proof or as far as a search saw."""

_CHECKSUM = 16  # hexadecimal digits


class Journal:
    """Records by the digest of their point; one line a record, found again by its offset in the file."""

    def __init__(self, path: Path, software: str) -> None:
        self.path = path
        self.damaged = 0  # lines cut off or changed
        self.stale = 0  # lines of other software
        self._software = software
        self._places: dict[str, tuple[int, int]] = {}
        self._reader: int | None = None

    def load(self) -> None:
        """Finds the sound lines of this software; counts the others. Raises PlannerError for a file it cannot read."""
        try:
            with open(self.path, "rb") as file:
                offset = 0
                for line in file:
                    self._note(line, offset)
                    offset += len(line)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._broken(error, "read") from None

    def _note(self, line: bytes, offset: int) -> None:
        entry = _sound(line)
        if entry is None:
            self.damaged += bool(line.strip())
        elif entry["software"] != self._software:
            self.stale += 1
        elif entry["record"].get("status") in ("ok", *WITHOUT_PLAN):
            self._places[entry["key"]] = (offset, len(line))

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def keys(self) -> Iterable[str]:
        """Of every point that is there."""
        return self._places.keys()

    def append(self, key: str, record: PointRecord) -> None:
        """Writes one record; a process killed meanwhile leaves at most a line without its end, which readers drop."""
        payload = json.dumps({"key": key, "software": self._software, "record": record}, allow_nan=False).encode()
        line = _checksum(payload) + b" " + payload + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                end = os.lseek(descriptor, 0, os.SEEK_END)
                torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
                _write(descriptor, b"\n" + line if torn else line)
                self._places[key] = (end + torn, len(line))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._broken(error, "written") from None

    def read(self, key: str) -> PointRecord:
        """The record of a point that is there. Raises PlannerError when the file changed meanwhile."""
        offset, length = self._places[key]
        try:
            if self._reader is None:
                self._reader = os.open(self.path, os.O_RDONLY)
            entry = _sound(os.pread(self._reader, length, offset))
        except OSError as error:
            raise self._broken(error, "read") from None
        if entry is None or entry["key"] != key:
            raise PlannerError(
                "the journal was changed by another program",
                where=str(self.path),
                hint="let one sweep at a time write it, and run the same command again",
            )
        record: PointRecord = entry["record"]
        return record

    def close(self) -> None:
        """Lets go of the file."""
        if self._reader is not None:
            with suppress(OSError):
                os.close(self._reader)
            self._reader = None

    def _broken(self, error: OSError, verb: str) -> PlannerError:
        return PlannerError(
            f"the journal of solved points cannot be {verb}: {error.strerror or error}",
            where=str(self.path),
            hint="name another folder with `--cache`, or use `--no-cache`",
        )


def journal_path(name: str, cache: str | None) -> Path:
    """Where the journal of the sweep called `name` lies: below `cache`, else below the user's cache folder."""
    root = Path(cache) if cache is not None else default_cache_dir()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "sweep"
    suffix = "" if plain == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return root / "sweeps" / f"{plain[:80]}{suffix}.jsonl"


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).hexdigest()[:_CHECKSUM].encode()


def _sound(line: bytes) -> dict[str, Any] | None:
    """`key`, `software` and `record` of a line; None for a line that was cut off or changed."""
    checksum, payload = line[:_CHECKSUM], line[_CHECKSUM + 1 :].rstrip(b"\n")
    if not line.endswith(b"\n") or _checksum(payload) != checksum:
        return None
    entry = json.loads(payload)
    return entry if isinstance(entry, dict) and {"key", "software", "record"} <= entry.keys() else None


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
