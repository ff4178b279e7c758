"""Nodes of jobs laid out by window: a job keeps what it has as far as it can, and takes the first free nodes beside."""

from collections.abc import Sequence

from planner.hardware.cluster import Pool
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block, Parallelism, Phase, Role

Held = frozenset[int]


def laid(nodes_KW: Sequence[Sequence[int]], free: Sequence[int]) -> list[list[Held]]:
    """The nodes of every job by window. [K][W]"""
    held: list[Held] = [frozenset() for _ in nodes_KW]
    rows: list[list[Held]] = [[] for _ in nodes_KW]
    for window in range(len(nodes_KW[0])):
        wanted = [row[window] for row in nodes_KW]
        held = [frozenset(sorted(own)[:number]) for own, number in zip(held, wanted, strict=True)]
        taken = frozenset().union(*held)
        spare = [node for node in free if node not in taken]
        for k, number in enumerate(wanted):
            missing = number - len(held[k])
            held[k] |= frozenset(spare[:missing])
            spare = spare[missing:]
            rows[k].append(held[k])
    return rows


def roles_of(names: Sequence[str], held_KW: Sequence[Sequence[Held]], pool: Pool) -> tuple[list[Role], list[Block]]:
    """A role for every set of nodes that a job has at some time."""
    roles, blocks, size = [], [], pool.node.num_gpus
    for name, row in zip(names, held_KW, strict=True):
        for index, held in enumerate(_sets(row)):
            label = f"{name}-{index + 1}"
            devices = [node * size + gpu for node in sorted(held) for gpu in range(size)]
            roles.append(
                Role(
                    name=label,
                    function="job",
                    pool=pool.name,
                    replicas=len(held),
                    parallelism=Parallelism(dp=size),
                )
            )
            axes = (("replica", len(held), size), ("dp", size, 1))
            shown = tuple(Axis(name=axis, size=count, stride=stride) for axis, count, stride in axes if count > 1)
            blocks.append(block_on(devices, label, pool.name, shown))
    return roles, blocks


def phases_of(
    names: Sequence[str], held_KW: Sequence[Sequence[Held]], spans_s: Sequence[tuple[int, float, float]]
) -> list[Phase]:
    """A phase for every stretch without a change: its first window, start and end."""
    numbers = [{held: index + 1 for index, held in enumerate(_sets(row))} for row in held_KW]
    return [
        Phase(
            name=clock(start_s),
            start_s=start_s,
            duration_s=end_s - start_s,
            roles=tuple(
                f"{name}-{number[row[window]]}"
                for name, row, number in zip(names, held_KW, numbers, strict=True)
                if row[window]
            ),
        )
        for window, start_s, end_s in spans_s
    ]


def spans(held_KW: Sequence[Sequence[Held]], window_s: float) -> list[tuple[int, float, float]]:
    """Stretches without a change of any job's nodes: first window, start and end in seconds."""
    columns = list(zip(*held_KW, strict=True))
    firsts = [window for window in range(len(columns)) if window == 0 or columns[window] != columns[window - 1]]
    ends = [*firsts[1:], len(columns)]
    return [(first, first * window_s, end * window_s) for first, end in zip(firsts, ends, strict=True)]


def clock(seconds: float) -> str:
    """`07:30`."""
    minutes = round(seconds / 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _sets(row: Sequence[Held]) -> list[Held]:
    """Sets of nodes of a job, in the order in which it first has them."""
    return [held for held in dict.fromkeys(row) if held]
