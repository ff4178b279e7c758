"""Small programs whose output follows from their words and their input: what pipes between them come to."""

import re
from collections.abc import Callable, Sequence

from planner.importing.shell.arithmetic import arithmetic

MOST_NUMBERS = 1000


def output_of(words: Sequence[str], given: str | None) -> str | None:
    """What a command prints under the input `given` (None: no pipe); None where a run alone would tell."""
    name, arguments = words[0], list(words[1:])
    source = _SOURCES.get(name)
    if source is not None:
        return source(arguments)
    filtered = _FILTERS.get(name)
    return None if filtered is None or given is None else filtered(arguments, given)


def _echo(words: list[str]) -> str | None:
    words = words[1:] if words[:1] in (["-n"], ["-e"]) else words
    return None if words[:1] and words[0].startswith("-") else " ".join(words) + "\n"


def _seq(words: list[str]) -> str | None:
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, last = numbers[0] if len(numbers) > 1 else 1, numbers[-1]
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0:
        return None
    return "".join(f"{number}\n" for number in range(first, last + (1 if step > 0 else -1), step)[:MOST_NUMBERS])


def _basename(words: list[str]) -> str | None:
    if not 1 <= len(words) <= 2:
        return None
    return words[0].rstrip("/").rpartition("/")[2].removesuffix(words[1] if len(words) > 1 else "") + "\n"


def _expr(words: list[str]) -> str | None:
    value = arithmetic(" ".join(words), lambda name: None)
    return f"{value}\n" if isinstance(value, int) else None


def _wc(words: list[str], given: str) -> str | None:
    counts = {"-l": given.count("\n"), "-w": len(given.split()), "-c": len(given)}
    return f"{counts[words[0]]}\n" if words and words[0] in counts else None


def _tr(words: list[str], given: str) -> str | None:
    signs = [word.replace("\\n", "\n") for word in words]
    if len(signs) == 2 and signs[0] == "-d":
        return "".join(sign for sign in given if sign not in signs[1])
    return given.replace(signs[0], signs[1]) if [len(sign) for sign in signs] == [1, 1] else None


def _cut(words: list[str], given: str) -> str | None:
    match = re.fullmatch(r"-d ?(.) -f ?(\d+)", " ".join(words).replace("'", "").replace('"', ""))
    if match is None:
        return None
    rows = [line.split(match[1]) for line in given.splitlines()]
    return "".join(f"{row[int(match[2]) - 1] if 0 < int(match[2]) <= len(row) else ''}\n" for row in rows)


def _awk(words: list[str], given: str) -> str | None:
    """The number of fields, `awk -F, '{print NF}'`."""
    text = " ".join(words).replace(" ", "").replace("'", "")
    match = re.fullmatch(r"(?:-F(.))?\{print\(?NF\)?\}", text)
    if match is None:
        return None
    return "".join(f"{len(line.split(match[1]) if match[1] else line.split())}\n" for line in given.splitlines())


def _head(words: list[str], given: str) -> str | None:
    match = re.fullmatch(r"-n?(\d+)", "".join(words))
    return "".join(given.splitlines(keepends=True)[: int(match[1])]) if match else None


_SOURCES: dict[str, Callable[[list[str]], str | None]] = {
    "echo": _echo, "printf": lambda words: words[0] if len(words) == 1 and "%" not in words[0] else None,
    "seq": _seq, "basename": _basename, "expr": _expr,
}  # fmt: skip
_FILTERS: dict[str, Callable[[list[str], str], str | None]] = {
    "wc": _wc, "tr": _tr, "cut": _cut, "awk": _awk, "head": _head,
    "bc": lambda words, given: _expr(given.split()), "cat": lambda words, given: None if words else given,
}  # fmt: skip
