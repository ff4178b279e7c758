"""Pictures of figures: stacked bars, values against limits, points, spans of time, a waterfall, a grid of cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.documents.units import format_si, significant
from planner.report.marks import COLOURS, ROW, WIDTH, Scale, box, dot, label, legend, line, mark, number, picture

_LABEL = 150.0  # width of the names beside bars
Shade = Literal["", "pale", "hollow"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of parts one after the other, each with its size, and what it says."""

    name: str
    parts: Sequence[tuple[str, float, str]]  # name, size, words
    limit: float | None = None


def stacked(title: str, bars: Sequence[Bar]) -> str:
    """Bars on one scale; parts of one name have one colour; a limit stands as a line."""
    names = list(dict.fromkeys(name for bar in bars for name, _, _ in bar.parts))
    most = max((max(sum(size for _, size, _ in bar.parts), bar.limit or 0.0) for bar in bars), default=0.0)
    scale = Scale(0.0, most, _LABEL, WIDTH - 8)
    marks = []
    for row, bar in enumerate(bars):
        y, start = row * ROW + 4, 0.0
        marks.append(label(_LABEL - 8, y + 13, _cut(bar.name), "end"))
        for name, size, words in bar.parts:
            kind = f"c{names.index(name) % COLOURS}"
            marks.append(mark(box(scale(start), y, scale(start + size) - scale(start) - 0.5, ROW - 8, kind), words))
            start += size
        if bar.limit is not None:
            x = scale(bar.limit)
            marks.append(line(x, y - 3, x, y + ROW - 5, "limit"))
    return picture(marks, len(bars) * ROW + 6, title) + (legend(names) if len(names) > 1 else "")


def _cut(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


@dataclass(frozen=True, slots=True)
class Against:
    """A value, its interval, and the limit that it must keep, all of one unit."""

    name: str
    value: float
    low: float
    high: float
    limit: float
    kept: bool
    words: str


def against(title: str, rows: Sequence[Against]) -> str:
    """Values as shares of their limits: the line at the right is where a limit is used up."""
    most = max([1.25, *(row.high / row.limit for row in rows if row.limit)])
    scale = Scale(0.0, min(most, 3.0), _LABEL, WIDTH - 10)
    marks = [
        line(scale(1.0), 0, scale(1.0), len(rows) * ROW + 4, "limit"),
        label(scale(1.0), len(rows) * ROW + 16, "limit", "middle"),
    ]
    for place, row in enumerate(rows):
        y, share = place * ROW + 4, row.value / row.limit if row.limit else 0.0
        marks.append(label(_LABEL - 8, y + 13, _cut(row.name), "end"))
        bar = box(_LABEL, y, scale(min(share, 3.0)) - _LABEL, ROW - 8, "c0" if row.kept else "bad")
        low, high = (scale(min(end / row.limit, 3.0)) for end in (row.low, row.high))
        whisker = line(low, y + 9, high, y + 9, "whisker") if row.high > row.low else ""
        marks.append(mark(bar + whisker, row.words))
    return picture(marks, len(rows) * ROW + 22, title)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a cloud; the family says which colour, `chosen` that the plan has it; hollow ones are no choice."""

    x: float
    y: float
    words: str
    family: str
    chosen: bool = False
    shade: Shade = ""


def cloud(title: str, points: Sequence[Point], x_name: str, y_name: str) -> str:
    """Points with both axes from nothing; those of the plan have a ring, those that nothing beats are joined."""
    families = list(dict.fromkeys(point.family for point in points))
    height = 320.0
    across = Scale(0.0, max(point.x for point in points) * 1.05, 60, WIDTH - 12)
    up = Scale(0.0, max(point.y for point in points) * 1.08, height - 40, 10)
    marks = _axes(across, up, height)
    marks += [label(WIDTH - 12, height - 8, x_name, "end", "axis"), label(64, 20, y_name, "start", "axis")]
    front = _front(points)
    steps = [f"{across(point.x):.1f},{up(point.y):.1f}" for point in front]
    marks.append(f'<polyline class="front" points="{" ".join(steps)}"/>' if len(steps) > 1 else "")
    order = ("hollow", "pale", "")
    for point in sorted(points, key=lambda point: (point.chosen, order.index(point.shade), point.x)):
        x, y = across(point.x), up(point.y)
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8"/>' if point.chosen else ""
        kind = f"c{families.index(point.family) % COLOURS} {point.shade}".strip()
        marks.append(mark(ring + dot(x, y, 2.5 if point.shade else 4.5, kind), point.words))
    return picture(marks, height, title) + legend(families)


def _front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats on both axes, from left to right; none that is no choice."""
    front: list[Point] = []
    able = [point for point in points if point.shade != "hollow"]
    for point in sorted(able, key=lambda point: (-point.x, -point.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front[::-1]


def spans(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, float, str, str]]]], unit: str) -> str:
    """Spans of time by row: start, duration, name and words of each."""
    names = list(dict.fromkeys(name for _, of in rows for _, _, name, _ in of))
    end = max((start + size for _, of in rows for start, size, _, _ in of), default=1.0)
    scale = Scale(0.0, end, _LABEL, WIDTH - 10)
    bottom = len(rows) * ROW + 8
    marks = []
    for tick in scale.ticks():
        x, words = scale(tick), f"{significant(tick)} {unit}"
        marks += [line(x, 0, x, bottom, "grid"), label(x, bottom + 13, words, "middle", "tick")]
    for place, (name, of) in enumerate(rows):
        y = place * ROW + 4
        marks.append(label(_LABEL - 8, y + 13, _cut(name), "end"))
        for start, size, part, words in of:
            bar = box(scale(start), y, scale(start + size) - scale(start), ROW - 8, f"c{names.index(part) % COLOURS}")
            marks.append(mark(bar, words))
    return picture(marks, bottom + 20, title) + legend(names)


