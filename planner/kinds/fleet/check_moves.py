"""Moves of a day, replayed node by node: every node is given up by who has it, and taken when nobody has it."""

import re
from collections.abc import Iterator

from planner.kinds.fleet.decision import Change, FleetDecision
from planner.plan.findings import Finding
from planner.plan.placement import devices
from planner.plan.schema import Phase

Held = dict[tuple[str, int], str]
"""Who has a node of a pool."""


def move_findings(decision: FleetDecision) -> Iterator[Finding]:
    """One finding for every change between two phases."""
    changes = {change.at: change for change in decision.changes}
    for before, after in zip(decision.phases, decision.phases[1:], strict=False):
        change = changes.get(after.name)
        wrong = "no moves are stated" if change is None else _replayed(decision, before, after, change)
        number = 0 if change is None else len(change.moves)
        what = wrong or f"{number} moves lead from who has which nodes before {after.name} to who has them then"
        yield Finding("fleet.moves", not wrong, what, f"changes.{after.name}", "solve again")


def _replayed(decision: FleetDecision, before: Phase, after: Phase, change: Change) -> str:
    """What the moves break, in words; empty where they lead from one phase to the next."""
    held = _held(decision, before)
    for move in change.moves:
        place = (move.pool, move.node)
        if move.action == "drop" and held.pop(place, None) != move.job:
            return f"`{move.job}` gives up node {move.node} of {move.pool}, which it does not have"
        if move.action == "bring" and held.setdefault(place, move.job) != move.job:
            return f"`{move.job}` takes node {move.node} of {move.pool}, which `{held[place]}` has"
    return "" if held == _held(decision, after) else "the moves end elsewhere"


def _held(decision: FleetDecision, phase: Phase) -> Held:
    """Who has which nodes in a phase, by the devices of its roles."""
    held: Held = {}
    names = sorted(decision.windows[0].nodes, key=len, reverse=True)
    for role in (role for role in decision.roles if role.name in phase.roles):
        pattern = rf"(-{re.escape(role.pool)})?-\d+"
        job = next((name for name in names if re.fullmatch(re.escape(name) + pattern, role.name)), role.name)
        for block in (block for block in decision.placement if block.role == role.name):
            held |= {(block.pool, device // role.parallelism.devices): job for device in devices(block)}
    return held
