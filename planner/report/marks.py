"""Marks of pictures: SVG elements that say what they are when pointed at or reached by keyboard."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720.0  # of a picture, in its own units; it scales with the page
ROW = 26.0  # of a bar with its label
COLOURS = 8  # classes c0 to c7 of the style sheet


def text(value: object) -> str:
    """Escaped for HTML."""
    return escape(str(value), quote=True)


def prose(value: str) -> str:
    """Escaped for HTML, what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def number(value: float) -> str:
    """A coordinate, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` onto the picture from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return self.start
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values from low to high."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        raw = span / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw)
        first = -(-self.low // step)
        return [(first + place) * step for place in range(most + 2) if (first + place) * step <= self.high * (1 + 1e-9)]


def mark(inside: str, tip: str, kind: str = "") -> str:
    """A group that has a tip, in the order of the keyboard; the script reads the tip out too."""
    classes = f"mark {kind}".strip()
    return f'<g class="{classes}" tabindex="-1" role="img" data-tip="{text(tip)}">{inside}</g>'


def box(x: float, y: float, width: float, height: float, kind: str = "c0") -> str:
    """A bar or a cell; one that has no width is still seen."""
    sizes = f'width="{number(max(width, 0.75))}" height="{number(height)}"'
    return f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" {sizes} rx="2"/>'


def dot(x: float, y: float, radius: float = 4.0, kind: str = "c0") -> str:
    """A point of a curve."""
    return f'<circle class="{kind}" cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> str:
    """A rule, or a piece of a curve."""
    ends = zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    places = " ".join(f'{name}="{number(value)}"' for name, value in ends)
    return f'<line class="{kind}" {places}/>'


def label(x: float, y: float, words: object, anchor: str = "start", kind: str = "") -> str:
    """Words in a picture."""
    return f'<text class="{kind}" x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{text(words)}</text>'


def picture(marks: Iterable[str], height: float, title: str, width: float = WIDTH) -> str:
    """A picture that can be tabbed into; arrows go from mark to mark."""
    size = f'viewBox="0 0 {number(width)} {number(height)}"'
    return (
        f'<div class="scroll"><svg class="chart" {size} tabindex="0" role="group" aria-label="{text(title)}">'
        f"<title>{text(title)}</title>{''.join(marks)}</svg></div>"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose numbers stand right; it scrolls by itself where the page is narrow."""
    head = "".join(f"<th>{text(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def legend(names: Sequence[str]) -> str:
    """What the colours stand for."""
    keys = "".join(
        f'<span><i class="key c{place % COLOURS}"></i>{text(name)}</span>' for place, name in enumerate(names)
    )
    return f'<p class="legend">{keys}</p>'