def threads(title: str, rows: Sequence[Sequence[tuple[float, float, int, str]]], unit: str) -> str:
    """Thin rows without names: start, duration, colour and words of each of their spans."""
    thin, end = 4.0, max((start + size for row in rows for start, size, _, _ in row), default=1.0)
    scale, bottom = Scale(0.0, end, 8, WIDTH - 10), len(rows) * thin + 4
    marks = []
    for tick in scale.ticks():
        x = scale(tick)
        words = label(x, bottom + 13, f"{significant(tick)} {unit}", "middle" if tick else "start", "tick")
        marks += [line(x, 0, x, bottom, "grid"), words]
    for place, row in enumerate(rows):
        for start, size, colour, words in row:
            bar = box(
                scale(start), place * thin + 2, scale(start + size) - scale(start), thin - 1, f"c{colour % COLOURS}"
            )
            marks.append(mark(bar, words))
    return picture(marks, bottom + 20, title)


def waterfall(title: str, total: int, removed: Sequence[tuple[str, int]]) -> str:
    """How many candidates each rule leaves, from all of them down; names stand above their bars."""
    marks, left = [], total
    scale = Scale(0.0, float(max(total, 1)), 8, WIDTH - 8)
    rows = [("considered", 0, total), *((name, count, 0) for name, count in removed)]
    for place, (name, gone, _) in enumerate(rows):
        y = place * 34.0
        marks.append(label(8, y + 12, f"{name}: {gone or total:,}"))
        after = max(left - gone, 0)
        bar = box(8, y + 16, scale(left) - 8, 12, "faint") + box(
            scale(after), y + 16, scale(left) - scale(after), 12, "c1"
        )
        whole = box(8, y + 16, scale(total) - 8, 12, "c0")
        words = f"{name}: {gone:,} of {total:,} left out, {after:,} left" if gone else f"{total:,} considered"
        marks.append(mark(bar if gone else whole, words))
        left = after
    return picture(marks, len(rows) * 34.0 + 4, title)


