"""Moves from one plan to another as text: a line a step, in order."""

from typing import Any

from planner.cli.render.columns import table
from planner.documents.units import format_si


def render_moves(document: dict[str, Any]) -> str:
    """`document` as of `planner.moves.replan`."""
    steps = document["steps"]
    scratch, least = format_si(document["from_scratch_bytes"], "B"), format_si(document["least_bytes"], "B")
    if not steps:
        return f"moves: none; what runs is the plan ({scratch} from nothing)"
    rows = [
        [
            str(number),
            step["action"],
            step["model"],
            f"{step['pool']} {_listed(step['devices'])}",
            format_si(step["bytes"], "B") if step["bytes"] else "",
        ]
        for number, step in enumerate(steps, 1)
    ]
    moved = format_si(document["moved_bytes"], "B")
    head = f"moves: {moved} brought, no order to this plan brings less than {least}; {scratch} from nothing"
    return f"{head}\n\n{table(('step', 'action', 'model', 'devices', 'brought'), rows)}"


def _listed(devices: list[int]) -> str:
    whole = len(devices) > 1 and devices == list(range(devices[0], devices[0] + len(devices)))
    return f"{devices[0]}-{devices[-1]}" if whole else ",".join(map(str, devices))
