"""`planner execute` on every node of a job, as a script for SLURM and as one for Ray."""

import json
import shlex
from collections.abc import Sequence

from planner.execute.launch import Rendezvous

_SLURM = """#!/bin/bash
#SBATCH --job-name=planner-execute
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={ranks}
#SBATCH --exclusive
set -euo pipefail
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export master
srun --kill-on-bad-exit=1 bash -c {command}
"""

_RAY = '''"""Runs `planner execute` on {nodes} nodes: `ray job submit --working-dir . -- python THIS_FILE`."""

import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

COMMAND = {command}
NODES, RANKS = {nodes}, {ranks}


def run(node, master):
    """The exit code of this node's part."""
    return subprocess.call([*COMMAND, "--node-rank", str(node), "--master-addr", master])


def address():
    """Of the node that this runs on."""
    return ray.util.get_node_ip_address()


ray.init()
group = placement_group([{{"CPU": 1, "GPU": RANKS}}] * NODES, strategy="STRICT_SPREAD")
ray.get(group.ready())


def on(node, function, num_gpus):
    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
    return ray.remote(function).options(num_cpus=1, num_gpus=num_gpus, scheduling_strategy=place)


master = ray.get(on(0, address, 0).remote())
codes = ray.get([on(node, run, RANKS).remote(node, master) for node in range(NODES)])
sys.exit(max(codes))
'''


def slurm_script(plan: str, meeting: Rendezvous, arguments: Sequence[str]) -> str:
    """A script for sbatch: one task a node, the first of which the others meet."""
    command = shlex.join([*_command(plan, meeting), *arguments])
    command += ' --node-rank "$SLURM_NODEID" --master-addr "$master"'
    return _SLURM.format(nodes=meeting.num_nodes, ranks=meeting.ranks_per_node, command=shlex.quote(command))


def ray_script(plan: str, meeting: Rendezvous, arguments: Sequence[str]) -> str:
    """A program that places one task on each of as many nodes of a Ray cluster, and waits for all of them."""
    return _RAY.format(
        nodes=meeting.num_nodes,
        ranks=meeting.ranks_per_node,
        command=json.dumps([*_command(plan, meeting), *arguments]),
    )


def _command(plan: str, meeting: Rendezvous) -> list[str]:
    places = ["--nnodes", str(meeting.num_nodes), "--nproc-per-node", str(meeting.ranks_per_node)]
    return ["planner", "execute", plan, *places, "--master-port", str(meeting.master_port)]
