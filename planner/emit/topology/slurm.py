"""Emits what Slurm reads of a topology: topology.yaml or topology.conf, options of a job, and its host file.

Names of fields are those of Slurm's manual, topology.yaml(5) of release 25.05: `block` with `block_sizes` and `blocks`,
`tree` with `switches`. Older releases read neither the file nor `--segment` (24.05 and later), but topology.conf(5),
with `TopologyPlugin=topology/tree`, and `--switches`.
"""

from collections.abc import Iterable

from planner.emit.documents import commented, plan_title
from planner.emit.registry import EmitTarget
from planner.emit.topology.nodes import PlacedNodes, placed_nodes
from planner.plan.schema import Decision, Envelope


def topology(placed: PlacedNodes) -> list[dict[str, object]]:
    """Racks as blocks, and as the leaf switches of a tree; nodes out of service are left out."""
    rows = {f"rack{rack}": _names(placed, nodes) for rack, nodes in placed.racks.items()}
    least = min(len(nodes) for nodes in placed.racks.values())
    leaves: list[dict[str, str]] = [{"switch": rack, "nodes": nodes} for rack, nodes in rows.items()]
    return [
        {
            "topology": "blocks",
            "cluster_default": True,
            "block": {
                "block_sizes": [least],
                "blocks": [{"block": rack, "nodes": nodes} for rack, nodes in rows.items()],
            },
        },
        {
            "topology": "tree",
            "cluster_default": False,
            "tree": {"switches": [*leaves, {"switch": "spine", "children": ",".join(rows)}]},
        },
    ]


def switches(placed: PlacedNodes) -> list[str]:
    """The tree as lines of topology.conf."""
    lines = [f"SwitchName=rack{rack} Nodes={_names(placed, nodes)}" for rack, nodes in placed.racks.items()]
    return [*lines, f"SwitchName=spine Switches={','.join(f'rack{rack}' for rack in placed.racks)}"]


def _names(placed: PlacedNodes, nodes: Iterable[int]) -> str:
    return ",".join(placed.names[node] for node in nodes)


def options(placed: PlacedNodes) -> list[str]:
    """Options of `sbatch` that keep the plan's nodes, in whole segments of blocks."""
    return [
        f"--nodes={len(placed.used)}",
        f"--nodelist={_names(placed, placed.used)}",
        f"--segment={placed.segment}",
    ]


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """topology.yaml and topology.conf, the options, and a line of the host file for every rank."""
    import yaml

    placed, title = placed_nodes(envelope, decision), plan_title(envelope)
    hosts = [placed.names[node] for node in placed.ranks]
    racks = len({placed.rack_of_node[node] for node in placed.used})
    header = [
        title,
        "Processes in rank order: SLURM_HOSTFILE=hostfile srun --distribution=arbitrary.",
        f"Under a tree, and before release 24.05, --switches={racks} stands in place of --segment.",
    ]
    return {
        "topology.yaml": commented([title]) + yaml.safe_dump(topology(placed), sort_keys=False, width=10_000),
        "topology.conf": commented([title, "For TopologyPlugin=topology/tree."]) + "\n".join(switches(placed)) + "\n",
        "slurm-options": commented(header) + "\n".join(f"#SBATCH {option}" for option in options(placed)) + "\n",
        "hostfile": "\n".join(hosts) + "\n",
    }


TARGETS = (
    EmitTarget(
        "slurm-topology",
        "Slurm's topology.yaml and topology.conf, the options of a job that keep the plan's nodes, and its host file",
        ("serve", "train", "rl", "experts"),
        files,
    ),
)
