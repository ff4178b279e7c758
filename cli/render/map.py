"""Draws the placement of a plan as a map: one row a node, one letter a GPU; equal rows are drawn once."""

from collections.abc import Iterator, Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING

from planner.cli.render.columns import items
from planner.plan.placement import devices, last_device

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool
    from planner.plan.schema import Decision

IDLE, OUT_OF_SERVICE = ".", "x"
_LETTERS = ascii_uppercase + ascii_lowercase.replace(OUT_OF_SERVICE, "")
_MOST_ROWS = 32
_NODE = 8  # GPUs of a row where the node type is not known


def render_map(decision: "Decision", pools: "Mapping[str, Pool]") -> str:
    """The map of every pool that the plan uses, and what each letter stands for.

    `pools` are those that the catalog knows; another pool is drawn in rows of eight.
    """
    users = _users(decision)
    letters = _letters(users)
    lines, drawn = [], set[str]()
    for name in dict.fromkeys(block.pool for block in decision.placement):
        rows = list(_rows(users.get(name, {}), letters, pools.get(name), _size(decision, name)))
        drawn |= {mark for _, text in rows for mark in text}
        lines += [f"  {name}", *_drawn(rows)]
    sharing = [f"{letter} {' + '.join(roles)}" for roles, letter in letters.items()]
    marks = {IDLE: "idle", OUT_OF_SERVICE: "out of service"}
    return "\n".join([*lines, items([*sharing, *(f"{m} {w}" for m, w in marks.items() if m in drawn)])])


def _users(decision: "Decision") -> dict[str, dict[int, tuple[str, ...]]]:
    """The roles on every device in use, by pool."""
    users: dict[str, dict[int, tuple[str, ...]]] = {}
    for block in decision.placement:
        pool = users.setdefault(block.pool, {})
        for device in devices(block):
            if block.role not in pool.get(device, ()):
                pool[device] = (*pool.get(device, ()), block.role)
    return users


def _letters(users: Mapping[str, Mapping[int, tuple[str, ...]]]) -> dict[tuple[str, ...], str]:
    """A letter for every set of roles that share devices: an initial where it is free."""
    letters: dict[tuple[str, ...], str] = {}
    for roles in dict.fromkeys(roles for pool in users.values() for roles in pool.values()):
        free = [letter for letter in _LETTERS if letter not in letters.values()]
        wanted = (roles[0][:1].upper(), roles[0][:1].lower(), *free, "?")
        letters[roles] = next(letter for letter in wanted if letter in free or letter == "?")
    return letters


def _size(decision: "Decision", pool: str) -> int:
    return 1 + max(last_device(block) for block in decision.placement if block.pool == pool)


def _rows(
    users: Mapping[int, tuple[str, ...]],
    letters: Mapping[tuple[str, ...], str],
    pool: "Pool | None",
    size: int,
) -> Iterator[tuple[int, str]]:
    """(node, its letters) of every node of a pool."""
    width = pool.node.num_gpus if pool is not None else _NODE
    gone = set(pool.out_of_service) if pool is not None else set()
    count = pool.num_nodes if pool is not None else -(-size // width)
    for node in range(count):
        free = OUT_OF_SERVICE if node in gone else IDLE
        slots = range(node * width, (node + 1) * width)
        yield node, "".join(letters[users[device]] if device in users else free for device in slots)


def _drawn(rows: list[tuple[int, str]]) -> list[str]:
    """The rows, runs of equal ones as one, the middle left out where there are too many."""
    runs: list[tuple[int, int, str]] = []
    for node, text in rows:
        if runs and runs[-1][2] == text:
            runs[-1] = (runs[-1][0], node, text)
        else:
            runs.append((node, node, text))
    named = [(f"node {first}" if first == last else f"nodes {first}-{last}", text) for first, last, text in runs]
    width = max((len(name) for name, _ in named), default=0)
    lines = [f"    {name.ljust(width)}  {text}" for name, text in named]
    if len(lines) <= _MOST_ROWS:
        return lines
    half = _MOST_ROWS // 2
    return [*lines[:half], f"    ... {len(lines) - 2 * half} rows more", *lines[-half:]]
