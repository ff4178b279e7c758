"""Columns and paragraphs that fit a terminal: aligned tables, lines wrapped at words, equal rows folded into ranges."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

from planner.cli.errors import plain

WIDTH = 80  # columns of a terminal that nothing is known of
_PADDING = re.compile(r"\s+((?:\x1b\[[0-9;]*m)*)$")  # after the last column, perhaps before the end of a colour
_GAP = 2
_MOST_VARYING = 2  # columns of rows that are shown as one
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 2) -> str:
    """Aligned columns under lower-case headings, two spaces apart, never wrapped or cut."""

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in header:
        columns.add_column(Text(heading), no_wrap=True, overflow="ignore")
    for row in rows:
        columns.add_row(*(_styled(Text(plain(cell).replace("\n", " "))) for cell in row))
    colour = wants_colour()
    console = Console(
        file=io.StringIO(),
        width=100_000,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(columns)
    lines = captured.get().rstrip("\n").split("\n")
    return "\n".join(" " * indent + _PADDING.sub(r"\1", line) for line in lines)


def wants_colour() -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _styled(cell: Any) -> Any:  # noqa: ANN401 - rich is imported when a table is printed
    if cell.plain == "FAIL":
        cell.stylize("bold red")
    elif cell.plain == "ok":
        cell.stylize("green")
    return cell


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 2, width: int = WIDTH) -> str:
    """A table of at most `width` columns: what does not fit beside the rest stands below its row, with its heading.

    The widest columns go first, never the first one; columns without a value in any row are left out.
    """
    kept = [c for c in range(len(header)) if c == 0 or any(row[c] not in ("-", "") for row in rows)]
    widest = {c: max(len(header[c]), *(len(row[c]) for row in rows)) if rows else len(header[c]) for c in kept}
    below: list[int] = []
    while len(kept) > 1 and indent + sum(widest[c] + _GAP for c in kept) - _GAP > width:
        spilled = max(kept[1:], key=lambda c: (widest[c], c))
        kept.remove(spilled)
        below.append(spilled)
    lines = table([header[c] for c in kept], [[row[c] for c in kept] for row in rows], indent=indent).split("\n")
    if not below:
        return "\n".join(lines)
    text = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        told = [f"{header[c]} {row[c]}" for c in sorted(below) if row[c] not in ("-", "")]
        text += [line, *([items(told, indent=indent + 4, width=width)] if told else [])]
    return "\n".join(text)


def items(texts: Iterable[str], *, indent: int = 2, width: int = WIDTH) -> str:
    """Short texts three spaces apart on as few lines as hold them; one that is longer than a line is wrapped."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + 3 + len(text) <= width:
            lines[-1] += f"   {text}"
        else:
            lines += wrapped(text, indent=indent, width=width).split("\n")
    return "\n".join(lines)


def wrapped(text: str, *, indent: int = 2, hanging: int = 2, width: int = WIDTH) -> str:
    """One paragraph, broken at spaces, its later lines `hanging` deeper than its first; long words stay whole."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def folded(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, between: str = "-", varying: Collection[int] | None = None
) -> list[tuple[str, ...]]:
    """Rows under their names, those beside each other that are alike as one, named after the first and the last.

    Rows are alike where they differ in two columns at most, of those that may be `varying`, whose numbers never turn
    back: those say from where to where.
    """
    may = range(len(rows[0]) if rows else 0) if varying is None else varying
    runs: list[list[int]] = []
    for index in range(len(rows)):
        if runs and _alike([rows[i] for i in (*runs[-1], index)], may):
            runs[-1].append(index)
        else:
            runs.append([index])
    return [_run(names, rows, run, between) for run in runs]


def _run(names: Sequence[str], rows: Sequence[Sequence[str]], run: Sequence[int], between: str) -> tuple[str, ...]:
    first, last = run[0], run[-1]
    name = names[first] if first == last else f"{names[first]}{between}{names[last]}"
    return name, *(_ends(start, end) for start, end in zip(rows[first], rows[last], strict=True))


def _ends(start: str, end: str) -> str:
    """One text for two that differ in a number: `17.6..14.4`."""
    ends = zip(_NUMBER.split(start), _NUMBER.split(end), strict=True)
    return "".join(a if a == b else f"{a}..{b}" for a, b in ends)


def _alike(rows: Sequence[Sequence[str]], varying: Collection[int]) -> bool:
    columns = {c: column for c, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1}
    return len(columns) <= _MOST_VARYING and all(c in varying and _steady(column) for c, column in columns.items())


def _steady(column: Sequence[str]) -> bool:
    """Whether texts differ in numbers alone, none of which turns back."""
    parts = [_NUMBER.split(text) for text in column]
    if len({tuple(part[::2]) for part in parts}) > 1:
        return False
    return all(map(_one_way, zip(*(map(float, part[1::2]) for part in parts), strict=True)))


def _one_way(values: Sequence[float]) -> bool:
    steps = [b - a for a, b in pairwise(values)]
    return all(step >= 0 for step in steps) or all(step <= 0 for step in steps)


def ranges(numbers: Sequence[int]) -> str:
    """`3-60, 62`: whole numbers, those that follow each other as one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
