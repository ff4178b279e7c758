"""Running emitted scripts with stand-ins for the engines that only note down how they were called."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NOTE = """#!/bin/bash
note=$(mktemp -p "$NOTES")
printf '%s\\0' "${0##*/}" "$@" >"$note"
env -0 >"$note.env"
exec "${THEN:-true}"
"""
_PROGRAMS = ("vllm", "vllm-router", "python3")
_GETENT = """#!/bin/bash
case "$3$2" in known.example) echo '10.1.2.3 STREAM known.example' ;; *) exit 2 ;; esac
"""


@dataclass(frozen=True)
class Call:
    """One start of a program: its arguments and its environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


class Stage:
    """Folders with stand-ins for the engines, for notes of their calls, and an empty one to run in."""

    def __init__(self, root: Path) -> None:
        self.programs, self.notes, self.work = (root / name for name in ("programs", "notes", "work"))
        for folder in (self.programs, self.notes, self.work):
            folder.mkdir()
        for name, text in {**dict.fromkeys(_PROGRAMS, _NOTE), "getent": _GETENT}.items():
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def environment(self, **settings: str) -> dict[str, str]:
        return {"PATH": f"{self.programs}:/usr/bin:/bin", "NOTES": str(self.notes), "LC_ALL": "C.UTF-8", **settings}

    def run(self, text: str, **settings: str) -> list[Call]:
        """The calls that a script makes, in the order of their arguments; nothing may appear in the working folder."""
        checked = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        ran = subprocess.run(
            ["bash", "-s"],
            input=text.encode(),
            cwd=self.work,
            env=self.environment(**settings),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
        assert list(self.work.iterdir()) == []
        return self.calls()

    def calls(self) -> list[Call]:
        """The calls noted since the last time."""
        calls = []
        for note in self.notes.iterdir():
            if note.suffix != ".env":
                calls.append(Call(_split(note), dict(entry.split("=", 1) for entry in _split(Path(f"{note}.env")))))
        for note in self.notes.iterdir():
            note.unlink()
        return sorted(calls, key=lambda call: call.arguments)


def _split(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode().split("\0")[:-1])
