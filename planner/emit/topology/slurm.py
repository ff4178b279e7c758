"""Emits what Slurm reads of a topology: topology.yaml, options of a job, and its host file.

Names of fields are those of Slurm's manual, topology.yaml(5) of release 25.05: `block` with `block_sizes` and `blocks`,
`tree` with `switches`. Older releases read neither the file nor `--segment` (24.05 and later).
"""

from planner.emit.documents import commented, plan_title
from planner.emit.registry import EmitTarget
from planner.emit.topology.nodes import PlacedNodes, placed_nodes
from planner.plan.schema import Decision, Envelope


def topology(placed: PlacedNodes) -> list[dict[str, object]]:
    """Racks as blocks, and as the leaf switches of a tree; nodes out of service are left out."""
    rows = {f"rack{rack}": ",".join(placed.names[node] for node in nodes) for rack, nodes in placed.racks.items()}
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


def options(placed: PlacedNodes) -> list[str]:
    """Options of `sbatch` that keep the plan's nodes, in whole segments of blocks."""
    return [
        f"--nodes={len(placed.used)}",
        f"--nodelist={','.join(placed.names[node] for node in placed.used)}",
        f"--segment={placed.segment}",
    ]


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """topology.yaml, the options, and a line of the host file for every rank."""
    import yaml

    placed, title = placed_nodes(envelope, decision), plan_title(envelope)
    hosts = [placed.names[node] for node in placed.ranks]
    racks = len({placed.rack_of_node[node] for node in placed.used})
    header = [
        title,
        "Processes in rank order: SLURM_HOSTFILE=hostfile srun --distribution=arbitrary.",
        f"Under the tree of topology.yaml --switches={racks} stands in place of --segment.",
    ]
    return {
        "topology.yaml": commented([title]) + yaml.safe_dump(topology(placed), sort_keys=False, width=10_000),
        "slurm-options": commented(header) + "\n".join(f"#SBATCH {option}" for option in options(placed)) + "\n",
        "hostfile": "\n".join(hosts) + "\n",
    }


TARGETS = (
    EmitTarget(
        "slurm-topology",
        "Slurm's topology.yaml, the options of a job that keep the plan's nodes, and its host file",
        ("serve", "train", "rl", "experts"),
        files,
    ),
)
