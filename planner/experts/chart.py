"""Imbalance by window as a drawing: one line a policy, in plain SVG."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from planner.experts.replay import Replayed

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 360, 60, 40, 20, 130
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


def draw(replays: Sequence[Replayed]) -> str:
    """The mean imbalance over layers of every window, 1 at the bottom."""
    lines = {found.policy: found.imbalance_WL.mean(axis=1).tolist() for found in replays}
    most = max(max(values) for values in lines.values())
    top = max(most, 1.01)
    count = len(next(iter(lines.values())))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}">window</text>',
        f'<text x="4" y="{TOP - 6}">slowest rank / mean</text>',
    ]
    for step in range(5):
        value = 1.0 + (top - 1.0) * step / 4
        y = _y(value, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for index, (policy, values) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{_x(at, count):.1f},{_y(value, top):.1f}" for at, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 16 * (index + 1)
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y}" fill="{colour}">{escape(policy)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(at: int, count: int) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * at / max(count - 1, 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - 1.0) / (top - 1.0)
