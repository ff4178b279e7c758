"""The cluster GPU by GPU: who stands where, nodes alike as one row."""

from collections.abc import Iterator
from itertools import groupby

from planner.check.inputs import pools_of
from planner.hardware.cluster import Pool
from planner.plan.placement import MOST_DEVICES, devices, num_ranks
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem
from planner.report.marks import COLOURS, WIDTH, box, label, legend, mark, picture
from planner.report.page import Section

_NODE = 8  # GPUs of a row where the node type is not known
_MOST_ROWS = 64
_LEFT = 130.0


def cluster_section(envelope: Envelope, decision: Decision) -> Iterator[Section]:
    """A picture a pool; nothing where the plan says no places."""
    if not decision.placement or sum(map(num_ranks, decision.placement)) > MOST_DEVICES:
        return
    names = [role.name for role in decision.roles]
    problem = recorded_problem(envelope.inputs)
    pools = pools_of(problem) if problem is not None else {}
    pictures = [
        f"<h3>{pool}</h3>{_pool(decision, pool, names, pools.get(pool))}"
        for pool in dict.fromkeys(block.pool for block in decision.placement)
    ]
    yield Section("Who stands where", "".join(pictures) + legend(names[:COLOURS]), "A row is a node, or nodes alike.")


def _pool(decision: Decision, pool: str, names: list[str], known: Pool | None) -> str:
    users: dict[int, tuple[str, int]] = {}
    sharing: dict[int, int] = {}
    for block in decision.placement:
        if block.pool == pool:
            for rank, device in enumerate(devices(block)):
                users.setdefault(device, (block.role, rank))
                sharing[device] = sharing.get(device, 0) + 1
    width = known.node.num_gpus if known is not None else _NODE
    nodes = range(known.num_nodes if known is not None else 1 + max(users) // width)
    rows = [tuple(users[d][0] if d in users else "" for d in range(node * width, (node + 1) * width)) for node in nodes]
    marks: list[str] = []
    runs = [(next(iter(of)), key) for key, of in groupby(nodes, key=lambda node: rows[node])]
    starts = [first for first, _ in runs]
    cell = min(34.0, (WIDTH - _LEFT - 8) / width)
    for place, (first, row) in enumerate(runs[:_MOST_ROWS]):
        last = (starts[place + 1] if place + 1 < len(starts) else len(rows)) - 1
        y = place * 22.0
        marks.append(label(_LEFT - 8, y + 15, f"node {first}" if first == last else f"nodes {first}–{last}", "end"))
        for slot, role in enumerate(row):
            device = first * width + slot
            tip = f"node {first}, GPU {slot}: idle"
            if role:
                others = f", with {sharing[device] - 1} more roles in turn" if sharing[device] > 1 else ""
                tip = f"node {first}, GPU {slot}: {role}, rank {users[device][1]}{others}"
            kind = f"c{names.index(role) % COLOURS}" if role in names else "faint"
            marks.append(mark(box(_LEFT + slot * cell, y + 2, cell - 2, 17, kind), tip))
    if len(runs) > _MOST_ROWS:
        marks.append(
            label(_LEFT, _MOST_ROWS * 22.0 + 14, f"{len(runs) - _MOST_ROWS} kinds of rows more", "start", "tick")
        )
    height = min(len(runs), _MOST_ROWS) * 22.0 + (20 if len(runs) > _MOST_ROWS else 4)
    return picture(marks, height, f"who stands where in {pool}")
