"""Draws imbalance, traffic and step time by window, one line a rebalancing policy, as plain SVG."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from planner.experts.replay import Replayed

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 260, 70, 40, 30, 130
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def draw(replays: Sequence[Replayed], expert_bytes: float = 0.0) -> str:
    """Panels below each other: mean imbalance over layers, what was moved before a window, and the step where known.

    Moves are in GB with `expert_bytes`, else in copies; steps are in milliseconds, net of moves and planning.
    """
    balance = {row.policy: row.imbalance_WL.mean(axis=1).tolist() for row in replays}
    each, unit = (expert_bytes / 1e9, "GB moved") if expert_bytes else (1.0, "copies moved")
    panels = [
        ("slowest rank / mean", balance, 1.0),
        (unit, {row.policy: (row.moved_experts_W * each).tolist() for row in replays}, 0.0),
    ]
    if all(row.step_s_W is not None and row.move_s_W is not None for row in replays):
        steps = {row.policy: (1e3 * (row.step_s_W + row.move_s_W)).tolist() for row in replays}  # type: ignore[operator]  # not None, said above
        panels.append(("step, ms", steps, min(min(values) for values in steps.values())))
    height = HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, (title, lines, low) in enumerate(panels):
        parts += [f'<g transform="translate(0 {index * HEIGHT})">', *_panel(title, lines, low), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, lines: dict[str, list[float]], low: float) -> list[str]:
    """One drawing of all policies, from `low` to the most of any."""
    top = max(max(values) for values in lines.values())
    top = top if top > low * 1.01 + 1e-9 else low * 1.01 + 1e-9
    count = len(next(iter(lines.values())))
    parts = [
        f'<text x="{LEFT}" y="{HEIGHT - 8}">window</text>',
        f'<text x="4" y="{TOP - 12}">{escape(title)}</text>',
    ]
    for step in range(5):
        value = low + (top - low) * step / 4
        y = _y(value, low, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for index, (policy, values) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{_x(window, count):.1f},{_y(value, low, top):.1f}" for window, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 16 * (index + 1)
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y}" fill="{colour}">{escape(policy)}</text>')
    return parts


def _x(window: int, count: int) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * window / max(count - 1, 1)


def _y(value: float, low: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (top - low)
