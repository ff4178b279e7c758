"""Gantt chart of an RL plan over two iterations, as text and as SVG.

Roles that take turns on the same devices share a row; a row is named by the devices' pool and the roles on them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from planner.plan import placement
from planner.plan.schema import Decision, Phase

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 900, 190, 20, 40, 30, 14
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")
COLUMNS = 72


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """Devices and what they do: phases with start and duration in seconds from the start of an iteration."""

    label: str
    gpus: int
    phases: tuple[Phase, ...]

    @property
    def busy_s(self) -> float:
        return sum(phase.duration_s or 0.0 for phase in self.phases)


def rows(decision: Decision) -> list[TimelineRow]:
    """One row for each set of roles that share devices, generating ones first."""
    devices = {role.name: set(placement.role_devices(decision.placement, role.name)) for role in decision.roles}
    groups: list[list[str]] = []
    for role in decision.roles:
        sharing = [group for group in groups if any(devices[other] & devices[role.name] for other in group)]
        merged = [name for group in sharing for name in group]
        groups = [group for group in groups if group not in sharing] + [[*merged, role.name]]
    timeline = []
    for group in groups:
        shared = set[tuple[str, int]]().union(*(devices[name] for name in group))
        pools = sorted({pool for pool, _ in shared})
        here = tuple(phase for phase in decision.phases if set(phase.roles) & set(group))
        timeline.append(TimelineRow(f"{len(shared)} x {', '.join(pools)}", len(shared), here))
    waiting = tuple(phase for phase in decision.phases if not phase.roles)
    return [
        TimelineRow(row.label, row.gpus, tuple(sorted((*row.phases, *waiting), key=lambda p: p.start_s)))
        for row in timeline
    ]


def as_text(decision: Decision, iteration_s: float) -> str:
    """Bars of one iteration by row and phase, and how busy each row is."""
    lines = []
    for row in rows(decision):
        lines.append(
            f"{row.label}: busy {min(row.busy_s / iteration_s, 1.0):.0%} of an iteration of {iteration_s:.4g} s"
        )
        for phase in row.phases:
            duration = phase.duration_s or 0.0
            start = round(COLUMNS * min(phase.start_s / iteration_s, 1.0))
            width = max(1, round(COLUMNS * duration / iteration_s))
            bar = (" " * start + "#" * width)[:COLUMNS]
            lines.append(f"  {phase.name:<22} {bar:<{COLUMNS}} {duration:8.4g} s")
    return "\n".join(lines)


def as_svg(decision: Decision, iteration_s: float, *, title: str = "", iterations: int = 2) -> str:
    """A drawing of `iterations` iterations; the second and later ones are paler."""
    timeline = rows(decision)
    names = list(dict.fromkeys(phase.name for row in timeline for phase in row.phases))
    height = TOP + len(timeline) * (BAR + GAP) + 46 + 18 * -(-len(names) // 4)
    scale = (WIDTH - LEFT - RIGHT) / (iterations * iteration_s)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    bottom = TOP + len(timeline) * (BAR + GAP)
    for iteration in range(iterations + 1):
        x = LEFT + iteration * iteration_s * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="#999" stroke-dasharray="3"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{iteration * iteration_s:.4g} s</text>')
    for index, row in enumerate(timeline):
        y = TOP + index * (BAR + GAP)
        parts.append(f'<text x="{LEFT - 10}" y="{y + 19}" text-anchor="end">{escape(row.label)}</text>')
        parts += [
            bar
            for iteration in range(iterations)
            for bar in _bars(row, names, y, LEFT + iteration * iteration_s * scale, scale, iteration)
        ]
    parts += _legend(names, bottom + 36)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(row: TimelineRow, names: list[str], y: int, left: float, scale: float, iteration: int) -> Iterator[str]:
    for phase in row.phases:
        width = (phase.duration_s or 0.0) * scale
        top, height = _lane(phase, row)
        colour = COLOURS[names.index(phase.name) % len(COLOURS)]
        x, opacity = left + phase.start_s * scale, 1.0 if iteration == 0 else 0.45
        yield f'<rect x="{x:.1f}" y="{y + top}" width="{max(width, 0.5):.1f}" height="{height}" fill="{colour}"'
        yield f' fill-opacity="{opacity}"><title>{escape(phase.name)}: {phase.duration_s or 0.0:.4g} s</title></rect>'


def _lane(phase: Phase, row: TimelineRow) -> tuple[int, int]:
    """Top and height of a bar: half of the row where phases overlap, those of some of its devices; the first above."""
    end_s = phase.start_s + (phase.duration_s or 0.0)
    shortest_s = 1e-6 * max(end_s, 1e-9)
    beside = [
        other
        for other in row.phases
        if other is not phase
        and other.start_s < end_s - shortest_s
        and phase.start_s < other.start_s + (other.duration_s or 0.0) - shortest_s
    ]
    if not beside:
        return 0, BAR
    first = all((phase.start_s, phase.name) < (other.start_s, other.name) for other in beside)
    return (0 if first else BAR // 2), BAR // 2


def _legend(names: list[str], y: int) -> Iterator[str]:
    for index, name in enumerate(names):
        x, line = LEFT + 170 * (index % 4), y + 18 * (index // 4)
        colour = COLOURS[index % len(COLOURS)]
        yield f'<rect x="{x}" y="{line - 10}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{line}">{escape(name)}</text>'
