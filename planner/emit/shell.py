"""Bash quoting and escaping, so that no name or value of a user can break out of its place.

A `Word` is one argument of a program; only `word`, `argument` and `reference` make one, and its text is quoted for
bash, so a name that skipped its quoting does not type-check. Forms that no shell reads take its parts instead.
"""

import json
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError


@dataclass(frozen=True, slots=True)
class Variable:
    """The value that an environment variable has where a command runs."""

    name: str


@dataclass(frozen=True, slots=True)
class Word:
    """One argument of a program: literal texts and values of variables, one after the other.

    As text it is one word of bash.
    """

    parts: tuple[str | Variable, ...]

    def __str__(self) -> str:
        return "".join(shlex.quote(part) if isinstance(part, str) else f'"${{{part.name}}}"' for part in self.parts)


def word(value: object) -> Word:
    """`value` quoted for bash; JSON-like values (dict, list) as their JSON text.

    Raises PlannerError for text that no command-line argument can hold or that a terminal or log would obey.
    """
    text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
    refuse_unprintable(text)
    return Word((text,))


def argument(value: str, *, what: str) -> Word:
    """A name given by a user as one word; a leading `-` is refused, since the program would read it as a flag."""
    if value.startswith("-"):
        raise PlannerError(
            f"{what} `{value}` starts with `-` and would be read as a flag",
            where="emit",
            hint="give it another name; a path can start with `./`",
        )
    return word(value)


def reference(variable: str, *, before: str = "", after: str = "") -> Word:
    """The value of a shell variable as one word, between two literal texts."""
    return Word((*([before] if before else []), Variable(variable), *([after] if after else [])))


def refuse_unprintable(text: str) -> None:
    """Raises PlannerError for control characters (line breaks, NUL, escapes) and text outside Unicode."""
    bad = next((letter for letter in text if unicodedata.category(letter) in ("Cc", "Cs")), "")
    if bad:
        raise PlannerError(
            f"{json.dumps(text)} holds the character {json.dumps(bad)}, which a launch script must not carry",
            where="emit",
            hint="use printable characters only",
        )


def comment(text: str) -> str:
    """`text` as one comment line: whatever is not printable, line breaks first of all, becomes an escape."""
    printable = "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
    return f"# {printable}".rstrip()


def preamble(header: Iterable[str]) -> list[str]:
    """How a script begins: the header as comments, and an end at the first command that fails."""
    return ["#!/usr/bin/env bash", *map(comment, header), "set -euo pipefail"]


def required(needs: Mapping[str, str]) -> list[str]:
    """Lines that end a script where an environment variable is not set; `needs` says what to set each to."""
    return [f': "${{{name}:?set {name} to {what}}}"' for name, what in needs.items()]


def continued(rows: Sequence[str]) -> list[str]:
    """One command over several lines."""
    return [*(f"{row} \\" for row in rows[:-1]), rows[-1]]


Flag = tuple[str, Word | tuple[Word, ...] | None]  # without a value a switch


@dataclass(frozen=True, slots=True)
class Command:
    """One program to start; `settings` are environment variables."""

    title: str
    program: tuple[Word, ...]
    flags: tuple[Flag, ...]
    settings: tuple[tuple[str, Word], ...] = ()

    def lines(self) -> list[str]:
        """The command over several lines, joined by backslashes, running in the background."""
        settings = [f"{name}={value}" for name, value in self.settings]
        flags = [" ".join((flag, *map(str, values(value)))) for flag, value in self.flags]
        *first, last = continued([*settings, " ".join(map(str, self.program)), *(f"  {flag}" for flag in flags)])
        return [comment(self.title), *first, f"{last} &", 'pids+=("$!")']

    @property
    def arguments(self) -> tuple[Word, ...]:
        """What the program is given, one by one."""
        return tuple(each for flag, value in self.flags for each in (word(flag), *values(value)))


def values(value: Word | tuple[Word, ...] | None) -> tuple[Word, ...]:
    """The values of a flag; none for a switch."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


_STOP = (
    "pids=()",
    "stop() {",
    "  trap - EXIT INT TERM",
    '  if [ "${#pids[@]}" -gt 0 ]; then kill "${pids[@]}" 2>/dev/null || true; fi',
    "  wait || true",
    "}",
    "trap stop EXIT",
    "trap 'exit 130' INT",
    "trap 'exit 143' TERM",
)
_WAIT = (
    "status=0",
    'for pid in "${pids[@]}"; do wait "$pid" || status=$?; done',
    'exit "$status"',
)
_ADDRESS = (
    "# Sockets are bound to numeric addresses, so names are looked up here; what does not resolve is used as it is.",
    "address() {",
    "  local found",
    '  found=$(getent ahostsv4 "$1" 2>/dev/null | { read -r first _ && printf %s "$first"; }) || true',
    '  printf %s "${found:-$1}"',
    "}",
)


def script(
    header: Sequence[str],
    addresses: Sequence[tuple[str, Word]],
    commands: Sequence[Command],
    *,
    beside: bool = False,
) -> str:
    """A bash script that starts `commands` side by side, waits for all, and stops them when it is stopped.

    `addresses` are (variable, default): each keeps the value it has in the environment. `beside`: commands name files
    that lie where the script does.
    """
    lines = [*preamble(header), *(['cd -- "$(dirname -- "${BASH_SOURCE[0]:-.}")"'] if beside else []), ""]
    if addresses:
        lines += _ADDRESS
        for variable, default in addresses:
            lines += [f'[ -n "${{{variable}:-}}" ] || {variable}={default}', f'{variable}=$(address "${variable}")']
        lines.append("")
    lines += [*_STOP, ""]
    for command in commands:
        lines += [*command.lines(), ""]
    return "\n".join([*lines, *_WAIT]) + "\n"