def cells(
    title: str, across: Sequence[str], down: Sequence[str], values: Sequence[Sequence[tuple[str, int, str]]]
) -> str:
    """A grid: what stands in each cell, its colour, and what it says."""
    left, top, height = 110.0, 22.0, 30.0
    width = (WIDTH - left - 4) / max(len(across), 1)
    marks = [
        label(left + (column + 0.5) * width, 14, _cut(name), "middle", "tick") for column, name in enumerate(across)
    ]
    for row, name in enumerate(down):
        y = top + row * height
        marks.append(label(left - 6, y + 19, _cut(name), "end", "tick"))
        for column, (words, colour, tip) in enumerate(values[row]):
            x = left + column * width
            inside = box(x + 1, y + 1, width - 2, height - 2, f"c{colour % COLOURS}" if colour >= 0 else "faint")
            fits = words if len(words) * 7 < width else ""
            marks.append(mark(inside + label(x + width / 2, y + 19, fits, "middle", "in"), tip))
    return picture(marks, top + len(down) * height + 4, title)


@dataclass(frozen=True, slots=True)
class Step:
    """A value from `low` to `high`; None: nothing there."""

    low: float
    high: float
    value: float | None
    words: str


def steps(title: str, rows: Sequence[Step], x_name: str, y_name: str) -> str:
    """A line of steps, each a mark that is wide enough to point at."""
    height = 260.0
    across = Scale(rows[0].low, rows[-1].high, 60, WIDTH - 12)
    up = Scale(0.0, max((row.value or 0.0 for row in rows), default=1.0) * 1.08, height - 40, 10)
    marks = [*_axes(across, up, height), label(WIDTH - 12, height - 8, x_name, "end", "axis")]
    marks.append(label(64, 20, y_name, "start", "axis"))
    for place, row in enumerate(rows):
        left, right = across(row.low), across(rows[place + 1].low if place + 1 < len(rows) else row.high)
        top = height - 40 if row.value is None else up(row.value)
        area = box(
            left, top, right - left, height - 40 - top, "faint" if row.value is None else f"c{place % COLOURS} soft"
        )
        marks.append(mark(area + line(left, top, right, top, "step"), row.words))
    marks.append('<line class="cursor" x1="60" x2="60" y1="10" y2="220"/>')
    return picture(marks, height, title)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a rising curve: value, share, words."""

    points: Sequence[tuple[float, float, str]]


def curves(title: str, curve: Curve, limits: Sequence[tuple[float, float | None, str]], unit: str) -> str:
    """A distribution with its limits: a line at each, and a dot on it where it is on a share."""
    height = 220.0
    most = max([*(value for value, _, _ in curve.points[:-1]), *(bound for bound, _, _ in limits)])
    across, up = Scale(0.0, most * 1.05, 60, WIDTH - 12), Scale(0.0, 1.0, height - 40, 14)
    marks = _axes(across, up, height, unit)
    inside = [point for point in curve.points if point[0] <= most * 1.05]
    path = " ".join(f"{number(across(value))},{number(up(share))}" for value, share, _ in inside)
    marks.append(f'<polyline class="curve" points="{path}"/>')
    for bound, share, words in limits:
        limit = line(across(bound), 14, across(bound), height - 40, "limit")
        spot = "" if share is None else dot(across(bound), up(share), 5.0, "bad")
        marks.append(mark(limit + spot + label(across(bound) - 4, 24, words, "end", "tick"), words))
    marks += [mark(dot(across(value), up(share), 4.0), words) for value, share, words in inside]
    return picture(marks, height, title)


def _axes(across: Scale, up: Scale, height: float, unit: str = "") -> list[str]:
    """Ground line and ticks of both axes."""
    marks = [line(60, height - 40, WIDTH - 12, height - 40), line(60, 10, 60, height - 40)]
    for tick in across.ticks():
        words = format_si(tick, unit) if unit else significant(tick)
        marks.append(label(across(tick), height - 24, words, "middle", "tick"))
    for tick in up.ticks():
        marks += [
            line(60, up(tick), WIDTH - 12, up(tick), "grid"),
            label(54, up(tick) + 4, significant(tick), "end", "tick"),
        ]
    return marks
