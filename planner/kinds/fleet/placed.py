"""Nodes of jobs laid out by window: a job keeps what it has as far as it can, and takes the first free nodes beside."""

from collections.abc import Sequence

from planner.documents.units import clock
from planner.hardware.cluster import Pool
from planner.plan.blocks import block_on
from planner.plan.schema import Axis, Block, Parallelism, Phase, Role

Held = tuple[frozenset[int], ...]
"""Nodes of every pool."""


def laid(shares_KWP: Sequence[Sequence[tuple[int, ...]]], pools: Sequence[Pool]) -> list[list[Held]]:
    """The nodes of every job by window. [K][W]"""
    by_pool = [
        _laid_on([[share[p] for share in row] for row in shares_KWP], pool.healthy_nodes)
        for p, pool in enumerate(pools)
    ]
    return [[*zip(*rows, strict=True)] for rows in zip(*by_pool, strict=True)]


def _laid_on(nodes_KW: Sequence[Sequence[int]], free: Sequence[int]) -> list[list[frozenset[int]]]:
    """On one pool. [K][W]"""
    held: list[frozenset[int]] = [frozenset() for _ in nodes_KW]
    rows: list[list[frozenset[int]]] = [[] for _ in nodes_KW]
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


def roles_of(
    names: Sequence[str], held_KW: Sequence[Sequence[Held]], pools: Sequence[Pool]
) -> tuple[list[Role], list[Block]]:
    """A role for every set of nodes of a pool that a job has at some time."""
    roles, blocks = [], []
    for name, row in zip(names, held_KW, strict=True):
        for (p, held), label in _labels(name, row, pools).items():
            size = pools[p].node.num_gpus
            devices = [node * size + gpu for node in sorted(held) for gpu in range(size)]
            roles.append(
                Role(
                    name=label,
                    function="job",
                    pool=pools[p].name,
                    replicas=len(held),
                    parallelism=Parallelism(dp=size),
                )
            )
            axes = (("replica", len(held), size), ("dp", size, 1))
            shown = tuple(Axis(name=axis, size=count, stride=stride) for axis, count, stride in axes if count > 1)
            blocks.append(block_on(devices, label, pools[p].name, shown))
    return roles, blocks


def phases_of(
    names: Sequence[str],
    held_KW: Sequence[Sequence[Held]],
    pools: Sequence[Pool],
    spans_s: Sequence[tuple[int, float, float]],
) -> list[Phase]:
    """A phase for every stretch without a change: its first window, start and end."""
    labels_K = [_labels(name, row, pools) for name, row in zip(names, held_KW, strict=True)]
    return [
        Phase(
            name=clock(start_s),
            start_s=start_s,
            duration_s=end_s - start_s,
            roles=tuple(
                labels[p, held]
                for row, labels in zip(held_KW, labels_K, strict=True)
                for p, held in enumerate(row[window])
                if held
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


def _labels(name: str, row: Sequence[Held], pools: Sequence[Pool]) -> dict[tuple[int, frozenset[int]], str]:
    """Names of the sets of nodes of a job, in the order in which it first has them; with their pool, where several."""
    labels: dict[tuple[int, frozenset[int]], str] = {}
    counted = [0] * len(pools)
    for held in row:
        for p, nodes in enumerate(held):
            if nodes and (p, nodes) not in labels:
                counted[p] += 1
                head = name if len(pools) == 1 else f"{name}-{pools[p].name}"
                labels[p, nodes] = f"{head}-{counted[p]}"
    return labels
